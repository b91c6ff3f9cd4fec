"""Theorem 3 of the paper, executable: on 2ε-separated data a *global* Lipschitz constant is enough.

Let S be finitely many labelled points of the plane, and B the boundary of the 1-nearest-neighbour classifier:
those faces of the Voronoi tessellation of S that part cells of different labels. With d(x) the distance
from x to B, the theorem's classifier is

    two classes:  g(x) = ±d(x)/ε,  the sign being the label of the nearest point of S;
    m classes:    g_j(x) = d(x)/ε for that label j, and g_i(x) = 0 for the others.

Then g, and every g_j − g_i, has the global Lipschitz constant 1/ε; and where points of different labels are
more than 2ε apart, every point of S is certified at ε by that one number.

    python docs/theorem3.py        # checks it, and draws docs/theorem3.png
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch
from numpy.typing import NDArray

from gloronet.report import style

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Face:
    """Where two points of S are nearest, and equally: middle + t·along, start ≤ t ≤ stop, which may be ±∞."""

    middle: Array
    along: Array
    start: float
    stop: float

    def foot(self, x: Array) -> Array:
        """The nearest point of the face to each x: a projection, clipped. Nothing is approximated."""
        t = np.clip((x - self.middle) @ self.along, self.start, self.stop)
        return self.middle + t[..., None] * self.along

    def distance(self, x: Array) -> Array:
        return np.hypot(*np.moveaxis(self.foot(x) - x, -1, 0))


@dataclass(frozen=True)
class Construction:
    """The theorem's classifier for labelled points (n, 2); it may be asked anywhere in the plane."""

    points: Array
    labels: Labels
    epsilon: float

    @property
    def constant(self) -> float:
        """K_G, the global Lipschitz constant of g, and K_ij of every pair of classes."""
        return 1.0 / self.epsilon

    @cached_property
    def boundary(self) -> list[Face]:
        """B: the faces between cells of different labels."""
        return list(faces(self.points, self.labels))

    def label(self, x: Array) -> Labels:
        """The label of the nearest point p of S, where ‖p‖²/2 − x·p is least."""
        return self.labels[((self.points**2).sum(1) / 2 - x @ self.points.T).argmin(1)]

    def distance(self, x: Array) -> Array:
        """d(x), the distance to B: no classifier with these regions is robust at x any farther."""
        least = np.full(len(x), np.inf)
        for face in self.boundary:
            np.minimum(least, face.distance(x), out=least)
        return least

    def foot(self, x: Array) -> Array:
        """The nearest point of B to each row of x."""
        nearest = np.argmin([face.distance(x) for face in self.boundary], axis=0)
        return np.array([self.boundary[k].foot(row) for k, row in zip(nearest, x, strict=True)])

    def g(self, x: Array) -> Array:
        """Two classes, 0 and 1: the signed distance to B divided by ε, positive for label 1."""
        return np.where(self.label(x) == 1, 1.0, -1.0) * self.distance(x) / self.epsilon

    def logits(self, x: Array) -> Array:
        """m classes: d(x)/ε in the column of the nearest point's label, 0 elsewhere."""
        y = np.zeros((len(x), self.labels.max() + 1))
        y[np.arange(len(x)), self.label(x)] = self.distance(x) / self.epsilon
        return y

    def radius(self, x: Array) -> Array:
        """The certified radius, min over i ≠ j of (g_j − g_i)/K_ij; certified at ε where it is above ε."""
        low, high = np.sort(self.logits(x), axis=1)[:, -2:].T
        return (high - low) / self.constant


def faces(points: Array, labels: Labels) -> Iterator[Face]:
    """The faces F_ij of the Voronoi tessellation with different labels on its two sides.

    On the bisector of p_i and p_j, at m + t·v with m their middle, p_k is no nearer than they are where
    2t·v·(p_k − m) ≤ ‖p_k − m‖² − ‖p_i − m‖²: each k cuts the line once, and an interval is left, or nothing.
    """
    for i, j in combinations(range(len(points)), 2):
        if labels[i] == labels[j]:
            continue
        middle, across = (points[i] + points[j]) / 2, points[j] - points[i]
        half = math.hypot(*across) / 2
        if half == 0:
            raise ValueError(f"Point {tuple(points[i])} has two labels: no classifier is right on both.")
        along = np.array([-across[1], across[0]]) / (2 * half)
        others = np.delete(points, (i, j), axis=0) - middle
        slope, room = 2 * others @ along, (others**2).sum(1) - half**2
        if (room[slope == 0] < 0).any():
            continue
        start = np.max(room[slope < 0] / slope[slope < 0], initial=-np.inf)
        stop = np.min(room[slope > 0] / slope[slope > 0], initial=np.inf)
        if start < stop:  # a face that is one point is the end of two that are not
            yield Face(middle, along, float(start), float(stop))


