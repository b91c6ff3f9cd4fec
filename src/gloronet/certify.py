"""Net + data → certificates, and the rows that figures are drawn from."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gloronet.data import to_unit
from gloronet.net import BOTTOM, Certificates, GloRoNet
from gloronet.operators.rounding import norms_up

Answer = TypeVar("Answer")
COLUMNS = ("index", "label", "answer", "prediction", "radius", "certified", "margin", "semantics")


@dataclass(frozen=True)
class Table:
    """Certificates of a labelled set, one row a sample; arrays on the CPU."""

    label: np.ndarray
    answer: np.ndarray
    radius: np.ndarray
    margin: np.ndarray
    epsilon: float
    semantics: str

    @property
    def certified(self) -> np.ndarray:
        return self.radius > self.epsilon

    @property
    def right(self) -> np.ndarray:
        return self.answer == self.label

    @property
    def clean(self) -> float:
        """Share of points whose answer is right, certified or not."""
        return float(self.right.mean())

    @property
    def vra(self) -> float:
        """Share of points both right and certified at ε."""
        return float((self.right & self.certified).mean())

    @property
    def mean_radius(self) -> float:
        """Mean certified radius over all points; a wrong answer counts 0."""
        return float(np.where(self.right, self.radius, 0.0).mean())

    def write(self, path: Path) -> None:
        """certificates.csv, whole or not at all."""
        prediction = np.where(self.certified, self.answer, BOTTOM)
        rows = (
            (i, self.label[i], self.answer[i], prediction[i], repr(float(self.radius[i])),
             int(self.certified[i]), repr(float(self.margin[i])), self.semantics)
            for i in range(len(self.label))
        )  # fmt: skip
        write_csv(path, COLUMNS, rows)


def certify_set(
    net: GloRoNet,
    x: Tensor,
    labels: Tensor,
    epsilon: float | str | None = None,
    semantics: str = "real",
    per_sample: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """Certifies every sample of a set (uint8 images or floats in [0, 1]) by the bound."""

    def certify(part: Tensor) -> Certificates:
        return net.certify(part, epsilon, semantics, per_sample)

    return tabulate(certify, x, labels, next(net.parameters()).device, batch_size, progress)


def tabulate(
    certify: Callable[[Tensor], Certificates],
    x: Tensor,
    labels: Tensor,
    device: torch.device,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """What `certify` says of every batch of a set (uint8 images or floats in [0, 1]), in one table."""
    parts = in_batches(certify, x, device, batch_size, progress)
    return Table(
        label=labels.cpu().numpy(),
        answer=torch.cat([p.label for p in parts]).cpu().numpy(),
        radius=torch.cat([p.radius for p in parts]).cpu().numpy(),
        margin=torch.cat([p.margin for p in parts]).cpu().numpy(),
        epsilon=parts[0].epsilon,
        semantics=parts[0].semantics,
    )


def in_batches(
    certify: Callable[[Tensor], Answer],
    x: Tensor,
    device: torch.device,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """What `certify` answers for each batch of a set, in order."""
    parts = []
    for part in x.split(batch_size or at_once(device)):
        parts.append(certify(to_unit(part.to(device))))
        if progress is not None:
            progress(len(part))
    return parts


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Writes the whole table or nothing."""
    part = path.with_name(path.name + ".part")
    with part.open("w", newline="") as f:
        writer = csv.writer(f)
        writer.writerow(columns)
        writer.writerows(rows)
    os.replace(part, path)


def at_once(device: torch.device) -> int:
    """Samples certified at once: what a CPU's caches like, or what keeps a GPU busy within a few GiB."""
    return 5000 if device.type == "cuda" else 1000


def disjoint_balls(table: Table, x: Tensor, block: int = 500) -> float:
    """min ‖x₁ − x₂‖ − (r₁ + r₂) over pairs with different answers: negative would disprove a certificate.

    Two points with different labels cannot have balls that meet, so this audits a whole table for free.
    Only positive radii take part; infinity when there is no such pair.
    """
    use = np.flatnonzero(table.radius > 0)
    points = to_unit(x.cpu()[torch.from_numpy(use)]).double().flatten(1)
    radius, answer = torch.from_numpy(table.radius[use]), torch.from_numpy(table.answer[use])
    least = float("inf")
    for k in range(0, len(use), block):
        part = slice(k, k + block)
        gap = torch.cdist(points[part], points) - (radius[part, None] + radius[None, :])
        gap = gap.masked_fill(answer[part, None] == answer[None, :], float("inf"))
        # The fast distance is a root of differences, half its digits gone where it is small: anew, rounded up.
        i, j = torch.nonzero(gap < 1e-3, as_tuple=True)
        gap[i, j] = norms_up(points[part][i] - points[j]) - (radius[part][i] + radius[j])
        least = min(least, float(gap.min()))
    return least


def gallery(table: Table, x: Tensor, each: int = 8) -> dict[str, np.ndarray]:
    """Samples worth looking at: the largest radii, those nearest ε, the smallest, abstentions, mistakes."""
    order = np.argsort(-table.radius, kind="stable")
    nearest = np.argsort(np.abs(table.radius - table.epsilon), kind="stable")
    abstained = [i for i in nearest if not table.certified[i]]
    wrong = [i for i in order if not table.right[i]]
    chosen = [*order[:each], *nearest[:each], *order[-each:], *abstained[:each], *wrong[:each]]
    index = np.unique(np.array(chosen, dtype=np.int64))
    return {"index": index, "images": x.cpu().numpy()[index]}


def regions(net: GloRoNet, x: Tensor, labels: Tensor, side: int = 300) -> dict[str, np.ndarray]:
    """Predictions with ⊥ on a grid over [0, 1]², for networks on the plane (the paper's Figure 1)."""
    axis = torch.linspace(0.0, 1.0, side)
    grid = torch.cartesian_prod(axis, axis).flip(1)  # rows of the picture are the second coordinate
    prediction = torch.cat([net.certify(part).prediction for part in grid.split(10_000)])
    return {
        "xs": axis.numpy(),
        "ys": axis.numpy(),
        "prediction": prediction.reshape(side, side).cpu().numpy(),
        "points": x.cpu().numpy(),
        "labels": labels.cpu().numpy(),
        "epsilon": np.array(net.epsilon),
    }
