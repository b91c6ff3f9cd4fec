"""How figures look: (figure, rows) → nothing but ink.

A colour is a kind of row in every figure; hollow marks are the paper's, filled ones ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from gloronet.config import parse_epsilon
from gloronet.report import style
from gloronet.report.files import Array
from gloronet.report.rows import NORMS
from gloronet.reproduce.points import ConstantRow, CurveRow, SpeedRow
from gloronet.reproduce.rows import FAMILIES

_COLOURS = {
    "tuned": style.PROVED,
    "minmax": "#56B4E9",
    "tuned-relu": "#8C6BB1",
    "relu-ce": "#E69F00",
    "relu-trades": "#CC79A7",
    "standard": style.BOTTOM,
}
_BY_LABEL = {FAMILIES[name].label: colour for name, colour in _COLOURS.items()}
_SPARE = ("#0B3C5D", "#7A9E3B", "#A0522D", "#B8860B")


@dataclass(frozen=True)
class Curve:
    """A line of `overlay`: certified accuracy against radius, and the VRA at its own ε."""

    data: str
    row: str
    radius: Array
    certified: Array
    vra: float
    epsilon: str
    norm: str = NORMS["l2"]


def curves(figure: Figure, rows: Sequence[CurveRow]) -> None:
    def look(label: str) -> dict[str, Any]:
        return {"color": _colour(label, rows), "linewidth": 2.4 if label.endswith("our settings") else 1.7}

    found = []
    for data, label in dict.fromkeys((row.data, row.row) for row in rows):
        own = [row for row in rows if (row.data, row.row) == (data, label)]
        radius, certified = np.array([r.radius for r in own]), np.array([r.certified for r in own])
        found.append(Curve(data, label, radius, certified, own[0].vra, own[0].epsilon))
    overlay(figure, found, look)


def overlay(figure: Figure, rows: Sequence[Curve], look: Callable[[str], dict[str, Any]]) -> None:
    """A panel a data set, with all its curves; the dots are the VRA, each at its own ε."""
    for ax, here in _panels(figure, rows):
        names = {parse_epsilon(text): text for text in {row.epsilon for row in here}}
        widest = max(names)
        end = 2 * widest
        for row in here:
            ax.plot(row.radius, row.certified, **look(row.row))
            ax.plot(parse_epsilon(row.epsilon), row.vra, "o", color=look(row.row)["color"], markersize=6,
                    markeredgecolor="white", zorder=5, clip_on=False)  # fmt: skip
            alive = row.radius[(row.certified > 0.02) & np.isfinite(row.radius)]
            end = max(end, 1.05 * float(alive[-1]) if len(alive) else 0.0)
        end = (min(end, 6 * widest) if widest else end) or 1.0
        style.percent_axis(ax)
        _mark(ax, names, 0.13 * end)
        ax.set_xlim(0, end)
        ax.set_xlabel(f"radius r ({here[0].norm})")
    _legend(figure, rows, lambda label: {k: v for k, v in look(label).items() if k in ("color", "linestyle")})


def speeds(figure: Figure, rows: Sequence[SpeedRow]) -> None:
    for ax, here in _panels(figure, rows):
        for row in here:
            colour = _colour(row.row, rows)
            if row.source == "literature":
                ax.plot(row.seconds, row.vra, "x", color=style.MUTED, markersize=6, markeredgewidth=1.6)
                ax.annotate(row.row, (row.seconds, row.vra), xytext=(6, 0), textcoords="offset points",
                            va="center", color=style.MUTED, fontsize=8.5)  # fmt: skip
                continue
            face = colour if row.source == "ours" else "white"
            ax.plot(row.seconds, row.vra, "o", color=colour, markerfacecolor=face, markersize=8,
                    markeredgewidth=1.8, zorder=5)  # fmt: skip
            other = [p for p in here if p.row == row.row and p.source == "paper"]
            if row.source == "ours" and other:
                ax.annotate("", (row.seconds, row.vra), (other[0].seconds, other[0].vra),
                            arrowprops={"arrowstyle": "->", "color": colour, "alpha": 0.55, "shrinkA": 6,
                                        "shrinkB": 6, "linewidth": 1.2})  # fmt: skip
        _seconds_axis(ax, [row.seconds for row in here])
        ax.yaxis.set_major_locator(MaxNLocator(5))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:.3g} %"))
        ax.margins(y=0.18)
        ax.set_ylim(top=min(ax.get_ylim()[1], 1.0))
        ax.set_xlabel("training, seconds")
    marks = [
        Line2D([], [], marker="o", linestyle="", color=style.INK, label="ours, by bounds"),
        Line2D([], [], marker="o", linestyle="", color=style.INK, markerfacecolor="white", label="the paper's"),
        Line2D([], [], marker="x", linestyle="", color=style.MUTED, label="literature, from the paper"),
    ]
    shown = [row for row in rows if row.source != "literature"]
    _legend(figure, shown, lambda label: {"color": _colour(label, shown), "marker": "o", "linestyle": ""}, marks)


def constants(figure: Figure, rows: Sequence[ConstantRow]) -> None:
    data = list(dict.fromkeys(row.data for row in rows))
    heights = [len({row.row for row in rows if row.data == d}) + 0.9 for d in data]
    figure.set_size_inches(1.55 * style.WIDTH, 0.42 * sum(heights) + 0.7)
    axes = figure.subplots(len(data), 1, squeeze=False, height_ratios=heights)[:, 0]
    for ax, title in zip(axes, data, strict=True):
        labels = list(dict.fromkeys(row.row for row in rows if row.data == title))
        for row in (row for row in rows if row.data == title):
            ours = row.source == "ours"
            y = labels.index(row.row) + (-0.14 if ours else 0.2)
            _bar(ax, row, y, _colour(row.row, rows) if ours else style.MUTED, filled=ours)
        ax.set_xscale("log")
        _plain_ticks(ax)
        ax.set_yticks(range(len(labels)), labels=labels)
        ax.set_ylim(len(labels) - 0.45, -0.55)
        ax.tick_params(axis="y", length=0, labelcolor=style.INK)
        ax.grid(visible=False, axis="y")
        ax.set_title(title)
    axes[-1].set_xlabel("constant of the largest margin, ℓ2 (log)")
    ink: dict[str, Any] = {"color": style.INK, "linestyle": ""}
    marks = [
        Line2D([], [], marker="|", markersize=11, markeredgewidth=2.2, label="global, upper", **ink),
        Line2D([], [], marker="D", markersize=5.5, label="global, lower bound", **ink),
        Line2D([], [], marker="o", markersize=5.5, label="local, mean lower bound", **ink),
        Line2D([], [], marker="D", markersize=5.5, markerfacecolor="white", label="hollow: the paper's", **ink),
    ]
    figure.legend(handles=marks, loc="outside upper left", ncols=4, fontsize=9, handletextpad=0.3)


def _bar(ax: Axes, row: ConstantRow, y: float, colour: str, filled: bool) -> None:
    face = colour if filled else "white"
    if row.upper is not None and row.lower_global is not None:
        ax.plot([row.lower_global, row.upper], [y, y], color=colour, linewidth=3.2 if filled else 1.4,
                alpha=0.35 if filled else 0.8, solid_capstyle="butt")  # fmt: skip
    if row.upper is not None:
        ax.plot(row.upper, y, "|", color=colour, markersize=11 if filled else 8, markeredgewidth=2.2 if filled else 1.4)
    for number, marker in ((row.lower_global, "D"), (row.lower_local, "o")):
        if number is not None:
            ax.plot(number, y, marker, color=colour, markerfacecolor=face, markersize=5.5 if filled else 4.5, zorder=4)


def _mark(ax: Axes, names: dict[float, str], apart: float) -> None:
    """A line at each ε; of two names that would be written over one another only the first."""
    last = -math.inf
    for epsilon in sorted(names):
        room = epsilon - last > apart
        style.mark_epsilon(ax, epsilon, names[epsilon] if room else "")
        last = epsilon if room else last


def _panels(figure: Figure, rows: Sequence[Any]) -> list[tuple[Axes, list[Any]]]:
    """A panel a data set, two in a line, with the rows that belong in it."""
    data = list(dict.fromkeys(row.data for row in rows))
    down, across = math.ceil(len(data) / 2), min(len(data), 2)
    width, height = (1.55 * style.WIDTH, 2.75 * down) if across > 1 else (1.15 * style.WIDTH, 3.6)
    labels = {row.row for row in rows}
    legend = 0.24 * math.ceil(len(labels) / _legend_columns(labels, width)) + 0.25
    figure.set_size_inches(width, height + legend)
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax in axes[len(data) :]:
        ax.set_axis_off()
    panels = []
    for ax, title in zip(axes, data, strict=False):
        ax.set_title(title, pad=18)
        panels.append((ax, [row for row in rows if row.data == title]))
    return panels


def _legend(
    figure: Figure, rows: Sequence[Any], look: Callable[[str], dict[str, Any]], marks: Sequence[Line2D] = ()
) -> None:
    labels = dict.fromkeys(row.row for row in rows)
    columns = _legend_columns(labels, figure.get_figwidth())
    handles = [Line2D([], [], label=label, **look(label)) for label in labels]
    figure.legend(handles=[*handles, *marks], loc="outside upper left", ncols=columns, fontsize=9)


def _legend_columns(labels: Iterable[str], width: float) -> int:
    """Two, where the longest label leaves room for another beside it: some ten letters an inch."""
    return 2 if max(map(len, labels)) < 5 * width else 1


def _colour(label: str, rows: Sequence[Any]) -> str:
    """The colour of its kind; rows of no known kind share out the spare ones."""
    others = [name for name in dict.fromkeys(row.row for row in rows) if name not in _BY_LABEL]
    return _BY_LABEL.get(label) or _SPARE[others.index(label) % len(_SPARE)]


def _seconds_axis(ax: Axes, seconds: list[float]) -> None:
    ax.set_xscale("log")
    low, high = min(seconds), max(seconds)
    ax.set_xlim(low / 1.8, high * 3)  # room for the names right of the crosses
    _plain_ticks(ax)


def _plain_ticks(ax: Axes) -> None:
    """0.1, 10, 1,000 and then 10⁴: readable without being wide (mathematical text is switched off in our style).

    An axis of less than a decade and a half has 2 and 5 as well, lest it show a single number.
    """
    raised = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

    def written(x: float, _: object) -> str:
        if x < 1e4:
            return f"{x:,.10g}"
        power = math.floor(math.log10(x * (1 + 1e-9)))
        times = f"{x / 10**power:.3g}"
        return ("" if times == "1" else f"{times}·") + "10" + str(power).translate(raised)

    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 30 * low else (1.0,), numticks=9))
    ax.xaxis.set_major_formatter(FuncFormatter(written))
    ax.xaxis.set_minor_formatter(NullFormatter())
