"""Scaling by and adding constants: standardisation, gains, shifts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gloronet.operators.base import Arithmetic, Operator, Proved, Shape
from gloronet.operators.rounding import norm_up, up


@dataclass(frozen=True, eq=False)
class Scale(Operator):
    """x·g, or x/g with `divide`, entry by entry: K = max|g|, or 1/min|g|, in every ℓp norm."""

    rule: ClassVar[str] = "scale"

    factor: Tensor
    divide: bool = False
    roundings: int = 1
    """How many roundings an entry may see; more where a library fuses or reorders (BatchNorm)."""

    @property
    def output_shape(self) -> Shape:
        return self.input_shape

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.apply(x)

    def apply(self, x: Tensor) -> Tensor:
        return x / self.factor if self.divide else x * self.factor

    def adjoint(self, y: Tensor) -> Tensor:
        return self.apply(y)

    def bound(self, norm: str) -> Proved:
        size = self.factor.double().abs()
        value = 1.0 / float(size.min()) if self.divide and float(size.min()) > 0.0 else math.inf
        if not self.divide:
            value = float(size.max())
        exact = not self.divide and self.factor.is_floating_point()  # an int64 may be rounded on its way to float64
        return Proved(value if exact and math.isfinite(value) else up(value, 1), "largest factor")

    def estimate(self, u: Tensor | None, iterations: int, norm: str) -> tuple[Tensor | float, Tensor | None]:
        size = self.factor.abs()
        return (1.0 / size.amin() if self.divide else size.amax()), u

    def arithmetic(self) -> Arithmetic:
        # Besides: a factor that torch first rounds to the batch's type; CUDA's division is by the reciprocal.
        return Arithmetic(self.roundings + 1 + self.divide, gain=self.bound("l2").value)


@dataclass(frozen=True, eq=False)
class Translate(Operator):
    """x + c, or x − c with `subtract`: K = 1."""

    rule: ClassVar[str] = "translate"

    offset: Tensor
    subtract: bool = False
    roundings: int = 1

    @property
    def output_shape(self) -> Shape:
        return self.input_shape

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x - self.offset if self.subtract else x + self.offset

    def apply(self, x: Tensor) -> Tensor:
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        return y

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "translation")

    def arithmetic(self) -> Arithmetic:
        everywhere = torch.broadcast_to(self.offset, (1, *self.input_shape))
        # Besides: an offset that torch first rounds to the batch's type.
        return Arithmetic(self.roundings + 1, gain=1.0, offset=norm_up(everywhere))
