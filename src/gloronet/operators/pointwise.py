"""Nonlinearities that act on entries or pairs of entries: selections, so exact in floating point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gloronet.operators.base import Operator, Proved, Shape


@dataclass(frozen=True, eq=False)
class Pointwise(Operator):
    """A 1-Lipschitz map that keeps the shape, in ℓ2 and in ℓ∞ alike."""

    @property
    def output_shape(self) -> Shape:
        return self.input_shape

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "1-Lipschitz")


@dataclass(frozen=True, eq=False)
class ReLU(Pointwise):
    """max(x, 0)."""

    rule: ClassVar[str] = "relu"

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.relu(x)


@dataclass(frozen=True, eq=False)
class Abs(Pointwise):
    """|x|."""

    rule: ClassVar[str] = "abs"

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.abs()


@dataclass(frozen=True, eq=False)
class MinMax(Pointwise):
    """(max(a, b), min(a, b)) for the two halves a, b of the first dimension: a permutation at every x.

    Sorting a pair moves no two pairs further apart, in any ℓp norm, so K = 1.
    """

    rule: ClassVar[str] = "minmax"

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        a, b = x.chunk(2, 1)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)
