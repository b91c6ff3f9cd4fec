"""ONNX with the certificate inside: the frozen Program, operation by operation, and what is proved of its answer.

    export_onnx(net, "model.onnx")    # x (and epsilon, if you like) → logits, label, prediction, radius, certified

The claim is that of `semantics="float32"`, about the exported graph itself as onnxruntime runs it on a CPU: every
float32 x′ with ‖x′ − x‖ < radius gets from it the label of x; in whatever batch, with however many threads.

Why. Let ŷ be the graph's float32 logits, j = argmax ŷ(x), y the exact ones, and δ_ij + s_ij·r what float32 evaluation
can do to a margin within r of x. The graph finds δ_ij from the sizes of its own values at x (losses.py); s_ij is a
constant (program/error.py). Then for ‖x′ − x‖ ≤ r

    (ŷ_j − ŷ_i)(x)  ≤ (y_j − y_i)(x) + δ_ij                      the centre is itself a float32 evaluation
    (y_j − y_i)(x′) ≥ (y_j − y_i)(x) − K_ij·r                    the bound
    (ŷ_j − ŷ_i)(x′) ≥ (y_j − y_i)(x′) − δ_ij − s_ij·r            and so is the other point

so i cannot overtake j while r < (ŷ_j − ŷ_i − 2δ_ij)/(K_ij + s_ij). The graph takes off twice the error of a
float64 evaluation as well: `certify`, which evaluates anew and may be off by that, then never answers a smaller
radius in `"real"`. (In `"float32"` it may: that is about torch, whose long sums are not split as they are here.)
After logits and sizes all is float64, from constants rounded outwards by thousands of roundings where each formula
has a dozen. ‖x‖ and r beyond which a float32 sum could overflow are refused, and so is whatever is not finite. As
s > 0, K_ij = 0 needs no case of its own; a tie has a lead of 0.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gloronet.config import parse_epsilon
from gloronet.errors import ConfigError, UnsupportedOperation
from gloronet.export.certificate import certificates, safe_constants
from gloronet.export.graph import Graph
from gloronet.export.nodes import RULES, network
from gloronet.net import GloRoNet
from gloronet.operators.rounding import U32, U64
from gloronet.train.checkpoint import write_atomically

FORMAT = "1"
"""Of the graph's inputs, outputs and metadata."""
OPSET = 19
"""The first whose Pad wraps around."""
IR_VERSION = 9
"""The one that came with this opset: older runtimes than the onnx at hand can read it."""
OUTPUTS = ("logits", "label", "prediction", "radius", "certified")
PREFIX = "gloronet."
"""Of the names of the metadata."""


def export_onnx(
    net: GloRoNet,
    path: str | Path,
    *,
    epsilon: float | str | None = None,
    classes: Sequence[str] | None = None,
) -> Path:
    """Writes the net and its certificates as one ONNX file, whole or not at all; the bound is proved first.

    `x`: float32 (batch, *input_shape) in raw units; `epsilon`: float64, optional, the net's own (or the one given
    here) by default. certified ⇔ radius > epsilon; prediction is the label where certified, else −1. Refused: ℓ∞,
    modules that are not float32, functions with no stated float32 error, operations without an ONNX rule.
    """
    onnx = require_exportable(net)
    target = Path(path)
    if target.is_dir():
        raise ConfigError(f"Cannot write {target}: it is a folder; name a file in it.")
    if classes is not None and len(classes) != net.classes:
        raise ConfigError(f"The net has {net.classes} classes, but {len(classes)} names were given.")
    text = str(epsilon) if epsilon is not None else repr(net.epsilon)
    default = parse_epsilon(epsilon) if epsilon is not None else net.epsilon
    proof = net._proof()
    graph = Graph(onnx)
    names = network(graph, proof.program)
    certificates(graph, names, safe_constants(proof.program, proof.bound, proof.error(U32), proof.error(U64)))
    model = _model(graph, net, default)
    about = {
        "format": FORMAT,
        "epsilon": repr(default),
        "epsilon_text": text,
        "norm": net.norm,
        "form": net.form,
        "semantics": "float32",
        "version": _version(),
        "digest": proof.bound.digest,
        "input_shape": json.dumps(net.input_shape),
        "input_range": "[0, 1]",
        **({} if classes is None else {"classes": json.dumps(list(classes), ensure_ascii=False)}),
    }
    onnx.helper.set_model_props(model, {PREFIX + name: value for name, value in about.items()})
    onnx.checker.check_model(model, full_check=True)
    write_atomically(target, model.SerializeToString())
    return target


def require_exportable(net: GloRoNet) -> Any:
    """Refuses, without proving anything yet, a net that has no export; answers the library it takes."""
    net._check_semantics("float32")
    for op in net.program().ops:
        if op.kind not in RULES:
            what = op.kind.rule
            if "module" in op.attributes:
                what = f"{type(op.attributes['module']).__name__} ({what})"
            where = op.path or "the top of the network"
            raise UnsupportedOperation(f"No ONNX rule for {what} at {where}: such a net cannot be exported.")
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise ConfigError("Exporting needs the extra [onnx]: pip install 'gloronet[onnx]'.") from None
    return onnx


def _model(g: Graph, net: GloRoNet, epsilon: float) -> Any:
    helper, kind = g.onnx.helper, g.onnx.TensorProto
    g.constant(epsilon, np.float64, "epsilon")  # an input with a value of its own: it may be left out
    x = helper.make_tensor_value_info("x", kind.FLOAT, ["batch", *net.input_shape])
    inputs = [x, helper.make_tensor_value_info("epsilon", kind.DOUBLE, [])]
    types = dict(zip(OUTPUTS, (kind.FLOAT, kind.INT64, kind.INT64, kind.DOUBLE, kind.BOOL), strict=True))
    outputs = [
        helper.make_tensor_value_info(name, types[name], ["batch", *([net.classes] if name == "logits" else [])])
        for name in OUTPUTS
    ]
    about = "Every float32 x′ with ‖x′ − x‖₂ < radius gets the label of x from this graph, run in float32 on a CPU."
    graph = helper.make_graph(g.nodes, "gloronet", inputs, outputs, g.tensors, doc_string=about)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="gloronet",
        producer_version=_version(),
    )


def _version() -> str:
    from gloronet import __version__

    return __version__
