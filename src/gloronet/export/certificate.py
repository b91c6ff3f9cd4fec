"""From the float32 logits, and the sizes of the values before them, to label, radius and ⊥.

Float64 nodes, on constants rounded outwards.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gloronet.errors import ConfigError
from gloronet.export.graph import Graph
from gloronet.export.losses import Linear, losses, shapes, size
from gloronet.net import BOTTOM
from gloronet.operators.dense import Dense
from gloronet.operators.rounding import U32, U64, gamma
from gloronet.program import Bound, FrozenProgram, LogitError
from gloronet.program.error import LARGEST, SMALLEST, head_norms
from gloronet.program.program import INPUT

SLACK = 2.0**-40
"""By how much, relatively, constants are rounded outwards: 2¹³ roundings of float64."""
FLOOR, MOST = 2.0**-1000, 2.0**1000
"""Radii and slopes below are not told from 0, so that nothing rests on subnormals; sums above, from infinity."""


class Constants(NamedTuple):
    """r_i = (lead_i − Σ_k told_k·stated_k)/steep_i, by label (first) and rival (last), all float64.

    told = sizes·told_by + told_least, from the roots of the sums of squares of `values`: e (losses.py), the size of
    what goes into the head, ‖x‖, and 1. In the label's own place stands how far float32 reaches, r = limit − ‖x‖, as a
    lead of 0 with −limit stated for the 1. The tables make up for the graph's own roundings, so that it needs no
    factor 1 + tiny: with every one of them off outwards by a relative s, and the quotient's parts by at most u,
    (L(1 + u) − l(1 + s))/(k(1 + s)) ≤ (L − l)/k. (onnxruntime would take such a factor, compared in float32, for 1
    and drop it.)
    """

    values: dict[str, tuple[int, ...]]
    """With the shape of each."""
    told_by: Tensor
    """(values, 4)"""
    told_least: Tensor
    """(1, 4)"""
    stated: Tensor
    """(m, 4, m)"""
    steep: Tensor
    """(m, m)"""


def safe_constants(program: FrozenProgram, proved: Bound, single: LogitError, double: LogitError) -> Constants:
    head, last = program.operators[-1], program.ops[-1].inputs[0]
    assert isinstance(head, Dense)
    inside, shape = head.weight.shape[1], shapes(program)
    told = (losses(program, proved), size(last, (inside,)), size(INPUT, shape[INPUT]), Linear({}, 1.0))
    values = {v: shape[v] for form in told for v in form.coefficients}

    distance, rows, bias = head_norms(head)
    kappa = gamma(inside + 1, U32)
    both, biases = rows[:, None] + rows, bias[:, None] + bias
    # Twice δ, as the centre is a float32 evaluation too; twice float64's, for `certify` may be off by that.
    fixed = 2.0 * (kappa * biases + 2 * inside * SMALLEST[U32] + double.constant)
    stated = torch.stack([2.0 * (distance + 2.0 * kappa * both), 2.0 * kappa * both, 2.0 * double.slope, fixed], 1)

    def outwards(t: Tensor) -> Tensor:
        return (t.cpu() * (1.0 + SLACK)).clamp(min=FLOOR)

    reach = (
        (LARGEST[unit] - error.peak.constant) / error.peak.slope for unit, error in ((U32, single), (U64, double))
    )
    limit = min(reach) * (1.0 - SLACK)
    own = torch.arange(len(rows))
    stated, steep = outwards(stated), outwards(proved.margins.cpu() + single.slope.cpu())
    stated[own, :, own] = torch.tensor([0.0, 0.0, 1.0, -limit], dtype=torch.float64)
    steep[own, own] = 1.0
    told_by = [[form.coefficients.get(v, 0.0) for form in told] for v in values]
    told_least = torch.tensor([[form.constant for form in told]], dtype=torch.float64) * (1.0 + SLACK)
    told_least[0, -1] = 1.0
    found = Constants(values, torch.tensor(told_by, dtype=torch.float64) * (1.0 + SLACK), told_least, stated, steep)
    finite = all(bool(torch.isfinite(t).all()) for t in found if isinstance(t, Tensor))
    if not (finite and limit > 0):
        raise ConfigError("Nothing can be certified of this net: its bound or what float32 loses in it is not finite.")
    return found


def certificates(g: Graph, names: dict[str, str], constants: Constants) -> None:
    """From `logits` and the values that `names` says where to find to the other outputs, in float64."""
    g.path = "certificate"
    double, rows, zero, most = g.onnx.TensorProto.DOUBLE, g.whole([1]), g.double(0.0), g.double(MOST)

    def gathered(table: Tensor) -> str:
        return g.add("Gather", g.double(table), "label", axis=0)

    def known(total: str, values: str, keepdims: int = 0) -> str:
        """Whether all of a row is finite: a sum with what is not a number is none, and no comparison holds for it."""
        return g.add("LessOrEqual", g.add(total, values, rows, keepdims=keepdims), most)

    # Sums of squares in float32, which may overflow: to infinity, which is known below. (ReduceSumSquare is slow.)
    # The first value comes last: onnxruntime begins with the last input, so takes a size while its value is at hand.
    each = reversed([(names[value], list(range(1, 1 + len(shape)))) for value, shape in constants.values.items()])
    sums = [g.add("ReduceSum", g.add("Mul", v, v), g.whole(axes), keepdims=0) for v, axes in each]
    lengths = g.add("Sqrt", g.add("Cast", g.add("Concat", *sums, axis=0), to=double))
    each_a_row = g.add("Reshape", lengths, g.whole([len(sums), -1]))
    told = g.add("Gemm", each_a_row, g.double(constants.told_by.flip(0)), g.double(constants.told_least), transA=1)

    y = g.add("Cast", "logits", to=double)
    clean = g.add("Where", known("ReduceL1", y, keepdims=1), y, zero)  # without a single number nothing leads
    g.add("ArgMax", clean, axis=1, keepdims=0, select_last_index=0, output="label")
    lead = g.add("Sub", g.add("ReduceMax", clean, rows, keepdims=1), clean)
    lost = g.add("MatMul", g.add("Unsqueeze", told, rows), gathered(constants.stated))
    left = g.add("Sub", lead, g.add("Squeeze", lost, rows))
    radius = g.add("ReduceMin", g.add("Div", left, gathered(constants.steep)), rows, keepdims=0)

    sound = g.add("And", known("ReduceSum", told), g.add("Greater", radius, g.double(FLOOR)))
    g.add("Where", sound, radius, zero, output="radius")
    g.add("And", g.add("Greater", "radius", "epsilon"), sound, output="certified")
    g.add("Where", "certified", "label", g.whole(BOTTOM), output="prediction")