def separation(points: Array, labels: Labels) -> float:
    """The least distance between two points of different labels; the theorem wants it above 2ε."""
    apart = np.hypot(*np.moveaxis(points[:, None] - points, 2, 0))
    return float(apart[labels[:, None] != labels].min())


# What is checked


def pairs(c: Construction, n: int, rng: np.random.Generator) -> Iterator[tuple[Array, Array]]:
    """Pairs of inputs to try a constant on: any, near, across the boundary, and straight towards it.

    None are so near that the roundings of g would be more than 1e-9 of the ratio.
    """
    x = rng.uniform(-0.5, 1.5, (n, 2))
    foot, turn = c.foot(x), _directions(n, rng)
    yield x, rng.uniform(-0.5, 1.5, (n, 2))
    yield x, x + 10.0 ** rng.uniform(-5, -1, (n, 1)) * turn
    yield foot - rng.uniform(0.001, 0.1, (n, 1)) * turn, foot + rng.uniform(0.001, 0.1, (n, 1)) * turn
    yield x, x + rng.uniform(0.1, 0.9, (n, 1)) * (foot - x)


def steepest(f: Callable[[Array], Array], tries: Iterator[tuple[Array, Array]]) -> Array:
    """The largest |f(x) − f(z)|/‖x − z‖ of each output of f over all pairs: a constant from below."""
    return np.max([(np.abs(f(x) - f(z)).T / np.hypot(*(x - z).T)).max(-1) for x, z in tries], axis=0)


def differences(c: Construction) -> Callable[[Array], Array]:
    """x ↦ g_j − g_i for every pair of classes i < j."""
    i, j = np.triu_indices(c.labels.max() + 1, 1)

    def f(x: Array) -> Array:
        y = c.logits(x)
        return y[:, j] - y[:, i]

    return f


def local(c: Construction, x: Array, radius: float) -> Array:
    """The local Lipschitz constant of g within `radius` of each x, from below: g falls fastest towards B."""
    foot, d = c.foot(x), c.distance(x)[:, None]
    z = x + np.minimum(radius / d, 1) / 2 * (foot - x)
    return (c.distance(x) - c.distance(z)) / c.epsilon / np.hypot(*(x - z).T)


def report(c: Construction) -> dict[str, str]:
    """The theorem's claims about one set, in numbers."""
    s, n = c.points, len(c.points)
    found = steepest(differences(c), pairs(c, 4000, np.random.default_rng(0))) * c.epsilon
    radius = c.radius(s)
    return {
        "points of S, classes": f"{n}, {c.labels.max() + 1}",
        "ε": f"{c.epsilon:g}",
        "least distance between different labels": f"{separation(s, c.labels) / c.epsilon:.4f} ε",
        "right on S": f"{(c.label(s) == c.labels).sum()} of {n}",
        "least margin on S (ε·K_ij = 1 is too little)": f"{c.logits(s).max(1).min():.4f}",
        "K_ij, steepest of 16000 pairs: least": f"{found.min():.6f}/ε",
        "K_ij, steepest of 16000 pairs: largest": f"{found.max():.6f}/ε",
        "local constant within ε of S: least": f"{local(c, s, c.epsilon).min() * c.epsilon:.6f}/ε",
        "certified at ε": f"{(radius > c.epsilon).sum()} of {n}",
        "certified at 1.25 ε (S is not 2.5 ε-separated)": f"{(radius > 1.25 * c.epsilon).sum()} of {n}",
    }


def _directions(n: int, rng: np.random.Generator) -> Array:
    angle = rng.uniform(0, 2 * math.pi, n)
    return np.stack([np.cos(angle), np.sin(angle)], 1)


# The two sets that are drawn


def two_classes() -> Construction:
    """Two arms wound around each other."""
    return scattered(lambda r, turn: int((2.1 * r + turn) % 1 < 0.5), seed=11)


def four_classes() -> Construction:
    """A pinwheel of four wings."""
    return scattered(lambda r, turn: int(4 * (0.8 * r + turn) % 4), seed=1)


def scattered(label: Callable[[float, float], int], seed: int, epsilon: float = 0.05) -> Construction:
    """Random points of the unit square, 2.1 ε apart, labelled by their distance and turn about its middle."""
    kept: list[tuple[float, float]] = []
    for x, y in np.random.default_rng(seed).uniform(0.06, 0.94, (4000, 2)):
        if all(math.hypot(x - a, y - b) > 2.1 * epsilon for a, b in kept):
            kept.append((x, y))
    polar = [(math.hypot(x - 0.5, y - 0.5), math.atan2(y - 0.5, x - 0.5) / math.tau) for x, y in kept]
    return Construction(np.array(kept), np.array([label(r, turn) for r, turn in polar]), epsilon)


