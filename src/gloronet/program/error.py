"""What floating point can lose when a Program is evaluated: a bound per net, affine in ‖x‖.

Along the graph two affine functions of ‖x‖ are carried for each value z:

    size:   ‖z‖ ≤ size(‖x‖)                       (the exact value)
    error:  ‖ẑ − z‖ ≤ error(‖x‖)                  (the computed one)

One operation with constant K, gain ‖|A|‖, offset ‖f(0)‖ and n roundings gives, with κ = γ_n(u),

    size′  = K·size + offset
    error′ = K·error + κ·(gain·(size + error) + offset) + n·√entries·underflow.

Spectral norms carry the error on; |A| counts only where a rounding is injected. The logits then differ
from the exact ones by δ: |(ŷ_j − ŷ_i) − (y_j − y_i)| ≤ δ_ij(‖x‖).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gloronet.operators.base import Arithmetic
from gloronet.operators.dense import Dense
from gloronet.operators.rounding import U32, U64, gamma, norms_up, product, root, total
from gloronet.program.bound import Bound, prove_margins
from gloronet.program.program import INPUT, FrozenProgram

SMALLEST = {U64: 2.0**-1022, U32: 2.0**-126}
"""What one underflow can cost, flush-to-zero included, by unit roundoff."""


class Affine(NamedTuple):
    """constant + slope·‖x‖, both rounded up."""

    constant: float
    slope: float

    def times(self, factor: float) -> Affine:
        return Affine(product(factor, self.constant), product(factor, self.slope))

    def plus(self, other: Affine) -> Affine:
        return Affine(total(self.constant, other.constant), total(self.slope, other.slope))


class LogitError(NamedTuple):
    """δ_ij(‖x‖) = constant[i, j] + slope[i, j]·‖x‖."""

    constant: Tensor
    slope: Tensor

    def __call__(self, size: Tensor) -> Tensor:
        """δ for a batch of norms (B,): shape (B, m, m); rounded up by two roundings."""
        return (self.constant + self.slope * size[:, None, None]) * (1.0 + 8.0 * U64)


def logit_error(program: FrozenProgram, proved: Bound, unit: float = U64) -> LogitError:
    """δ for an evaluation of the Program's operations with unit roundoff `unit`, each in any order of summation.

    Uses the ℓ2 constants of `proved` (and its operators' own otherwise), whatever norm it certifies.
    """
    smallest = SMALLEST.get(unit, 2.0**-14)
    size: dict[str, Affine] = {INPUT: Affine(0.0, 1.0)}
    error: dict[str, Affine] = {INPUT: Affine(0.0, 0.0)}
    for k, (op, operator) in enumerate(zip(program.ops[:-1], program.operators[:-1], strict=True)):
        constant = proved.layers[k].value if proved.norm == "l2" else operator.bound("l2").value
        loss = operator.arithmetic()
        size_in, error_in = (_join(which, op.inputs) for which in (size, error))
        size[op.output] = size_in.times(constant).plus(Affine(loss.offset, 0.0))
        local = _local(loss, size_in, error_in, unit, smallest, math.prod(operator.output_shape))
        error[op.output] = error_in.times(constant).plus(local)
    last, operator = program.ops[-1], program.operators[-1]
    assert isinstance(operator, Dense)
    z, d = size[last.inputs[0]], error[last.inputs[0]]
    return _head_error(operator, z, d, unit, smallest)


def _join(values: dict[str, Affine], names: tuple[str, ...]) -> Affine:
    joined = values[names[0]]
    for name in names[1:]:
        joined = joined.plus(values[name])
    return joined


def _local(
    loss: Arithmetic, size: Affine, error: Affine, unit: float, smallest: float, entries: int
) -> Affine:
    if loss.terms == 0:
        return Affine(0.0, 0.0)
    kappa = gamma(loss.terms, unit)
    injected = size.plus(error).times(loss.gain).plus(Affine(loss.offset, 0.0)).times(kappa)
    return injected.plus(Affine(product(float(loss.terms), root(float(entries)), smallest), 0.0))


def _head_error(operator: Dense, z: Affine, d: Affine, unit: float, smallest: float) -> LogitError:
    """δ_ij = ‖w_j − w_i‖·D + Σ_{c ∈ {i, j}} κ(‖w_c‖·(‖z‖ + D) + |b_c|) + underflow."""
    weight = operator.weight
    distance = prove_margins(1.0, weight, "margin", "l2")
    rows = norms_up(weight).cpu()
    bias = torch.zeros_like(rows) if operator.bias is None else operator.bias.double().abs().cpu()
    kappa = gamma(weight.shape[1] + 1, unit)
    both = z.plus(d)
    slack = 1.0 + 16.0 * U64
    constant = kappa * (rows * both.constant + bias) * slack + weight.shape[1] * smallest
    slope = kappa * rows * both.slope * slack
    return LogitError(
        (distance * d.constant + constant[:, None] + constant[None, :]) * slack,
        (distance * d.slope + slope[:, None] + slope[None, :]) * slack,
    )
