"""The page: `results/index.html` with every table and figure in it, fetched from nowhere; tables.md says the same."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gloronet.report import html
from gloronet.report.html import Markup, tag
from gloronet.report.style import ATTACKED
from gloronet.reproduce import paper, tables, text
from gloronet.reproduce.audit import ALARM
from gloronet.reproduce.figures import Drawing, drawings
from gloronet.reproduce.records import Record, mean, read
from gloronet.reproduce.rows import FAMILIES, NOT_MEASURED
from gloronet.reproduce.table import CSS, Table, markdown

TITLES = {
    "main": "Clean, attacked, proved",
    "relu": "ReLU networks",
    "cost": "What it costs",
    "lipschitz": "Lipschitz constants",
    "tightness-vs-iterations": "Power iterations in training",
}
_FIGURES = {"main": "certified_accuracy", "cost": "vra_against_seconds", "lipschitz": "lipschitz"}

_CLAIM = (
    "VRA is the share of test images that are right and certified at ε. A bound is proved from above in outward-"
    "rounded float64, for the exact function of the stored weights (real) or for the float32 network on a CPU; an "
    "estimate rests on power iteration, which approaches the norm from below, and certifies nothing. The paper's "
    "protocol is such an estimate, and so has a column of its own. The difference is ours by bounds, real, minus the "
    "paper's VRA, in points. Numbers are means of the seeds, with the least and the greatest in brackets; a dash is "
    "what was not measured, or not printed."
)


def write(folder: Path) -> Path:
    """Writes index.html, tables.md, and figures/*.png with their rows as CSV; returns the page's path.

    Everything is made before anything is written, so an unreadable record leaves the earlier page as it was.
    """
    folder = Path(folder)
    records = read(folder)
    made = {name: table(folder) for name, table in tables.TABLES.items()}
    drawn = [(drawing, drawing.png) for drawing in drawings(folder)]
    page = _page(records, made, drawn)
    folder.mkdir(parents=True, exist_ok=True)
    for drawing, png in drawn:
        if png is not None and drawing.csv is not None:
            (folder / "figures").mkdir(exist_ok=True)
            _put(folder / "figures" / f"{drawing.name}.png", png)
            _put(folder / "figures" / f"{drawing.name}.csv", drawing.csv)
    _put(folder / "tables.md", _markdown(made).encode("utf-8"))
    _put(folder / "index.html", page.encode("utf-8"))
    return folder / "index.html"


def _page(records: list[Record], made: dict[str, list[Table]], drawn: list[tuple[Drawing, bytes | None]]) -> str:
    parts = [_head(records), tag("div", tag("p", tag("b", "How to read this. "), _CLAIM), kind="claim")]
    for name, found in made.items():
        figures = [_figure(drawing, png) for drawing, png in drawn if drawing.name == _FIGURES.get(name)]
        alarms = [tag("p", note, kind="alarm") for table in found for note in table.notes if note.startswith(ALARM)]
        parts.append(html.section(TITLES[name], *alarms, *figures, *(table.html() for table in found)))
    parts += [_chosen(records), _provenance(records)]
    return html.document("The paper, row by row · gloronet", html.join(parts), CSS + _CSS)


def _head(records: list[Record]) -> Markup:
    cards = [_card(data, next((r for r in records if r.row == f"tuned/{data.slug}"), None)) for data in paper.DATA]
    return html.join(
        [
            tag(
                "header",
                tag("p", "gloronet reproduce", kind="kicker"),
                tag("h1", "The paper, row by row"),
                tag("p", "Globally-Robust Neural Networks (Leino, Wang, Fredrikson, ICML 2021) and this library, "
                         "side by side: same networks, same ε, certified by bounds", kind="sub"),
            ),
            tag("div", *cards, kind="cards"),
        ]
    )  # fmt: skip


def _card(data: paper.DataSet, record: Record | None) -> Markup:
    """A headline: VRA by bounds with our settings, and how far that is from the paper's."""
    printed = paper.training(data.slug)[FAMILIES["tuned"].paper].vra
    ours = record.values("accuracy", "vra", "real") if record else []
    if not ours:
        return html.card(f"VRA, {data.title}", "–", f"{NOT_MEASURED} here; paper {printed} %")
    note = f"paper {printed} %: {text.difference(mean(ours), printed)} points, {text.seeds(len(ours))}"
    return html.card(f"VRA, {data.title}", f"{text.percent(mean(ours))} %", note, "main")


def _figure(drawing: Drawing, png: bytes | None) -> Markup:
    if png is None:
        return tag("p", f"Not drawn: {drawing.lacking}.", kind="missing")
    return html.figure(png, drawing.title, tag("b", drawing.title, ". "), drawing.caption)


def _chosen(records: list[Record]) -> Markup:
    rows = [(r.row, r.chosen or "not recorded") for r in records]
    if not rows:
        return html.section("How settings were chosen", tag("p", "There are no records yet.", kind="missing"))
    return html.section("How settings were chosen", html.table(("row", "as its record says"), rows, "text"))


def _provenance(records: list[Record]) -> Markup:
    facts = [
        f"{name} {', '.join(found)}"
        for name, key in (("gloronet", "version"), ("commit", "commit"), ("on", "hardware"))
        if (found := _said(records, key))
    ]
    lines = [tag("p", " · ".join(facts))] if facts else []
    sources = f"{len(records)} records. Every number of ours is computed from the JSON files beside this page."
    return tag("footer", *lines, tag("p", sources))


def _said(records: Iterable[Record], key: str) -> list[str]:
    groups = ("training", "accuracy", "attack", "cost", "lipschitz", "smoothing")
    return sorted({said for record in records for group in groups for said in record.texts(group, key)})


def _markdown(made: dict[str, list[Table]]) -> str:
    parts = ["# The paper, row by row"]
    for name, found in made.items():
        parts += [f"## {TITLES[name]}", markdown(found)]
    return "\n\n".join(parts) + "\n"


def _put(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)


_CSS = f"""
main {{ max-width: 1300px; }}
figure img {{ max-width: 900px; }}
figcaption, .note-line {{ max-width: 76em; }}
section h3 {{ font-size: 1.02rem; margin-top: 1.9em; }}
.card .label {{ min-height: 2.9em; }}
.alarm {{ border-left-color: {ATTACKED}; }}
@media (max-width: 640px) {{ .card .label {{ min-height: 0; }} }}
"""
