"""Moves entries about: reshaping, permuting, padding. Linear, exact; isometries but for circular padding."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from gloronet.operators.base import Operator, Proved, Shape
from gloronet.operators.circular import innermost_first, replication, unwrap, wrap
from gloronet.operators.rounding import root


@dataclass(frozen=True, eq=False)
class Rearrangement(Operator):
    """Each entry of the result is one of the input, or zero; K = 1 where none comes twice."""

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.apply(x)

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor: ...

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "isometry")


@dataclass(frozen=True, eq=False)
class Reshape(Rearrangement):
    """The same entries in the same order under another shape."""

    rule: ClassVar[str] = "reshape"

    shape: Shape

    @property
    def output_shape(self) -> Shape:
        return tuple(self.shape)

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.shape)

    def adjoint(self, y: Tensor) -> Tensor:
        return y.reshape(y.shape[0], *self.input_shape)


@dataclass(frozen=True, eq=False)
class Permute(Rearrangement):
    """Dimension k of the result is dimension order[k] of the input, the batch not counted."""

    rule: ClassVar[str] = "permute"

    order: Shape

    @property
    def output_shape(self) -> Shape:
        return tuple(self.input_shape[k] for k in self.order)

    def apply(self, x: Tensor) -> Tensor:
        return x.permute(0, *(1 + k for k in self.order))

    def adjoint(self, y: Tensor) -> Tensor:
        return y.permute(0, *(1 + self.order.index(k) for k in range(len(self.order))))


@dataclass(frozen=True, eq=False)
class PixelUnshuffle(Rearrangement):
    """(c, h, w) → (c·f², h/f, w/f): each f×f square of pixels becomes f² channels of one pixel."""

    rule: ClassVar[str] = "pixelunshuffle"

    factor: int

    @property
    def output_shape(self) -> Shape:
        c, h, w = self.input_shape
        return (c * self.factor**2, h // self.factor, w // self.factor)

    def apply(self, x: Tensor) -> Tensor:
        return F.pixel_unshuffle(x, self.factor)

    def adjoint(self, y: Tensor) -> Tensor:
        return F.pixel_shuffle(y, self.factor)


@dataclass(frozen=True, eq=False)
class Pad(Rearrangement):
    """Zeros around an image (c, h, w): (top, bottom, left, right); around (c, n): (left, right).

    Merged into a convolution that follows.
    """

    rule: ClassVar[str] = "pad"

    padding: Shape

    @property
    def output_shape(self) -> Shape:
        return _padded(self.input_shape, self.padding)

    def apply(self, x: Tensor) -> Tensor:
        return F.pad(x, innermost_first(self.padding))

    def adjoint(self, y: Tensor) -> Tensor:
        return F.pad(y, [-n for n in innermost_first(self.padding)])


@dataclass(frozen=True, eq=False)
class CircularPad(Rearrangement):
    """Padding as in `Pad`, but wrapping around: K = √(most copies of one pixel) in ℓ2, 1 in ℓ∞."""

    rule: ClassVar[str] = "circularpad"

    padding: Shape

    @property
    def output_shape(self) -> Shape:
        return _padded(self.input_shape, self.padding)

    def apply(self, x: Tensor) -> Tensor:
        return wrap(x, self.padding)

    def adjoint(self, y: Tensor) -> Tensor:
        return unwrap(y, self.padding)

    def bound(self, norm: str) -> Proved:
        copies = 1 if norm == "linf" else replication(self.input_shape[1:], self.padding)
        return Proved(1.0 if copies == 1 else root(float(copies)), "copies of a pixel")


def _padded(shape: Shape, padding: Shape) -> Shape:
    channels, *size = shape
    return (channels, *(n + sum(padding[2 * k : 2 * k + 2]) for k, n in enumerate(size)))
