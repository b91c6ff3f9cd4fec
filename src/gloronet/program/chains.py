"""Linear operations in a row are one linear operator: its norm may be far below the product of theirs.

A chain is a run of operations without a nonlinearity between them, each the only user of the one before.
Two ways to bound it as one, both from above, both on what is really computed:

- *folded*: a scaling next to a dense or convolutional layer (BatchNorm in eval, standardisation) goes into
  its weights, ‖diag(g)·W‖ for ‖diag(g)‖·‖W‖; the rounded products cost u·‖|A|‖;
- *joint*: the chain's own matrix, column by column, where it is small enough; each computed column is off
  by no more than the chain's evaluation error, so ‖ΔA‖_F ≤ √n·error.

Never by composing kernels across zero padding, which would not be the operator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import LinearOperator, Operator, Proved, Shape
from gloronet.operators.conv import Conv2d
from gloronet.operators.dense import Dense
from gloronet.operators.norms import dense_bound
from gloronet.operators.rounding import SMALLEST_NORMAL, U64, gamma, product, root, total, up
from gloronet.operators.shape import CircularPad, Rearrangement
from gloronet.program.program import Op

LINEAR = (LinearOperator, Scale, Translate, Rearrangement)
"""What a chain is made of."""
LARGEST_MATRIX = 2**24
"""Entries of a chain's own matrix: 128 MiB in float64."""
MOST_WORK = 2.0e11
"""Floating-point operations for one joint bound."""


def groups(ops: Sequence[Op], operators: Sequence[Operator]) -> list[range]:
    """The operations before the head in order, those of a chain together.

    A chain is kept where at least two of its operations can stretch; it begins and ends with such a one.
    """
    uses = Counter(name for op in ops for name in op.inputs)
    found: list[range] = []
    k = 0
    while k < len(ops) - 1:
        end = k + 1
        while (
            _stretches(operators[k])
            and end < len(ops) - 1
            and isinstance(operators[end], LINEAR)
            and ops[end].inputs == (ops[end - 1].output,)
            and uses[ops[end - 1].output] == 1
        ):
            end += 1
        while end > k + 1 and not _stretches(operators[end - 1]):
            end -= 1
        found.append(range(k, end))
        k = end
    return found


