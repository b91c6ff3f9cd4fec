#!/usr/bin/env python3
"""An independent checker of gloronet's proofs. One file; needs Python and NumPy, nothing of gloronet.

    python checker.py proof.json model.safetensors [inputs.npz] [--trust-user-rules]

Exit code 0: everything that could be checked holds. 1: something does not, with the reason. 2: usage.

THE CLAIM. `proof.json` names a Program f: a list of operations on tensors that it names by their SHA-256.
For every input x it states a label, a margin, a radius r and whether the answer is certified at ε:

    semantics "real":     every x′ with ‖x′ − x‖ < r has argmax f(x′) = label, f in exact arithmetic;
    semantics "float32":  the same for the float32 evaluation of the Program's operations, each sum in any
                          order, with or without fused multiply-add, with or without flush-to-zero.

‖·‖ is ℓ2 or ℓ∞ as the proof says. certified ⇔ r > ε, where ε is the written decimal or fraction, rounded up.

WHAT IS TRUSTED. This file; Python's integers, fractions, hashlib, json and zipfile; NumPy's float64 with
IEEE round-to-nearest; matrix products that sum the n products of an entry in any order (no Strassen);
np.sin, cos, exp, expm1, log1p, tanh and math.erf within 4 ulp. Cholesky, inverses and every number of the
proof are NOT trusted. NOT checked: that the Program is what some PyTorch module computes (that is the
tracer's claim), the true labels, and operations called "user rule" (refused unless --trust-user-rules).
The label of an answer that is not certified is checked only as far as rounding allows: where two classes
are closer than the evaluation error, either passes.

HOW. Scalars are compared in exact rational arithmetic (fractions.Fraction); arrays are float64 with the
error bounds below, u = 2⁻⁵³, γ_n = nu/(1 − nu).

 1. Files.  The proof is strict, canonical JSON and holds the SHA-256 of its content, of the model file, of
    each tensor used (dtype, shape, bytes) and of the inputs.
 2. Program.  Known rules only; every shape is recomputed; names are unique, defined before use, all used.
 3. ‖A‖ ≤ c for each linear operation and claim c.  With G = fl(AᵀA) (or AAᵀ), |G − AᵀA| ≤ γ_T|A|ᵀ|A| where
    T products that are not zero meet in an entry, and ‖|A|ᵀ|A|‖ ≤ ‖A‖₁‖A‖_∞. For any s and any L,

        λ_max(G) ≤ s + ‖(sI − G) − LLᵀ‖,   because LLᵀ is positive semidefinite, and
        ‖(sI − G) − LLᵀ‖ ≤ (1 + u)‖R‖_∞ + γ_k‖|L||L|ᵀ‖ + u·max|s − g_ii|,   R = fl(fl(sI − G) − fl(LLᵀ)),

    k the length of L's rows. L comes from NumPy's Cholesky; s is c² less the expected error terms; the sum
    must be ≤ c². A convolution's G is made of blocks, one for each pair of image rows that share pixels.
    Where it would be too large, A is a part of a circular convolution over phases (stride s) on a circle of
    N ≥ n + (larger one-sided padding), s | N; its norm is the largest ‖F(ω)‖, F(ω) = Σ_a w_a e^{iω·a}, over
    the N/s grid, each proved as above as a real matrix [[Re, −Im], [Im, Re]].
    ℓ∞: the largest row sum of |A|. Groups are separate operators: the norm is the largest of theirs.
 4. Constants along the graph: K_out = c·K_in; sums add; concatenation √ΣK² (ℓ∞: max). A chain of linear
    operations may have one claim: a layer with scalings folded into its weights, or the chain's own matrix.
    margins_ij ≥ K‖w_j − w_i‖ (form margin), K(‖w_i‖ + ‖w_j‖) (simple), √2·K·‖W‖ (lmt); dual norm of rows.
 5. Rounding.  For ‖x‖ + r = t, ‖z‖ ≤ size(t) and ‖ẑ − z‖ ≤ error(t), affine in t, for every value z:

        size′ = K·size + ‖f(0)‖,   error′ = K·error + γ_n(‖|A|‖(size + error) + ‖f(0)‖) + n√entries·tiny,
        δ_ij = ‖w_j − w_i‖·error + Σ_{c ∈ {i,j}} (γ_n(‖w_c‖(size + error) + |b_c|) + n·tiny).

    With u = 2⁻⁵³ that is the error of our own evaluation, with u = 2⁻²⁴ that of the float32 network.
 6. Certificates.  ŷ is evaluated here in float64; the lead of the label over class i is at least
    p_i = ŷ_label − ŷ_i − δ_i. Needed: claimed margin ≤ min p_i, and for a claimed radius r > 0 and every i
    "real": r·K_i ≤ p_i;  "float32": r·(K_i + slope_i) + constant_i + slope_i·‖x‖ ≤ p_i;  and p_i > 0.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]

FORMAT = "gloronet proof 1"
U64, U32 = Fraction(1, 2**53), Fraction(1, 2**24)
TINY = {U64: Fraction(1, 2**1022), U32: Fraction(1, 2**126)}
"""What one underflow can cost, flush-to-zero included, by unit roundoff."""
LARGEST_FLOAT32 = Fraction(2**127)

MOST_BYTES = 2**32
MOST_ENTRIES = 2**26
"""Of one value for one sample, and of any matrix: beyond it nothing is checked, so nothing is accepted."""
MOST_WORK = 1e13
"""Floating-point operations one claim may cost: minutes."""
CHUNK = 2**23
"""Entries of the largest temporary of a batch."""


class Rejected(Exception):
    """The one reason why the proof is not accepted."""


def need(condition: bool, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


# ---------------------------------------------------------------------------------------------------------
# The whole check, top-down
# ---------------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """The command line: 0 when everything holds, 1 with the reason when not, 2 for usage."""
    parser = argparse.ArgumentParser(prog="checker.py", description="Checks a gloronet proof.")
    parser.add_argument("proof", type=Path, help="proof.json")
    parser.add_argument("model", type=Path, help="model.safetensors, or program.safetensors beside the proof")
    parser.add_argument("inputs", type=Path, nargs="?", help="inputs.npz, or the official test set it names")
    parser.add_argument("--trust-user-rules", action="store_true", help="accept constants users vouch for")
    try:
        arguments = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        with np.errstate(all="ignore"):
            check(arguments.proof, arguments.model, arguments.inputs, arguments.trust_user_rules, _say)
    except Rejected as reason:
        print(f"REJECTED: {reason}", flush=True)
        return 1
    except OSError as error:
        print(f"REJECTED: cannot read {error.filename}: {error.strerror}", flush=True)
        return 1
    except Exception as error:  # whatever surprises this program is not a proof
        kind = type(error).__name__
        print(f"REJECTED: the proof could not be checked ({kind}: {str(error)[:200]})", flush=True)
        return 1
    return 0


def check(
    proof: Path,
    model: Path,
    inputs: Path | None = None,
    trust_user_rules: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Raises Rejected unless all that the given files allow to check holds; `say` hears what was done."""
    began = time.perf_counter()
    content = read_proof(read_file(proof))
    tensors = read_tensors(read_file(model), content["model"]["sha256"])
    program = read_program(content["program"], tensors)
    settings = read_settings(content, program)
    claims = read_claims(content["bounds"], program)
    certificates = read_certificates(content, program, settings)
    say(f"files     {len(program.operations)} operations on {len(program.tensors)} tensors, all hashes agree")

    opaque = [op for op in program.operations if isinstance(op, UserRule)]
    need(trust_user_rules or not opaque, f"{opaque[0].where if opaque else ''} rests on a user's word for its"
         " constant; --trust-user-rules accepts that as an assumption")  # fmt: skip
    check_bounds(program, claims, settings.norm, say)
    constant = graph_constants(program, claims, settings.norm)[program.head.inputs[0]]
    check_margins(program, claims, settings, constant)
    say(f"margins   K = {float(constant):.6g} up to the last layer; all {claims.margins.size} margins hold")

    missing = None
    if opaque:
        missing = "a user rule cannot be evaluated here"
    elif inputs is None:
        missing = "no inputs were given"
    if not opaque:
        errors = check_errors(program, claims, settings, content["error"])
        if inputs is not None:
            x = read_inputs(read_file(inputs), content["inputs"], program.input_shape)
            check_certificates(program, claims, settings, errors, certificates, x)
    _summary(say, settings, certificates, content, missing, time.perf_counter() - began)
    for op in opaque:
        say(f"ASSUMED: {op.where} has the constant its user's rule states.")


def _summary(
    say: Callable[[str], None],
    settings: Settings,
    certificates: Certificates,
    content: dict[str, Any],
    missing: str | None,
    seconds: float,
) -> None:
    n, sure = len(certificates.label), int(certificates.certified.sum())
    about = f"at ε = {settings.epsilon_text} in {settings.norm}, semantics {settings.semantics}"
    truth = content["inputs"]["labels"]
    if truth is not None:
        right = int((certificates.certified & (certificates.label == np.array(truth))).sum())
        about += f"; {right} of them right by the labels written in the proof (VRA {100 * right / n:.2f} %)"
    if missing is None:
        say(f"OK: {n} certificates hold, {sure} of them certified {about}. {seconds:.1f} s")
    else:
        say(f"OK: bounds and margins hold. {seconds:.1f} s")
        say(f"NOT CHECKED: the labels, margins and radii of the {n} certificates ({sure} certified {about}), "
            f"because {missing}.")  # fmt: skip
    say("The Program is taken as given: that it is what a PyTorch module computes is the tracer's claim.")


def _say(line: str) -> None:
    print(line, flush=True)


# ---------------------------------------------------------------------------------------------------------
# Scalars: exact fractions, rounded up to 53 bits now and then to stay short
# ---------------------------------------------------------------------------------------------------------


def up(q: Fraction) -> Fraction:
    """The smallest float64 that is at least q ≥ 0, as a fraction."""
    try:
        near = float(q)
    except OverflowError:
        raise Rejected("a bound exceeds the range of float64") from None
    near = near if Fraction(near) >= q else math.nextafter(near, math.inf)
    need(math.isfinite(near), "a bound exceeds the range of float64")
    return Fraction(near)


def exact(value: Any) -> Fraction:
    """The float as a fraction; what is not a finite number proves nothing."""
    value = float(value)
    need(math.isfinite(value), "a number that is not finite came up")
    return Fraction(value)


def gamma(n: int, u: Fraction = U64) -> Fraction:
    """γ_n = nu/(1 − nu): the relative error of n roundings in a row (Higham, Lemma 3.1)."""
    need(2 * n * u < 1, f"{n} roundings in a row leave nothing")
    return n * u / (1 - n * u)


