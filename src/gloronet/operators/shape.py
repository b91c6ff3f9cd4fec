"""Moves entries about: reshaping and zero padding. Isometries, and exact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from gloronet.operators.base import Operator, Proved, Shape


@dataclass(frozen=True, eq=False)
class Reshape(Operator):
    """The same entries in the same order under another shape."""

    rule: ClassVar[str] = "reshape"

    shape: Shape

    @property
    def output_shape(self) -> Shape:
        return tuple(self.shape)

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.apply(x)

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)

    def adjoint(self, y: Tensor) -> Tensor:
        return y.reshape(y.shape[0], *self.input_shape)

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "isometry")


@dataclass(frozen=True, eq=False)
class Pad(Operator):
    """Zeros around an image: (top, bottom, left, right). Merged into a convolution that follows."""

    rule: ClassVar[str] = "pad"

    padding: Shape

    @property
    def output_shape(self) -> Shape:
        (c, h, w), (top, bottom, left, right) = self.input_shape, self.padding
        return (c, h + top + bottom, w + left + right)

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        top, bottom, left, right = self.padding
        return F.pad(x, (left, right, top, bottom))

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "isometry")
