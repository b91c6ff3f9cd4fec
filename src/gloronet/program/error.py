"""What floating point can lose when a Program is evaluated, near x: bounds affine in the distance from x.

Along the graph, for every input x′ with ‖x′ − x‖ ≤ r and every value z, two bounds are carried:

    size:   ‖z(x′)‖ ≤ size                        (the exact value)
    error:  ‖ẑ(x′) − z(x′)‖ ≤ error               (the computed one)

One operation with constant K, gain ‖|A|‖, offset ‖f(0)‖ and n roundings gives, with κ = γ_n(u),

    size′  = K·size + offset
    error′ = K·error + κ·(gain·(size + error) + offset) + n·√entries·underflow.

Spectral norms carry the error on; |A| counts only where a rounding is injected. Of the logits then

    |(ŷ_j − ŷ_i) − (y_j − y_i)| ≤ δ_ij = ‖w_j − w_i‖·D + Σ_{c ∈ {i,j}} κ(‖w_c‖·(‖z‖ + D) + |b_c|) + underflow.

`logit_error` bounds sizes through ‖x‖ alone: δ = constant + slope·(‖x‖ + r), three numbers a pair and net,
so it costs nothing per sample. `sample_error` takes |A||z| at the sample itself, which is tighter, for the
price of a second forward pass: δ = constant(x) + slope·r.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gloronet.errors import UnsupportedOperation
from gloronet.operators.base import Arithmetic, Operator
from gloronet.operators.dense import Dense
from gloronet.operators.rounding import TINY, U32, U64, gamma, norms_up, product, root, total
from gloronet.program.bound import Bound, prove_margins
from gloronet.program.program import INPUT, FrozenProgram, Program

SMALLEST = {U64: 2.0**-1021, U32: 2.0**-125}
"""What underflow can cost in a product and in the sum it goes into, flush-to-zero included, by unit roundoff.

(Not where the processor also takes subnormal inputs for zero: `torch.set_flush_denormal` is not covered.)
"""
LARGEST = {U64: 2.0**1023, U32: 2.0**127}
"""Beyond this a sum may overflow; nothing is claimed there."""
SAFE = 1.0 + 16.0 * U64
"""Covers the handful of roundings of the batched formulas below."""


class Affine(NamedTuple):
    """constant + slope·t, both rounded up."""

    constant: float
    slope: float

    def times(self, factor: float) -> Affine:
        return Affine(product(factor, self.constant), product(factor, self.slope))

    def plus(self, other: Affine) -> Affine:
        return Affine(total(self.constant, other.constant), total(self.slope, other.slope))

    def at(self, t: Tensor) -> Tensor:
        return (self.constant + self.slope * t) * SAFE


class LogitError(NamedTuple):
    """δ_ij(x, r) = constant + slope·(‖x‖ + r), for every x; no claim where `peak` exceeds the arithmetic."""

    constant: Tensor
    slope: Tensor
    peak: Affine
    values: dict[str, Affine]
    """‖ẑ − z‖ for every value z of the Program, affine in ‖x‖ + r."""

    def rows(self, size: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        """(δ at r = 0, its slope in r) of each sample's label against each class: two (B, m)."""
        constant, slope = (t.to(size.device)[label] for t in (self.constant, self.slope))
        return (constant + slope * size[:, None]) * SAFE, slope


def logit_error(program: FrozenProgram, proved: Bound, unit: float = U64) -> LogitError:
    """δ for an evaluation of the Program's operations with unit roundoff `unit`, in any order of summation."""
    smallest = SMALLEST.get(unit, 2.0**-13)
    size: dict[str, Affine] = {INPUT: Affine(0.0, 1.0)}
    error: dict[str, Affine] = {INPUT: Affine(0.0, 0.0)}
    peak = Affine(0.0, 1.0)
    for k, (op, operator) in enumerate(zip(program.ops[:-1], program.operators[:-1], strict=True)):
        constant = l2_constant(proved, operator, k)
        loss = operator.arithmetic()
        size_in, error_in = (_join(which, op.inputs) for which in (size, error))
        size[op.output] = size_in.times(constant).plus(Affine(loss.offset, 0.0))
        summed = size_in.plus(error_in).times(loss.gain).plus(Affine(loss.offset, 0.0))
        local = summed.times(gamma(loss.terms, unit)).plus(_underflow(loss, operator, smallest))
        error[op.output] = error_in.times(constant).plus(local)
        peak = Affine(max(peak.constant, summed.constant), max(peak.slope, summed.slope))
    last, head = program.ops[-1], program.operators[-1]
    assert isinstance(head, Dense)
    both = size[last.inputs[0]].plus(error[last.inputs[0]])
    d = error[last.inputs[0]]
    distance, rows, bias = _head(head)
    kappa = gamma(head.weight.shape[1] + 1, unit)
    constant_c = kappa * (rows * both.constant + bias) * SAFE + head.weight.shape[1] * smallest
    slope_c = kappa * (rows * both.slope) * SAFE + TINY  # in this order: κ‖w‖ alone may underflow
    top = both.times(float(rows.max())).plus(Affine(float(bias.max()), 0.0))
    return LogitError(
        (distance * d.constant + constant_c[:, None] + constant_c[None, :]) * SAFE,
        (distance * d.slope + slope_c[:, None] + slope_c[None, :]) * SAFE,
        Affine(max(peak.constant, top.constant), max(peak.slope, top.slope)),
        error,
    )


