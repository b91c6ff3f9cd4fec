"""From x and the float32 logits to label, radius and ⊥: float64 nodes, on constants rounded outwards."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gloronet.errors import ConfigError
from gloronet.export.graph import Graph
from gloronet.net import BOTTOM
from gloronet.operators.rounding import U32, U64, gamma
from gloronet.program import LogitError
from gloronet.program.error import LARGEST

SLACK = 2.0**-40
"""By how much, relatively, constants are rounded outwards: 2¹³ roundings of float64."""
FLOOR = 2.0**-1000
"""Radii and slopes below are not told from 0, so that nothing rests on subnormal numbers."""


class Constants(NamedTuple):
    """r_i = (lead_i − fixed − slope·‖x‖)/steep, and at most limit − ‖x‖; m×m float64.

    They make up for the graph's own roundings, so that it needs no factor 1 + tiny: with every one of them off
    outwards by a relative s, and the quotient's parts by at most u, (L(1 + u) − l(1 + s))/(k(1 + s)) ≤ (L − l)/k.
    (onnxruntime would take such a factor, compared in float32, for 1 and drop it.)
    """

    fixed: Tensor
    slope: Tensor
    steep: Tensor
    limit: float


def safe_constants(margins: Tensor, single: LogitError, double: LogitError, entries: int) -> Constants:
    slack = SLACK + 16.0 * gamma(entries + 8)  # the latter for ‖x‖, a sum of so many squares
    fixed, slope, steep = (
        (t * (1.0 + slack)).clamp(min=FLOOR)
        for t in (
            2.0 * (single.constant + double.constant),
            2.0 * (single.slope + double.slope),
            margins + single.slope,
        )
    )
    reach = (
        (LARGEST[unit] - error.peak.constant) / error.peak.slope for unit, error in ((U32, single), (U64, double))
    )
    limit = min(reach) * (1.0 - slack)
    if not (all(bool(torch.isfinite(t).all()) for t in (fixed, slope, steep)) and limit > 0):
        raise ConfigError("Nothing can be certified of this net: its bound or what float32 loses in it is not finite.")
    return Constants(fixed, slope, steep, limit)


def certificates(g: Graph, constants: Constants, entries: int) -> None:
    """From `x` and `logits` to the other outputs, in float64."""
    g.path = "certificate"
    double, boolean, small = (getattr(g.onnx.TensorProto, t) for t in ("DOUBLE", "BOOL", "INT32"))
    rows, zero = g.whole([1]), g.double(0.0)

    def gathered(table: Tensor) -> str:
        return g.add("Gather", g.double(table), "label", axis=0)

    def each(numbers: str) -> str:
        return g.add("Unsqueeze", numbers, rows)

    # ‖x‖, off by γ: squares of float32 numbers neither overflow nor underflow in float64.
    flat = g.add("Reshape", "x", g.whole([0, entries]))
    squares = g.add("ReduceSumSquare", g.add("Cast", flat, to=double), rows, keepdims=0)
    size = g.add("Sqrt", squares)

    y = g.add("Cast", "logits", to=double)
    finite = g.add("LessOrEqual", g.add("Abs", y), g.double(float(np.finfo(np.float32).max)))
    clean = g.add("Where", finite, y, zero)  # an index must come out even where a logit is not a number
    g.add("ArgMax", clean, axis=1, keepdims=0, select_last_index=0, output="label")
    lead = g.add("Sub", g.add("ReduceMax", clean, rows, keepdims=1), clean)
    lost = g.add("Add", gathered(constants.fixed), g.add("Mul", gathered(constants.slope), each(size)))
    ratio = g.add("Div", g.add("Sub", lead, lost), gathered(constants.steep))
    own = g.add("Equal", each("label"), g.whole([list(range(len(constants.steep)))]))
    rivals = g.add("Where", own, g.double(constants.limit), ratio)
    nearest = g.add("ReduceMin", rivals, rows, keepdims=0)
    reach = g.add("Sub", g.double(constants.limit), size)
    radius = g.add("Min", nearest, reach)

    # A comparison with what is not a number is false.
    all_finite = g.add("ReduceMin", g.add("Cast", finite, to=small), rows, keepdims=0)
    sound = g.add("And", g.add("Cast", all_finite, to=boolean), g.add("Greater", reach, zero))
    sound = g.add("And", sound, g.add("Greater", radius, g.double(FLOOR)))
    g.add("Where", sound, radius, zero, output="radius")
    g.add("And", g.add("Greater", "radius", "epsilon"), sound, output="certified")
    g.add("Where", "certified", "label", g.whole(BOTTOM), output="prediction")
