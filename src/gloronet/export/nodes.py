"""The visible table: operator → ONNX nodes, one small rule each. What is not in it is not exported.

What is run must be what was analysed. An optimiser may order sums as it likes, put an activation or x + W x into its
convolution, and the bias into the sum: δ counts all that. It must not multiply a scaling into the weights of the
layer before, nor add a shift or a branch inside its sum; so where one of these follows, max(·, −∞) stands between:
exact, and no known optimiser looks through it. tests/test_export.py reads the graph that onnxruntime really runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gloronet.export.graph import Graph
from gloronet.operators import (
    Abs,
    AvgPool2d,
    CircularPad,
    Concat,
    Conv1d,
    Conv2d,
    Dense,
    GroupSort,
    Householder,
    LeakyReLU,
    LinearOperator,
    MaxPool2d,
    MinMax,
    Operator,
    Pad,
    Permute,
    PixelUnshuffle,
    ReLU,
    Reshape,
    Scale,
    Sum,
    Translate,
)
from gloronet.program import FrozenProgram
from gloronet.program.program import INPUT

Rule = Callable[..., str]
RULES: dict[type[Operator], Rule] = {}
"""Operator → (graph, operator, names of its inputs) → name of its output. Exact types: nothing is inherited."""
LONGEST, SHORTEST = 256, 32
"""Sums of a dense layer are split into parts so long."""


def onnx_rule(*kinds: type[Operator]) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def network(g: Graph, program: FrozenProgram) -> dict[str, str]:
    """Every operation of the Program as nodes, from `x` to `logits`; answers where each value is found."""
    names = {INPUT: "x"}
    sums: set[str] = set()
    """Values that a linear operation just summed: see above."""
    for op, operator in zip(program.ops, program.operators, strict=True):
        g.path = op.path or op.output
        inputs = [names[name] for name in op.inputs]
        if isinstance(operator, Scale | Translate | Sum):
            inputs = [_apart(g, x) if x in sums else x for x in inputs]
        names[op.output] = output = RULES[type(operator)](g, operator, *inputs)
        moved = isinstance(operator, Reshape | Permute | PixelUnshuffle | Concat | Pad | CircularPad)
        if isinstance(operator, LinearOperator) or (moved and sums.intersection(inputs)):
            sums.add(output)
    g.nodes[-1].output[0] = "logits"  # of the head: a dense layer without `skip` is the last operation
    return names


def parts(inside: int) -> int:
    """Into how many sums of at most LONGEST products each the graph splits a dense layer's; 1 where none are even.

    Never two: onnxruntime takes a layer into a sum of two, and then it is one long sum again.

    >>> parts(256), parts(512), parts(4096), parts(3136), parts(1031)
    (1, 4, 16, 14, 1)
    """
    if inside <= LONGEST:
        return 1
    even = (count for count in range(max(3, -(-inside // LONGEST)), inside // SHORTEST + 1) if inside % count == 0)
    return next(even, 1)


def roundings(op: Operator) -> int:
    """Of one evaluation in the graph, as `Arithmetic.terms`: fewer where sums are split."""
    terms = op.arithmetic().terms
    if not isinstance(op, Dense):
        return terms
    inside = op.weight.shape[1]
    return terms - inside + inside // parts(inside) + parts(inside) - 1


@onnx_rule(Dense)
def _dense(g: Graph, op: Dense, x: str) -> str:
    count, biases = parts(op.weight.shape[1]), () if op.bias is None else (g.single(op.bias),)
    if count == 1:
        y = g.add("Gemm", x, g.single(op.weight), *biases, transB=1)
    else:  # what a sum can lose grows with its length
        weights = op.weight.chunk(count, 1)
        each = zip(g.split(x, [w.shape[1] for w in weights], axis=1), weights, strict=True)
        sums = [g.add("Gemm", part, g.single(w), *(biases if w is weights[0] else ()), transB=1) for part, w in each]
        y = g.add("Sum", *sums)
    return g.add("Add", x, y) if op.skip else y


@onnx_rule(Conv1d, Conv2d)
def _convolution(g: Graph, op: Conv1d | Conv2d, x: str) -> str:
    image, pads = x, op.padding[::2] + op.padding[1::2]
    if op.circular:
        image, pads = _padded(g, x, op.padding, "wrap"), (0,) * len(pads)
    tensors = [g.single(t) for t in (op.weight, op.bias) if t is not None]
    y = g.add(
        "Conv", image, *tensors, kernel_shape=op.weight.shape[2:], strides=op.stride, pads=pads,
        dilations=op.dilation, group=op.groups,
    )  # fmt: skip
    return g.add("Add", x, y) if op.skip else y


@onnx_rule(ReLU)
def _relu(g: Graph, op: ReLU, x: str) -> str:
    return g.add("Relu", x)


@onnx_rule(LeakyReLU)
def _leaky_relu(g: Graph, op: LeakyReLU, x: str) -> str:
    return g.add("LeakyRelu", x, alpha=op.slope)


@onnx_rule(Abs)
def _abs(g: Graph, op: Abs, x: str) -> str:
    return g.add("Abs", x)


@onnx_rule(MinMax)
def _min_max(g: Graph, op: MinMax, x: str) -> str:
    a, b = g.split(x, [op.input_shape[0] // 2] * 2, axis=1)
    return g.add("Concat", g.add("Max", a, b), g.add("Min", a, b), axis=1)


@onnx_rule(GroupSort)
def _group_sort(g: Graph, op: GroupSort, x: str) -> str:
    channels, *rest = op.input_shape
    groups = _reshaped(g, x, (channels // op.size, op.size, *rest))
    ordered = g.add("TopK", groups, g.whole([op.size]), axis=2, largest=0, sorted=1)
    g.nodes[-1].output.append(ordered + ".places")
    return _reshaped(g, ordered, op.input_shape)


@onnx_rule(Householder)
def _householder(g: Graph, op: Householder, x: str) -> str:
    a, b = g.split(x, [op.input_shape[0] // 2] * 2, axis=1)
    half = op.theta.reshape(-1, *[1] * (len(op.input_shape) - 1)) / 2
    sine, cosine = g.single(half.sin()), g.single(half.cos())
    ahead = g.add("Sub", g.add("Mul", a, sine), g.add("Mul", b, cosine))
    behind = g.add("Mul", g.add("Min", ahead, g.single(0.0)), g.single(2.0))
    a, b = g.add("Sub", a, g.add("Mul", behind, sine)), g.add("Add", b, g.add("Mul", behind, cosine))
    return g.add("Concat", a, b, axis=1)


@onnx_rule(AvgPool2d)
def _avg_pool(g: Graph, op: AvgPool2d, x: str) -> str:
    return g.add(
        "AveragePool", x, kernel_shape=op.kernel, strides=op.stride, pads=op.padding * 2, count_include_pad=1
    )


@onnx_rule(MaxPool2d)
def _max_pool(g: Graph, op: MaxPool2d, x: str) -> str:
    return g.add("MaxPool", x, kernel_shape=op.kernel, strides=op.stride, pads=op.padding * 2)


@onnx_rule(Scale)
def _scale(g: Graph, op: Scale, x: str) -> str:
    return g.add("Div" if op.divide else "Mul", x, g.single(op.factor))


@onnx_rule(Translate)
def _translate(g: Graph, op: Translate, x: str) -> str:
    return g.add("Sub" if op.subtract else "Add", x, g.single(op.offset))


@onnx_rule(Sum)
def _sum(g: Graph, op: Sum, x: str, y: str) -> str:
    return g.add("Add", x, y)


@onnx_rule(Concat)
def _concat(g: Graph, op: Concat, *inputs: str) -> str:
    return g.add("Concat", *inputs, axis=1 + op.dim)


@onnx_rule(Reshape)
def _reshape(g: Graph, op: Reshape, x: str) -> str:
    return _reshaped(g, x, op.shape)


@onnx_rule(Permute)
def _permute(g: Graph, op: Permute, x: str) -> str:
    return g.add("Transpose", x, perm=[0, *(1 + k for k in op.order)])


@onnx_rule(PixelUnshuffle)
def _pixel_unshuffle(g: Graph, op: PixelUnshuffle, x: str) -> str:
    (c, h, w), f = op.input_shape, op.factor
    squares = _reshaped(g, x, (c, h // f, f, w // f, f))
    return _reshaped(g, g.add("Transpose", squares, perm=[0, 1, 3, 5, 2, 4]), op.output_shape)


@onnx_rule(Pad)
def _pad(g: Graph, op: Pad, x: str) -> str:
    # Apart from what follows: onnxruntime would take these zeros for the padding of a max pooling, which is −∞.
    return _apart(g, _padded(g, x, op.padding, "constant"))


@onnx_rule(CircularPad)
def _circular_pad(g: Graph, op: CircularPad, x: str) -> str:
    return _padded(g, x, op.padding, "wrap")


def _apart(g: Graph, x: str) -> str:
    """x itself, in a way that keeps an optimiser from making one node of those before and after."""
    return g.add("Max", x, g.single(-np.inf))


def _reshaped(g: Graph, x: str, shape: Sequence[int]) -> str:
    return g.add("Reshape", x, g.whole([0, *shape]))  # 0: the batch, as it is


def _padded(g: Graph, x: str, padding: Sequence[int], mode: str) -> str:
    """(before, after) for each dimension after the channels → befores, then afters, of all dimensions."""
    return g.add("Pad", x, g.whole([0, 0, *padding[::2], 0, 0, *padding[1::2]]), mode=mode)
