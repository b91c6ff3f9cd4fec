"""Theorem 3 of the paper, executable: on 2ε-separated data a *global* Lipschitz constant is enough.

Let S be finitely many labelled points of the plane, and B the boundary of the 1-nearest-neighbour classifier:
those faces of the Voronoi tessellation of S that part cells of different labels. With d(x) the distance
from x to B, the theorem's classifier is

    two classes:  g(x) = ±d(x)/ε,  the sign being the label of the nearest point of S;
    m classes:    g_j(x) = d(x)/ε for that label j, and g_i(x) = 0 for the others.

Then g, and every g_j − g_i, has the global Lipschitz constant 1/ε, and where points of different labels are more
than 2ε apart, every point of S is certified at ε by that one number.

    python docs/theorem3.py        # checks it, and draws docs/theorem3.png
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from gloronet.report import style

Array = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class Face:
    """Where points i and j are nearest of all, equally: middle + t·along, start ≤ t ≤ stop, maybe infinite."""

    middle: Array
    along: Array
    start: float
    stop: float

    def foot(self, x: Array) -> Array:
        """The nearest point of the face to each row of x, exactly: a projection, clipped."""
        t = np.clip((x - self.middle) @ self.along, self.start, self.stop)
        return self.middle + t[:, None] * self.along


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
        """The label of the nearest point of S."""
        squares = ((x[:, None] - self.points) ** 2).sum(2)
        return self.labels[squares.argmin(1)]

    def foot(self, x: Array) -> Array:
        """The nearest point of B."""
        best, least = np.empty_like(x), np.full(len(x), np.inf)
        for face in self.boundary:
            candidate = face.foot(x)
            away = np.hypot(*(candidate - x).T)
            nearer = away < least
            best[nearer], least[nearer] = candidate[nearer], away[nearer]
        return best

    def distance(self, x: Array) -> Array:
        """d(x), the distance to B: how far any classifier with these regions could be certified at x."""
        return np.hypot(*(self.foot(x) - x).T)

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
        if start < stop:
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
    return lambda x: c.logits(x)[:, j] - c.logits(x)[:, i]


def report(c: Construction) -> dict[str, str]:
    """The theorem's claims about one set, in numbers. Constants are in units of 1/ε."""
    found = steepest(differences(c), pairs(c, 4000, np.random.default_rng(0))) * c.epsilon
    radius = c.radius(c.points)
    wider = 1.25 * c.epsilon
    return {
        "points, classes": f"{len(c.points)}, {c.labels.max() + 1}",
        "ε": f"{c.epsilon:g}",
        "least distance between labels": f"{separation(c.points, c.labels) / c.epsilon:.4f} ε",
        "right on S": f"{(c.label(c.points) == c.labels).sum()} of {len(c.points)}",
        "least margin on S (must exceed ε·K_ij = 1)": f"{c.logits(c.points).max(1).min():.4f}",
        "steepest pair found, least over i, j": f"{found.min():.9f} /ε",
        "steepest pair found, largest over i, j": f"{found.max():.9f} /ε",
        "certified at ε": f"{(radius > c.epsilon).sum()} of {len(c.points)}",
        "certified at 1.25 ε, where S is not separated": f"{(radius > wider).sum()} of {len(c.points)}",
    }


def _directions(n: int, rng: np.random.Generator) -> Array:
    angle = rng.uniform(0, 2 * math.pi, n)
    return np.stack([np.cos(angle), np.sin(angle)], 1)


# The two sets that are drawn


def two_classes() -> Construction:
    """Two arms wound around each other."""
    return scattered(lambda r, turn: int((2.1 * r + turn) % 1 < 0.5), seed=SEEDS[0])


def four_classes() -> Construction:
    """A pinwheel of four wings."""
    return scattered(lambda r, turn: int(4 * (0.8 * r + turn) % 4), seed=SEEDS[1])


SEEDS = [3, 1]


def scattered(label: Callable[[float, float], int], seed: int, epsilon: float = 0.05) -> Construction:
    """Random points of the unit square labelled by (radius, turn) about its middle, as dense as 2.1 ε allows."""
    kept: list[tuple[float, float]] = []
    for x, y in np.random.default_rng(seed).uniform(0.06, 0.94, (4000, 2)):
        if all(math.hypot(x - a, y - b) > 2.1 * epsilon for a, b in kept):
            kept.append((x, y))
    turned = [(math.hypot(x - 0.5, y - 0.5), math.atan2(y - 0.5, x - 0.5) / math.tau) for x, y in kept]
    return Construction(np.array(kept), np.array([label(*polar) for polar in turned]), epsilon)


