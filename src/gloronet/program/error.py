"""What floating point can lose when a Program is evaluated, near x: bounds affine in the distance from x.

Along the graph, for every input x′ with ‖x′ − x‖ ≤ r and every value z, two bounds are carried:

    size:   ‖z(x′)‖ ≤ size                        (the exact value)
    error:  ‖ẑ(x′) − z(x′)‖ ≤ error               (the computed one)

One operation with constant K, gain ‖|A|‖, offset ‖f(0)‖ and n roundings gives, with κ = γ_n(u),

    size′  = K·size + offset
    error′ = K·error + κ·(gain·(size + error) + offset) + n·√entries·underflow.

Spectral norms carry the error on; |A| counts only where a rounding is injected. Of the logits then

    |(ŷ_j − ŷ_i) − (y_j − y_i)| ≤ δ_ij = ‖w_j − w_i‖·D + Σ_{c ∈ {i,j}} κ(‖w_c‖·(‖z‖ + D) + |b_c|) + underflow.

`logit_error` bounds sizes through ‖x‖ alone: δ = constant + slope·(‖x‖ + r), three numbers a pair and net.
That is enough for float64. In a deep net ‖x‖ times the constants is far above what the values really are, and
float32 has no digits to spare: `sample_error` measures ‖z(x)‖ in the very evaluation a certificate rests on,
δ = constant(x) + slope·r. Where it is told to be `close`, it takes ‖|A||z(x)|‖ for ‖|A|‖·‖z(x)‖, which is tighter
still, for the price of a second forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gloronet.errors import UnsupportedOperation
from gloronet.operators.base import Arithmetic, Operator
from gloronet.operators.dense import Dense
from gloronet.operators.rounding import TINY, U32, U64, gamma, lengths_up, norms_up, product, root, total
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
        local = summed.times(gamma(loss.terms, unit)).plus(Affine(underflow(loss, operator, smallest), 0.0))
        error[op.output] = error_in.times(constant).plus(local)
        largest = summed.times(loss.peak)
        peak = Affine(max(peak.constant, largest.constant), max(peak.slope, largest.slope))
    last, head = program.ops[-1], program.operators[-1]
    assert isinstance(head, Dense)
    both = size[last.inputs[0]].plus(error[last.inputs[0]])
    d = error[last.inputs[0]]
    distance, rows, bias = head_norms(head)
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


class SampleError(NamedTuple):
    """δ_ij(x, r) = constant(x) + slope·r at each sample, beside the float64 logits it was found with."""

    logits: Tensor
    carried: Tensor
    """(B,): D at r = 0."""
    moving: float
    """D's slope in r."""
    own: Tensor
    """(B, m): what each logit's own sum loses at r = 0, and `own_slope` (m,) that in r."""
    own_slope: Tensor
    distance: Tensor

    def rows(self, label: Tensor) -> tuple[Tensor, Tensor]:
        """(δ at r = 0, its slope in r) of each sample's label against each class: two (B, m)."""
        own = self.own + self.own.gather(1, label[:, None])
        slope = (self.distance * self.moving + self.own_slope[:, None] + self.own_slope) * SAFE
        return (self.distance[label] * self.carried[:, None] + own) * SAFE, slope[label]


@torch.no_grad()
def sample_error(
    program: FrozenProgram, proved: Bound, double: LogitError, x: Tensor, unit: float, close: bool = False
) -> SampleError:
    """δ for an evaluation with unit roundoff `unit` within r of each sample, sizes measured at the sample.

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
        fixed[op.output] = constant * d0
        if loss.terms:
            off = sum((double.values[name].at(norm) for name in op.inputs), d0)
            injected = operator.injected(*inputs) if close else _through_norms(loss, inputs)
            fixed[op.output] += kappa * (injected + loss.gain * off) + underflow(loss, operator, smallest)
        fixed[op.output] *= SAFE
        moving[op.output] = total(product(constant, d1), product(kappa, loss.gain, total(away, d1)))
        reach[op.output] = product(constant, away)
    last, head = program.ops[-1], program.operators[-1]
    assert isinstance(head, Dense)
    z, d0 = values[last.inputs[0]], fixed[last.inputs[0]]
    d1, away = moving[last.inputs[0]], reach[last.inputs[0]]
    distance, rows, bias = (t.to(x.device) for t in head_norms(head))
    kappa = gamma(head.weight.shape[1] + 1, unit)
    off = double.values[last.inputs[0]].at(norm)
    local = head.magnitude(z) if close else lengths_up(z)[:, None] * rows + bias
    own = kappa * (local + rows * (d0 + off)[:, None]) * SAFE + head.weight.shape[1] * smallest
    own_slope = kappa * (rows * total(away, d1)) * SAFE + TINY
    return SampleError(head(z), d0, d1, own, own_slope, distance)


def _through_norms(loss: Arithmetic, inputs: Sequence[Tensor]) -> Tensor:
    """gain·‖z‖ + offset, (B,), rounded up but for what SAFE covers."""
    size = sum((lengths_up(z) for z in inputs[1:]), lengths_up(inputs[0]))
    return loss.gain * size + loss.offset


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


def underflow(loss: Arithmetic, operator: Operator, smallest: float) -> float:
    """What underflow can cost in one evaluation, as a norm."""
    return product(float(loss.terms), root(float(math.prod(operator.output_shape))), smallest)


def head_norms(head: Dense) -> tuple[Any, Any, Any]:
    """‖w_j − w_i‖, ‖w_c‖ and |b_c|, rounded up."""
    distance = prove_margins(1.0, head.weight, "margin", "l2")
    rows = norms_up(head.weight).cpu()
    bias = torch.zeros_like(rows) if head.bias is None else head.bias.double().abs().cpu()
    return distance, rows, bias
