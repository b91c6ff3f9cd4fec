"""Dense layers: x ↦ Wx + b, and with `skip` x ↦ x + Wx + b as ONE operator of norm ‖I + W‖."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gloronet.errors import UnsupportedOperation
from gloronet.operators.base import Arithmetic, LinearOperator, Proved, Shape
from gloronet.operators.norms import dense_bound
from gloronet.operators.rounding import U64, gamma, norm_up, norms_up, product, root, total, up


@dataclass(frozen=True, eq=False)
class Dense(LinearOperator):
    """K = ‖W‖₂ (`norm="l2"`) or the largest row sum of |W| (`"linf"`)."""

    rule: ClassVar[str] = "dense"

    weight: Tensor
    bias: Tensor | None = None
    skip: bool = False

    def __post_init__(self) -> None:
        # One number for all outputs would be counted once.
        if self.bias is not None and self.bias.shape != self.weight.shape[:1]:
            raise UnsupportedOperation(f"A bias of {self.weight.shape[0]} outputs has shape {tuple(self.bias.shape)}.")

    @property
    def output_shape(self) -> Shape:
        return (self.weight.shape[0],)

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        y = F.linear(x, self.weight, self.bias)
        return x + y if self.skip else y

    def apply(self, x: Tensor) -> Tensor:
        y = F.linear(x, self.weight)
        return x + y if self.skip else y

    def adjoint(self, y: Tensor) -> Tensor:
        x = y @ self.weight
        return x + y if self.skip else x

    def bound(self, norm: str) -> Proved:
        matrix, slip = self._matrix()
        if norm == "linf":
            return Proved(total(float(norms_up(matrix, 1).max()), slip), "row sums")
        return Proved(total(dense_bound(matrix), slip), "checked Cholesky")

    def row_sum(self) -> Tensor:
        weight = self.weight
        if self.skip:
            weight = weight + torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
        return weight.abs().sum(1).amax()

    def arithmetic(self) -> Arithmetic:
        w = self.weight
        rows, columns = float(norms_up(w, 1).max()), float(norms_up(w.T, 1).max())
        gain = min(norm_up(w), product(root(rows), root(columns)))
        bias = 0.0 if self.bias is None else norm_up(self.bias)
        return Arithmetic(w.shape[1] + 1 + self.skip, total(gain, 1.0 if self.skip else 0.0), bias)

    def magnitude(self, x: Tensor) -> Tensor:
        """|W||x| + |b| (+ |x|), entry by entry, rounded up: what the roundings of one evaluation are shares of."""
        y = F.linear(x.abs(), self.weight.abs(), None if self.bias is None else self.bias.abs())
        y = x.abs() + y if self.skip else y
        return y * (1.0 + 2.0 * gamma(self.weight.shape[1] + 4))

    def injected(self, *inputs: Tensor) -> Tensor:
        return norms_up(self.magnitude(*inputs))

    def _matrix(self) -> tuple[Tensor, float]:
        """The float64 matrix that is bounded, and how far it may be from the exact one in either norm."""
        weight = self.weight.double()
        if not self.skip:
            return weight, 0.0
        folded = weight + torch.eye(weight.shape[0], dtype=torch.float64, device=weight.device)
        return folded, up(U64 * float(folded.diagonal().abs().max()))
