"""One look for every figure: colours that colour-blind readers can tell apart, thin grids, twice the pixels.

Colours are those of Okabe and Ito. A hue keeps its meaning through the whole report: blue is proved,
vermillion is attacked or wrong, grey is ⊥, green is only estimated.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Rows = TypeVar("Rows")

PROVED, ATTACKED, ESTIMATED = "#0072B2", "#D55E00", "#009E73"
INK, MUTED, GRID, BOTTOM = "#1c2733", "#5b6775", "#e4e8ed", "#59626e"
CLASSES = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#8C6BB1")
MARKERS = "os^Dv<>P"
DPI = 200
WIDTH = 5.8  # inches: narrow enough that its text can still be read on a phone

_RC: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so the figures look the same everywhere
    "font.size": 10,
    "text.usetex": False,
    "text.parse_math": False,  # a "$" in a class name is a dollar
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#b9c1ca",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": "#b9c1ca",
    "ytick.color": "#b9c1ca",
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 2.0,
    "legend.frameon": False,
    "legend.fontsize": 10,
}


def png(paint: Callable[[Figure, Rows], None], rows: Rows) -> bytes:
    """What `paint` draws of the rows on a fresh figure, as PNG bytes; no pyplot, no state left behind."""
    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a class name in a script the font lacks: boxes
        figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
        paint(figure, rows)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
    return buffer.getvalue()


def percent_axis(ax: Axes) -> None:
    """y from 0 to 100 %, for shares given between 0 and 1."""
    ax.set_ylim(0, 1.04)
    ax.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0], labels=["0", "20", "40", "60", "80", "100 %"])


def mark_epsilon(ax: Axes, epsilon: float, text: str) -> None:
    """A dashed line at ε with its name on top of the axes; no name where `text` is empty."""
    ax.axvline(epsilon, color=INK, linewidth=1.1, linestyle=(0, (4, 3)))
    if not text:
        return
    ax.annotate(
        f"ε = {text}",
        (epsilon, 1),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="center",
    )
