"""What the paper printed: cited facts, read from paper.json, never computed here.

Shares are in per cent, as printed; None is where the paper prints nothing. Its seconds are those of an RTX 3080.
Its VRAs and upper bounds rest on power iteration, which approaches a norm from below: they are estimates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HARDWARE = "RTX 3080"
STOCHASTIC = "RS (stochastic)"


@dataclass(frozen=True)
class DataSet:
    """A data set at the radius the paper certifies."""

    slug: str
    """As in the name of a row: `tuned/cifar10`."""
    key: str
    """As in paper.json."""
    name: str
    epsilon: str
    architecture: str
    printed: str | None = None
    """What the paper writes for ε, where that is not ε."""

    @property
    def title(self) -> str:
        return f"{self.name}, ε = {self.epsilon}, {self.architecture}"


DATA = (
    DataSet("mnist-0.3", "mnist@0.3", "MNIST", "0.3", "2C2F"),
    DataSet("mnist-1.58", "mnist@1.58", "MNIST", "1.58", "4C3F"),
    DataSet("cifar10", "cifar10@36/255", "CIFAR-10", "36/255", "6C2F", printed="0.141"),
    DataSet("tiny-imagenet", "tiny-imagenet@36/255", "Tiny-ImageNet", "36/255", "8C2F", printed="0.141"),
)


@dataclass(frozen=True)
class Training:
    """A line of the paper's tables of results."""

    clean: float | None
    pgd: float | None
    vra: float | None
    seconds_per_epoch: float | None
    epochs: float | None
    memory_mb: float | None
    """Peak, an instance of the batch."""

    @property
    def seconds(self) -> float | None:
        """The whole training: epochs × seconds an epoch."""
        if self.epochs is None or self.seconds_per_epoch is None:
            return None
        return self.epochs * self.seconds_per_epoch


@dataclass(frozen=True)
class Certification:
    """All 10,000 test images of CIFAR-10, by 6C2F."""

    seconds: float
    memory_mb: float


@dataclass(frozen=True)
class Lipschitz:
    upper: float
    lower_global: float
    lower_local: float


def training(slug: str) -> dict[str, Training]:
    """The paper's rows for a data set, by the paper's names; none for a data set the paper does not have.

    >>> training("cifar10")["GloRo (MinMax)"].vra
    58.4
    """
    rows = _section("training", slug)
    return {name: Training(*row) for name, row in rows.items() if name != "architecture"}


def certification(slug: str) -> dict[str, Certification]:
    """The paper's cost of certifying; CIFAR-10 only.

    >>> certification("cifar10")["GloRo (MinMax)"].seconds
    0.4
    """
    rows = _paper()["certification"] if slug == "cifar10" else {}
    return {name: Certification(*row) for name, row in rows.items() if name != "what"}


def lipschitz(slug: str) -> dict[str, Lipschitz]:
    """The paper's constants, by its names, which here do not tell the two ReLU rows apart.

    >>> lipschitz("cifar10")["GloRo (ReLU)"].upper
    18.9
    """
    return {name: Lipschitz(*row) for name, row in _section("lipschitz", slug).items()}


def _section(name: str, slug: str) -> dict[str, Any]:
    key = next((data.key for data in DATA if data.slug == slug), None)
    return _paper()[name].get(key, {})


@cache
def _paper() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))