# The picture


LINE = np.array([[0.0, 0.45], [1.0, 0.60]])
"""A and B, the ends of the line along which g is drawn."""


def paint(figure: Figure, sets: list[Construction]) -> None:
    """Both sets side by side; below them g along a line through the first."""
    figure.set_size_inches(9.2, 7.7)
    above, below = figure.subfigures(2, 1, height_ratios=[5.1, 2.6])
    axes = above.subplots(1, 2)
    for ax, c, title in zip(axes, sets, ("Two classes", "Four classes"), strict=True):
        regions(ax, c)
        ax.set_title(title)
    axes[0].plot(*LINE.T, color=style.INK, linewidth=1.2, linestyle=(0, (5, 3)), zorder=6)
    for name, (x, y), side in zip("AB", LINE, (1, -1), strict=True):
        axes[0].annotate(name, (x, y), (9 * side, 9), textcoords="offset points", ha="center", va="center",
                         fontweight="bold", zorder=7)
    section(below.subplots(), sets[0])


def regions(ax: Axes, c: Construction, side: int = 1000) -> None:
    """What g answers at ε, darker with each ε of distance to B; ⊥ where d ≤ ε; S with its ε-balls."""
    ticks = (np.arange(side) + 0.5) / side
    x = np.stack(np.meshgrid(ticks, ticks), 2).reshape(-1, 2)
    level = (c.distance(x) / c.epsilon)[:, None]
    colours = np.array([to_rgb(colour) for colour in style.CLASSES])[c.label(x)]
    strength = 0.22 + 0.14 * np.minimum(np.floor(level) - 1, 4)
    pixels = np.where(level > 1, 1 - strength * (1 - colours), BAND)
    ax.imshow(pixels.reshape(side, side, 3), origin="lower", extent=(0, 1, 0, 1))
    for face in c.boundary:
        span = np.clip([face.start, face.stop], -3, 3)[:, None]
        ax.plot(*(face.middle + span * face.along).T, color=style.INK, linewidth=1.8, solid_capstyle="round")
    for point, k in zip(c.points, c.labels, strict=True):
        ax.add_patch(Circle(tuple(point), c.epsilon, facecolor=(1, 1, 1, 0.28), edgecolor=style.CLASSES[k]))
        ax.plot(*point, style.MARKERS[k], color=style.CLASSES[k], markersize=5.5, markeredgecolor="white",
                markeredgewidth=0.8)
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=[], yticks=[], aspect="equal")
    ax.spines[:].set_visible(False)
    ax.grid(visible=False)


BAND = to_rgb("#c3c8cf")


def section(ax: Axes, c: Construction) -> None:
    """g from A to B, both axes in ε: nowhere steeper than 45°."""
    length = math.hypot(*(LINE[1] - LINE[0])) / c.epsilon
    t = np.linspace(0, length, 4001)
    g = c.g(LINE[0] + t[:, None] / length * (LINE[1] - LINE[0]))
    ax.axhspan(-1, 1, color=BAND, linewidth=0)
    ax.axhline(0, color=style.INK, linewidth=1.8)
    for k, beyond in enumerate((g < -1, g > 1)):
        ax.fill_between(t, 2.0 * k - 1, g, where=beyond, color=style.CLASSES[k], alpha=0.35, linewidth=0)
    ax.plot(t, g, color=style.INK)
    ax.annotate("⊥", (0.3, 0.5), ha="left", va="center", color=style.BOTTOM, fontsize=12)
    ax.set(xlim=(0, length), ylim=(-3.2, 3.2), aspect="equal", ylabel="g")
    ax.set_xlabel("distance from A along the dashed line, in ε")
    ax.grid(visible=False)


def main(folder: Path = Path(__file__).parent) -> None:
    sets = [two_classes(), four_classes()]
    columns = [report(c) for c in sets]
    for name in columns[0]:
        print(f"{name:<46}" + "".join(f"{column[name]:>16}" for column in columns))
    (folder / "theorem3.png").write_bytes(style.png(paint, sets))


if __name__ == "__main__":
    main()
