"""Which of the stored images to show, and the sheet of them: each image with what was proved about it."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.image import imsave

from gloronet.report import counts, style
from gloronet.report.files import Array
from gloronet.report.rows import Run

ACROSS = 6
"""Images to a group: one line of the sheet."""


@dataclass(frozen=True)
class Tile:
    image: Array
    radius: str
    answer: str
    kind: str
    """`proved`, `bottom` or `wrong` (certified and wrong): how the tile is coloured."""


@dataclass(frozen=True)
class Pair:
    image: Array
    adversarial: Array
    change: Array
    """The difference, stretched so that grey is no change and black and white the largest one."""
    label: str
    radius: str
    distance: str


def groups(run: Run) -> list[tuple[str, list[Tile]]]:
    """Headings with up to six tiles each; no image is shown twice, and empty groups are left out."""
    assert run.gallery is not None
    c, row = run.certificates, run.gallery.row
    radius, certified, right = c.radius[row], c.certified[row], c.right[row]
    every = np.ones(len(row), dtype=bool)
    picks = (
        ("Largest radii", every, -radius),
        (f"Radii around ε = {run.epsilon_text}", every, np.abs(radius - run.epsilon)),
        ("Smallest radii", every, radius),
        ("⊥ although the answer was right", ~certified & right, -radius),
        ("⊥ where the answer would have been wrong", ~certified & ~right, -radius),
        ("Certified and wrong: a certificate proves that an answer is stable, not that it is true",
         certified & ~right, -radius),
    )  # fmt: skip
    shown: set[int] = set()
    result = []
    for heading, which, order in picks:
        ranked = [int(k) for k in np.argsort(order, kind="stable") if which[k] and int(k) not in shown]
        chosen = sorted(ranked[:ACROSS], key=lambda k: -radius[k])
        shown.update(chosen)
        if chosen:
            result.append((heading, [_tile(run, k) for k in chosen]))
    return result


def pairs(run: Run) -> list[Pair]:
    """The adversarial points nearest to their images, for right answers; empty when none are stored."""
    g, c = run.gallery, run.certificates
    if g is None or not g.drawable or g.adversarial is None or g.distance is None:
        return []
    fooled = np.isfinite(g.distance) & (g.distance > 0) & c.right[g.row]
    nearest = [int(k) for k in np.argsort(g.distance, kind="stable") if fooled[k]][:ACROSS]
    return [_pair(run, g.images[k], g.adversarial[k], float(g.distance[k]), int(g.row[k])) for k in nearest]


def thumbnail(image: Array) -> bytes:
    """One (1 or 3, H, W) image in [0, 1] as PNG, a pixel a pixel."""
    buffer = io.BytesIO()
    imsave(buffer, _rgb(image), format="png")
    return buffer.getvalue()


def sheet(figure: Figure, run: Run) -> None:
    """All groups, a line each, for figures/gallery.png."""
    lines = groups(run)
    figure.set_size_inches(1.25 * ACROSS, 2.0 * len(lines))
    frame = {"proved": style.PROVED, "bottom": style.BOTTOM, "wrong": style.ATTACKED}
    for (heading, tiles), part in zip(
        lines, figure.subfigures(len(lines), 1, squeeze=False)[:, 0], strict=True
    ):
        part.suptitle(heading, x=0.01, ha="left", fontsize=10)
        axes = part.subplots(1, ACROSS)
        for ax in axes[len(tiles) :]:
            ax.set_visible(False)
        for ax, tile in zip(axes, tiles, strict=False):
            ax.imshow(_rgb(tile.image), interpolation="nearest")
            ax.set(xticks=[], yticks=[], xlabel=f"r = {tile.radius}\n{tile.answer}")
            ax.xaxis.label.set_fontsize(8)
            ax.spines[:].set(visible=True, color=frame[tile.kind], linewidth=2)


def _tile(run: Run, k: int) -> Tile:
    assert run.gallery is not None
    c, row = run.certificates, int(run.gallery.row[k])
    certified, right = bool(c.certified[row]), bool(c.right[row])
    answer = run.class_name(int(c.answer[row]))
    said = answer if certified else f"⊥ ({answer})"
    if not right:
        said += f" · label {run.class_name(int(c.label[row]))}"
    kind = ("proved" if right else "wrong") if certified else "bottom"
    return Tile(run.gallery.images[k], counts.down(float(c.radius[row])), said, kind)


def _pair(run: Run, image: Array, adversarial: Array, distance: float, row: int) -> Pair:
    gap = adversarial - image
    change = 0.5 + 0.5 * gap / max(float(np.abs(gap).max()), 1e-12)
    c = run.certificates
    label, radius = run.class_name(int(c.label[row])), counts.down(float(c.radius[row]))
    return Pair(image, adversarial, change, label, radius, counts.nearest(distance))


def _rgb(image: Array) -> Array:
    """Values outside [0, 1], which an unclipped attack may reach, are shown as the nearest end."""
    scaled = np.round(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)
    return np.broadcast_to(np.moveaxis(scaled, 0, 2), (*scaled.shape[1:], 3))  # grey: three equal channels
