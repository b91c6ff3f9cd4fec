"""Net + inputs → `proof.json`: everything `checker.py` needs to verify the certificates without us.

Published numbers leave room, so that a checker on another machine, with another BLAS, agrees:

- every bound of an operation, and every margin and δ made of them, times 1 + 2⁻³⁰;
- a sample's margin is its lead less 4δ: evaluations differ by 2δ at most, and the checker takes off its own.

So a published radius is a little smaller than `net.certify`'s, and a verdict is never more optimistic.
"""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gloronet.config import parse_epsilon
from gloronet.data import to_unit
from gloronet.errors import ConfigError, GloroError
from gloronet.net import GloRoNet
from gloronet.operators.base import Proved
from gloronet.operators.rounding import lengths_up, norms_up
from gloronet.program import Bound, FrozenProgram
from gloronet.program.bound import as_one
from gloronet.program.program import INPUT
from gloronet.proof import checker
from gloronet.train.checkpoint import tensors_to_bytes, write_atomically

ROOM = 1.0 + 2.0**-30


class Written(NamedTuple):
    """The files of a proof, in the order in which the checker takes them, and what it says."""

    proof: Path
    model: Path
    inputs: Path
    certified: int
    samples: int


def write(
    net: GloRoNet,
    x: Tensor,
    labels: Tensor | None,
    folder: str | Path,
    epsilon: float | str | None = None,
    semantics: str = "real",
    inputs: str | Path | None = None,
) -> Written:
    """Writes `proof.json` and what it speaks about into a run folder, each file whole or not at all.

    `x` are uint8 images or floats, as `net.certify` takes them after `to_unit`; `labels` the true ones for
    the VRA that the checker prints. `inputs` is the official file (MNIST's `t10k-images-idx3-ubyte.gz`,
    CIFAR-10's `test_batch.bin`) that holds exactly `x`; without it they are written to `inputs.npz`.
    The weights are those of the folder's `model.safetensors`; where it does not hold them all as they are
    used (parametrised, folded), they are written to `program.safetensors`.
    """
    epsilon_text = repr(net.epsilon) if epsilon is None else str(epsilon).strip()
    try:
        return _write(net, x, labels, Path(folder), epsilon_text, semantics, inputs)
    except checker.Rejected as reason:
        raise GloroError(f"No proof that the checker would accept can be written: {reason}.") from None


def _write(
    net: GloRoNet,
    x: Tensor,
    labels: Tensor | None,
    folder: Path,
    epsilon: str,
    semantics: str,
    official: str | Path | None,
) -> Written:
    value, proof = parse_epsilon(epsilon), net._proof()
    model, stored = _model(proof.program, folder)
    content: dict[str, Any] = {
        "format": checker.FORMAT,
        "norm": net.norm,
        "form": net.form,
        "semantics": semantics,
        "epsilon": {"text": epsilon, "value": value},
        "model": {"file": model.name, "sha256": checker.sha256(stored)},
        "program": _program(proof.program),
    }
    program = checker.read_program(content["program"], checker.read_tensors(stored, checker.sha256(stored)))
    claims, content["bounds"] = _bounds(program, proof.program, proof.bound)
    errors, content["error"] = _errors(program, claims, proof, semantics)
    content["certificates"] = _certify(net, x, value, semantics, program, claims, errors)
    place, content["inputs"] = _inputs(x, labels, folder, official)
    path = folder / "proof.json"
    document = {"content": content, "sha256": checker.sha256(checker.canonical(content))}
    write_atomically(path, checker.canonical(document) + b"\n")
    return Written(path, model, place, sum(content["certificates"]["certified"]), len(x))


# What is certified


def _program(program: FrozenProgram) -> dict[str, Any]:
    tensors = {}
    for name, t in program.tensors.items():
        dtype, shape, data = _bytes(t)
        digest = checker.tensor_sha256(dtype, shape, data)
        tensors[name] = {"dtype": dtype, "shape": list(shape), "sha256": digest}
    table = {
        "input_shape": program.input_shape,
        "tensors": tensors,
        "operations": [op.describe() for op in program.ops],
    }
    return json.loads(json.dumps(table))  # tuples become lists


def _model(program: FrozenProgram, folder: Path) -> tuple[Path, bytes]:
    """The safetensors file that holds every tensor of the Program, and its bytes."""
    saved = folder / "model.safetensors"
    if saved.exists():
        content = saved.read_bytes()
        held = checker.read_tensors(content, checker.sha256(content))
        if all(checker.tensor_sha256(*_bytes(t)) in held for t in program.tensors.values()):
            return saved, content
    path, content = folder / "program.safetensors", tensors_to_bytes(program.tensors)
    write_atomically(path, content)
    return path, content


