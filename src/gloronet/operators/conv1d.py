"""Convolutions along one dimension: a Conv2d of height 1, in everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gloronet.operators.base import Arithmetic, LinearOperator, Proved, Shape
from gloronet.operators.conv import Conv2d


@dataclass(frozen=True, eq=False)
class Conv1d(LinearOperator):
    """x ↦ W∗x + b on inputs (c, n), with `skip` x ↦ x + W∗x + b; the same entries as its twin of height 1."""

    rule: ClassVar[str] = "conv1d"

    weight: Tensor
    bias: Tensor | None = None
    stride: Shape = (1,)
    padding: Shape = (0, 0)
    """Zeros at (left, right); with `circular` the signal wraps around instead."""
    dilation: Shape = (1,)
    groups: int = 1
    skip: bool = False
    circular: bool = False

    @property
    def output_shape(self) -> Shape:
        channels, _, n = self.twin.output_shape
        return (channels, n)

    @property
    def twin(self) -> Conv2d:
        c, n = self.input_shape
        return Conv2d(
            (c, 1, n),
            self.weight.unsqueeze(2),
            self.bias,
            (1, *self.stride),
            (0, 0, *self.padding),
            (1, *self.dilation),
            self.groups,
            self.skip,
            self.circular,
        )

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.twin(x.unsqueeze(2)).squeeze(2)

    def apply(self, x: Tensor) -> Tensor:
        return self.twin.apply(x.unsqueeze(2)).squeeze(2)

    def adjoint(self, y: Tensor) -> Tensor:
        return self.twin.adjoint(y.unsqueeze(2)).squeeze(2)

    def bound(self, norm: str) -> Proved:
        return self.twin.bound(norm)

    def row_sum(self) -> Tensor:
        return self.twin.row_sum()

    def arithmetic(self) -> Arithmetic:
        return self.twin.arithmetic()

    def injected(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self.twin.injected(x.unsqueeze(2))
