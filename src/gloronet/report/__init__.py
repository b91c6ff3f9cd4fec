"""Rows → tables, figures, report.html. Reads the files of a run folder and never touches a model.

`write(run)` turns what lies in the folder into `figures/` and one self-contained `report.html`;
`curve` and `summary_table` are the pieces of it that others use.
"""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path

from gloronet.report import figures, gallery
from gloronet.report.counts import curve, summary_table
from gloronet.report.page import render
from gloronet.report.rows import Run, read
from gloronet.report.style import png

__all__ = ["curve", "summary_table", "write"]


def write(run: Path) -> Path:
    """Writes `run/figures/*` and `run/report.html` from the files in `run`; returns the report's path.

    Needs `config.toml` and `certificates.csv`; a section whose file is missing says which command adds it.
    Nothing is written unless every file that is there can be read; each file then appears whole.
    """
    run = Path(run)
    rows = read(run)
    painters = {"certified_accuracy.png": figures.certified_accuracy, "radii.png": figures.radii}
    if rows.metrics is not None:
        painters["training.png"] = figures.training
    if rows.regions is not None:
        painters["regions.png"] = figures.regions
    if rows.gallery is not None and rows.gallery.drawable:
        painters["gallery.png"] = gallery.sheet
    images = {name: png(paint, rows) for name, paint in painters.items()}
    page = render(rows, images)

    (run / "figures").mkdir(exist_ok=True)
    for name, data in images.items():
        _put(run / "figures" / name, data)
    _put(run / "figures" / "certified_accuracy.csv", _curve_rows(rows))
    _put(run / "report.html", page.encode("utf-8"))
    return run / "report.html"


def _curve_rows(rows: Run) -> bytes:
    """The curves as drawn, one line a step: curve, radius, share."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(("curve", "radius", "share"))
    for name, (radius, share) in figures.curves(rows).items():
        out.writerows((name, repr(float(r)), repr(float(s))) for r, s in zip(radius, share, strict=True))
    return text.getvalue().encode("utf-8")


def _put(path: Path, data: bytes) -> None:
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    os.replace(part, path)