def root(q: Fraction) -> Fraction:
    """At least √q, to about 60 bits."""
    if q <= 0:
        return Fraction(0)
    k = max(0, 64 - (q.numerator.bit_length() - q.denominator.bit_length()) // 2)
    whole = -((-q.numerator << (2 * k)) // q.denominator)
    return up(Fraction(math.isqrt(whole) + 1, 1 << k))


def norms(rows: Array, order: int) -> list[Fraction]:
    """At least the exact ℓ1 or ℓ2 norm of each row."""
    n = rows.shape[1]
    need(bool(np.isfinite(rows).all()), "a number that is not finite came up")
    largest = np.abs(rows).max(axis=1, initial=0.0)
    exponent = np.frexp(largest)[1]
    scaled = np.ldexp(rows, -exponent[:, None])  # exact but for underflow
    sums = np.abs(scaled).sum(axis=1) if order == 1 else (scaled * scaled).sum(axis=1)
    result = []
    for total, e, top in zip(sums.tolist(), exponent.tolist(), largest.tolist(), strict=True):
        value = exact(total) * (1 + 2 * gamma(n + 2)) + 2 * n * TINY[U64]
        value = value if order == 1 else root(value)
        result.append(up(value * Fraction(2) ** e) if top else Fraction(0))
    return result


def norm(values: Array) -> Fraction:
    return norms(values.reshape(1, -1), 2)[0]


# ---------------------------------------------------------------------------------------------------------
# Files: strict JSON, safetensors, inputs
# ---------------------------------------------------------------------------------------------------------


def read_file(path: Path) -> bytes:
    need(path.stat().st_size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES} bytes")
    return path.read_bytes()


def sha256(*parts: bytes | memoryview) -> str:
    h = hashlib.sha256()
    for part in parts:
        h.update(part)
    return h.hexdigest()


def tensor_sha256(dtype: str, shape: Iterable[int], data: bytes | memoryview) -> str:
    """The name of a tensor: of its type, its shape and its little-endian bytes."""
    return sha256(f"{dtype} {'x'.join(map(str, shape))}\n".encode(), data)


def canonical(value: Any) -> bytes:
    """The one way to write a value: sorted keys, no spaces, floats by repr, ASCII."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def parse_json(data: bytes, what: str) -> Any:
    """Strict JSON: no duplicate keys, no NaN or infinity, no number beyond float64."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        need(len(table) == len(pairs), f"{what} repeats a key")
        return table

    def finite(digits: str) -> float:
        need(math.isfinite(float(digits)), f"{what} holds the number {digits[:30]}")
        return float(digits)

    def constant(name: str) -> float:
        raise Rejected(f"{what} holds {name}")

    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_float=finite, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{what} is not valid JSON ({str(error)[:100]})") from None


def read_proof(data: bytes) -> dict[str, Any]:
    """The content of proof.json, whose bytes are canonical and have the SHA-256 they state."""
    document = record(parse_json(data, "the proof"), "the proof", "content", "sha256")
    content = document["content"]
    need(sha256(canonical(content)) == document["sha256"], "the proof's content does not have its SHA-256")
    need(canonical(document) + b"\n" == data, "the proof is not written canonically")
    keys = ("format", "norm", "form", "semantics", "epsilon", "model", "program", "bounds", "error", "inputs",
            "certificates")  # fmt: skip
    record(content, "the content", *keys)
    need(content["format"] == FORMAT, f"the proof's format is not {FORMAT!r}")
    record(content["model"], "model", "file", "sha256")
    return content


class Stored(NamedTuple):
    dtype: str
    shape: Shape
    data: memoryview


BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4,
         "U16": 2, "U8": 1, "BOOL": 1}  # fmt: skip


def read_tensors(data: bytes, digest: str) -> dict[str, Stored]:
    """The tensors of a safetensors file by their own SHA-256; the whole file must have the given one."""
    need(sha256(data) == digest, "the model file does not have the SHA-256 the proof states")
    need(len(data) >= 8, "the model file is truncated")
    length = int.from_bytes(data[:8], "little")
    need(length <= len(data) - 8, "the model file is truncated")
    header = parse_json(data[8 : 8 + length], "the model file's header")
    need(isinstance(header, dict), "the model file's header is no table")
    body, tensors, spans = memoryview(data)[8 + length :], {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        record(entry, f"tensor {name}", "dtype", "shape", "data_offsets")
        need(entry["dtype"] in BYTES, f"tensor {name} has the unknown type {entry['dtype']!r}")
        shape = sizes(entry["shape"], f"the shape of tensor {name}", least=0)
        begin, end = sizes(entry["data_offsets"], f"the place of tensor {name}", 2, least=0, most=MOST_BYTES)
        need(end - begin == math.prod(shape) * BYTES[entry["dtype"]], f"tensor {name} has a wrong size")
        spans.append((begin, end))
        stored = Stored(entry["dtype"], shape, body[begin:end])
        tensors[tensor_sha256(*stored)] = stored
    position = 0
    for begin, end in sorted(spans):
        need(begin == position, "the model file's tensors overlap or leave a gap")
        position = end
    need(position == len(body), "the model file is truncated or has bytes that belong to no tensor")
    return tensors


def to_float64(stored: Stored) -> Array:
    """The tensor's exact values."""
    if stored.dtype == "BF16":
        wide = np.frombuffer(stored.data, "<u2").astype("<u4") << 16
        return wide.view("<f4").astype(np.float64).reshape(stored.shape)
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    need(stored.dtype in kinds, f"a tensor of type {stored.dtype} cannot be computed with")
    return np.frombuffer(stored.data, kinds[stored.dtype]).astype(np.float64).reshape(stored.shape)


def read_inputs(data: bytes, entry: dict[str, Any], input_shape: Shape) -> Array:
    """The certified inputs as stored: uint8 (k stands for float32(k/255)), float32 or float64."""
    need(sha256(data) == entry["sha256"], "the inputs do not have the SHA-256 the proof states")
    shape = (entry["count"], *input_shape)
    dtype = np.dtype(entry["dtype"]).newbyteorder("<")
    size = math.prod(shape) * dtype.itemsize
    raw = {"npz": _npz, "idx": _idx, "cifar10": _cifar10}[entry["format"]](data, entry, size)
    need(len(raw) == size, "the inputs do not have the size the proof states")
    x = np.frombuffer(raw, dtype).reshape(shape)
    need(dtype.kind == "u" or bool(np.isfinite(x).all()), "an input is not finite")
    return x


def _npz(data: bytes, entry: dict[str, Any], size: int) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            need(archive.namelist() == ["x.npy"], "inputs.npz must hold one array, x")
            need(archive.getinfo("x.npy").file_size <= size + 4096, "inputs.npz is too large")
            with archive.open("x.npy") as file:
                member = file.read(size + 4097)
        stream = io.BytesIO(member)
        need(np.lib.format.read_magic(stream) == (1, 0), "inputs.npz has an unknown version")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, KeyError) as error:
        raise Rejected(f"inputs.npz is damaged ({str(error)[:100]})") from None
    need(not fortran and dtype == np.dtype(entry["dtype"]) and dtype.byteorder in "<=|", "inputs.npz: wrong type")
    need(shape[:1] == (entry["count"],), "inputs.npz does not have as many inputs as the proof")
    return member[stream.tell() :]


def _idx(data: bytes, entry: dict[str, Any], size: int) -> bytes:
    """MNIST's own format: a gzip of magic number, sizes and pixels."""
    try:
        content = zlib.decompressobj(31).decompress(data, size + 17)
    except zlib.error as error:
        raise Rejected(f"the test set is damaged ({error})") from None
    need(content[:8] == bytes((0, 0, 8, 3)) + entry["count"].to_bytes(4, "big"), "this is not the test set")
    return content[16:]


def _cifar10(data: bytes, entry: dict[str, Any], size: int) -> bytes:
    """CIFAR-10's binary format: a label and 3072 pixels a row."""
    need(len(data) == entry["count"] * 3073, "this is not the test set")
    return np.frombuffer(data, np.uint8).reshape(-1, 3073)[:, 1:].tobytes()


# Shapes of JSON


def record(value: Any, what: str, *keys: str) -> dict[str, Any]:
    """A table with exactly these keys."""
    need(isinstance(value, dict), f"{what} is no table")
    need(set(value) == set(keys), f"{what} must have the keys {', '.join(keys)}")
    return value


def listing(value: Any, what: str, length: int | None = None) -> list[Any]:
    need(isinstance(value, list), f"{what} is no list")
    need(length is None or len(value) == length, f"{what} must have {length} entries")
    return value


def text(value: Any, what: str) -> str:
    need(isinstance(value, str) and len(value) <= 1000, f"{what} is no text")
    return value


def whole(value: Any, what: str, least: int = 0, most: int = 2**24) -> int:
    need(type(value) is int and least <= value <= most, f"{what} must be a whole number from {least} to {most}")
    return value


def number(value: Any, what: str, least: float = 0.0) -> float:
    need(type(value) in (int, float) and math.isfinite(value), f"{what} is no number")
    need(value >= least, f"{what} is below {least}")
    return float(value)


def sizes(value: Any, what: str, length: int | None = None, least: int = 1, most: int = 2**24) -> Shape:
    return tuple(whole(v, what, least, most) for v in listing(value, what, length))


def matrix(value: Any, what: str, m: int) -> Array:
    rows = [listing(row, what, m) for row in listing(value, what, m)]
    return np.array([[number(v, what) for v in row] for row in rows])


# ---------------------------------------------------------------------------------------------------------
# The Program
# ---------------------------------------------------------------------------------------------------------


class Program(NamedTuple):
    input_shape: Shape
    operations: list[Operation]
    tensors: dict[str, str]
    """Name → type."""

    @property
    def head(self) -> Layer:
        head = self.operations[-1]
        assert isinstance(head, Layer)
        return head

    @property
    def classes(self) -> int:
        return self.head.output_shape[0]


def read_program(entry: Any, stored: dict[str, Stored]) -> Program:
    """Builds every operation on its tensors and recomputes its shape."""
    record(entry, "program", "input_shape", "tensors", "operations")
    shapes: dict[str, Shape | None] = {"input": sizes(entry["input_shape"], "program.input_shape")}
    arrays, types, used = {}, {}, set()
    need(isinstance(entry["tensors"], dict), "program.tensors is no table")
    for name, tensor in entry["tensors"].items():
        record(tensor, f"tensor {name}", "dtype", "shape", "sha256")
        digest = text(tensor["sha256"], f"the SHA-256 of tensor {name}")
        need(digest in stored, f"the model file holds no tensor with the SHA-256 of {name}")
        found = stored[digest]
        same = (found.dtype, list(found.shape)) == (tensor["dtype"], tensor["shape"])
        need(same, f"tensor {name} is not of the stated type and shape")
        arrays[name], types[name] = found, found.dtype
    operations: list[Operation] = []
    entries = listing(entry["operations"], "program.operations")
    need(0 < len(entries) <= 10_000, "a Program has from one to 10,000 operations")
    for k, e in enumerate(entries):
        where = f"operation {k}"
        record(e, where, "path", "rule", "input_shape", "inputs", "output", "tensors", "attributes")
        rule, path = text(e["rule"], where), text(e["path"], where)
        where += f" ({rule} at {path or 'the top'})"
        need(rule in RULES, f"{where}: there is no such rule")
        inputs = [text(name, where) for name in listing(e["inputs"], where)]
        for name in inputs:
            need(name in shapes, f"{where}: {name} is not defined before it is used")
        declared = sizes(e["input_shape"], f"{where}: input_shape")
        if inputs and shapes[inputs[0]] is None:  # what a user's rule puts out is what its reader says
            shapes[inputs[0]] = declared
        incoming = [shapes[name] for name in inputs]
        need(bool(incoming) and declared == incoming[0], f"{where}: its input has another shape")
        need(isinstance(e["tensors"], dict) and isinstance(e["attributes"], dict), f"{where}: no table")
        mine = {}
        for field, name in e["tensors"].items():
            need(isinstance(name, str) and name in arrays, f"{where}: there is no tensor {str(name)[:100]}")
            mine[field] = arrays[name]
            used.add(name)
        operation = RULES[rule](where, inputs, [s or () for s in incoming], mine, e["attributes"])
        output = text(e["output"], where)
        need(output not in shapes, f"{where}: the name {output} is used twice")
        operation.output = output
        operation.output_shape = operation.shape()
        need(math.prod(operation.output_shape) <= MOST_ENTRIES, f"{where}: its output is too large")
        shapes[output] = None if isinstance(operation, UserRule) else operation.output_shape
        operations.append(operation)
    read = {name for op in operations for name in op.inputs}
    for op in operations[:-1]:
        need(op.output in read, f"{op.where}: nothing uses its output")
    head = operations[-1]
    plain = isinstance(head, Layer) and head.rule == "dense" and not head.options["skip"]
    need(plain and head.output_shape[0] >= 2, "the last operation is not a dense layer of two classes or more")
    need(used == set(arrays), "the Program names tensors that no operation uses")
    return Program(tuple(shapes["input"] or ()), operations, types)


class Loss(NamedTuple):
    """What one evaluation loses: ‖computed − exact‖ ≤ γ_terms·(gain·‖input‖ + offset); ‖f(0)‖ ≤ offset."""

    terms: int = 0
    gain: Fraction = Fraction(0)
    offset: Fraction = Fraction(0)


class Operation:
    """One operation. The defaults are those of a map that keeps the shape, is 1-Lipschitz and exact."""

    rule: ClassVar[str]
    arity: ClassVar[int | None] = 1
    fields: ClassVar[dict[str, bool]] = {}
    """Its tensors, and whether each is required."""
    known: ClassVar[dict[str, tuple[Callable[[Any, str], Any], Any]]] = {}
    """Its attributes: how to read each, and its default (... for none)."""
    linear: ClassVar[bool] = False
    elementary: ClassVar[bool] = False
    """An elementary function: no float32 library states its error."""
    output: str
    output_shape: Shape

    def __init__(
        self, where: str, inputs: list[str], shapes: list[Shape], tensors: dict[str, Stored], options: dict[str, Any]
    ) -> None:
        self.where, self.inputs, self.shapes = where, inputs, shapes
        self.input_shape = shapes[0]
        need(self.arity is None or len(inputs) == self.arity, f"{where}: wrong number of inputs")
        need(set(tensors) <= set(self.fields), f"{where}: it has a tensor its rule does not know")
        for field, required in self.fields.items():
            need(field in tensors or not required, f"{where}: it has no {field}")
        need(set(options) <= set(self.known), f"{where}: it has an attribute its rule does not know")
        self.tensors = {field: to_float64(t) for field, t in tensors.items()}
        for field, array in self.tensors.items():
            need(array.size > 0 and bool(np.isfinite(array).all()), f"{where}: its {field} is not finite")
        self.options = {}
        for name, (read, default) in self.known.items():
            need(name in options or default is not ..., f"{where}: it has no {name}")
            self.options[name] = read(options[name], f"{where}: {name}") if name in options else default
        self.prepare()

    def prepare(self) -> None:
        """What else must hold."""

    def shape(self) -> Shape:
        return self.input_shape

    def run(self, *x: Array) -> Array:
        """The value on a batch."""
        raise NotImplementedError

    def linear_part(self, x: Array) -> Array:
        """x ↦ f(x) − f(0), of a linear operation."""
        return self.run(x)

    def constant(self, norm: str) -> Fraction:
        """K in the norm, from above."""
        return Fraction(1)

    def check(self, claim: Fraction, norm: str, method: str) -> str:
        """Raises unless K ≤ claim; says how it was proved."""
        need(claim >= self.constant(norm), f"{self.where}: the claimed bound {float(claim)} is below its constant")
        return "constant"

    def combine(self, constants: list[Fraction], norm: str) -> Fraction:
        return constants[0]

    def loss(self) -> Loss:
        return Loss()

    def work(self) -> float:
        """Floating-point operations for one sample."""
        return float(math.prod(self.output_shape))

    def spread(self) -> int:
        """Entries of the largest temporary for one sample."""
        return math.prod(self.input_shape) + math.prod(self.output_shape)


def flag(value: Any, what: str) -> bool:
    need(isinstance(value, bool), f"{what} is neither true nor false")
    return value


def pair(value: Any, what: str) -> Shape:
    return sizes(value, what, 2)


def pads(value: Any, what: str) -> Shape:
    return sizes(value, what, least=0)


# Linear maps: dense layers and convolutions are one thing, a kernel on a grid


class Grid(NamedTuple):
    """Which pixels each output reads: output o, tap r ↦ input o·stride + r·dilation − padding, per axis."""

    size: Shape
    kernel: Shape
    stride: Shape = (1, 1)
    padding: Shape = (0, 0, 0, 0)
    """top, bottom, left, right: zeros, or with `circular` the other end of the image."""
    dilation: Shape = (1, 1)
    circular: bool = False

    @property
    def out(self) -> Shape:
        spans = []
        for axis in (0, 1):
            room = self.size[axis] + sum(self.padding[2 * axis : 2 * axis + 2])
            spans.append((room - self.dilation[axis] * (self.kernel[axis] - 1) - 1) // self.stride[axis] + 1)
        return tuple(spans)

    def reads(self, axis: int, tap: int) -> tuple[Array, Array]:
        """(outputs, inputs) of one tap along one axis: pairs of indices that meet, padding left out."""
        outputs = np.arange(self.out[axis])
        inputs = outputs * self.stride[axis] + tap * self.dilation[axis] - self.padding[2 * axis]
        if self.circular:
            return outputs, inputs % self.size[axis]
        inside = (inputs >= 0) & (inputs < self.size[axis])
        return outputs[inside], inputs[inside]

    def windows(self, x: Array, fill: float = 0.0) -> Array:
        """(B, c, h, w) → (B, c, p, q, kh, kw): a view of what each output reads."""
        top, bottom, left, right = self.padding
        around = ((0, 0), (0, 0), (top, bottom), (left, right))
        if any(self.padding):
            if self.circular:
                x = np.pad(x, around, mode="wrap")
            else:
                x = np.pad(x, around, constant_values=fill)
        (kh, kw), (dy, dx), (sy, sx) = self.kernel, self.dilation, self.stride
        view = np.lib.stride_tricks.sliding_window_view(x, (dy * (kh - 1) + 1, dx * (kw - 1) + 1), (2, 3))
        return view[:, :, ::sy, ::sx, ::dy, ::dx]


@dataclass(frozen=True)
class Map:
    """The linear map of a kernel (c_out, c_in/groups, kh, kw) on a grid."""

    kernel: Array
    grid: Grid
    groups: int = 1

    def apply(self, x: Array) -> Array:
        """(B, c_in, h, w) → (B, c_out, p, q), one matrix product a group."""
        w = self.grid.windows(x)
        b, c, p, q, kh, kw = w.shape
        g = self.groups
        patches = w.reshape(b, g, c // g, p, q, kh, kw) if g > 1 else w[:, None]
        patches = patches.transpose(1, 0, 3, 4, 2, 5, 6).reshape(g, b * p * q, -1)
        y = patches @ self.kernel.reshape(g, len(self.kernel) // g, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(y.reshape(g, b, p, q, -1).transpose(1, 0, 4, 2, 3)).reshape(b, -1, p, q)

    def parts(self) -> list[Map]:
        """One map a group: together they are the map, side by side."""
        return [Map(kernel, self.grid) for kernel in np.split(self.kernel, self.groups)]

    def sums(self) -> tuple[Fraction, Fraction]:
        """At least the largest row sum and the largest column sum of |A|."""
        rows = columns = 0.0
        terms = 0
        for part in self.parts():
            size = np.abs(part.kernel)
            d, c, kh, kw = size.shape
            ones = np.ones((1, c, *self.grid.size))
            rows = max(rows, float(Map(size, self.grid).apply(ones).max()))
            down, across = size.sum(axis=0), np.zeros((c, *self.grid.size))
            for r in range(kh):
                for t in range(kw):
                    (_, i), (_, j) = self.grid.reads(0, r), self.grid.reads(1, t)
                    np.add.at(across, (slice(None), i[:, None], j[None, :]), down[:, r, t][:, None, None])
            columns = max(columns, float(across.max()))
            terms = size.size * math.prod(self.grid.out) + 1
        slack = 1 + 2 * gamma(terms)
        return up(exact(rows) * slack), up(exact(columns) * slack)

    def magnitude(self) -> Fraction:
        """At least ‖|A|‖₂ ≤ √(‖A‖₁‖A‖_∞), and the Frobenius norm when that is smaller."""
        rows, columns = self.sums()
        crude = root(rows * columns)
        return min(crude, norm(self.kernel)) if self.grid.size == (1, 1) else crude


class Layer(Operation):
    """A dense layer or a convolution: y = Wx + b, and with `skip` y = x + Wx + b as one operator."""

    linear = True
    fields: ClassVar[dict[str, bool]] = {"weight": True, "bias": False}
    map: Map

    def run(self, *x: Array) -> Array:
        y = self.linear_part(x[0])
        if "bias" in self.tensors:
            y += self.tensors["bias"].reshape(-1, *[1] * (y.ndim - 2))
        return y

    def linear_part(self, x: Array) -> Array:
        y = self.map.apply(x.reshape(len(x), -1, *self.map.grid.size)).reshape(len(x), *self.output_shape)
        return x + y if self.options["skip"] else y

    def kernel_map(self) -> tuple[Map, Fraction]:
        """The map with `skip` folded in, and how far rounding may have moved it (in ℓ2 and ℓ∞)."""
        if not self.options["skip"]:
            return self.map, Fraction(0)
        kernel, grid = self.map.kernel.copy(), self.map.grid
        top, left = grid.padding[0] // grid.dilation[0], grid.padding[2] // grid.dilation[1]
        out = np.arange(len(kernel))
        kernel[out, out % kernel.shape[1], top, left] += 1.0  # channel o of its group reads channel o
        slip = U64 * exact(np.abs(kernel[out, out % kernel.shape[1], top, left]).max())
        return Map(kernel, grid, self.map.groups), slip

    def constant(self, norm: str) -> Fraction:
        """A crude K: the checks of claims are sharper."""
        full, slip = self.kernel_map()
        rows, columns = full.sums()
        return up((rows if norm == "linf" else root(rows * columns)) + slip)

    def check(self, claim: Fraction, norm: str, method: str) -> str:
        full, slip = self.kernel_map()
        return prove(full, claim - slip, norm, method, f"{self.where}: the claimed bound {float(claim)}")

    def loss(self) -> Loss:
        skip = int(self.options["skip"])
        bias = Fraction(0)
        if "bias" in self.tensors:
            bias = up(norm(self.tensors["bias"]) * root(Fraction(math.prod(self.map.grid.out))))
        terms = math.prod(self.map.kernel.shape[1:]) + 1 + skip
        return Loss(terms, up(self.map.magnitude() + skip), bias)

    def work(self) -> float:
        return 2.0 * math.prod(self.output_shape) * math.prod(self.map.kernel.shape[1:])

    def spread(self) -> int:
        c, (p, q), (kh, kw) = self.map.kernel.shape[1] * self.map.groups, self.map.grid.out, self.map.grid.kernel
        return c * p * q * kh * kw + math.prod(self.output_shape) + 4 * math.prod(self.input_shape)

    def build(self, kernel: Array, channels: int, grid: Grid, groups: int) -> None:
        c_out, c_in = kernel.shape[:2]
        need(c_in * groups == channels and c_out % groups == 0, f"{self.where}: its weight does not fit its input")
        need(min(grid.out) >= 1, f"{self.where}: its kernel is larger than its input")
        need(not grid.circular or all(max(grid.padding[2 * a : 2 * a + 2]) <= grid.size[a] for a in (0, 1)),
             f"{self.where}: its padding wraps more than once")  # fmt: skip
        self.map = Map(kernel, grid, groups)
        if "bias" in self.tensors:
            need(self.tensors["bias"].shape == (c_out,), f"{self.where}: its bias does not fit")
        if self.options["skip"]:
            fits = c_out == channels and grid.out == grid.size and grid.stride == (1, 1)
            taps = all(
                grid.padding[2 * a] % grid.dilation[a] == 0
                and grid.padding[2 * a] // grid.dilation[a] < grid.kernel[a]
                for a in (0, 1)
            )
            need(fits and taps, f"{self.where}: x + Wx is not one operator here")


class Dense(Layer):
    rule = "dense"
    known: ClassVar[dict[str, Any]] = {"skip": (flag, False)}

    def prepare(self) -> None:
        weight = self.tensors["weight"]
        need(len(self.input_shape) == 1 and weight.ndim == 2, f"{self.where}: it takes vectors")
        self.build(weight[:, :, None, None], self.input_shape[0], Grid((1, 1), (1, 1)), 1)

    def shape(self) -> Shape:
        return (len(self.tensors["weight"]),)


class Conv(Layer):
    rule = "conv2d"
    axes: ClassVar[int] = 2
    known: ClassVar[dict[str, Any]] = {
        "stride": (sizes, None),
        "padding": (pads, None),
        "dilation": (sizes, None),
        "groups": (lambda v, what: whole(v, what, 1), 1),
        "skip": (flag, False),
        "circular": (flag, False),
    }

    def prepare(self) -> None:
        n, o = self.axes, self.options
        weight = self.tensors["weight"]
        need(len(self.input_shape) == n + 1 and weight.ndim == n + 2, f"{self.where}: wrong dimensions")
        stride, dilation = (o[k] or (1,) * n for k in ("stride", "dilation"))
        padding = o["padding"] or (0,) * (2 * n)
        need(len(stride) == len(dilation) == n and len(padding) == 2 * n, f"{self.where}: wrong attributes")
        # Of one dimension: an image of height 1.
        one, none = (1,) * (2 - n), (0, 0) * (2 - n)
        kernel = weight.reshape(*weight.shape[:2], *one, *weight.shape[2:])
        size = one + self.input_shape[1:]
        need(math.prod(size) + sum(padding) * max(size) <= MOST_ENTRIES, f"{self.where}: it is too large")
        grid = Grid(size, kernel.shape[2:], one + stride, none + padding, one + dilation, o["circular"])
        self.build(kernel, self.input_shape[0], grid, o["groups"])

    def shape(self) -> Shape:
        return (len(self.map.kernel), *self.map.grid.out[2 - self.axes :])


class Conv1d(Conv):
    rule = "conv1d"
    axes = 1


class Pool(Operation):
    """What the two poolings share: windows within each channel."""

    known: ClassVar[dict[str, Any]] = {"kernel": (sizes, ...), "stride": (sizes, ...), "padding": (pads, (0, 0))}
    grid: Grid

    def prepare(self) -> None:
        n = len(self.input_shape) - 1
        kernel, stride, padding = (self.options[k] for k in ("kernel", "stride", "padding"))
        padding = padding if any(padding) else (0,) * n
        fits = n in (1, 2) and len(kernel) == len(stride) == len(padding) == n
        need(fits and all(2 * p <= k for p, k in zip(padding, kernel, strict=True)), f"{self.where}: wrong windows")
        one, none = (1,) * (2 - n), (0,) * (2 - n)
        both = tuple(p for side in none + padding for p in (side, side))
        self.grid = Grid(one + self.input_shape[1:], one + kernel, one + stride, both)
        need(min(self.grid.out) >= 1, f"{self.where}: its window is larger than its input")

    def shape(self) -> Shape:
        return (self.input_shape[0], *self.grid.out[3 - len(self.input_shape) :])

    def windows(self, x: Array, fill: float) -> Array:
        return self.grid.windows(x.reshape(len(x), -1, *self.grid.size), fill)

    def work(self) -> float:
        return float(math.prod(self.output_shape) * math.prod(self.grid.kernel))

    def spread(self) -> int:
        return 4 * math.prod(self.input_shape) + math.prod(self.output_shape) * math.prod(self.grid.kernel)


class AvgPool(Pool):
    """Window means, padding counted: the convolution by ones, divided by the window's size."""

    rule = "avgpool"
    linear = True

    def run(self, *x: Array) -> Array:
        means = self.windows(x[0], 0.0).sum(axis=(4, 5)) / math.prod(self.grid.kernel)
        return means.reshape(len(x[0]), *self.output_shape)

    def ones(self) -> Map:
        return Map(np.ones((1, 1, *self.grid.kernel)), self.grid)

    def constant(self, norm: str) -> Fraction:
        if norm == "linf":
            return Fraction(1)
        return up(self.ones().magnitude() / math.prod(self.grid.kernel))

    def check(self, claim: Fraction, norm: str, method: str) -> str:
        if norm == "linf":
            return super().check(claim, norm, method)
        about = f"{self.where}: the claimed bound {float(claim)}"
        return prove(self.ones(), claim * math.prod(self.grid.kernel), norm, method, about)

    def loss(self) -> Loss:
        return Loss(math.prod(self.grid.kernel) + 1, self.constant("l2"))


class MaxPool(Pool):
    """Window maxima: |max_S a − max_S b| ≤ ‖(a − b)_S‖, and a pixel counts once a window it is in."""

    rule = "maxpool"

    def run(self, *x: Array) -> Array:
        return self.windows(x[0], -np.inf).max(axis=(4, 5)).reshape(len(x[0]), *self.output_shape)

    def constant(self, norm: str) -> Fraction:
        if norm == "linf":
            return Fraction(1)
        shared = 1
        for axis in (0, 1):
            seen = np.concatenate([self.grid.reads(axis, r)[1] for r in range(self.grid.kernel[axis])])
            shared *= int(np.bincount(seen).max())
        return Fraction(1) if shared == 1 else root(Fraction(shared))


class Scale(Operation):
    """x·g or x/g."""

    rule = "scale"
    linear = True
    fields: ClassVar[dict[str, bool]] = {"factor": True}
    known: ClassVar[dict[str, Any]] = {
        "divide": (flag, False),
        "roundings": (lambda v, what: whole(v, what, 1, 64), 1),
    }

    def prepare(self) -> None:
        self.factor = spread_over(self.tensors["factor"], self.input_shape, self.where)
        need(not self.options["divide"] or bool(self.factor.all()), f"{self.where}: it divides by zero")

    def run(self, *x: Array) -> Array:
        return x[0] / self.factor if self.options["divide"] else x[0] * self.factor

    def constant(self, norm: str) -> Fraction:
        size = np.abs(self.factor)
        return 1 / exact(size.min()) if self.options["divide"] else exact(size.max())

    def loss(self) -> Loss:
        return Loss(self.options["roundings"], self.constant("l2"))


class Translate(Operation):
    """x + c or x − c."""

    rule = "translate"
    linear = True
    fields: ClassVar[dict[str, bool]] = {"offset": True}
    known: ClassVar[dict[str, Any]] = {
        "subtract": (flag, False),
        "roundings": (lambda v, what: whole(v, what, 1, 64), 1),
    }

    def prepare(self) -> None:
        self.offset = spread_over(self.tensors["offset"], self.input_shape, self.where)

    def run(self, *x: Array) -> Array:
        return x[0] - self.offset if self.options["subtract"] else x[0] + self.offset

    def linear_part(self, x: Array) -> Array:
        return x

    def loss(self) -> Loss:
        return Loss(self.options["roundings"], Fraction(1), norm(self.offset))


def spread_over(tensor: Array, shape: Shape, where: str) -> Array:
    """The tensor broadcast to one sample; it may not have an entry for each sample of a batch."""
    try:
        return np.broadcast_to(tensor, (1, *shape))[0]
    except ValueError:
        raise Rejected(f"{where}: its tensor does not fit its input") from None


# Nonlinearities


class ReLU(Operation):
    rule = "relu"

    def run(self, *x: Array) -> Array:
        return np.maximum(x[0], 0.0)


class Abs(Operation):
    rule = "abs"

    def run(self, *x: Array) -> Array:
        return np.abs(x[0])


class LeakyReLU(Operation):
    """Two roundings: of the slope to the arithmetic at hand, and of the product."""

    rule = "leakyrelu"
    known: ClassVar[dict[str, Any]] = {"slope": (lambda v, what: number(v, what, -math.inf), ...)}

    def run(self, *x: Array) -> Array:
        return np.where(x[0] > 0, x[0], self.options["slope"] * x[0])

    def constant(self, norm: str) -> Fraction:
        return max(Fraction(1), abs(exact(self.options["slope"])))

    def loss(self) -> Loss:
        return Loss(2, self.constant("l2"))


class MinMax(Operation):
    """(max(a, b), min(a, b)) of the two halves: sorting a pair moves no two pairs further apart."""

    rule = "minmax"

    def prepare(self) -> None:
        need(self.input_shape[0] % 2 == 0, f"{self.where}: it needs an even number of channels")

    def run(self, *x: Array) -> Array:
        a, b = np.split(x[0], 2, axis=1)
        return np.concatenate([np.maximum(a, b), np.minimum(a, b)], axis=1)


class GroupSort(Operation):
    """Sorting is made of exchanges max/min of a pair."""

    rule = "groupsort"
    known: ClassVar[dict[str, Any]] = {"size": (lambda v, what: whole(v, what, 1), ...)}

    def prepare(self) -> None:
        need(self.input_shape[0] % self.options["size"] == 0, f"{self.where}: its groups do not fit")

    def run(self, *x: Array) -> Array:
        groups = x[0].reshape(len(x[0]), -1, self.options["size"], *self.input_shape[1:])
        return np.sort(groups, axis=2).reshape(x[0].shape)


class Householder(Operation):
    """z − 2·min(vᵀz, 0)·v, v = (sin θ/2, −cos θ/2): continuous, with orthogonal pieces.

    With sines and cosines good to 8u: 2γ₁₀ + 2γ₉(1 + γ₁₀) + 3u(1 + γ₁₉) ≤ 2γ₂₁ of ‖z‖ is lost.
    """

    rule = "householder"
    fields: ClassVar[dict[str, bool]] = {"theta": True}

    def prepare(self) -> None:
        need(self.tensors["theta"].shape * 2 == (self.input_shape[0] / 2,) * 2, f"{self.where}: θ does not fit")
        half = self.tensors["theta"].reshape(-1, *[1] * (len(self.input_shape) - 1)) / 2
        self.sine, self.cosine = np.sin(half), np.cos(half)

    def run(self, *x: Array) -> Array:
        a, b = np.split(x[0], 2, axis=1)
        behind = 2 * np.minimum(a * self.sine - b * self.cosine, 0.0)
        return np.concatenate([a - behind * self.sine, b + behind * self.cosine], axis=1)

    def constant(self, norm: str) -> Fraction:
        return root(Fraction(2)) if norm == "linf" else Fraction(1)

    def loss(self) -> Loss:
        return Loss(21, Fraction(2))


class Elementary(Operation):
    """f entry by entry, |f′| ≤ slope, |f(0)| ≤ origin; computed to within 32u of slope·|x| + origin ≥ |f(x)|."""

    elementary = True
    slope: Fraction = Fraction(1)
    origin: Fraction = Fraction(0)

    def constant(self, norm: str) -> Fraction:
        return self.slope

    def loss(self) -> Loss:
        return Loss(32, self.slope, up(self.origin * root(Fraction(math.prod(self.input_shape)))))


class Sigmoid(Elementary):
    rule = "sigmoid"
    slope, origin = Fraction(1, 4), Fraction(1, 2)

    def run(self, *x: Array) -> Array:
        return 1.0 / (1.0 + np.exp(-x[0]))


class Tanh(Elementary):
    rule = "tanh"

    def run(self, *x: Array) -> Array:
        return np.tanh(x[0])


class ELU(Elementary):
    rule = "elu"
    known: ClassVar[dict[str, Any]] = {"alpha": (lambda v, what: number(v, what, -math.inf), 1.0)}

    def prepare(self) -> None:
        self.slope = max(Fraction(1), abs(exact(self.options["alpha"])))

    def run(self, *x: Array) -> Array:
        return np.where(x[0] > 0, x[0], self.options["alpha"] * np.expm1(np.minimum(x[0], 0.0)))


class Softplus(Elementary):
    """log(1 + e^{βx})/β, smooth: where torch answers x itself, past its threshold, counts as its rounding."""

    rule = "softplus"
    known: ClassVar[dict[str, Any]] = {
        "beta": (lambda v, what: number(v, what, -math.inf), 1.0),
        "threshold": (lambda v, what: number(v, what, 14.0), 20.0),
    }

    def prepare(self) -> None:
        need(self.options["beta"] != 0, f"{self.where}: beta is 0")
        self.origin = Fraction(7, 10) / abs(exact(self.options["beta"]))  # ln 2 < 0.7

    def run(self, *x: Array) -> Array:
        z = self.options["beta"] * x[0]
        return (np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z)))) / self.options["beta"]


class GELU(Elementary):
    """x·Φ(x): its slope Φ + xφ is largest at √2, (1 + erf 1)/2 + e⁻¹/√π = 1.128904145…; by tanh 1.12899307."""

    rule = "gelu"
    known: ClassVar[dict[str, Any]] = {"approximate": (text, "none")}

    def prepare(self) -> None:
        need(self.options["approximate"] in ("none", "tanh"), f"{self.where}: unknown approximation")
        none = self.options["approximate"] == "none"
        self.slope = Fraction("1.1289041452") if none else Fraction("1.1289930688")

    def run(self, *x: Array) -> Array:
        if self.options["approximate"] == "none":
            z = x[0] / math.sqrt(2.0)
            phi = np.fromiter(map(math.erf, z.ravel().tolist()), np.float64, z.size).reshape(z.shape)
        else:
            phi = np.tanh(math.sqrt(2.0 / math.pi) * (x[0] + 0.044715 * x[0] ** 3))
        return 0.5 * x[0] * (1.0 + phi)


# Moving entries about, joining branches


class Reshape(Operation):
    rule = "reshape"
    linear = True
    known: ClassVar[dict[str, Any]] = {"shape": (sizes, ...)}

    def shape(self) -> Shape:
        new = self.options["shape"]
        need(math.prod(new) == math.prod(self.input_shape), f"{self.where}: it changes the number of entries")
        return new

    def run(self, *x: Array) -> Array:
        return x[0].reshape(len(x[0]), *self.output_shape)


class Permute(Operation):
    rule = "permute"
    linear = True
    known: ClassVar[dict[str, Any]] = {"order": (lambda v, what: sizes(v, what, least=0), ...)}

    def shape(self) -> Shape:
        order = self.options["order"]
        need(sorted(order) == list(range(len(self.input_shape))), f"{self.where}: this is no permutation")
        return tuple(self.input_shape[k] for k in order)

    def run(self, *x: Array) -> Array:
        return x[0].transpose(0, *(1 + k for k in self.options["order"]))


class PixelUnshuffle(Operation):
    rule = "pixelunshuffle"
    linear = True
    known: ClassVar[dict[str, Any]] = {"factor": (lambda v, what: whole(v, what, 1), ...)}

    def shape(self) -> Shape:
        f = self.options["factor"]
        fits = len(self.input_shape) == 3 and self.input_shape[1] % f == self.input_shape[2] % f == 0
        need(fits, f"{self.where}: its squares do not fit")
        c, h, w = self.input_shape
        return (c * f * f, h // f, w // f)

    def run(self, *x: Array) -> Array:
        f, (c, h, w) = self.options["factor"], self.input_shape
        squares = x[0].reshape(len(x[0]), c, h // f, f, w // f, f)
        return squares.transpose(0, 1, 3, 5, 2, 4).reshape(len(x[0]), *self.output_shape)


class Pad(Operation):
    """Zeros around an image (top, bottom, left, right) or a row (left, right)."""

    rule = "pad"
    linear = True
    mode: ClassVar[str] = "constant"
    known: ClassVar[dict[str, Any]] = {"padding": (pads, ...)}

    def prepare(self) -> None:
        need(len(self.options["padding"]) == 2 * (len(self.input_shape) - 1) > 0, f"{self.where}: wrong padding")

    def sides(self) -> list[tuple[int, int]]:
        padding = self.options["padding"]
        return [(padding[2 * a], padding[2 * a + 1]) for a in range(len(self.input_shape) - 1)]

    def shape(self) -> Shape:
        return (self.input_shape[0], *(n + a + b for n, (a, b) in zip(self.input_shape[1:], self.sides(), strict=True)))

    def run(self, *x: Array) -> Array:
        return np.pad(x[0], [(0, 0), (0, 0), *self.sides()], mode=self.mode)  # type: ignore[call-overload]


class CircularPad(Pad):
    """The other end of the image: K = √(most copies of one pixel)."""

    rule = "circularpad"
    mode = "wrap"

    def constant(self, norm: str) -> Fraction:
        copies = math.prod(-(-(n + a + b) // n) for n, (a, b) in zip(self.input_shape[1:], self.sides(), strict=True))
        return Fraction(1) if norm == "linf" or copies == 1 else root(Fraction(copies))

    def loss(self) -> Loss:
        return Loss(0, self.constant("l2"))


class Sum(Operation):
    rule = "sum"
    arity = 2

    def prepare(self) -> None:
        need(self.shapes[0] == self.shapes[1], f"{self.where}: its inputs differ in shape")

    def run(self, *x: Array) -> Array:
        return x[0] + x[1]

    def combine(self, constants: list[Fraction], norm: str) -> Fraction:
        return sum(constants, Fraction(0))

    def loss(self) -> Loss:
        return Loss(1, Fraction(1))


class Concat(Operation):
    rule = "concat"
    arity = None
    known: ClassVar[dict[str, Any]] = {
        "dim": (lambda v, what: whole(v, what, 0, 8), ...),
        "sizes": (sizes, None),
    }

    def shape(self) -> Shape:
        dim = self.options["dim"]
        need(all(dim < len(s) for s in self.shapes), f"{self.where}: there is no such dimension")
        rest = {(s[:dim], s[dim + 1 :]) for s in self.shapes}
        need(len(rest) == 1, f"{self.where}: its inputs do not fit together")
        along = tuple(s[dim] for s in self.shapes)
        need(self.options["sizes"] in (None, along), f"{self.where}: its sizes are wrong")
        return (*self.input_shape[:dim], sum(along), *self.input_shape[dim + 1 :])

    def run(self, *x: Array) -> Array:
        return np.concatenate(x, axis=1 + self.options["dim"])

    def combine(self, constants: list[Fraction], norm: str) -> Fraction:
        return max(constants) if norm == "linf" else root(sum((k * k for k in constants), Fraction(0)))


class UserRule(Operation):
    """A module its user vouches for: nothing about it can be checked."""

    rule = "user rule"

    def __init__(self, where: str, inputs: list[str], shapes: list[Shape], tensors: Any, options: Any) -> None:
        super().__init__(where, inputs, shapes, {}, {})

    def check(self, claim: Fraction, norm: str, method: str) -> str:
        return "ASSUMED"


def _rules(base: type[Operation] = Operation) -> dict[str, type[Operation]]:
    table = {base.__dict__["rule"]: base} if "rule" in base.__dict__ else {}
    for kind in base.__subclasses__():
        table |= _rules(kind)
    return table


RULES = _rules()


# ---------------------------------------------------------------------------------------------------------
# ‖A‖ ≤ claim
# ---------------------------------------------------------------------------------------------------------


class Unproved(Exception):
    """This way does not prove the claim."""


def prove(a: Map, claim: Fraction, norm: str, method: str, about: str) -> str:
    """Raises Rejected unless ‖A‖ ≤ claim is proved; says how."""
    if norm == "linf":
        need(a.sums()[0] <= claim, f"{about} is below the largest row sum")
        return "row sums"
    ways = [("checked Cholesky", prove_exactly), ("symbols", prove_by_symbols)]
    why = ""
    for how, way in reversed(ways) if "symbols" in method else ways:
        try:
            for part in a.parts():
                if part.kernel.any():
                    way(part, claim)
            return how
        except (Unproved, np.linalg.LinAlgError) as reason:
            why += f"; {how}: {reason}"
    raise Rejected(f"{about} is not proved to be above the norm{why}")


def _scaled(kernel: Array) -> tuple[Array, int]:
    """(kernel·2⁻ᵉ, e) with largest entry in [½, 1): exact, but for at most 2⁻¹⁰⁷⁴ an entry."""
    exponent = math.frexp(float(np.abs(kernel).max()))[1]
    return np.ldexp(kernel, -exponent), exponent


def prove_exactly(a: Map, claim: Fraction) -> None:
    """‖A‖ ≤ claim by a checked Cholesky of the finite operator's own Gram matrix."""
    kernel, exponent = _scaled(a.kernel)
    a = Map(kernel, a.grid)
    outputs, work = _cheaper_side(a)
    if work > MOST_WORK:
        raise Unproved("the operator is too large")
    d, c, kh, kw = kernel.shape
    rows, columns = a.sums()
    # What scaling lost, and with a wrapped kernel two taps that were added up.
    lost = root(Fraction(kernel.size * math.prod(a.grid.out))) * TINY[U64]
    lost += gamma(kw + 1) * root(rows * columns) if a.grid.circular else 0
    goal = claim / Fraction(2) ** exponent - lost
    if goal <= 0:
        raise Unproved("the claim is not positive")
    goal = goal * goal
    blocks, first = _gram(a, outputs)
    terms = (c if outputs else d) * kh * kw * (kh if a.grid.circular else 1)
    order = sum(len(row[-1]) for row in blocks)
    error = gamma(terms) * rows * columns + order * terms * TINY[U64]
    longest = max(sum(len(b[0]) for b in row) for row in blocks)
    wide = longest * (order if a.grid.circular else min(order, 2 * longest))
    below = error + 2 * goal * wide * U64 + goal * 64 * longest * U64
    for _ in range(2):
        excess = _excess(blocks, first, float(goal - below)) + error
        s = exact(float(goal - below))
        if s + excess <= goal:
            return
        below = 2 * below + 2 * excess
    raise Unproved(f"only a square of {float(s + excess):.17g} for {float(goal):.17g}, scaled")


def _cheaper_side(a: Map) -> tuple[bool, float]:
    """Whether AAᵀ is cheaper than AᵀA, and what it costs."""
    (d, c, kh, _), (h, w), (p, q) = a.kernel.shape, a.grid.size, a.grid.out
    reach = a.grid.dilation[0] * (kh - 1)
    costs = {}
    for outputs, block, inner, count, band in (
        (True, float(d * q), c * w, p, min(p - 1, reach // a.grid.stride[0])),
        (False, float(c * w), d * q, h, min(h - 1, reach)),
    ):
        band = band * 2 if a.grid.circular else band
        costs[outputs] = count * (1 + band) * (2 + band) * 2.0 * block**3 + 2.0 * kh**2 * block**2 * inner
        if block * max(block, inner) * kh > MOST_ENTRIES * 4:
            costs[outputs] = math.inf
    return costs[True] <= costs[False], min(costs.values())


def _gram(a: Map, outputs: bool) -> tuple[list[list[Array]], list[int]]:
    """fl(AAᵀ) (or AᵀA) by image rows: lower blocks from the first that is not zero; and which that is.

    A is one matrix for each kernel row r, from an image row to an output row; interior rows share products.
    """
    (d, c, kh, kw), (h, w), (p, q) = a.kernel.shape, a.grid.size, a.grid.out
    strips = []
    for r in range(kh):
        strip = np.zeros((q, d, w, c))
        for t in range(kw):
            o, i = a.grid.reads(1, t)
            strip[o, :, i, :] += a.kernel[:, :, r, t]
        flat = strip.reshape(q * d, w * c)
        strips.append(flat if outputs else np.ascontiguousarray(flat.T))
    meets: list[dict[int, list[int]]] = [{} for _ in range(p if outputs else h)]
    for r in range(kh):
        for o, i in zip(*(index.tolist() for index in a.grid.reads(0, r)), strict=True):
            mine, other = (o, i) if outputs else (i, o)
            meets[mine].setdefault(other, []).append(r)
    products: dict[tuple[int, int], Array] = {}
    known: dict[tuple[tuple[int, int], ...], Array] = {}
    zero = np.zeros((len(strips[0]), len(strips[0])))

    def block(i: int, j: int) -> Array:
        shared = sorted((r, t) for k in meets[i] if k in meets[j] for r in meets[i][k] for t in meets[j][k])
        key = tuple(shared)
        if key not in known:
            total = zero.copy()
            for r, t in shared:
                if (r, t) not in products:
                    products[r, t] = strips[r] @ strips[t].T
                total += products[r, t]
            known[key] = _mirrored(total) if i == j else total
        return known[key]

    first = [next(j for j in range(i + 1) if j == i or meets[i].keys() & meets[j].keys()) for i in range(len(meets))]
    return [[block(i, j) for j in range(first[i], i + 1)] for i in range(len(meets))], first


def _mirrored(g: Array) -> Array:
    lower = np.tril(g)
    return lower + np.tril(g, -1).T


def _excess(blocks: list[list[Array]], first: list[int], s: float) -> Fraction:
    """e with λ_max(G) ≤ s + e for the symmetric G; LinAlgError or a large e when s is too small.

    L = Cholesky of sI − G, row by row of blocks within the envelope of G; then R from the finished L.
    """
    count = len(blocks)
    alive = [min(first[i:]) for i in range(count)]
    lower: dict[int, dict[int, Array]] = {}
    inverse: dict[int, Array] = {}
    sums = [np.zeros(len(row[-1])) for row in blocks]
    diagonal, squares, longest_row, longest = 0.0, 0.0, 0.0, 0
    for i, row in enumerate(blocks):
        shifted = {first[i] + k: -block for k, block in enumerate(row)}
        shifted[i][np.diag_indices(len(shifted[i]))] += s
        diagonal = max(diagonal, float(np.abs(np.diagonal(shifted[i])).max()))
        mine = lower[i] = {}
        for j in range(first[i], i + 1):
            rest = shifted[j] - _product(mine, lower[j], range(max(first[i], first[j]), j))
            if j < i:
                mine[j] = rest @ inverse[j].T
            else:
                mine[i] = np.tril(np.linalg.cholesky(_mirrored(rest)))
                inverse[i] = np.linalg.inv(mine[i])
        for j in range(first[i], i + 1):
            residual = np.abs(shifted[j] - _product(mine, lower[j], range(max(first[i], first[j]), j + 1)))
            if j < i:
                sums[i] += residual.sum(axis=1)
                sums[j] += residual.sum(axis=0)
            else:
                sums[i] += np.maximum(residual, residual.T).sum(axis=1)
        lengths = sum((block * block).sum(axis=1) for block in mine.values())
        squares += float(lengths.sum())
        longest_row = max(longest_row, float(lengths.max()))
        longest = max(longest, sum(block.shape[1] for block in mine.values()))
        for old in [k for k in lower if k < (alive[i + 1] if i + 1 < count else count)]:
            del lower[old], inverse[old]
    order = sum(len(t) for t in sums)
    # ‖|L||L|ᵀ‖ is at most ‖L‖_F², and at most (entries of a row) times the longest row of L, squared.
    reach = max(sum(len(sums[j]) for j in range(count) if first[max(i, j)] <= min(i, j)) for i in range(count))
    size = min(exact(squares), reach * exact(longest_row)) * (1 + 2 * gamma(order * longest + 2))
    worst = exact(max(float(t.max()) for t in sums)) * (1 + 2 * gamma(order + 2))
    return worst + gamma(longest) * size + U64 * exact(diagonal) + order * longest * TINY[U64]


def _product(left: dict[int, Array], right: dict[int, Array], keys: range) -> Array | float:
    """Σ_k left[k]·right[k]ᵀ as one product, summed in any order."""
    if not keys:
        return 0.0
    return np.hstack([left[k] for k in keys]) @ np.hstack([right[k] for k in keys]).T


def prove_by_symbols(a: Map, claim: Fraction) -> None:
    """‖A‖ ≤ claim because A is a part of a circular convolution over phases, whose symbols are that small."""
    kernel, exponent = _scaled(a.kernel)
    grid = a.grid
    d, c, kh, kw = kernel.shape
    sides = []
    for axis in (0, 1):
        n, s, before, after = grid.size[axis], grid.stride[axis], *grid.padding[2 * axis : 2 * axis + 2]
        circle = n if grid.circular else -(-(n + max(before, after)) // s) * s
        # Every output is one row of the circle's operator, and wrapped reads fall on zeros.
        if circle % s or grid.out[axis] > circle // s:
            raise Unproved("the operator is no part of a circular one")
        sides.append(circle // s)
    (gh, gw), (sy, sx) = sides, grid.stride
    shift = [[t * grid.dilation[a] - grid.padding[2 * a] for t in range((kh, kw)[a])] for a in (0, 1)]
    steps = sorted({(y // sy, x // sx) for y in shift[0] for x in shift[1]})
    taps = np.zeros((len(steps), d, sy * sx, c))
    for r, y in enumerate(shift[0]):
        for t, x in enumerate(shift[1]):
            taps[steps.index((y // sy, x // sx)), :, (y % sy) * sx + x % sx] += kernel[:, :, r, t]
    taps = taps.reshape(len(steps), -1)
    half = [(k, q) for k in range(gh) for q in range(gw) if (k, q) <= (-k % gh, -q % gw)]  # ω and −ω: one norm
    small, large = sorted((2 * d, 2 * sy * sx * c))
    if len(half) * (2.0 * small**2 * large + 4.0 * small**3) > MOST_WORK or small * large > MOST_ENTRIES:
        raise Unproved("too many symbols")
    # Taps that meet in a symbol's entry; cosines within 32u: the angle within 20u, the library 4 ulp.
    weight = norm(np.abs(taps).sum(axis=0)) * (1 + 2 * gamma(len(steps) + 1))
    lost = 2 * (gamma(len(steps) + 1) + 32 * U64) * weight + 2 * taps.shape[1] * TINY[U64]
    lost += gamma(kh * kw) * 2 * weight if grid.circular else 0
    goal = claim / Fraction(2) ** exponent - lost
    if goal <= 0:
        raise Unproved("the claim is not positive")
    goal = goal * goal
    chunk = max(1, CHUNK // (small * large))
    for k in range(0, len(half), chunk):
        turns = [[(f * y * gw + g * x * gh) % (gh * gw) / (gh * gw) for y, x in steps] for f, g in half[k : k + chunk]]
        angle = 2.0 * math.pi * np.array(turns)
        real, imag = ((wave @ taps).reshape(-1, d, sy * sx * c) for wave in (np.cos(angle), np.sin(angle)))
        f = np.concatenate([np.concatenate([real, -imag], 2), np.concatenate([imag, real], 2)], 1)
        _small_norms(f if f.shape[1] >= f.shape[2] else f.transpose(0, 2, 1), goal)


def _small_norms(f: Array, goal: Fraction) -> None:
    """‖F‖² ≤ goal for each matrix of a batch (B, m, n): one block each, one s for all."""
    _, m, n = f.shape
    g = f.transpose(0, 2, 1) @ f
    g = np.tril(g) + np.tril(g, -1).transpose(0, 2, 1)
    size = exact((f * f).sum(axis=(1, 2)).max()) * (1 + 2 * gamma(m * n + 2))
    error = gamma(m) * size + m * n * TINY[U64]
    s = float(goal - error - goal * n * (2 * n + 64) * U64)
    shifted = -g
    shifted[:, np.arange(n), np.arange(n)] += s
    lower = np.tril(np.linalg.cholesky(shifted))
    residual = np.abs(shifted - lower @ lower.transpose(0, 2, 1))
    worst = exact(np.maximum(residual, residual.transpose(0, 2, 1)).sum(axis=2).max()) * (1 + 2 * gamma(n + 2))
    square = exact((lower * lower).sum(axis=(1, 2)).max()) * (1 + 2 * gamma(n * n + 2))
    diagonal = exact(np.abs(np.diagonal(shifted, axis1=1, axis2=2)).max())
    if exact(s) + worst + gamma(n) * square + U64 * diagonal + n * n * TINY[U64] + error > goal:
        raise Unproved("a symbol is too large")


# ---------------------------------------------------------------------------------------------------------
# Bounds along the graph, chains, margins
# ---------------------------------------------------------------------------------------------------------


class Chain(NamedTuple):
    """Operations first … last have together the constant `value`."""

    first: int
    last: int
    method: str
    value: Fraction


class Claims(NamedTuple):
    values: list[Fraction]
    methods: list[str]
    chains: list[Chain]
    margins: Array


def read_claims(entry: Any, program: Program) -> Claims:
    record(entry, "bounds", "operations", "chains", "margins")
    values, methods, chains = [], [], []
    for k, e in enumerate(listing(entry["operations"], "bounds.operations", len(program.operations))):
        record(e, f"bound {k}", "method", "value")
        values.append(exact(number(e["value"], f"bound {k}")))
        methods.append(text(e["method"], f"bound {k}"))
    for k, e in enumerate(listing(entry["chains"], "bounds.chains")):
        record(e, f"chain {k}", "first", "last", "method", "value")
        last = whole(e["last"], f"chain {k}: last", 1, len(program.operations) - 2)
        first = whole(e["first"], f"chain {k}: first", 0, last - 1)
        value = exact(number(e["value"], f"chain {k}"))
        chains.append(Chain(first, last, text(e["method"], f"chain {k}"), value))
        for i in range(first, last + 1):
            op = program.operations[i]
            joined = i == first or op.inputs == [program.operations[i - 1].output]
            need(op.linear and joined, f"chain {k}: {op.where} is no link of a linear chain")
    m = program.classes
    return Claims(values, methods, chains, matrix(entry["margins"], "bounds.margins", m))


def check_bounds(program: Program, claims: Claims, norm: str, say: Callable[[str], None]) -> None:
    """Every claim of an operation and of a chain."""
    for op, claim, method in zip(program.operations, claims.values, claims.methods, strict=True):
        how = op.check(claim, norm, method)
        say(f"bound     {op.where[10:]:<40} ≤ {float(claim):.9g}  {how}")
    for chain in claims.chains:
        links = program.operations[chain.first : chain.last + 1]
        about = f"chain {links[0].where} to {links[-1].where}: the claimed bound {float(chain.value)}"
        how = _check_chain(links, claims.values[chain.first : chain.last + 1], chain, norm, about)
        say(f"chain     operations {chain.first} to {chain.last:<23} ≤ {float(chain.value):.9g}  {how}")


def _check_chain(links: list[Operation], claims: list[Fraction], chain: Chain, norm: str, about: str) -> str:
    folded = _folded(links)
    if folded is not None:
        a, slip = folded
        slip = slip * a.sums()[0] if norm == "linf" else slip * a.magnitude()
        return prove(a, chain.value - slip, norm, chain.method, about) + " of folded weights"
    need(norm == "l2", f"{about} cannot be checked in ℓ∞")
    a, error = _joint(links, claims, about)
    return prove(a, chain.value - error, norm, chain.method, about) + " of the chain's matrix"


def _folded(links: list[Operation]) -> tuple[Map, Fraction] | None:
    """One layer with the scalings beside it in its weights, and their relative error; None when that is not so."""
    layers = [op for op in links if isinstance(op, Layer)]
    others = [op for op in links if not isinstance(op, Layer | Scale | Translate)]
    if len(layers) != 1 or others or layers[0].options["skip"]:
        return None
    layer, before = layers[0], True
    kernel, groups = layer.map.kernel, layer.map.groups
    for op in links:
        if op is layer:
            before = False
        elif isinstance(op, Scale):
            channel = op.factor.reshape(len(op.factor), -1)
            if not (channel == channel[:, :1]).all():
                return None
            factor = 1.0 / channel[:, 0] if op.options["divide"] else channel[:, 0]
            if before:  # each group reads its own channels
                inner = np.repeat(factor.reshape(groups, -1), len(kernel) // groups, axis=0)
                kernel = kernel * inner[:, :, None, None]
            else:
                kernel = kernel * factor[:, None, None, None]
    if not np.isfinite(kernel).all() or (np.abs(kernel[kernel != 0]) < 1e-290).any():
        return None
    return Map(kernel, layer.map.grid, groups), 2 * gamma(2 * len(links))


def _joint(links: list[Operation], claims: list[Fraction], about: str) -> tuple[Map, Fraction]:
    """The chain's matrix, applied to the identity, and how far (Frobenius) it may be from exact.

    Aᵀ comes out row by row; error′ = K·error + γ_n‖|A|‖·‖M‖_F + underflow, operation by operation.
    """
    shape, n = links[0].input_shape, math.prod(links[0].input_shape)
    m = math.prod(links[-1].output_shape)
    need(n * m <= MOST_ENTRIES and n * sum(op.work() for op in links) <= MOST_WORK, f"{about}: too large to check")
    result = np.empty((n, m))
    squares = [Fraction(0)] * len(links)
    chunk = max(1, CHUNK // max(op.spread() for op in links))
    for k in range(0, n, chunk):
        part = np.eye(min(chunk, n - k), n, k).reshape(-1, *shape)
        for i, op in enumerate(links):
            squares[i] += norm(part) ** 2
            part = op.linear_part(part)
        result[k : k + chunk] = part.reshape(len(part), -1)
    error = Fraction(0)
    for op, claim, square in zip(links, claims, squares, strict=True):
        loss = op.loss()
        tiny = loss.terms * root(Fraction(n * math.prod(op.output_shape))) * TINY[U64]
        error = up(claim * error + gamma(loss.terms) * loss.gain * root(square) + tiny)
    return Map(np.ascontiguousarray(result.T)[:, :, None, None], Grid((1, 1), (1, 1))), error


def graph_constants(program: Program, claims: Claims, norm: str) -> dict[str, Fraction]:
    """K of every value as a function of the input, from the claims."""
    constants = {"input": Fraction(1)}
    for k, (op, claim) in enumerate(zip(program.operations, claims.values, strict=True)):
        ways = [op.combine([constants[name] for name in op.inputs], norm) * claim]
        for chain in claims.chains:
            if chain.last == k:
                ways.append(constants[program.operations[chain.first].inputs[0]] * chain.value)
        constants[op.output] = up(min(ways))
    return constants


def least_margins(program: Program, claims: Claims, form: str, norm: str, constant: Fraction) -> list[list[Fraction]]:
    """What each margin must at least be: K times the dual norm of the rows' difference, and so on."""
    weight = program.head.tensors["weight"]
    m, order = len(weight), 1 if norm == "linf" else 2
    if form == "lmt":
        value = up(root(Fraction(2)) * constant * claims.values[-1])
        return [[value] * m for _ in range(m)]
    if form == "simple":
        size = norms(weight, order)
        return [[up(constant * (size[i] + size[j])) for j in range(m)] for i in range(m)]
    return [[up(constant * d) for d in row] for row in distances(weight, order)]


def distances(weight: Array, order: int) -> list[list[Fraction]]:
    """At least ‖w_j − w_i‖; a computed difference is off by one rounding. Zero only for equal rows."""
    return [[d * (1 + 2 * U64) for d in norms(weight - row, order)] for row in weight]


def check_margins(program: Program, claims: Claims, settings: Settings, constant: Fraction) -> None:
    need(not np.diagonal(claims.margins).any(), "a margin of a class against itself is not 0")
    least = least_margins(program, claims, settings.form, settings.norm, constant)
    for i, row in enumerate(claims.margins.tolist()):
        for j, claim in enumerate(row):
            enough = i == j or Fraction(claim) >= least[i][j]
            need(enough, f"margin ({i}, {j}) is {claim}, but must be at least {float(least[i][j]) if not enough else 0}")


# ---------------------------------------------------------------------------------------------------------
# Rounding errors
# ---------------------------------------------------------------------------------------------------------


class Affine(NamedTuple):
    """constant + slope·t, t = ‖x‖ + r."""

    constant: Fraction
    slope: Fraction

    def times(self, factor: Fraction) -> Affine:
        return Affine(up(factor * self.constant), up(factor * self.slope))

    def plus(self, other: Affine) -> Affine:
        return Affine(up(self.constant + other.constant), up(self.slope + other.slope))


class LogitError(NamedTuple):
    """δ_ij = constant_ij + slope_ij·t; no sum of the evaluation exceeds peak(t)."""

    constant: Array
    slope: Array
    peak: Affine


def logit_error(program: Program, claims: Claims, norm_name: str, u: Fraction) -> LogitError:
    """δ for an evaluation of the Program with unit roundoff u, each sum in any order."""
    zero = Fraction(0)
    size = {"input": Affine(zero, Fraction(1))}
    error = {"input": Affine(zero, zero)}
    peak = Affine(zero, Fraction(1))
    for op, claim in zip(program.operations[:-1], claims.values[:-1], strict=True):
        k = claim if norm_name == "l2" else op.constant("l2")
        loss = op.loss()
        size_in, error_in = Affine(zero, zero), Affine(zero, zero)
        for name in op.inputs:
            size_in, error_in = size_in.plus(size[name]), error_in.plus(error[name])
        summed = size_in.plus(error_in).times(loss.gain).plus(Affine(loss.offset, zero))
        tiny = loss.terms * root(Fraction(math.prod(op.output_shape))) * TINY[u]
        size[op.output] = size_in.times(k).plus(Affine(loss.offset, zero))
        error[op.output] = error_in.times(k).plus(summed.times(gamma(loss.terms, u))).plus(Affine(tiny, zero))
        peak = Affine(max(peak.constant, summed.constant), max(peak.slope, summed.slope))
    head, last = program.head, program.head.inputs[0]
    weight = head.tensors["weight"]
    m, n = weight.shape
    bias = [abs(exact(b)) for b in head.tensors["bias"].tolist()] if "bias" in head.tensors else [zero] * m
    both, kappa = size[last].plus(error[last]), gamma(n + 1, u)
    logits = [both.times(r).plus(Affine(b, zero)) for r, b in zip(norms(weight, 2), bias, strict=True)]
    own = [logit.times(kappa).plus(Affine((n + 1) * TINY[u], zero)) for logit in logits]
    delta = [
        [error[last].times(d).plus(own[i]).plus(own[j]) for j, d in enumerate(row)]
        for i, row in enumerate(distances(weight, 2))
    ]
    peak = Affine(*(max(getattr(a, part) for a in (peak, *logits)) for part in Affine._fields))
    constant, slope = (np.array([[float(a[k]) for a in row] for row in delta]) for k in (0, 1))
    return LogitError(constant, slope, peak)


def check_errors(program: Program, claims: Claims, settings: Settings, entry: Any) -> dict[Fraction, LogitError]:
    """Recomputes δ for each arithmetic the proof speaks about; the stated ones must not be smaller."""
    units = {"float64": U64} | ({"float32": U32} if settings.semantics == "float32" else {})
    record(entry, "error", *units)
    found = {}
    for name, u in units.items():
        stated = record(entry[name], f"error.{name}", "constant", "slope")
        found[u] = logit_error(program, claims, settings.norm, u)
        for part in ("constant", "slope"):
            claimed = matrix(stated[part], f"error.{name}.{part}", program.classes)
            need(bool((claimed >= getattr(found[u], part)).all()), f"error.{name}.{part} is too small")
    return found


# ---------------------------------------------------------------------------------------------------------
# Certificates
# ---------------------------------------------------------------------------------------------------------


class Settings(NamedTuple):
    norm: str
    form: str
    semantics: str
    epsilon: float
    epsilon_text: str


class Certificates(NamedTuple):
    label: Array
    margin: Array
    """−∞ where nothing is claimed."""
    radius: Array
    certified: Array


def read_settings(content: dict[str, Any], program: Program) -> Settings:
    norm_name, form, semantics = content["norm"], content["form"], content["semantics"]
    need(norm_name in ("l2", "linf"), "norm must be l2 or linf")
    need(form in ("margin", "simple", "lmt"), "form must be margin, simple or lmt")
    need(semantics in ("real", "float32"), "semantics must be real or float32")
    need(norm_name == "l2" or (form != "lmt" and semantics == "real"), "this form or semantics is for l2 only")
    if semantics == "float32":
        for op in program.operations:
            need(not op.elementary, f"{op.where}: no float32 error is stated for it, only real semantics")
        need(set(program.tensors.values()) <= {"F32"}, "a tensor of a float32 network is not of type F32")
    entry = record(content["epsilon"], "epsilon", "text", "value")
    written, value = text(entry["text"], "epsilon.text"), number(entry["value"], "epsilon.value")
    _, _, power = written.lower().partition("e")
    try:
        need(len(written) <= 100 and (not power or abs(int(power)) <= 400), "epsilon.text is too long")
        said = Fraction(written)
    except (ValueError, ZeroDivisionError):
        raise Rejected("epsilon.text is no decimal number or fraction") from None
    need(said >= 0 and up(said) == Fraction(value), "epsilon.value is not the text, rounded up")
    return Settings(norm_name, form, semantics, value, written)


def read_certificates(content: dict[str, Any], program: Program, settings: Settings) -> Certificates:
    """The claims about each input, and that verdicts follow from radii."""
    entry = record(content["inputs"], "inputs", "format", "file", "sha256", "count", "dtype", "meaning", "labels")
    n, m = whole(entry["count"], "inputs.count", 1), program.classes
    text(entry["sha256"], "inputs.sha256")
    need(entry["format"] in ("npz", "idx", "cifar10"), "inputs.format is unknown")
    kinds = {"uint8": "float32(k/255)", "float32": "as stored", "float64": "as stored"}
    need(entry["dtype"] in kinds and entry["meaning"] == kinds[entry["dtype"]], "inputs.dtype or meaning is unknown")
    need(settings.semantics == "real" or entry["dtype"] != "float64", "inputs of a float32 network are float64")
    need(math.prod(program.input_shape) * n * 8 <= MOST_BYTES * 16, "there are too many inputs")
    if entry["labels"] is not None:
        for label in listing(entry["labels"], "inputs.labels", n):
            whole(label, "a true label", 0, m - 1)
    table = record(content["certificates"], "certificates", "label", "margin", "radius", "certified")
    columns = {name: listing(column, f"certificates.{name}", n) for name, column in table.items()}
    labels = np.array([whole(v, "a label", 0, m - 1) for v in columns["label"]])
    margins = [-math.inf if v is None else number(v, "a margin", -math.inf) for v in columns["margin"]]
    radii = [math.inf if v == "inf" else number(v, "a radius") for v in columns["radius"]]
    verdicts = np.array([flag(v, "a verdict") for v in columns["certified"]])
    margin, radius = np.array(margins, dtype=np.float64), np.array(radii, dtype=np.float64)
    wrong = np.flatnonzero(verdicts != (radius > settings.epsilon))
    need(not len(wrong), f"certificate {_first(wrong)}: its verdict does not follow from its radius and ε")
    wrong = np.flatnonzero((radius > 0) & ~(margin > 0))
    need(not len(wrong), f"certificate {_first(wrong)}: a radius needs a positive margin")
    return Certificates(labels, margin, radius, verdicts)


def evaluate(program: Program, x: Array) -> tuple[Array, Array]:
    """(logits, whether every value on the way was finite) of a batch, in float64."""
    last_use = {name: k for k, op in enumerate(program.operations) for name in op.inputs}
    values, sound = {"input": x}, np.ones(len(x), dtype=bool)
    y = x
    for k, op in enumerate(program.operations):
        y = values[op.output] = op.run(*(values[name] for name in op.inputs))
        sound &= np.isfinite(y.reshape(len(y), -1)).all(axis=1)
        for name in set(op.inputs):
            if last_use[name] == k:
                del values[name]
    return y, sound


def to_values(x: Array) -> Array:
    """The exact inputs: uint8 k means the float32 nearest to k/255."""
    return (x.astype(np.float32) / np.float32(255)).astype(np.float64) if x.dtype == np.uint8 else x.astype(np.float64)


def batches(program: Program, count: int) -> list[slice]:
    """Parts of the inputs that fit into memory."""
    work = count * sum(op.work() for op in program.operations)
    need(work <= 100 * MOST_WORK, "evaluating all inputs would take too long")
    size = max(1, min(1000, CHUNK // max(op.spread() for op in program.operations)))
    return [slice(k, k + size) for k in range(0, count, size)]


def check_certificates(
    program: Program,
    claims: Claims,
    settings: Settings,
    errors: dict[Fraction, LogitError],
    certificates: Certificates,
    x: Array,
) -> None:
    """Evaluates every input and compares label, margin and radius with what that proves."""
    safe, classes = 1.0 + 2.0**-45, np.arange(program.classes)
    ours, theirs = errors[U64], errors.get(U32)
    for part in batches(program, len(x)):
        point = to_values(x[part])
        y, sound = evaluate(program, point)
        label, margin, radius = certificates.label[part], certificates.margin[part], certificates.radius[part]
        others = classes != label[:, None]
        flat = point.reshape(len(point), -1)
        size = np.sqrt((flat * flat).sum(axis=1)) * safe * (1.0 + flat.shape[1] * 2.0**-51) + 2.0**-500
        delta = (ours.constant[label] + ours.slope[label] * size[:, None]) * safe
        lead = np.take_along_axis(y, label[:, None], 1) - y
        proved = lead - delta - (np.abs(lead) + delta) * 2.0**-50
        room, cost = proved, claims.margins[label]
        doubt = delta * safe
        if theirs is not None:
            shift = (theirs.constant[label] + theirs.slope[label] * size[:, None]) * safe
            room = proved - shift - (np.abs(proved) + shift) * 2.0**-50
            cost = (cost + theirs.slope[label]) * safe
            doubt = (delta + shift) * safe
            most = max((float(r) + float(s) for r, s in zip(radius, size, strict=True) if r > 0), default=0.0)
            fits = most < math.inf and theirs.peak.constant + theirs.peak.slope * exact(most) < LARGEST_FLOAT32
            need(fits, "the float32 network might overflow within a claimed radius")

        def hold(good: Array, what: str, begin: int = part.start) -> None:
            bad = np.flatnonzero(~good)
            need(not len(bad), f"certificate {begin + _first(bad)}: {what}")

        hold(sound | ~(margin > -np.inf), "its evaluation overflows, yet it claims a margin")
        hold(~sound | (~others | (lead + np.abs(lead) * 2.0**-50 >= -doubt)).all(axis=1), "another class leads its label")
        hold((~others | (margin[:, None] <= proved) | ~sound[:, None]).all(axis=1), "its margin is not proved")
        with np.errstate(invalid="ignore"):
            needed = np.where(cost == 0, 0.0, radius[:, None] * cost * safe)
        reached = (room > 0) & (needed <= room)
        hold((radius == 0) | (sound & (~others | reached).all(axis=1)), "its radius is not proved")


def _first(indices: Array) -> int:
    return int(indices[0]) if len(indices) else -1


if __name__ == "__main__":
    sys.exit(main())
