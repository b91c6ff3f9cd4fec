"""Where branches meet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gloronet.operators.base import Arithmetic, Operator, Proved, Shape


@dataclass(frozen=True, eq=False)
class Sum(Operator):
    """x + y: constants add. A linear branch around its own input is no Sum: see `skip` of Dense, Conv2d."""

    rule: ClassVar[str] = "sum"

    @property
    def output_shape(self) -> Shape:
        return self.input_shape

    def __call__(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        return x + y

    def combine(self, constants: Sequence[Any], norm: str) -> Any:
        return constants[0] + constants[1]

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "constants add")

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(terms=1, gain=1.0)


@dataclass(frozen=True, eq=False)
class Concat(Operator):
    """Branches side by side along dimension `dim` (the batch not counted), `sizes` long: exact.

    ‖(Δy₁, …, Δy_k)‖₂² = Σ‖Δy_i‖² ≤ (ΣK_i²)·‖Δx‖², so K = √ΣK_i²; in ℓ∞ the largest K_i.
    The input shape is that of the first branch. A branch may come more than once, and counts each time.
    """

    rule: ClassVar[str] = "concat"

    dim: int
    sizes: Shape

    @property
    def output_shape(self) -> Shape:
        shape = list(self.input_shape)
        shape[self.dim] = sum(self.sizes)
        return tuple(shape)

    def __call__(self, *inputs: Tensor) -> Tensor:
        return torch.cat(inputs, 1 + self.dim)

    def combine(self, constants: Sequence[Any], norm: str) -> Any:
        if all(isinstance(k, int | float) for k in constants):
            return max(constants) if norm == "linf" else math.hypot(*constants)
        like = next(k for k in constants if isinstance(k, Tensor))
        together = torch.stack([torch.as_tensor(k, dtype=like.dtype, device=like.device) for k in constants])
        if norm == "linf":
            return together.amax()
        # Divided by the largest, the squares can neither overflow nor all underflow.
        largest = together.detach().amax().clamp_min(torch.finfo(like.dtype).tiny)
        return largest * torch.linalg.vector_norm(together / largest)

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "largest constant" if norm == "linf" else "root of squares")
