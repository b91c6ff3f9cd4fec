"""The visible table: aten operation → operator. What is not in it stops the trace.

Each rule turns one call into a `Step`, or into a sentence saying why this use of it cannot be bounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import Shape
from gloronet.operators.conv import Conv2d
from gloronet.operators.conv1d import Conv1d
from gloronet.operators.dense import Dense
from gloronet.operators.joins import Concat, Sum
from gloronet.operators.pointwise import Abs, LeakyReLU, ReLU
from gloronet.operators.pool import AvgPool2d, MaxPool2d
from gloronet.operators.rules import CALL_RULES, Call, Constant, Step, Value
from gloronet.operators.shape import CircularPad, Pad, Permute, PixelUnshuffle, Reshape
from gloronet.operators.smooth import ELU, GELU, Sigmoid, Softplus, Tanh

aten = torch.ops.aten

_NO_IMAGE = "it takes the batch for the channels of one image; give the input a dimension of channels"


def call_rule(*targets: Any) -> Callable[[Callable[[Call], Step | str]], Callable[[Call], Step | str]]:
    def register(function: Callable[[Call], Step | str]) -> Callable[[Call], Step | str]:
        for target in targets:
            CALL_RULES[target] = function
        return function

    return register


@call_rule(aten.linear.default)
def linear(call: Call) -> Step | str:
    x, weight, bias = call.arguments["input"], call.arguments["weight"], call.arguments["bias"]
    if not _only_input_varies(x, weight, bias):
        return "its weight depends on the input"
    if len(x.shape) != 1:
        return f"it is applied to each of several positions (input {x.shape}); flatten first"
    if bias is not None and bias.shape != weight.shape[:1]:
        return f"its bias has shape {tuple(bias.shape)} for {weight.shape[0]} outputs; expand it to one entry each"
    return Step(Dense, (x,), _tensors(weight=weight, bias=bias))


@call_rule(aten.conv2d.default, aten.conv2d.padding)
def conv2d(call: Call) -> Step | str:
    return _convolution(Conv2d, call, 2)


@call_rule(aten.conv1d.default, aten.conv1d.padding)
def conv1d(call: Call) -> Step | str:
    return _convolution(Conv1d, call, 1)


def _convolution(kind: type[Conv1d | Conv2d], call: Call, axes: int) -> Step | str:
    a = call.arguments
    x, weight = a["input"], a["weight"]
    if not _only_input_varies(x, weight, a["bias"]):
        return "its weight depends on the input"
    if len(x.shape) != 1 + axes:
        return _NO_IMAGE
    dilation = _times(a["dilation"], axes)
    if a["padding"] == "valid":
        padding = [(0, 0)] * axes
    elif a["padding"] == "same":  # torch puts the odd one after
        reach = [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
        padding = [(r // 2, r - r // 2) for r in reach]
    else:
        padding = [(p, p) for p in _times(a["padding"], axes)]
    attributes = {
        "stride": _times(a["stride"], axes),
        "padding": tuple(n for pair in padding for n in pair),
        "dilation": dilation,
        "groups": a["groups"],
    }
    return Step(kind, (x,), _tensors(weight=weight, bias=a["bias"]), attributes)


@call_rule(aten.relu.default)
def relu(call: Call) -> Step:
    return Step(ReLU, (call.arguments["self"],))


@call_rule(aten.abs.default)
def absolute(call: Call) -> Step:
    return Step(Abs, (call.arguments["self"],))


@call_rule(aten.leaky_relu.default)
def leaky_relu(call: Call) -> Step | str:
    return _with_numbers(LeakyReLU, call, slope=call.arguments["negative_slope"])


@call_rule(aten.sigmoid.default)
def sigmoid(call: Call) -> Step:
    return Step(Sigmoid, (call.arguments["self"],))


@call_rule(aten.tanh.default)
def tanh(call: Call) -> Step:
    return Step(Tanh, (call.arguments["self"],))


@call_rule(aten.elu.default)
def elu(call: Call) -> Step | str:
    a = call.arguments
    if a["scale"] != 1 or a["input_scale"] != 1:
        return "only ELU without further scales has a rule"
    return _with_numbers(ELU, call, alpha=a["alpha"])


@call_rule(aten.softplus.default)
def softplus(call: Call) -> Step | str:
    beta, threshold = call.arguments["beta"], call.arguments["threshold"]
    if beta == 0:
        return "beta must not be 0"
    if not threshold >= 14:
        return f"at its threshold of {threshold} it jumps, which no constant bounds; leave it at 20"
    return _with_numbers(Softplus, call, beta=beta, threshold=threshold)


@call_rule(aten.gelu.default)
def gelu(call: Call) -> Step:
    return Step(GELU, (call.arguments["self"],), attributes={"approximate": call.arguments["approximate"]})


def _with_numbers(kind: type, call: Call, **numbers: Any) -> Step | str:
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in numbers.values()):
        return f"it needs finite numbers, not {', '.join(f'{k}={n}' for k, n in numbers.items())}"
    return Step(kind, (call.arguments["self"],), attributes={k: float(n) for k, n in numbers.items()})


@call_rule(
    aten.view.default,
    aten.reshape.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.squeeze.dim,
    aten.squeeze.dims,
    aten.unsqueeze.default,
    aten._unsafe_view.default,
    aten.clone.default,
    aten.contiguous.default,
    aten.alias.default,
    aten.detach.default,
)
def reshape(call: Call) -> Step:
    # The tracer has checked that the batch is still the first dimension: entries keep their sample.
    return Step(Reshape, (call.arguments["self"],), attributes={"shape": call.output_shape})


@call_rule(aten.dropout.default)
def dropout(call: Call) -> Step | str:
    if call.arguments["train"]:
        return "dropout is switched on even in eval mode"
    return Step(Reshape, (call.arguments["input"],), attributes={"shape": call.output_shape})


@call_rule(aten.permute.default)
def permute(call: Call) -> Step | str:
    x = call.arguments["self"]
    return _permutation(x, [d % (1 + len(x.shape)) for d in call.arguments["dims"]])


@call_rule(aten.transpose.int)
def transpose(call: Call) -> Step | str:
    x = call.arguments["self"]
    dims = list(range(1 + len(x.shape)))
    i, j = call.arguments["dim0"], call.arguments["dim1"]
    dims[i], dims[j] = dims[j], dims[i]
    return _permutation(x, dims)


def _permutation(x: Value, dims: list[int]) -> Step | str:
    if dims[0] != 0:
        return "it moves the dimension of the batch"
    return Step(Permute, (x,), attributes={"order": tuple(d - 1 for d in dims[1:])})


@call_rule(aten.pixel_unshuffle.default)
def pixel_unshuffle(call: Call) -> Step | str:
    x, factor = call.arguments["self"], call.arguments["downscale_factor"]
    if len(x.shape) != 3:
        return _NO_IMAGE
    return Step(PixelUnshuffle, (x,), attributes={"factor": factor})


@call_rule(aten.pad.default, aten.constant_pad_nd.default)
def pad(call: Call) -> Step | str:
    x, amounts = call.arguments["self"], list(call.arguments["pad"])
    mode, value = call.arguments.get("mode", "constant"), call.arguments.get("value")
    if mode not in ("constant", "circular") or value not in (None, 0, 0.0):
        return "only padding by zeros and circular padding have a rule"
    axes = len(x.shape) - 1
    if axes not in (1, 2) or len(amounts) > 2 * axes or any(n < 0 for n in amounts):
        return "only padding of the dimensions after the channels has a rule, by 0 or more"
    amounts += [0] * (2 * axes - len(amounts))
    pairs = [amounts[k : k + 2] for k in range(0, 2 * axes, 2)]  # the last dimension's first
    padding = tuple(n for pair in reversed(pairs) for n in pair)
    return Step(Pad if mode == "constant" else CircularPad, (x,), attributes={"padding": padding})


@call_rule(aten.avg_pool2d.default)
def avg_pool2d(call: Call) -> Step | str:
    a = call.arguments
    padding = _pair(a["padding"])
    if len(a["self"].shape) != 3:
        return _NO_IMAGE
    if a["ceil_mode"] or a["divisor_override"] is not None or (any(padding) and not a["count_include_pad"]):
        return "only average pooling with one divisor (no ceil_mode, padding counted) has a rule"
    kernel = _pair(a["kernel_size"])
    attributes = {"kernel": kernel, "stride": _pair(a["stride"] or kernel), "padding": padding}
    return Step(AvgPool2d, (a["self"],), attributes=attributes)


@call_rule(aten.max_pool2d.default)
def max_pool2d(call: Call) -> Step | str:
    a = call.arguments
    if len(a["self"].shape) != 3:
        return _NO_IMAGE
    if a["ceil_mode"] or _pair(a["dilation"]) != (1, 1):
        return "only max pooling without ceil_mode and dilation has a rule"
    kernel = _pair(a["kernel_size"])
    attributes = {"kernel": kernel, "stride": _pair(a["stride"] or kernel), "padding": _pair(a["padding"])}
    return Step(MaxPool2d, (a["self"],), attributes=attributes)


@call_rule(aten.adaptive_avg_pool2d.default)
def adaptive_avg_pool2d(call: Call) -> Step | str:
    x = call.arguments["self"]
    if len(x.shape) != 3:
        return _NO_IMAGE
    size, windows = x.shape[1:], call.output_shape[1:]
    if any(n % k for n, k in zip(size, windows, strict=True)):
        return f"its windows overlap unevenly: {size} does not divide into {windows}; choose sizes that do"
    kernel = tuple(n // k for n, k in zip(size, windows, strict=True))
    return Step(AvgPool2d, (x,), attributes={"kernel": kernel, "stride": kernel, "padding": (0, 0)})


@call_rule(aten.mean.dim)
def mean(call: Call) -> str:
    return "only nn.AdaptiveAvgPool2d(1) has a rule for the mean of an image; flatten after it"


@call_rule(aten.avg_pool1d.default, aten.max_pool1d.default, aten.adaptive_avg_pool1d.default)
def pool1d(call: Call) -> str:
    return "only pooling of images has a rule; unflatten (c, n) to (c, 1, n) and pool with a height of 1"


@call_rule(aten.mul.Tensor, aten.mul.Scalar)
def multiply(call: Call) -> Step | str:
    x, factor = call.arguments["self"], call.arguments["other"]
    if not isinstance(x, Value):
        x, factor = factor, x
    return _with_constant(Scale, x, "factor", factor, call)


@call_rule(aten.div.Tensor, aten.div.Scalar)
def divide(call: Call) -> Step | str:
    x, factor = call.arguments["self"], call.arguments["other"]
    if not isinstance(x, Value):
        return "it divides by the input, which no constant bounds"
    return _with_constant(Scale, x, "factor", factor, call, divide=True)


@call_rule(aten.add.Tensor, aten.add.Scalar)
def add(call: Call) -> Step | str:
    return _sum(call, subtract=False)


@call_rule(aten.sub.Tensor, aten.sub.Scalar)
def subtract(call: Call) -> Step | str:
    return _sum(call, subtract=True)


@call_rule(aten.rsub.Tensor, aten.rsub.Scalar)
def subtract_from(call: Call) -> str:
    return "only x − c has a rule, not c − x; write (−x) + c"


@call_rule(aten.neg.default)
def negate(call: Call) -> Step:
    return Step(Scale, (call.arguments["self"],), {"factor": -1.0})


@call_rule(aten.cat.default, aten.concat.default, aten.concatenate.default)
def concatenate(call: Call) -> Step | str:
    values, dim = call.arguments["tensors"], call.arguments["dim"]
    if not all(isinstance(v, Value) for v in values):
        return "it joins the input with constants, which only the next layer's bias should add"
    dim = dim % (1 + len(call.output_shape)) - 1
    sizes = tuple(v.shape[dim] for v in values)
    return Step(Concat, tuple(values), attributes={"dim": dim, "sizes": sizes})


def _sum(call: Call, subtract: bool) -> Step | str:
    x, y = call.arguments["self"], call.arguments["other"]
    if call.arguments.get("alpha", 1) != 1:
        return "only alpha=1 has a rule"
    if isinstance(x, Value) and isinstance(y, Value):
        if subtract:
            return "only sums of branches have a rule; write x + (−y)"
        if x.shape != y.shape:
            return f"it broadcasts {x.shape} with {y.shape}"
        return Step(Sum, (x, y))
    if not isinstance(x, Value):
        if subtract:
            return "only x − c has a rule, not c − x; write (−x) + c"
        x, y = y, x
    return _with_constant(Translate, x, "offset", y, call, subtract=subtract)


def _with_constant(kind: type, x: Any, name: str, constant: Any, call: Call, **attributes: Any) -> Step | str:
    if isinstance(constant, Value):
        return "it multiplies or divides two tensors that both depend on the input"
    if call.output_shape != x.shape:
        return f"it broadcasts the input {x.shape} to {call.output_shape}"
    shape = constant.shape if isinstance(constant, Constant) else ()
    if len(shape) > len(x.shape) and shape[0] != 1:
        return "its constant has an entry for each sample of the batch"
    return Step(kind, (x,), {name: constant}, attributes)


def _only_input_varies(x: Any, *others: Any) -> bool:
    return isinstance(x, Value) and not any(isinstance(o, Value) for o in others)


def _tensors(**tensors: Any) -> dict[str, Constant | float]:
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def _pair(value: Any) -> Shape:
    return _times(value, 2)


def _times(value: Any, axes: int) -> Shape:
    """A number for each axis, where one may stand for all."""
    values = list(value) if isinstance(value, list | tuple) else [value]
    return tuple(int(n) for n in (values if len(values) == axes else values * axes))
