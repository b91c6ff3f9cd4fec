"""The visible table: aten operation → operator. What is not in it stops the trace.

Each rule turns one call into a `Step`, or into a sentence saying why this use of it cannot be bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import Shape
from gloronet.operators.conv import Conv2d
from gloronet.operators.dense import Dense
from gloronet.operators.joins import Sum
from gloronet.operators.pointwise import Abs, ReLU
from gloronet.operators.pool import AvgPool2d, MaxPool2d
from gloronet.operators.rules import CALL_RULES, Call, Constant, Step, Value
from gloronet.operators.shape import Pad, Reshape

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
    return Step(Dense, (x,), _tensors(weight=weight, bias=bias))


@call_rule(aten.conv2d.default)
def conv2d(call: Call) -> Step | str:
    a = call.arguments
    if not _only_input_varies(a["input"], a["weight"], a["bias"]):
        return "its weight depends on the input"
    top, left = _pair(a["padding"])
    return Step(
        Conv2d,
        (a["input"],),
        _tensors(weight=a["weight"], bias=a["bias"]),
        {
            "stride": _pair(a["stride"]),
            "padding": (top, top, left, left),
            "dilation": _pair(a["dilation"]),
            "groups": a["groups"],
        },
    )


@call_rule(aten.relu.default)
def relu(call: Call) -> Step:
    return Step(ReLU, (call.arguments["self"],))


@call_rule(aten.abs.default)
def absolute(call: Call) -> Step:
    return Step(Abs, (call.arguments["self"],))


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


@call_rule(aten.pad.default, aten.constant_pad_nd.default)
def pad(call: Call) -> Step | str:
    x, amounts = call.arguments["self"], list(call.arguments["pad"])
    if call.arguments.get("mode", "constant") != "constant" or call.arguments.get("value") not in (
        None,
        0,
        0.0,
    ):
        return "only padding by zeros has a rule"
    if len(x.shape) != 3 or len(amounts) > 4 or min(amounts) < 0:
        return "only padding of the two image dimensions has a rule"
    left, right, top, bottom = amounts + [0] * (4 - len(amounts))
    return Step(Pad, (x,), attributes={"padding": (top, bottom, left, right)})


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


def _sum(call: Call, subtract: bool) -> Step | str:
    x, y = call.arguments["self"], call.arguments["other"]
    if call.arguments.get("alpha", 1) != 1:
        return "only alpha=1 has a rule"
    if isinstance(x, Value) and isinstance(y, Value):
        if subtract:
            return "only sums of branches have a rule; put the minus sign into a weight"
        if x.shape != y.shape:
            return f"it broadcasts {x.shape} with {y.shape}"
        return Step(Sum, (x, y))
    if not isinstance(x, Value):
        if subtract:
            return "only x − c has a rule, not c − x"
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
    values = list(value) if isinstance(value, list | tuple) else [value]
    return (int(values[0]), int(values[-1]))