@torch.no_grad()
def sample_error(
    program: FrozenProgram, proved: Bound, double: LogitError, x: Tensor, label: Tensor, unit: float
) -> tuple[Tensor, Tensor]:
    """(δ at r = 0, its slope in r) of each sample's label against each class, with |A||z| taken at the sample.

    z is evaluated in float64; `double` says how far that may be from the exact z.
    """
    norm = norms_up(x.flatten(1))
    smallest = SMALLEST.get(unit, 2.0**-13)
    values: dict[str, Tensor] = {INPUT: x.double()}
    reach: dict[str, float] = {INPUT: 1.0}
    fixed: dict[str, Tensor] = {INPUT: x.new_zeros(len(x), dtype=torch.float64)}
    moving: dict[str, float] = {INPUT: 0.0}
    for k, (op, operator) in enumerate(zip(program.ops[:-1], program.operators[:-1], strict=True)):
        constant = l2_constant(proved, operator, k)
        loss = operator.arithmetic()
        kappa = gamma(loss.terms, unit)
        inputs = [values[name] for name in op.inputs]
        d0 = sum((fixed[name] for name in op.inputs[1:]), fixed[op.inputs[0]])
        d1 = total(*(moving[name] for name in op.inputs))
        away = total(*(reach[name] for name in op.inputs))
        values[op.output] = operator(*inputs)
        off = sum((double.values[name].at(norm) for name in op.inputs), torch.zeros_like(norm))
        injected = operator.injected(*inputs) + loss.gain * (off + d0) if loss.terms else torch.zeros_like(d0)
        underflow = _underflow(loss, operator, smallest).constant
        fixed[op.output] = (constant * d0 + kappa * injected + underflow) * SAFE
        moving[op.output] = total(product(constant, d1), product(kappa, loss.gain, total(away, d1)))
        reach[op.output] = product(constant, away)
    last, head = program.ops[-1], program.operators[-1]
    assert isinstance(head, Dense)
    z, d0 = values[last.inputs[0]], fixed[last.inputs[0]]
    d1, away = moving[last.inputs[0]], reach[last.inputs[0]]
    distance, rows, _ = (t.to(x.device) for t in _head(head))
    kappa = gamma(head.weight.shape[1] + 1, unit)
    off = double.values[last.inputs[0]].at(norm)
    local = kappa * (head.magnitude(z) + rows * (d0 + off)[:, None]) * SAFE
    local = local + head.weight.shape[1] * smallest
    slope = kappa * (rows * total(away, d1)) * SAFE + TINY
    own = local.gather(1, label[:, None])
    constant_ij = (distance[label] * d0[:, None] + local + own) * SAFE
    slope_ij = (distance * d1 + slope[:, None] + slope[None, :]) * SAFE
    return constant_ij, slope_ij[label]


def require_stated(program: Program) -> None:
    """Refuses an elementary function: no library states the error of its float32 tanh."""
    for op in program.ops:
        if op.kind.elementary:
            raise UnsupportedOperation(
                f'No float32 error is stated for {op.kind.rule} at {op.path}; use semantics="real", or MinMax.'
            )


def l2_constant(proved: Bound, operator: Operator, k: int) -> float:
    """The k-th operation's ℓ2 constant, whatever norm was proved."""
    return proved.layers[k].value if proved.norm == "l2" else operator.bound("l2").value


def _join(values: dict[str, Affine], names: tuple[str, ...]) -> Affine:
    joined = values[names[0]]
    for name in names[1:]:
        joined = joined.plus(values[name])
    return joined


def _underflow(loss: Arithmetic, operator: Operator, smallest: float) -> Affine:
    if loss.terms == 0:
        return Affine(0.0, 0.0)
    entries = math.prod(operator.output_shape)
    return Affine(product(float(loss.terms), root(float(entries)), smallest), 0.0)


def _head(head: Dense) -> tuple[Any, Any, Any]:
    """‖w_j − w_i‖, ‖w_c‖ and |b_c|, rounded up."""
    distance = prove_margins(1.0, head.weight, "margin", "l2")
    rows = norms_up(head.weight).cpu()
    bias = torch.zeros_like(rows) if head.bias is None else head.bias.double().abs().cpu()
    return distance, rows, bias
