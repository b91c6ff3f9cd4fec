"""What an attack returns, and how points are scored: everything is recomputed from the points themselves."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

COLUMNS = ("index", "label", "success", "distance", "margin", "epsilon")

Logits = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Attack:
    """One entry a sample: the adversarial points, or the best attempts where `success` is false."""

    x: Tensor
    labels: Tensor
    success: Tensor
    """Whether the label predicted at `x` differs from the given one."""
    distance: Tensor
    """‖x′ − x‖₂ in float64; 0 for points that were misclassified to begin with."""
    margin: Tensor
    """y_label − max of the others at `x`, in the network's arithmetic."""
    epsilon: Tensor
    """The radius the attack was allowed, float64."""


def rows(attack: Attack, start: int = 0) -> list[dict[str, int | float]]:
    """The rows of `attacks.csv`, one a sample; `start` is the index of the first."""
    fields = (attack.labels, attack.success.int(), attack.distance, attack.margin, attack.epsilon)
    samples = zip(*(field.tolist() for field in fields), strict=True)
    return [dict(zip(COLUMNS, (i, *sample), strict=True)) for i, sample in enumerate(samples, start)]


def write_csv(path: Path, rows: Iterable[Mapping[str, int | float]]) -> None:
    """Writes all rows or none: no reader sees half a file, and a failure leaves the old one in place."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The margin y_label − max_{i≠label} y_i, and whether another class is predicted (first on ties)."""
    margin = pick(logits, labels) - others(logits, labels).amax(dim=1)
    return margin, logits.argmax(dim=1) != labels


def pick(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes.unsqueeze(1)).squeeze(1)


def others(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.scatter(1, labels.unsqueeze(1), -math.inf)
