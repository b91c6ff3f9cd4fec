"""A comparison as files: `compare.html`, one page fetched from nowhere, and the figure with the rows behind it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gloronet.compare import tables
from gloronet.compare.sides import Side
from gloronet.config import parse_epsilon
from gloronet.errors import ConfigError
from gloronet.report import html, style
from gloronet.report.html import Markup, tag
from gloronet.report.rows import NORMS
from gloronet.reproduce import painters
from gloronet.reproduce.table import CSS
from gloronet.train.checkpoint import write_atomically

PAGE, FIGURE, ROWS = "compare.html", "certified_accuracy.png", "certified_accuracy.csv"
_KICKER = tag("p", "gloronet compare", kind="kicker")
_COLOURS = tuple(colour for colour in style.CLASSES if colour != "#F0E442")  # yellow is no line on white
_DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.2)), (0, (6, 2, 1.2, 2)))

_CLAIM = (
    "Shares are in per cent of the test samples. VRA is the share that is right and certified at ε, by bounds proved "
    "from above; “real” speaks of the exact function of the stored weights, “float32” of the network as it runs on a "
    "CPU. In the mean radius a wrong answer counts 0. K bounds the network up to its last hidden layer, K_ij how fast "
    "one logit can gain on another. A dash is what was not measured."
)


def require_ours(out: Path) -> None:
    """A folder that is new, empty, or an earlier comparison."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    earlier = out / PAGE
    if not (earlier.is_file() and _KICKER.encode() in earlier.read_bytes()):
        raise ConfigError(f"{out} is there and holds no comparison of ours; choose another folder with --out.")


def write(sides: Sequence[Side], differences: dict[str, list[Any]], notes: Sequence[str], out: Path) -> Path:
    """Everything is made before anything is written; each file then appears whole."""
    png = _png(sides) if any(side.curve is not None for side in sides) else None
    content = {PAGE: _page(sides, differences, notes, png).encode("utf-8", "replace")}  # a path may be no Unicode
    if png is not None:
        content |= {FIGURE: png, ROWS: _rows(sides)}
    out.mkdir(parents=True, exist_ok=True)
    for name, data in content.items():
        write_atomically(out / name, data)
    for name in {FIGURE, ROWS} - content.keys():  # of an earlier comparison
        (out / name).unlink(missing_ok=True)
    return out / PAGE


def _page(sides: Sequence[Side], differences: dict[str, list[Any]], notes: Sequence[str], png: bytes | None) -> str:
    names = [side.row.name for side in sides]
    shown = tables.table([side.row for side in sides])
    heading = " and ".join(names) if len(names) <= 2 else f"{len(names)} runs"
    parts = [
        tag("header", _KICKER, tag("h1", heading), tag("p", shown.title, kind="sub")),
        replace(shown, title="").html(),
        *(tag("p", note, kind="note-line") for note in notes),
        tag("div", tag("p", tag("b", "How to read this. "), _CLAIM), kind="claim"),
        html.section("Certified accuracy against radius", _figure(png)),
        html.section("What differs in their settings", _differences(names, differences)),
        tag("footer", *(tag("p", f"{side.row.name}: {side.row.run}, {_machine(side)}") for side in sides)),
    ]
    return html.document(f"{heading} · gloronet", html.join(parts), CSS + _CSS)


def _figure(png: bytes | None) -> Markup:
    if png is None:
        return html.missing("There is no curve: none of these holds certificates.csv.", "gloronet certify RUN")
    caption = (
        "At each radius r, the share of the test samples that are right and proved stable beyond r. A dot is the VRA "
        "at the ε of its run. The steps are in ", tag("code", ROWS), ".",
    )  # fmt: skip
    return html.figure(png, "Certified accuracy falls as the radius grows, a curve for each run", *caption)


def _differences(names: Sequence[str], differences: dict[str, list[Any]]) -> Markup:
    if not differences:
        return tag("p", "Nothing: their settings are the same.", kind="missing")
    rows = [(tag("code", key), *tables.written(values)) for key, values in differences.items()]
    return html.table(("config.toml", *names), rows, "text")


def _machine(side: Side) -> str:
    return f"trained on {side.row.hardware}" if side.row.hardware else "trained on a machine not recorded"


def _png(sides: Sequence[Side]) -> bytes:
    """All curves on one figure, a panel for each data set and norm; ε is in a name where it is not the same for all."""
    several = len({parse_epsilon(side.row.epsilon) for side in sides}) > 1
    far = 10 * max(float(side.curve[0][-1]) for side in sides if side.curve is not None) or 1.0
    curves, looks = [], {}
    for k, side in enumerate(sides):
        if side.curve is None:
            continue
        row, (radius, share) = side.row, side.curve
        label = f"{row.name}, ε = {row.epsilon}" if several else row.name
        looks[label] = {
            "color": _COLOURS[k % len(_COLOURS)], "linestyle": _DASHES[k // len(_COLOURS) % len(_DASHES)],
            "linewidth": 1.8, "drawstyle": "steps-post",
        }  # fmt: skip
        radius, share = np.append(radius, far), np.append(share, share[-1])  # the last step holds for ever
        norm = NORMS[row.norm]
        panel = row.data if row.norm == "l2" else f"{row.data}, {norm}"
        at_epsilon = float(share[np.searchsorted(radius, parse_epsilon(row.epsilon), side="right") - 1])
        curves.append(painters.Curve(panel, label, radius, share, at_epsilon, row.epsilon, norm))
    return style.png(partial(painters.overlay, look=looks.__getitem__), curves)


def _rows(sides: Sequence[Side]) -> bytes:
    """The curves as drawn, one line a step."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("run", "radius", "share"))
    for side in sides:
        for radius, share in zip(*(side.curve or ((), ())), strict=True):
            out.writerow((side.row.name, repr(float(radius)), repr(float(share))))
    return text.getvalue().encode("utf-8")


_CSS = """
main { max-width: 1180px; }
figure img { max-width: 900px; }
.claim { margin-top: 22px; }
table.results { font-size: .86rem; }
table.results tbody th { min-width: 7em; overflow-wrap: anywhere; }
table.results td.text { min-width: 3em; }
table.text th:first-child { width: auto; }
table.text th code { white-space: nowrap; }
"""