@dataclass(frozen=True, eq=False)
class Chain(LinearOperator):
    """Linear operations in a row, as one. Its estimate is one power iteration through all of them."""

    rule: ClassVar[str] = "chain"

    parts: tuple[Any, ...]

    @property
    def output_shape(self) -> Shape:
        return self.parts[-1].output_shape

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        for part in self.parts:
            x = part(x)
        return x

    def apply(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part.apply(x)
        return x

    def adjoint(self, y: Tensor) -> Tensor:
        for part in reversed(self.parts):
            y = part.adjoint(y)
        return y

    def row_sum(self) -> Any:
        return math.prod(part.estimate(None, 0, "linf")[0] for part in self.parts)

    def bound(self, norm: str) -> Proved:
        """The smallest of the product, the folded and the joint bound."""
        return self.bound_from([part.bound(norm) for part in self.parts], norm)

    def bound_from(self, proved: Sequence[Proved], norm: str) -> Proved:
        """The same, from the parts' own bounds."""
        best = Proved(product(*(p.value for p in proved)), "product")
        left, constants = _fold(self.parts, proved, norm)
        best = min(best, Proved(product(*constants), "folded"), key=lambda p: p.value)
        matrix = self._matrix() if left > 1 and norm == "l2" else None
        if matrix is not None:
            exact = total(dense_bound(matrix), _matrix_error(self.parts, proved))
            best = min(best, Proved(exact, "joint"), key=lambda p: p.value)
        return best

    def _matrix(self) -> Tensor | None:
        """The chain's matrix, computed in float64 column by column; None when it is too large."""
        n, m = math.prod(self.input_shape), math.prod(self.output_shape)
        small = min(n, m)
        if n * m > LARGEST_MATRIX or 4.0 * n * m * small + 8.0 * float(small) ** 3 > MOST_WORK:
            return None
        tensors = [t for part in self.parts for t in vars(part).values() if isinstance(t, Tensor)]
        identity = torch.eye(n, dtype=torch.float64, device=tensors[0].device if tensors else None)
        columns = [self.apply(part.reshape(-1, *self.input_shape)).flatten(1) for part in identity.split(512)]
        return torch.cat(columns).T


def _fold(operators: Sequence[Operator], proved: Sequence[Proved], norm: str) -> tuple[int, list[float]]:
    """How many operators are left when scalings are folded into neighbouring layers, and their constants."""
    parts: list[tuple[Operator, float, int]] = []  # with its own constant, or how many scalings it took in
    for operator, own in zip(operators, proved, strict=True):
        if isinstance(operator, Translate):
            continue
        before = parts[-1][0] if parts else None
        scaled = _scaled(before, operator) if before is not None else None
        if scaled is not None:
            parts[-1] = (scaled, 0.0, parts[-1][2] + 1)
        else:
            parts.append((operator, own.value, 0))
    constants = []
    for part, constant, folded in parts:
        if folded:
            # Each scaling costs two roundings, a reciprocal's and a product's: |ΔA| ≤ γ₂|A| on either side.
            bound = part.bound(norm).value
            gain = bound if norm == "linf" else part.arithmetic().gain
            constant = total(bound, up(4.0 * folded * U64 * gain))
        constants.append(constant)
    return sum(_stretches(part) for part, _, _ in parts), constants


def _scaled(first: Operator, second: Operator) -> Operator | None:
    """One layer for a layer and a scaling beside it, or None when they do not fold."""
    if isinstance(second, Scale) and isinstance(first, Conv2d | Dense) and not first.skip:
        factor = _per_channel(second, first.output_shape)
        if factor is not None:
            weight = _times(first.weight, factor.reshape(-1, *[1] * (first.weight.dim() - 1)))
            return None if weight is None else first.with_tensors(weight=weight, bias=None)
    if isinstance(first, Scale) and isinstance(second, Conv2d | Dense) and not second.skip:
        factor = _per_channel(first, second.input_shape)
        if factor is not None and getattr(second, "groups", 1) == 1:
            weight = _times(second.weight, factor.reshape(1, -1, *[1] * (second.weight.dim() - 2)))
            return None if weight is None else second.with_tensors(weight=weight, bias=None)
    return None


def _times(weight: Tensor, factor: Tensor) -> Tensor | None:
    """The product in float64; None where an entry underflows, as its rounding is then no longer relative."""
    folded = weight.double() * factor
    meant = (weight != 0) & (factor != 0)
    lost = meant & ((folded.abs() < SMALLEST_NORMAL) | (factor.abs() < SMALLEST_NORMAL))
    return None if bool(lost.any()) else folded


def _per_channel(scale: Scale, shape: tuple[int, ...]) -> Tensor | None:
    """The scaling as one factor a channel of `shape`; None when it varies within a channel."""
    factor = scale.factor.double()
    full = torch.broadcast_to(factor, (1, *shape)).reshape(shape[0], -1)
    if not bool((full == full[:, :1]).all()):
        return None
    return 1.0 / full[:, 0] if scale.divide else full[:, 0]


def _stretches(operator: Operator) -> bool:
    if isinstance(operator, Translate | Rearrangement):
        return isinstance(operator, CircularPad)
    return isinstance(operator, LINEAR)


def _matrix_error(operators: Sequence[Operator], proved: Sequence[Proved]) -> float:
    """√n times the evaluation error of the linear parts at a unit vector (the recursion of error.py)."""
    size, error = 1.0, 0.0
    for operator, own in zip(operators, proved, strict=True):
        loss = operator.arithmetic()
        local = product(gamma(loss.terms), loss.gain, total(size, error))
        underflow = product(float(loss.terms), root(float(math.prod(operator.output_shape))), 2.0**-1022)
        error = total(product(own.value, error), local, underflow)
        size = product(own.value, size)
    return product(root(float(math.prod(operators[0].input_shape))), error)
