"""From the float32 logits, and the sizes of the values before them, to label, radius and ⊥.

Float64 nodes, on constants rounded outwards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gloronet.errors import ConfigError
from gloronet.export.graph import Graph
from gloronet.export.losses import entries, losses, size
from gloronet.net import BOTTOM
from gloronet.operators.dense import Dense
from gloronet.operators.rounding import U32, U64, gamma
from gloronet.program import Bound, FrozenProgram, LogitError
from gloronet.program.error import LARGEST, SMALLEST, head_norms
from gloronet.program.program import INPUT

SLACK = 2.0**-40
"""By how much, relatively, constants are rounded outwards: 2¹³ roundings of float64."""
FLOOR = 2.0**-1000
"""Radii and slopes below are not told from 0, so that nothing rests on subnormal numbers."""


class Constants(NamedTuple):
    """r_i = (lead_i − fixed − Σ_k told_k·stated_k)/steep, and at most limit − told_x; by label and rival, float64.

    told = sizes·told_by + told_least: e (losses.py), the size of what goes into the head, and ‖x‖, from the roots of
    the sums of squares of `values`. They make up for the graph's own roundings, so that it needs no factor 1 + tiny:
    with every one of them off outwards by a relative s, and the quotient's parts by at most u, (L(1 + u) − l(1 + s))/
    (k(1 + s)) ≤ (L − l)/k. (onnxruntime would take such a factor, compared in float32, for 1 and drop it.)
    """

    values: dict[str, int]
    """With how many numbers each has."""
    told_by: Tensor
    """(values, 3)"""
    told_least: Tensor
    """(1, 3)"""
    fixed: Tensor
    """(m, m)"""
    stated: Tensor
    """(m, 3, m)"""
    steep: Tensor
    """(m, m)"""
    limit: float


def safe_constants(program: FrozenProgram, proved: Bound, single: LogitError, double: LogitError) -> Constants:
    head, last = program.operators[-1], program.ops[-1].inputs[0]
    assert isinstance(head, Dense)
    inside, count = head.weight.shape[1], entries(program)
    told = (losses(program, proved), size(last, inside), size(INPUT, count[INPUT]))
    values = {v: count[v] for form in told for v in form.coefficients}

    distance, rows, bias = head_norms(head)
    kappa = gamma(inside + 1, U32)
    both, biases = rows[:, None] + rows, bias[:, None] + bias
    # Twice δ, as the centre is a float32 evaluation too; twice float64's, for `certify` may be off by that.
    fixed = 2.0 * (kappa * biases + 2 * inside * SMALLEST[U32] + double.constant)
    stated = torch.stack([2.0 * (distance + 2.0 * kappa * both), 2.0 * kappa * both, 2.0 * double.slope], 1)

    def outwards(t: Tensor) -> Tensor:
        return (t.cpu() * (1.0 + SLACK)).clamp(min=FLOOR)

    reach = (
        (LARGEST[unit] - error.peak.constant) / error.peak.slope for unit, error in ((U32, single), (U64, double))
    )
    found = Constants(
        values,
        outwards(torch.tensor([[form.coefficients.get(v, 0.0) for form in told] for v in values], dtype=torch.float64)),
        outwards(torch.tensor([[form.constant for form in told]], dtype=torch.float64)),
        outwards(fixed),
        outwards(stated),
        outwards(proved.margins.cpu() + single.slope.cpu()),
        min(reach) * (1.0 - SLACK),
    )
    finite = all(bool(torch.isfinite(t).all()) for t in found if isinstance(t, Tensor))
    if not (finite and found.limit > 0):
        raise ConfigError("Nothing can be certified of this net: its bound or what float32 loses in it is not finite.")
    return found


def certificates(g: Graph, names: dict[str, str], constants: Constants) -> None:
    """From `logits` and the values that `names` says where to find to the other outputs, in float64."""
    g.path = "certificate"
    double, boolean, small = (getattr(g.onnx.TensorProto, t) for t in ("DOUBLE", "BOOL", "INT32"))
    rows, zero = g.whole([1]), g.double(0.0)
    largest = g.double(float(np.finfo(np.float32).max))

    def gathered(table: Tensor) -> str:
        return g.add("Gather", g.double(table), "label", axis=0)

    def whole(truth: str) -> str:
        """Whether all of a row is true."""
        return g.add("Cast", g.add("ReduceMin", g.add("Cast", truth, to=small), rows, keepdims=0), to=boolean)

    # Sums of squares in float32, which may overflow: to infinity, which is known below. (ReduceSumSquare is slow.)
    flat = [g.add("Reshape", names[value], g.whole([0, n])) for value, n in constants.values.items()]
    sums = [g.add("ReduceSum", g.add("Mul", v, v), rows, keepdims=1) for v in flat]
    sizes = g.add("Sqrt", g.add("Cast", g.add("Concat", *sums, axis=1), to=double))
    told = g.add("Add", g.add("MatMul", sizes, g.double(constants.told_by)), g.double(constants.told_least))

    y = g.add("Cast", "logits", to=double)
    finite = g.add("LessOrEqual", g.add("Abs", y), largest)
    clean = g.add("Where", finite, y, zero)  # an index must come out even where a logit is not a number
    g.add("ArgMax", clean, axis=1, keepdims=0, select_last_index=0, output="label")
    lead = g.add("Sub", g.add("ReduceMax", clean, rows, keepdims=1), clean)
    stated = g.add("MatMul", g.add("Unsqueeze", told, rows), gathered(constants.stated))
    lost = g.add("Add", gathered(constants.fixed), g.add("Squeeze", stated, rows))
    ratio = g.add("Div", g.add("Sub", lead, lost), gathered(constants.steep))
    own = g.add("Equal", g.add("Unsqueeze", "label", rows), g.whole([list(range(len(constants.steep)))]))
    rivals = g.add("Where", own, g.double(constants.limit), ratio)
    nearest = g.add("ReduceMin", rivals, rows, keepdims=0)
    reach = g.add("Sub", g.double(constants.limit), g.add("Gather", told, g.whole(2), axis=1))
    radius = g.add("Min", nearest, reach)

    # A comparison with what is not a number is false.
    known = whole(g.add("Concat", finite, g.add("LessOrEqual", told, largest), axis=1))
    sound = g.add("And", known, g.add("Greater", reach, zero))
    sound = g.add("And", sound, g.add("Greater", radius, g.double(FLOOR)))
    g.add("Where", sound, radius, zero, output="radius")
    g.add("And", g.add("Greater", "radius", "epsilon"), sound, output="certified")
    g.add("Where", "certified", "label", g.whole(BOTTOM), output="prediction")
