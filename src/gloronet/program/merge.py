"""Neighbours that are one operator: zero padding with its convolution, x + W x with its W.

Only where the merged operator is the very same function and its bound is tighter. The operators keep
in mind what is executed (`skip` is one more rounding), so error analysis follows the real operations.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gloronet.operators.conv import Conv2d
from gloronet.operators.conv1d import Conv1d
from gloronet.operators.dense import Dense
from gloronet.operators.joins import Sum
from gloronet.operators.shape import CircularPad, Pad
from gloronet.program.program import Op


def merge(ops: Sequence[Op], result: str) -> list[Op]:
    """The same function in fewer operations; those that `result` does not need are dropped."""
    ops = _needed(ops, result)
    ops = _pad_into_convolution(ops)
    return _skip_into_branch(ops)


def _needed(ops: Sequence[Op], result: str) -> list[Op]:
    wanted = {result}
    kept = []
    for op in reversed(ops):
        if op.output in wanted:
            wanted.update(op.inputs)
            kept.append(op)
    return kept[::-1]


def _pad_into_convolution(ops: list[Op]) -> list[Op]:
    uses = Counter(name for op in ops for name in op.inputs)
    pads = {op.output: op for op in ops if op.kind in (Pad, CircularPad) and uses[op.output] == 1}
    merged: list[Op] = []
    gone = set()
    for op in ops:
        pad = pads.get(op.inputs[0])
        if op.kind in (Conv1d, Conv2d) and pad is not None and _can_pad(pad, op):
            padding = tuple(
                a + b for a, b in zip(pad.attributes["padding"], op.attributes["padding"], strict=True)
            )
            attributes = op.attributes | {"padding": padding}
            if pad.kind is CircularPad:
                attributes["circular"] = True
            op = replace(op, inputs=pad.inputs, input_shape=pad.input_shape, attributes=attributes)
            gone.add(pad.output)
        merged.append(op)
    return [op for op in merged if op.output not in gone]


def _can_pad(pad: Op, convolution: Op) -> bool:
    """Zeros add to zeros; copies only to nothing, and nothing to copies."""
    if convolution.attributes.get("circular"):
        return False
    return pad.kind is Pad or not any(convolution.attributes["padding"])


def _skip_into_branch(ops: list[Op]) -> list[Op]:
    uses = Counter(name for op in ops for name in op.inputs)
    made = {op.output: op for op in ops}
    merged: list[Op] = []
    gone = set()
    for op in ops:
        if op.kind is Sum:
            for x, y in (op.inputs, op.inputs[::-1]):
                branch = made.get(y)
                if branch is not None and uses[y] == 1 and branch.inputs == (x,) and _can_skip(branch, op):
                    attributes = branch.attributes | {"skip": True}
                    op = replace(branch, output=op.output, attributes=attributes)
                    gone.add(y)
                    break
        merged.append(op)
    return [op for op in merged if op.output not in gone]


def _can_skip(branch: Op, total: Op) -> bool:
    """Whether I + W is again a dense or convolutional operator: the identity must fall on a tap."""
    if branch.kind not in (Dense, Conv1d, Conv2d) or branch.input_shape != total.input_shape:
        return False
    if branch.attributes.get("skip"):
        return False
    if branch.kind is Dense:
        return True
    before, steps = branch.attributes["padding"][::2], branch.attributes["dilation"]
    on_tap = all(p % d == 0 for p, d in zip(before, steps, strict=True))
    return set(branch.attributes["stride"]) == {1} and on_tap
