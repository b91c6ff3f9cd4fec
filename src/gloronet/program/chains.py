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
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import LinearOperator, Operator, Proved
from gloronet.operators.conv import Conv2d
from gloronet.operators.dense import Dense
from gloronet.operators.norms import dense_bound
from gloronet.operators.rounding import U64, gamma, product, root, total, up
from gloronet.operators.shape import Pad, Reshape
from gloronet.program.program import Op

LARGEST_MATRIX = 2**24
"""Entries of a chain's own matrix: 128 MiB in float64."""
MOST_WORK = 2.0e11
"""Floating-point operations for one joint bound."""


def chains(ops: Sequence[Op], operators: Sequence[Operator]) -> Iterator[range]:
    """The longest runs of linear operations in which more than one can stretch; the head is left out."""
    uses = Counter(name for op in ops for name in op.inputs)
    start = 0
    for k in range(len(ops)):
        linear = k < len(ops) - 1 and _is_linear(operators[k])
        follows = k > start and ops[k].inputs == (ops[k - 1].output,) and uses[ops[k - 1].output] == 1
        if not (linear and (k == start or follows)):
            yield from _worthwhile(range(start, k), operators)
            start = k if linear else k + 1
    return


def chain_bound(operators: Sequence[Operator], proved: Sequence[Proved], norm: str) -> Proved:
    """The smallest of the product, the folded and the joint bound of a chain."""
    best = Proved(product(*(p.value for p in proved)), "product")
    parts, constants = _fold(operators, proved, norm)
    best = min(best, Proved(product(*constants), "folded"), key=lambda p: p.value)
    if len(parts) > 1 and norm == "l2":
        matrix = _matrix(operators)
        if matrix is not None:
            exact = total(dense_bound(matrix), _matrix_error(operators, proved))
            best = min(best, Proved(exact, "joint"), key=lambda p: p.value)
    return best


def _worthwhile(chain: range, operators: Sequence[Operator]) -> Iterator[range]:
    stretching = [k for k in chain if not isinstance(operators[k], Reshape | Pad | Translate)]
    if len(stretching) > 1:
        yield range(stretching[0], stretching[-1] + 1)


def _is_linear(operator: Operator) -> bool:
    return isinstance(operator, LinearOperator | Scale | Translate | Reshape | Pad)


def _fold(
    operators: Sequence[Operator], proved: Sequence[Proved], norm: str
) -> tuple[list[Operator], list[float]]:
    """The chain with its scalings folded into neighbouring layers, and the constants that are left."""
    parts: list[tuple[Operator, float | None]] = []
    for operator, own in zip(operators, proved, strict=True):
        if isinstance(operator, Reshape | Translate) and (
            isinstance(operator, Translate) or operator.input_shape == operator.output_shape
        ):
            continue
        before = parts[-1][0] if parts else None
        scaled = _scaled(before, operator) if before is not None else None
        if scaled is not None:
            parts[-1] = (scaled, None)
        else:
            parts.append((operator, own.value))
    constants = []
    for part, known in parts:
        if known is not None:
            constants.append(known)
        else:
            # Each folded product is off by one rounding, relatively: |ΔA| ≤ u|A| for either side's scaling.
            gain = part.arithmetic().gain
            slip = up(4.0 * U64 * (_row_gain(part) if norm == "linf" else gain))
            constants.append(total(part.bound(norm).value, slip))
    return [part for part, _ in parts], constants


def _scaled(first: Operator, second: Operator) -> Operator | None:
    """One layer for a layer and a scaling beside it, or None when they do not fold."""
    if isinstance(second, Scale) and isinstance(first, Conv2d | Dense) and not first.skip:
        factor = _per_channel(second, first.output_shape)
        if factor is not None:
            weight = first.weight.double() * factor.reshape(-1, *[1] * (first.weight.dim() - 1))
            return first.with_tensors(weight=weight, bias=None)
    if isinstance(first, Scale) and isinstance(second, Conv2d | Dense) and not second.skip:
        factor = _per_channel(first, second.input_shape)
        if factor is not None and getattr(second, "groups", 1) == 1:
            weight = second.weight.double() * factor.reshape(1, -1, *[1] * (second.weight.dim() - 2))
            return second.with_tensors(weight=weight, bias=None)
    return None


def _per_channel(scale: Scale, shape: tuple[int, ...]) -> Tensor | None:
    """The scaling as one factor a channel of `shape`; None when it varies within a channel."""
    factor = scale.factor.double()
    full = torch.broadcast_to(factor, shape).reshape(shape[0], -1)
    if not bool((full == full[:, :1]).all()):
        return None
    return 1.0 / full[:, 0] if scale.divide else full[:, 0]


def _row_gain(part: Operator) -> float:
    return part.bound("linf").value


def _matrix(operators: Sequence[Operator]) -> Tensor | None:
    """The chain's matrix, computed in float64 column by column; None when it is too large."""
    n, m = math.prod(operators[0].input_shape), math.prod(operators[-1].output_shape)
    small = min(n, m)
    if n * m > LARGEST_MATRIX or 4.0 * n * m * small + 8.0 * float(small) ** 3 > MOST_WORK:
        return None
    like = next((t for o in operators for t in vars(o).values() if isinstance(t, Tensor)), torch.zeros(0))
    columns = []
    for part in torch.eye(n, dtype=torch.float64, device=like.device).split(512):
        x = part.reshape(-1, *operators[0].input_shape)
        for operator in operators:
            x = _linear_part(operator, x)
        columns.append(x.flatten(1))
    return torch.cat(columns).T


def _linear_part(operator: Operator, x: Tensor) -> Tensor:
    if isinstance(operator, LinearOperator):
        return operator.apply(x)
    return x if isinstance(operator, Translate) else operator(x)


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
