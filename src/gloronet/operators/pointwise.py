"""Nonlinearities that act on entries or on small groups of entries, piece by piece linear.

Selections and permutations lose nothing in floating point; LeakyReLU and Householder compute.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gloronet.operators.base import Arithmetic, Operator, Proved, Shape
from gloronet.operators.rounding import root


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
class LeakyReLU(Pointwise):
    """x where x > 0, slope·x elsewhere: K = max(1, |slope|).

    Two roundings: of the slope to the arithmetic at hand, and of the product.
    """

    rule: ClassVar[str] = "leakyrelu"

    slope: float

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.nn.functional.leaky_relu(x, self.slope)

    def bound(self, norm: str) -> Proved:
        return Proved(max(1.0, abs(self.slope)) if math.isfinite(self.slope) else math.inf, "largest slope")

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(terms=2, gain=self.bound("l2").value)


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


@dataclass(frozen=True, eq=False)
class GroupSort(Pointwise):
    """Each `size` neighbours along the first dimension, sorted upwards: a permutation at every x.

    Sorting is made of exchanges max/min of a pair, each 1-Lipschitz in any ℓp norm, so K = 1.
    """

    rule: ClassVar[str] = "groupsort"

    size: int

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return group_sort(x, self.size)


@dataclass(frozen=True, eq=False)
class Householder(Pointwise):
    """z − 2·min(vᵀz, 0)·v for each pair z = (a, b) of the two halves, v = (sin θ/2, −cos θ/2).

    Where vᵀz > 0 that is z itself, elsewhere the reflection (I − 2vvᵀ)z, and both agree where they meet:
    a continuous map with orthogonal pieces, so K = 1 in ℓ2. In ℓ∞ a piece has row sums
    |cos θ| + |sin θ| ≤ √2.

    Rounding. min(·, 0) is continuous, so a vᵀz computed with the wrong sign does no more harm than its
    own error. With sines and cosines good to 8u (taken on trust: SLEEF states 3.5 ulp in float32),
    m = min(vᵀz, 0) is off by γ₁₀‖z‖, m·v by γ₉ more, and the last subtraction by u of at most 3‖z‖:
    2γ₁₀ + 2γ₉(1 + γ₁₀) + 3u(1 + γ₁₉) ≤ 2γ₂₁.
    """

    rule: ClassVar[str] = "householder"

    theta: Tensor

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return householder(x, self.theta)

    def bound(self, norm: str) -> Proved:
        if not bool(torch.isfinite(self.theta).all()):
            return Proved(math.inf, "not finite")
        return Proved(root(2.0), "reflections") if norm == "linf" else Proved(1.0, "1-Lipschitz")

    def estimate(self, u: Tensor | None, iterations: int, norm: str) -> tuple[Tensor | float, Tensor | None]:
        """The same, without a look at θ: training on a GPU need not wait for it."""
        return (math.sqrt(2.0) if norm == "linf" else 1.0), u

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(terms=21, gain=2.0)


def group_sort(x: Tensor, size: int) -> Tensor:
    """Sorts each `size` neighbours along dimension 1 of a batch, upwards."""
    return x.unflatten(1, (-1, size)).sort(2).values.flatten(1, 2)


def householder(x: Tensor, theta: Tensor) -> Tensor:
    """The pairs of the two halves of dimension 1, reflected where they lie behind v (see `Householder`)."""
    a, b = x.chunk(2, 1)
    half = theta.reshape(-1, *[1] * (x.dim() - 2)) / 2
    sine, cosine = half.sin(), half.cos()
    behind = 2 * torch.clamp(a * sine - b * cosine, max=0)
    return torch.cat([a - behind * sine, b + behind * cosine], 1)