# The picture

LINE = np.array([[0.09, 0.664], [0.94, 0.324]])
"""A and B, the ends of the line along which g is drawn."""
BAND = to_rgb("#c3c8cf")
STRONG: dict[str, Any] = {"color": style.INK, "linewidth": 1.8, "solid_capstyle": "round"}


def paint(figure: Figure, sets: list[Construction]) -> None:
    """Both sets side by side; below them g along a line through the first."""
    figure.set_size_inches(9.2, 8.7)
    above, below = figure.subfigures(2, 1, height_ratios=[5.4, 3.3])
    axes = above.subplots(1, 2)
    for ax, c, title in zip(axes, sets, ("Two classes", "Four classes"), strict=True):
        regions(ax, c)
        ax.set_title(title)
    axes[0].plot(*LINE.T, color=style.INK, linewidth=1.2, linestyle=(0, (5, 3)))
    for name, end, shift in zip("AB", LINE, (-0.025, 0.025), strict=True):
        axes[0].text(end[0] + shift, end[1], name, ha="center", va="center", weight="bold")
    section(below.subplots(), sets[0])
    ball: dict[str, Any] = {"marker": "o", "markersize": 11, "markerfacecolor": "white", "linestyle": ""}
    marks = [
        Line2D([], [], **STRONG, label="boundary of the nearest neighbour's label"),
        Patch(color=BAND, label="⊥: within ε of the boundary"),
        Line2D([], [], **ball, color=style.CLASSES[0], label="a ball of radius ε"),
    ]
    above.legend(handles=marks, loc="outside lower left", ncols=3)


def regions(ax: Axes, c: Construction, side: int = 400) -> None:
    """The answers at ε, a shade darker with each ε of distance to B; ⊥ where d ≤ ε; S with its ε-balls."""
    ticks = np.linspace(0, 1, side)
    x = np.stack(np.meshgrid(ticks, ticks), 2).reshape(-1, 2)
    label, level = c.label(x), c.distance(x) / c.epsilon
    ax.set_facecolor(BAND)
    for k in range(c.labels.max() + 1):
        inside = np.where(label == k, level, -level).reshape(side, side)
        colour = np.array(to_rgb(style.CLASSES[k]))
        shades = [1 - share * (1 - colour) for share in (0.22, 0.36, 0.5, 0.64, 0.78)]
        ax.contourf(ticks, ticks, inside, [1, 2, 3, 4, 5, 99], colors=shades)
    for face in c.boundary:
        ends = np.clip([face.start, face.stop], -3, 3)[:, None]
        ax.plot(*(face.middle + ends * face.along).T, **STRONG)
    for point, k in zip(c.points, c.labels, strict=True):
        colour, marker = style.CLASSES[k], style.MARKERS[k]
        ax.add_patch(Circle(tuple(point), c.epsilon, facecolor=(1, 1, 1, 0.28), edgecolor=colour))
        ax.plot(*point, marker, color=colour, markersize=5.5, markeredgecolor="white", markeredgewidth=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)


def section(ax: Axes, c: Construction) -> None:
    """g from A to B. The horizontal axis is in ε, so that the slope 1/ε is 45°."""
    length = math.hypot(*(LINE[1] - LINE[0])) / c.epsilon
    t = np.linspace(0, length, 4001)
    g = c.g(LINE[0] + t[:, None] / length * (LINE[1] - LINE[0]))
    ax.axhspan(-1, 1, color=BAND, linewidth=0)
    ax.axhline(0, **STRONG)
    for k, beyond in enumerate((g < -1, g > 1)):
        ax.fill_between(t, 2 * k - 1, g, where=beyond, color=style.CLASSES[k], alpha=0.4, linewidth=0)
    ax.plot(t, g, color=style.INK)
    ax.set_title("g along the line from A to B: 45° is the slope 1/ε, and nowhere is it steeper")
    ax.set(xlim=(0, length), ylim=(-3.2, 3.2), aspect="equal", xlabel="distance from A, in ε", ylabel="g")
    ax.set_xticks(range(0, int(length) + 1, 2))
    ax.annotate("⊥", (length, 0.5), (-6, 0), textcoords="offset points", ha="right", va="center", size=13)
    ax.grid(visible=False)


def main(folder: Path = Path(__file__).parent) -> None:
    """Prints the numbers of both sets and draws them into `folder`."""
    sets = [two_classes(), four_classes()]
    columns = [report(c) for c in sets]
    for name in columns[0]:
        print(f"{name:<46}" + "".join(f"{column[name]:>14}" for column in columns))
    (folder / "theorem3.png").write_bytes(style.png(paint, sets))


if __name__ == "__main__":
    main()
