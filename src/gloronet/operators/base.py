"""What an operator is: a map between tensors whose Lipschitz constant is known.

Operators are stateless: a frozen dataclass of tensors and plain attributes. Built from a module's live
parameters an operator estimates (differentiably, from below); built from frozen float64 copies it
bounds (from above) and evaluates. Shapes never contain the batch; values always do, first.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from gloronet.operators.rounding import norms_up

Shape = tuple[int, ...]


class Proved(NamedTuple):
    """A Lipschitz constant from above, and how it was proved."""

    value: float
    method: str


class Arithmetic(NamedTuple):
    """What one evaluation in floating point can lose, for any unit roundoff u (see program/error.py).

    ‖computed − exact‖ ≤ γ_terms·(gain·‖input‖ + offset), for an input taken as exact;
    ‖f(x)‖ ≤ K‖x‖ + offset.
    """

    terms: int = 0
    gain: float = 0.0
    offset: float = 0.0
    peak: float = 1.0
    """No number on the way is above peak·(gain·‖input‖ + offset): a mean is a larger sum first."""


@dataclass(frozen=True, eq=False)
class Operator(ABC):
    """A map with ‖f(x) − f(y)‖ ≤ K‖x − y‖ for all x, y of `input_shape`."""

    rule: ClassVar[str]
    """Its name in tables and in the proof."""
    elementary: ClassVar[bool] = False
    """An elementary function whose float32 error no library states: `semantics="real"` only."""

    input_shape: Shape

    @property
    @abstractmethod
    def output_shape(self) -> Shape: ...

    @abstractmethod
    def __call__(self, *inputs: Tensor) -> Tensor:
        """The value on a batch, in the batch's arithmetic; nearly every operator has one input."""

    @abstractmethod
    def bound(self, norm: str) -> Proved:
        """K from above, in the norm `"l2"` or `"linf"`; infinity where nothing can be proved."""

    def estimate(self, u: Tensor | None, iterations: int, norm: str) -> tuple[Tensor | float, Tensor | None]:
        """(σ, u′): K from below, differentiable where it depends on weights, and the next iterate."""
        return self.bound(norm).value, u

    def combine(self, constants: Sequence[Any], norm: str) -> Any:
        """The constant of what comes in, from those of each input (floats or tensors alike)."""
        (constant,) = constants
        return constant

    def start(self) -> Tensor | None:
        """The first iterate of `estimate`, or None when there is nothing to iterate."""
        return None

    def arithmetic(self) -> Arithmetic:
        """Nothing is lost by default: selections and permutations are exact."""
        return Arithmetic()

    def injected(self, *inputs: Tensor) -> Tensor:
        """gain·‖x‖ + offset at these very inputs, (B,), rounded up; a linear operator takes ‖|A||x| + |b|‖."""
        loss = self.arithmetic()
        size = sum((norms_up(x.flatten(1)) for x in inputs[1:]), norms_up(inputs[0].flatten(1)))
        return (loss.gain * size + loss.offset) * (1.0 + 2.0**-48)

    def with_tensors(self, **tensors: Tensor | None) -> Self:
        """The same operator on other tensors."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return type(self)(**(values | tensors))


@dataclass(frozen=True, eq=False)
class LinearOperator(Operator):
    """x ↦ Ax + b. `apply` is A alone; its norm is K."""

    @abstractmethod
    def apply(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor: ...

    def start(self) -> Tensor | None:
        return unit(torch.randn(1, *self.input_shape))

    def estimate(self, u: Tensor | None, iterations: int, norm: str) -> tuple[Tensor | float, Tensor | None]:
        """σ = ‖Au‖ after power iteration on AᵀA; the gradient flows through this last norm only.

        From below: σ ≤ ‖A‖₂, with equality only in the limit.
        """
        if norm == "linf":
            return self.row_sum(), u
        assert u is not None
        u = self.advance(u, iterations)
        return self.apply(u).norm(), u

    @torch.no_grad()
    def advance(self, u: Tensor, iterations: int) -> Tensor:
        """u after so many steps of power iteration on AᵀA."""
        for _ in range(iterations):
            u = unit(self.adjoint(unit(self.apply(u), u)), u)
        return u

    @abstractmethod
    def row_sum(self) -> Tensor | float:
        """‖A‖_∞, the largest row sum of |A|, differentiable, in the tensors' own arithmetic."""


def unit(v: Tensor, otherwise: Tensor | None = None) -> Tensor:
    """v/‖v‖, or `otherwise` (default: v) where v is zero or not finite; safe from underflow of squares."""
    w = v / torch.linalg.vector_norm(v, ord=math.inf)
    w = w / w.norm()  # where v is zero or not finite: all NaN
    fallback = v if otherwise is None or otherwise.shape != v.shape else otherwise
    return torch.where(w == w, w, fallback)
