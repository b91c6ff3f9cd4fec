"""Pooling: averages are linear, maxima select."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gloronet.operators.base import Arithmetic, LinearOperator, Operator, Proved, Shape
from gloronet.operators.conv import Conv2d
from gloronet.operators.rounding import root, up


@dataclass(frozen=True, eq=False)
class AvgPool2d(LinearOperator):
    """Window means, padding counted. K = ‖J‖/(kh·kw), J the convolution by ones: exact integers, no 1/9.

    Its constant has no weights in it, so the estimate is the bound itself.
    """

    rule: ClassVar[str] = "avgpool"

    kernel: Shape
    stride: Shape
    padding: Shape = (0, 0)

    @property
    def output_shape(self) -> Shape:
        return (self.input_shape[0], *_windows(self.input_shape, self.kernel, self.stride, self.padding))

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.avg_pool2d(x, self.kernel, self.stride, self.padding)

    def apply(self, x: Tensor) -> Tensor:
        return self(x)

    def adjoint(self, y: Tensor) -> Tensor:
        n, c = y.shape[:2]
        ones = _ones(self.input_shape[1:], self.kernel, self.stride, self.padding, y)
        x = ones.adjoint(y.reshape(n * c, 1, *y.shape[2:])) / (self.kernel[0] * self.kernel[1])
        return x.reshape(n, c, *x.shape[2:])

    def bound(self, norm: str) -> Proved:
        if norm == "linf":
            return Proved(1.0, "means")
        return _mean_bound(self.input_shape[1:], self.kernel, self.stride, self.padding)

    def start(self) -> None:
        return None

    def estimate(self, u: Tensor | None, iterations: int, norm: str) -> tuple[Tensor | float, Tensor | None]:
        return self.bound(norm).value, u

    def row_sum(self) -> float:
        return 1.0

    def arithmetic(self) -> Arithmetic:
        taps = self.kernel[0] * self.kernel[1]
        return Arithmetic(taps + 1, self.bound("l2").value, peak=float(taps))


@dataclass(frozen=True, eq=False)
class MaxPool2d(Operator):
    """Window maxima. K = √(most windows that share a pixel), at most ⌈kh/sh⌉·⌈kw/sw⌉: 1 without overlap.

    |max_S a − max_S b| ≤ ‖(a − b)_S‖ for each window S; summing squares counts a pixel once a window.
    In ℓ∞ every max pooling has K = 1.
    """

    rule: ClassVar[str] = "maxpool"

    kernel: Shape
    stride: Shape
    padding: Shape = (0, 0)

    @property
    def output_shape(self) -> Shape:
        return (self.input_shape[0], *_windows(self.input_shape, self.kernel, self.stride, self.padding))

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.max_pool2d(x, self.kernel, self.stride, self.padding)

    def bound(self, norm: str) -> Proved:
        shared = 1
        for k, s in zip(self.kernel, self.stride, strict=True):
            shared *= -(-k // s)
        if norm == "linf" or shared == 1:
            return Proved(1.0, "1-Lipschitz")
        return Proved(root(float(shared)), "overlapping windows")


def _windows(shape: Shape, kernel: Shape, stride: Shape, padding: Shape) -> Shape:
    return tuple((shape[1 + a] + 2 * padding[a] - kernel[a]) // stride[a] + 1 for a in (0, 1))


def _ones(size: Shape, kernel: Shape, stride: Shape, padding: Shape, like: Tensor) -> Conv2d:
    top, left = padding
    weight = torch.ones(1, 1, *kernel, dtype=like.dtype, device=like.device)
    return Conv2d((1, *size), weight, None, stride, (top, top, left, left))


@lru_cache(maxsize=256)
def _mean_bound(size: Shape, kernel: Shape, stride: Shape, padding: Shape) -> Proved:
    ones = _ones(size, kernel, stride, padding, torch.zeros(0, dtype=torch.float64)).bound("l2")
    return Proved(up(ones.value / (kernel[0] * kernel[1]), 1), ones.method)