def _bytes(t: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    kinds = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    kinds |= {torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}
    if t.dtype not in kinds:
        raise ConfigError(f"A tensor of type {t.dtype} cannot be written into a proof.")
    raw = t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return kinds[t.dtype], tuple(t.shape), raw


# What is claimed about it


def _bounds(
    program: checker.Program, frozen: FrozenProgram, proved: Bound
) -> tuple[checker.Claims, dict[str, Any]]:
    layers = [Proved(_room(layer.value), layer.method) for layer in proved.layers]
    chains = [
        checker.Chain(first, last, p.method, checker.exact(_room(p.value)))
        for first, last, p in _chains(frozen, proved)
    ]
    values = [checker.exact(layer.value) for layer in layers]
    claims = checker.Claims(values, [layer.method for layer in layers], chains, np.zeros(0))
    least = checker.least_margins(program, claims, proved.form, proved.norm)
    margins = np.maximum([[float(k) for k in row] for row in least], proved.margins.cpu().numpy())
    margins = np.where(margins > 0, np.nextafter(margins * ROOM, np.inf), 0.0)
    np.fill_diagonal(margins, 0.0)
    table = {
        "operations": [{"method": layer.method, "value": layer.value} for layer in layers],
        "chains": [
            {"first": c.first, "last": c.last, "method": c.method, "value": float(c.value)} for c in chains
        ],
        "margins": margins.tolist(),
    }
    return claims._replace(margins=margins), table


def _chains(frozen: FrozenProgram, proved: Bound) -> list[tuple[int, int, Proved]]:
    """The joint bounds, those with several layers and folded scalings in one claim for each layer."""
    found = []
    for chain in proved.chains:
        if chain.method != "folded":
            found.append((chain.first, chain.last, Proved(chain.value, chain.method)))
            continue
        for part in _around_layers(frozen, range(chain.first, chain.last + 1)):
            own = [Proved(proved.layers[k].value, proved.layers[k].method) for k in part]
            together = as_one(frozen.ops, frozen.operators, part).bound_from(own, proved.norm)
            if together.method != "product":
                found.append((part[0], part[-1], together))
    return found


def _around_layers(frozen: FrozenProgram, chain: range) -> list[range]:
    """Each layer with the scalings and translations after it; the first also with those before it."""
    rules = [frozen.ops[k].kind.rule for k in chain]
    starts = [chain[i] for i, rule in enumerate(rules) if rule not in ("scale", "translate")]
    starts = [chain[0], *starts[1:]]
    ends = [*starts[1:], chain[-1] + 1]
    return [range(a, b) for a, b in zip(starts, ends, strict=True) if b - a > 1]


class _Delta(NamedTuple):
    """δ = constant + slope·(‖x‖ + r), for ‖x‖ + r up to `reach`: beyond it a sum might overflow."""

    constant: np.ndarray
    slope: np.ndarray
    reach: float
    theirs: checker.LogitError | None
    """What the checker finds; None where it cannot follow a user's rule."""

    def at(self, label: np.ndarray, size: np.ndarray) -> np.ndarray:
        return (self.constant[label] + self.slope[label] * size) * ROOM


def _errors(
    program: checker.Program, claims: checker.Claims, proof: Any, semantics: str
) -> tuple[dict[str, _Delta], dict[str, Any]]:
    """δ for the float64 evaluation and for the float32 net: the larger of the library's and the checker's."""
    units = {"float64": checker.U64} | ({"float32": checker.U32} if semantics == "float32" else {})
    opaque = any(op.rule is checker.RULES["user rule"] for op in program.operations)
    errors = {}
    for name, unit in units.items():
        ours = proof.error(float(unit))
        parts, reach, theirs = [ours.constant.cpu().numpy(), ours.slope.cpu().numpy()], math.inf, None
        if not opaque:
            theirs = checker.logit_error(program, claims, proof.bound.norm, unit)
            parts = [np.maximum(a, b) for a, b in zip(parts, theirs[:2], strict=True)]
            if name == "float32":
                reach = float((2**126 - theirs.peak.constant) / theirs.peak.slope)
        constant, slope = (np.nextafter(part * ROOM, np.inf) for part in parts)
        errors[name] = _Delta(constant, slope, reach, theirs)
    table = {n: {"constant": e.constant.tolist(), "slope": e.slope.tolist()} for n, e in errors.items()}
    return errors, table


def _room(value: float) -> float:
    if not math.isfinite(value):
        raise GloroError("The net has no finite bound, so there is nothing to prove.")
    return math.nextafter(value * ROOM, math.inf) if value else 0.0


# What is claimed about each input


@torch.no_grad()
def _certify(
    net: GloRoNet,
    x: Tensor,
    epsilon: float,
    semantics: str,
    program: checker.Program,
    claims: checker.Claims,
    errors: dict[str, _Delta],
) -> dict[str, Any]:
    device = next(net.parameters()).device
    label, margin, radius = [], [], []
    for k in range(0, len(x), 1000):
        part = _values(x[k : k + 1000]).to(device)
        certified = net.certify(part, epsilon, semantics)
        answers, (y, lengths) = certified.label.cpu().numpy(), _evaluated(net._proof().program, part)
        rounded = np.zeros_like(y)
        with np.errstate(all="ignore"):  # what overflows is not sound, and claims nothing
            if semantics == "float32":
                rounded = _rounded(net, part, program, claims, errors["float64"].theirs, lengths, answers)
            mine, proved = _leads(part, y, answers, claims.margins, errors, rounded)
        sound = np.isfinite(certified.margin.cpu().numpy()) & np.isfinite(y).all(1) & np.isfinite(proved)
        label.append(answers)
        margin.append(np.where(sound, proved, -np.inf))
        radius.append(np.where(sound, np.minimum(mine, certified.radius.cpu().numpy()), 0.0))
    radii, leads = np.concatenate(radius), np.concatenate(margin)
    radii = np.where(leads > 0, np.maximum(radii, 0.0), 0.0)
    return {
        "label": np.concatenate(label).tolist(),
        "margin": [m if math.isfinite(m) else None for m in leads.tolist()],
        "radius": [r if math.isfinite(r) else "inf" for r in radii.tolist()],
        "certified": (radii > epsilon).tolist(),
    }


def _evaluated(program: FrozenProgram, x: Tensor) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(logits, the size of each value)."""
    values = {INPUT: x.double()}
    for op, operator in zip(program.ops, program.operators, strict=True):
        values[op.output] = operator(*(values[name] for name in op.inputs))
    lengths = {name: lengths_up(value).cpu().numpy() for name, value in values.items()}
    return values[program.ops[-1].output].cpu().numpy(), lengths


def _rounded(
    net: GloRoNet,
    x: Tensor,
    program: checker.Program,
    claims: checker.Claims,
    theirs: checker.LogitError | None,
    lengths: dict[str, np.ndarray],
    label: np.ndarray,
) -> np.ndarray:
    """float32's δ at each sample, as the checker will find it."""
    if theirs is None:
        found, _ = net._proof().float32(x, close=False).rows(torch.from_numpy(label).to(x.device))
        return found.cpu().numpy() * ROOM
    return checker.error_at(program, claims, theirs, lengths, label, checker.U32) * ROOM


def _leads(
    x: Tensor, y: np.ndarray, label: np.ndarray, margins: np.ndarray, errors: dict[str, _Delta], rounded: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(radius, margin) of each sample by the published numbers, with 4δ taken off, and what float32 rounds there."""
    size = norms_up(x.flatten(1)).cpu().numpy()[:, None]
    own = np.arange(y.shape[1]) == label[:, None]
    lead = np.take_along_axis(y, label[:, None], 1) - y
    lead = lead - 4.0 * errors["float64"].at(label, size) - np.abs(lead) * 2.0**-48
    room, cost, reach = lead, margins[label], np.inf
    if "float32" in errors:
        theirs = errors["float32"]
        room, cost, reach = lead - rounded, cost + theirs.slope[label], theirs.reach
    radius = (room - np.abs(room) * 2.0**-40) / (cost * (1.0 + 2.0**-40))
    radius = np.where(cost == 0, np.inf, np.minimum(radius, np.finfo(np.float64).max))
    radius = np.where(room > 0, np.minimum(radius, reach - size), 0.0)
    return np.where(own, np.inf, radius).min(1), np.where(own, np.inf, lead).min(1)


def _values(x: Tensor) -> Tensor:
    """What the inputs mean: uint8 k is float32(k/255)."""
    return x if x.dtype == torch.float64 else to_unit(x)


def _inputs(
    x: Tensor, labels: Tensor | None, folder: Path, official: str | Path | None
) -> tuple[Path, dict[str, Any]]:
    """Where the inputs are, and how the proof names them."""
    array = x.detach().cpu().contiguous().numpy()
    kind = "npz"
    if official is None:
        path = folder / "inputs.npz"
        stream = io.BytesIO()
        np.savez_compressed(stream, x=array)
        content = stream.getvalue()
        write_atomically(path, content)
    else:
        path = Path(official)
        if not path.is_file():
            raise ConfigError(f"There is no file {path} that could hold the inputs.")
        content, kind = path.read_bytes(), "idx" if path.suffix == ".gz" else "cifar10"
    entry = {
        "format": kind,
        "file": path.name,
        "sha256": checker.sha256(content),
        "count": len(array),
        "dtype": str(array.dtype),
        "meaning": "float32(k/255)" if array.dtype == np.uint8 else "as stored",
        "labels": None if labels is None else labels.tolist(),
    }
    try:
        same = np.array_equal(checker.read_inputs(content, entry, array.shape[1:]), array)
    except checker.Rejected as reason:
        raise ConfigError(f"{path} cannot stand for the inputs: {reason}.") from None
    if not same:
        raise ConfigError(f"{path} does not hold the inputs that were certified.")
    return path, entry
