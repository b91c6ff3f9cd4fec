#!/usr/bin/env python3
"""An independent checker of gloronet's proofs. One file; needs Python and NumPy, nothing of gloronet.

    python checker.py proof.json model.safetensors [inputs.npz] [--trust-user-rules]

Exit code 0: everything that the given files allow to check holds. 1: something does not, with the reason.
2: usage. Without inputs it says what it did not check.

THE CLAIM. `proof.json` describes a Program f: a list of operations on tensors that it names by their SHA-256.
For every input x it states a label, a margin, a radius r and whether the answer is certified at ε:

    semantics "real":     every x′ with ‖x′ − x‖ < r has argmax f(x′) = label, f in exact arithmetic;
    semantics "float32":  the same for the float32 evaluation of the Program's operations, each sum in any
                          order, with or without fused multiply-add, with or without flush-to-zero.

‖·‖ is ℓ2 or ℓ∞ as the proof says. certified ⇔ r > ε, where ε is the written decimal or fraction, rounded up.

WHAT IS TRUSTED. This file; Python's integers, fractions, hashlib, json and zipfile; NumPy's float64 with
IEEE round-to-nearest; matrix products that sum the products of an entry in any order (no Strassen); NumPy's
sin, cos, exp, expm1, log1p, tanh and Python's erf within 4 ulp. For "float32", that the network runs the
Program's operations in IEEE float32, its sines and cosines within 4 ulp. Cholesky factors, inverses and
every number of the proof are NOT trusted. NOT checked: that the Program is what some PyTorch module computes
(that is the tracer's claim), the true labels, and operations called "user rule" (refused unless
--trust-user-rules). The label of an answer that is not certified is checked as far as rounding allows: where
two classes are closer than the evaluation error, either passes.

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

    With u = 2⁻⁵³ that is the error of our own evaluation. For the float32 network, u = 2⁻²⁴, the sizes ‖z(x)‖ are
    measured in that evaluation instead: with ‖z‖ ≤ ‖ẑ(x)‖ + its error, at x, and ‖x′ − x‖ ≤ r,

        carried′ = K·carried + γ_n(‖|A|‖(‖z‖ + carried) + ‖f(0)‖) + n√entries·tiny,   slope as above,
        δ_ij = ‖w_j − w_i‖·carried + Σ_{c ∈ {i,j}} (γ_n(‖w_c‖(‖z‖ + carried) + |b_c|) + n·tiny) + slope_ij·r.
 6. Certificates.  ŷ is evaluated here in float64; the lead of the label over class i is at least
    p_i = ŷ_label − ŷ_i − δ_i. Needed: claimed margin ≤ min p_i, and for a claimed radius r > 0 and every i
    "real": r·K_i ≤ p_i;  "float32": r·(K_i + slope_i) + δ_i(x) ≤ p_i, δ_i(x) that at r = 0;  and p_i > 0.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray
Shape = tuple[int, ...]
Say = Callable[[str], None]

FORMAT = "gloronet proof 1"
ZERO, ONE = Fraction(0), Fraction(1)
U64, U32 = Fraction(1, 2**53), Fraction(1, 2**24)
TINY = {U64: Fraction(1, 2**1022), U32: Fraction(1, 2**126)}
"""What one underflow can cost, flush-to-zero included, by unit roundoff."""
MOST_BYTES = 2**32
MOST_ENTRIES = 2**27
"""Of any array (1 GiB): beyond it nothing is checked, so nothing is accepted."""
MOST_WORK = 1e13
"""Floating-point operations one claim may cost: minutes."""
SAFE = 1.0 + 2.0**-45
"""More than a handful of roundings."""
CHUNK = 2**20
"""Entries of the largest temporary of a batch."""


class Rejected(Exception):
    """The one reason why the proof is not accepted."""


def need(condition: object, reason: str) -> None:
    if not condition:
        raise Rejected(reason)


# ----------------------------------------------------------------------------------------------------------
# The whole check, top-down


def main(argv: Sequence[str] | None = None, prog: str = "checker.py") -> int:
    """The command line: 0 when everything holds, 1 with the reason when not, 2 for usage."""
    parser = argparse.ArgumentParser(prog=prog, description="Checks a proof of gloronet.")
    parser.add_argument("proof", type=Path, help="proof.json")
    parser.add_argument("model", type=Path, help="model.safetensors, or program.safetensors beside the proof")
    parser.add_argument("inputs", type=Path, nargs="?", help="inputs.npz, or the official test set it names")
    parser.add_argument("--trust-user-rules", action="store_true", help="accept constants users vouch for")
    try:
        given = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot write ≤ still gets the answer
    verdict = judge(given.proof, given.model, given.inputs, given.trust_user_rules, print)
    return 0 if verdict["accepted"] else 1


def judge(proof: Path, model: Path, inputs: Path | None, trust_user_rules: bool, say: Say) -> dict[str, Any]:
    """`accepted`, and what was found or the reason why not; `say` hears the same, line by line."""
    try:
        with np.errstate(all="ignore"):
            return {"accepted": True, **check(proof, model, inputs, trust_user_rules, say)}
    except Rejected as rejected:
        reason = str(rejected)
    except OSError as error:
        reason = f"cannot read {error.filename}: {error.strerror}"
    except Exception as error:  # what surprises this program is no proof
        reason = f"it could not be checked ({type(error).__name__}: {str(error)[:200]})"
    say(f"REJECTED: {reason}")
    return {"accepted": False, "reason": reason}


def check(proof: Path, model: Path, inputs: Path | None, trust_user_rules: bool, say: Say) -> dict[str, Any]:
    """Raises Rejected unless all that the given files allow to check holds; answers what that was."""
    began = time.perf_counter()
    content = read_proof(read_file(proof))
    tensors = read_tensors(read_file(model), content["model"]["sha256"])
    program = read_program(content["program"], tensors)
    settings = read_settings(content, program)
    claims = read_claims(content["bounds"], program)
    certificates = read_certificates(content, program, settings)
    say(f"files     {len(program.operations)} operations on {len(program.types)} tensors; all hashes agree")

    opaque = [op.where for op in program.operations if op.rule is RULES["user rule"]]
    need(trust_user_rules or not opaque, f"{opaque} rest on a user's word; --trust-user-rules accepts it")
    check_bounds(program, claims, settings.norm, say)
    check_margins(program, claims, settings.form, settings.norm)
    say(f"margins   all {claims.margins.size} hold, the largest {claims.margins.max():.9g}")

    if not opaque:
        errors = check_errors(program, claims, settings, content["error"])
        if inputs is not None:
            x = read_inputs(read_file(inputs), content["inputs"], program.input_shape)
            check_certificates(program, claims, errors, certificates, x)
    n, sure = len(certificates.label), int(certificates.certified.sum())
    told: dict[str, Any] = {"count": n, "checked": inputs is not None and not opaque, "certified": sure}
    about = f"{sure} of them certified at ε = {settings.epsilon_text} ({settings.norm}, {settings.semantics})"
    if content["inputs"]["labels"] is not None:
        right = int((certificates.certified & (certificates.label == content["inputs"]["labels"])).sum())
        about += f", {right} of these right by the labels in the proof: VRA {100 * right / n:.2f} %"
        told["vra"] = right / n
    seconds = time.perf_counter() - began
    if not told["checked"]:
        why = "a user rule cannot be evaluated here" if opaque else "no inputs were given"
        say(f"OK: the bounds and margins hold ({seconds:.1f} s).")
        say(f"NOT CHECKED, because {why}: the labels, margins and radii of {n} certificates ({about}).")
    else:
        say(f"OK: {n} certificates hold, {about} ({seconds:.1f} s).")
    for where in opaque:
        say(f"ASSUMED: {where} has the constant its user's rule states.")
    say("ASSUMED: the Program is what the network computes; that is the tracer's claim.")
    return {
        "certificates": told,
        "epsilon": settings.epsilon_text,
        "norm": settings.norm,
        "semantics": settings.semantics,
        "largest_margin_bound": float(claims.margins.max()),
        "trusted_user_rules": opaque,
        "seconds": seconds,
    }


# ----------------------------------------------------------------------------------------------------------
# Scalars: exact fractions, rounded up to 53 bits now and then to stay short


def up(q: Fraction) -> Fraction:
    """The smallest float64 that is at least q ≥ 0, as a fraction."""
    try:
        near = float(q)
        near = near if Fraction(near) >= q else math.nextafter(near, math.inf)
    except OverflowError:
        near = math.inf
    return exact(near)


def exact(value: Any) -> Fraction:
    """The float as a fraction; what is not a finite number proves nothing."""
    need(math.isfinite(float(value)), "a number is not finite")
    return Fraction(float(value))


def gamma(n: int, u: Fraction = U64) -> Fraction:
    """γ_n = nu/(1 − nu): the relative error of n roundings in a row (Higham, Lemma 3.1)."""
    need(2 * n * u < 1, f"{n} roundings in a row leave nothing")
    return n * u / (1 - n * u)


def root(q: Fraction) -> Fraction:
    """At least √q, to about 60 bits; exact for 0 and 1."""
    if q in (0, 1):
        return q
    k = max(0, 64 - (q.numerator.bit_length() - q.denominator.bit_length()) // 2)
    return up(Fraction(math.isqrt(-((-q.numerator << 2 * k) // q.denominator)) + 1, 1 << k))


def norms(rows: Array, order: int = 2) -> list[Fraction]:
    """At least the exact ℓ1 or ℓ2 norm of each row; zero only for a row of zeros."""
    n, largest = rows.shape[1], np.abs(rows).max(axis=1, initial=0.0)
    need(np.isfinite(largest).all(), "a number is not finite")
    exponents = np.frexp(largest)[1]
    scaled = np.ldexp(rows, -exponents[:, None])  # exact but for underflow
    sums = np.abs(scaled).sum(axis=1) if order == 1 else (scaled * scaled).sum(axis=1)
    slack, result = 1 + 2 * gamma(n + 2), []
    for total, e, top in zip(sums.tolist(), exponents.tolist(), largest.tolist(), strict=True):
        value = Fraction(total) * slack + 2 * n * TINY[U64]
        result.append(up((value if order == 1 else root(value)) * Fraction(2) ** e) if top else ZERO)
    return result


def size(values: Array) -> Fraction:
    """At least the ℓ2 norm of all entries together."""
    return norms(values.reshape(1, -1))[0]


# ----------------------------------------------------------------------------------------------------------
# Files: strict JSON, safetensors, inputs


def read_file(path: Path) -> bytes:
    need(path.stat().st_size <= MOST_BYTES, f"{path} is larger than {MOST_BYTES} bytes")
    return path.read_bytes()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def tensor_sha256(dtype: str, shape: Iterable[int], data: bytes) -> str:
    """The name of a tensor: of its type, its shape and its little-endian bytes."""
    return sha256(f"{dtype} {'x'.join(map(str, shape))}\n".encode() + data)


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

    try:
        decoded = data.decode("utf-8")
        return json.loads(decoded, object_pairs_hook=unique, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"{what} is not valid JSON ({str(error)[:100]})") from None


def read_proof(data: bytes) -> dict[str, Any]:
    """The content of proof.json, whose bytes are canonical and have the SHA-256 they state."""
    document = record(parse_json(data, "the proof"), "the proof", "content sha256")
    content = document["content"]
    need(sha256(canonical(content)) == document["sha256"], "the proof's content does not have its SHA-256")
    need(canonical(document) + b"\n" == data, "the proof is not written canonically")
    parts = "format norm form semantics epsilon model program bounds error inputs certificates"
    need(record(content, "the content", parts)["format"] == FORMAT, f"the proof's format is not {FORMAT!r}")
    record(content["model"], "model", "file sha256")
    return content


class Stored(NamedTuple):
    """A tensor of the model file."""

    dtype: str
    shape: Shape
    data: bytes


BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4,
         "U16": 2, "U8": 1, "BOOL": 1}  # fmt: skip


def read_tensors(data: bytes, digest: str) -> dict[str, Stored]:
    """The tensors of a safetensors file by their own SHA-256; the whole file must have the given one."""
    need(sha256(data) == digest, "the model file does not have the SHA-256 the proof states")
    length = int.from_bytes(data[:8], "little")
    need(8 + length <= len(data), "the model file is truncated")
    header = parse_json(data[8 : 8 + length], "the model file's header")
    need(isinstance(header, dict), "the model file's header is no table")
    body, tensors, spans = data[8 + length :], {}, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        record(entry, f"tensor {name}", "dtype shape data_offsets")
        dtype, shape = text(entry["dtype"], "a type"), sizes(entry["shape"], f"the shape of tensor {name}", 0)
        begin, end = sizes(entry["data_offsets"], f"the place of tensor {name}", 0, 2, MOST_BYTES)
        need(dtype in BYTES, f"tensor {name} has the unknown type {dtype}")
        need(end - begin == math.prod(shape) * BYTES[dtype], f"tensor {name} has a wrong size")
        spans.append((begin, end))
        tensors[tensor_sha256(dtype, shape, body[begin:end])] = Stored(dtype, shape, body[begin:end])
    position = 0
    for begin, end in sorted(spans):
        need(begin == position, "the model file's tensors overlap or leave a gap")
        position = end
    need(position == len(body), "the model file is truncated or has bytes that belong to no tensor")
    return tensors


def to_float64(stored: Stored, what: str) -> Array:
    """The tensor's exact values."""
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
    need(stored.dtype in kinds, f"{what} has type {stored.dtype}, which is no floating-point type")
    values = np.frombuffer(stored.data, kinds[stored.dtype])
    if stored.dtype == "BF16":  # the upper half of a float32
        values = (values.astype("<u4") << 16).view("<f4")
    good = values.size and len(stored.shape) <= 8 and np.isfinite(values).all()
    need(good, f"{what} is empty or not finite")
    return values.astype(np.float64).reshape(stored.shape)


def read_inputs(data: bytes, entry: dict[str, Any], input_shape: Shape) -> Array:
    """The certified inputs as stored: uint8 (k stands for float32(k/255)), float32 or float64."""
    need(sha256(data) == entry["sha256"], "the inputs do not have the SHA-256 the proof states")
    shape, dtype = (entry["count"], *input_shape), np.dtype(entry["dtype"]).newbyteorder("<")
    length = math.prod(shape) * dtype.itemsize
    unpack = {"npz": _npz, "idx": _idx, "cifar10": _cifar10}[entry["format"]]
    raw = unpack(data, dtype, shape, length)
    need(len(raw) == length, "the inputs do not have the size the proof states")
    x = np.frombuffer(raw, dtype).reshape(shape)
    need(np.isfinite(x).all(), "an input is not finite")
    return x


def _npz(data: bytes, dtype: np.dtype, expected: Shape, length: int) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            need(archive.namelist() == ["x.npy"], "inputs.npz must hold one array, x")
            with archive.open("x.npy") as file:
                member = file.read(length + 4096)  # never more, whatever the archive unpacks to
        stream = io.BytesIO(member)
        need(np.lib.format.read_magic(stream) == (1, 0), "inputs.npz has an unknown version")
        shape, fortran, kind = np.lib.format.read_array_header_1_0(stream)
    except Rejected:
        raise
    except Exception as error:  # zipfile, zlib and numpy, which parses headers as Python, each raise as they like
        raise Rejected(f"inputs.npz is damaged ({str(error)[:100]})") from None
    need(not fortran and kind == dtype and shape == expected, "inputs.npz has another type or shape")
    return member[stream.tell() :]


def _idx(data: bytes, dtype: np.dtype, expected: Shape, length: int) -> bytes:
    """MNIST's own format: a gzip of a magic number, three sizes and the pixels."""
    try:
        content = zlib.decompressobj(31).decompress(data, length + 17)
    except zlib.error as error:
        raise Rejected(f"the test set is damaged ({error})") from None
    need(content[:8] == bytes((0, 0, 8, 3)) + expected[0].to_bytes(4, "big"), "this is not the test set")
    return content[16:]


def _cifar10(data: bytes, dtype: np.dtype, expected: Shape, length: int) -> bytes:
    """CIFAR-10's binary format: a label and 3072 pixels a row."""
    need(len(data) == expected[0] * 3073, "this is not the test set")
    return np.frombuffer(data, np.uint8).reshape(-1, 3073)[:, 1:].tobytes()


def record(value: Any, what: str, keys: str) -> dict[str, Any]:
    """A table with exactly these keys."""
    good = isinstance(value, dict) and sorted(value) == sorted(keys.split())
    need(good, f"{what} must be a table with the keys {', '.join(keys.split())}")
    return value


def listing(value: Any, what: str, length: int | None = None) -> list[Any]:
    need(isinstance(value, list) and length in (None, len(value)), f"{what} is no list of the right length")
    return value


def text(value: Any, what: str) -> str:
    need(isinstance(value, str) and len(value) <= 1000, f"{what} is no text")
    return value


def flag(value: Any, what: str) -> bool:
    need(isinstance(value, bool), f"{what} is neither true nor false")
    return value


def whole(value: Any, what: str, least: int = 1, most: int = 2**24) -> int:
    good = type(value) is int and least <= value <= most
    need(good, f"{what} must be a whole number from {least} to {most}")
    return value


def number(value: Any, what: str, least: float = 0.0) -> float:
    good = type(value) is float or (type(value) is int and abs(value) < 2**53)
    need(good and value >= least, f"{what} must be a number of at least {least}")
    return float(value)


def real(value: Any, what: str) -> float:
    return number(value, what, -math.inf)


def sizes(value: Any, what: str, least: int = 1, length: int | None = None, most: int = 2**24) -> Shape:
    need(isinstance(value, list) and len(value) <= 8, f"{what} is no list of up to eight numbers")
    return tuple(whole(v, what, least, most) for v in listing(value, what, length))


def pads(value: Any, what: str) -> Shape:
    return sizes(value, what, 0, None, 2**16)


def matrix(value: Any, what: str, m: int) -> Array:
    return np.array([[number(v, what) for v in listing(row, what, m)] for row in listing(value, what, m)])


# ----------------------------------------------------------------------------------------------------------
# The Program


class Program(NamedTuple):
    input_shape: Shape
    operations: list[Operation]
    types: dict[str, str]
    """Of its tensors, by name."""

    @property
    def head(self) -> Operation:
        return self.operations[-1]

    @property
    def classes(self) -> int:
        return self.head.output_shape[0]


class Operation:
    """One operation of the Program: a rule with its tensors and attributes, on inputs of known shapes."""

    def __init__(self, where: str, rule: Rule, inputs: list[str], shapes: list[Shape]) -> None:
        self.where, self.rule, self.inputs, self.shapes = where, rule, inputs, shapes
        self.input_shape = shapes[0]
        self.tensors: dict[str, Array] = {}
        self.attributes: dict[str, Any] = {}
        self.map: Any = None  # the Map of a layer or of pooling
        self.output, self.output_shape = "", self.input_shape

    def __getitem__(self, attribute: str) -> Any:
        return self.attributes[attribute]

    def need(self, condition: object, reason: str) -> None:
        need(condition, f"{self.where}: {reason}")

    def constant(self, norm: str) -> Fraction:
        return self.rule.constant(self, norm)

    def entries(self) -> int:
        """Of its temporaries for one sample: what its windows read, its input and its output."""
        read = 0
        if self.map is not None:
            channels = self.map.groups if "weight" in self.tensors else self.input_shape[0]
            read = channels * math.prod(self.map.grid.out) * self.map.taps()
        return read + 2 * math.prod(self.input_shape) + 2 * math.prod(self.output_shape)

    def work(self) -> float:
        """Floating-point operations for one sample."""
        return 2.0 * math.prod(self.output_shape) * (1 if self.map is None else self.map.taps())


def read_program(entry: Any, stored: dict[str, Stored]) -> Program:
    """Builds every operation on its tensors and recomputes its shape."""
    record(entry, "program", "input_shape tensors operations")
    need(isinstance(entry["tensors"], dict), "program.tensors is no table")
    tensors = {}
    for name, tensor in entry["tensors"].items():
        digest = text(record(tensor, f"tensor {name}", "dtype shape sha256")["sha256"], "a SHA-256")
        need(digest in stored, f"the model file holds no tensor with the SHA-256 of {name}")
        tensors[name] = stored[digest]
        same = [tensors[name].dtype, list(tensors[name].shape)] == [tensor["dtype"], tensor["shape"]]
        need(same, f"tensor {name} is not of the stated type and shape")
    shapes: dict[str, Shape | None] = {"input": sizes(entry["input_shape"], "program.input_shape")}
    need(len(listing(entry["operations"], "program.operations")) <= 10_000, "there are too many operations")
    operations: list[Operation] = []
    used: set[str] = set()
    for k, e in enumerate(entry["operations"]):
        record(e, f"operation {k}", "path rule input_shape inputs output tensors attributes")
        rule, path = text(e["rule"], "a rule"), text(e["path"], "a path")
        where = f"operation {k} ({rule} at {path or 'the top'})"
        need(rule in RULES, f"{where}: there is no such rule")
        inputs = [text(name, where) for name in listing(e["inputs"], where)]
        need(inputs, f"{where}: it has no input")
        for name in inputs:
            need(name in shapes, f"{where}: {name} is not defined before it is used")
        declared = sizes(e["input_shape"], f"{where}: input_shape")
        if shapes[inputs[0]] is None:  # the output of a user's rule: what its reader says
            shapes[inputs[0]] = declared
        need(declared == shapes[inputs[0]], f"{where}: its input has another shape")
        op = Operation(where, RULES[rule], inputs, [shapes[name] or () for name in inputs])
        need(isinstance(e["tensors"], dict) and isinstance(e["attributes"], dict), f"{where}: no table")
        need(set(map(str, e["tensors"].values())) <= set(tensors), f"{where}: it names an unknown tensor")
        used |= set(e["tensors"].values())
        if op.rule is not RULES["user rule"]:
            _equip(op, {field: tensors[name] for field, name in e["tensors"].items()}, e["attributes"])
        op.output = text(e["output"], where)
        need(op.output not in shapes, f"{where}: the name {op.output} is used twice")
        shapes[op.output] = None if op.rule is RULES["user rule"] else op.output_shape
        operations.append(op)
    read = {name for op in operations for name in op.inputs}
    for op in operations[:-1]:
        op.need(op.output in read, "nothing uses its output")
    need(used == set(tensors), "the Program names tensors that no operation uses")
    head = operations[-1] if operations else None
    plain = head and head.rule is RULES["dense"] and not head["skip"] and head.output_shape[0] >= 2
    need(plain, "the last operation is no dense layer of two classes or more")
    return Program(shapes["input"] or (), operations, {name: t.dtype for name, t in tensors.items()})


def _equip(op: Operation, tensors: dict[str, Stored], attributes: dict[str, Any]) -> None:
    """Gives the operation its tensors and attributes, all of them known and none missing."""
    rule = op.rule
    op.need(rule.arity in (None, len(op.inputs)), "wrong number of inputs")
    required = {name for name in rule.tensors.split() if not name.endswith("?")}
    op.need(required <= set(tensors) <= set(rule.tensors.replace("?", "").split()), "wrong tensors")
    op.need(set(attributes) <= set(rule.attributes), "it has an attribute its rule does not know")
    op.tensors = {name: to_float64(t, f"{op.where}: {name}") for name, t in tensors.items()}
    for name, (reader, default) in rule.attributes.items():
        given = attributes.get(name, default)
        op.need(given is not ..., f"it has no {name}")
        op.attributes[name] = reader(given, f"{op.where}: {name}") if name in attributes else default
    op.output_shape = rule.output(op)
    op.need(op.entries() <= MOST_ENTRIES, "it is too large")


class Loss(NamedTuple):
    """What one evaluation loses: ‖computed − exact‖ ≤ γ_terms·(gain·‖input‖ + offset); ‖f(0)‖ ≤ offset."""

    terms: int = 0
    gain: Fraction = ZERO
    offset: Fraction = ZERO
    peak: Fraction = ONE
    """No number on the way is above peak·(gain·‖input‖ + offset)."""


class Rule(NamedTuple):
    """What is known about an operation; the defaults: it keeps the shape, has K = 1, and is exact."""

    run: Callable[..., Array]
    """(op, *inputs) → its value on a batch."""
    attributes: Mapping[str, tuple[Callable[[Any, str], Any], Any]] = MappingProxyType({})
    """How to read each, and its default (... for none)."""
    tensors: str = ""
    output: Callable[[Operation], Shape] = lambda op: op.input_shape
    """Its shape; raises where something about the operation does not fit."""
    constant: Callable[[Operation, str], Fraction] = lambda op, norm: ONE
    """K in the norm; of layers a crude one, for their claims are proved."""
    loss: Callable[[Operation, Fraction], Loss] = lambda op, k: Loss()
    """Given its proved ℓ2 constant k."""
    combine: Callable[[list[Fraction], str], Fraction] = lambda constants, norm: constants[0]
    """The constant of all inputs together."""
    arity: int | None = 1
    linear: bool = False
    elementary: bool = False
    """An elementary function: no float32 library states its error."""


# Layers and windows: a kernel on a grid. A dense layer is a convolution of one pixel


class Grid(NamedTuple):
    """Which pixels an output reads: output o, tap r ↦ input o·stride + r·dilation − padding, on each axis."""

    size: Shape
    kernel: Shape
    stride: Shape = (1, 1)
    padding: Shape = (0, 0, 0, 0)
    """top, bottom, left, right: zeros, or with `circular` the other end of the image."""
    dilation: Shape = (1, 1)
    circular: bool = False

    @property
    def reach(self) -> Shape:
        return tuple(d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True))

    @property
    def out(self) -> Shape:
        room = [n + sum(self.padding[2 * a : 2 * a + 2]) for a, n in enumerate(self.size)]
        return tuple((n - r - 1) // s + 1 for n, r, s in zip(room, self.reach, self.stride, strict=True))

    def area(self) -> int:
        """Pixels of the padded image."""
        return math.prod(n + sum(self.padding[2 * a : 2 * a + 2]) for a, n in enumerate(self.size))

    def reads(self, axis: int, tap: int) -> tuple[Array, Array]:
        """(outputs, inputs) of one tap along one axis: the indices that meet, padding left out."""
        outputs = np.arange(self.out[axis])
        inputs = outputs * self.stride[axis] + tap * self.dilation[axis] - self.padding[2 * axis]
        if self.circular:
            return outputs, inputs % self.size[axis]
        inside = (inputs >= 0) & (inputs < self.size[axis])
        return outputs[inside], inputs[inside]

    def windows(self, x: Array, fill: float = 0.0) -> Array:
        """(B, c·h·w) → (B, c, p, q, kh, kw): a view of what each output reads."""
        x = x.reshape(len(x), -1, *self.size)
        around = ((0, 0), (0, 0), self.padding[:2], self.padding[2:])
        if any(self.padding):
            x = np.pad(x, around, "wrap") if self.circular else np.pad(x, around, constant_values=fill)
        span = (self.reach[0] + 1, self.reach[1] + 1)
        view = np.lib.stride_tricks.sliding_window_view(x, span, axis=(2, 3))
        (sy, sx), (dy, dx) = self.stride, self.dilation
        return view[:, :, ::sy, ::sx, ::dy, ::dx]


class Map(NamedTuple):
    """The linear map of a kernel (c_out, c_in/groups, kh, kw) on a grid."""

    kernel: Array
    grid: Grid
    groups: int = 1

    def taps(self) -> int:
        return math.prod(self.kernel.shape[1:])

    def apply(self, x: Array) -> Array:
        """(B, c_in·h·w) → (B, c_out, p, q), one matrix product a group."""
        w, g = self.grid.windows(x), self.groups
        b, c, p, q, kh, kw = w.shape
        patches = w.reshape(b, g, c // g, p, q, kh, kw) if g > 1 else w[:, None]
        patches = patches.transpose(1, 0, 3, 4, 2, 5, 6).reshape(g, b * p * q, -1)
        y = patches @ self.kernel.reshape(g, len(self.kernel) // g, -1).transpose(0, 2, 1)
        return np.ascontiguousarray(y.reshape(g, b, p, q, -1).transpose(1, 0, 4, 2, 3)).reshape(b, -1, p, q)

    def parts(self) -> list[Map]:
        """One map a group: together, side by side, they are the map."""
        return [Map(kernel, self.grid) for kernel in np.split(self.kernel, self.groups)]

    def sums(self) -> tuple[Fraction, Fraction]:
        """At least the largest row sum and the largest column sum of |A|."""
        rows = columns = 0.0
        magnitude = self._replace(kernel=np.abs(self.kernel))
        for part in magnitude.parts():
            c, kh, kw = part.kernel.shape[1:]
            rows = max(rows, float(part.apply(np.ones((1, c, *self.grid.size))).max()))
            down, across = part.kernel.sum(axis=0), np.zeros((*self.grid.size, c))
            for r in range(kh):
                for t in range(kw):
                    i, j = self.grid.reads(0, r)[1], self.grid.reads(1, t)[1]
                    np.add.at(across, (i[:, None], j[None, :]), down[:, r, t])
            columns = max(columns, float(across.max()))
        terms = len(self.kernel) + kh * kw * math.prod(self.grid.out)
        return up(exact(rows) * (1 + 2 * gamma(self.taps()))), up(exact(columns) * (1 + 2 * gamma(terms)))

    def magnitude(self) -> Fraction:
        """At least ‖|A|‖₂: √(‖A‖₁‖A‖_∞), or of a dense matrix the Frobenius norm if that is smaller."""
        rows, columns = self.sums()
        crude = root(rows * columns)
        dense = self.grid == Grid((1, 1), (1, 1)) and self.groups == 1
        return min(crude, size(self.kernel)) if dense else crude


def _layer(op: Operation, kernel: Array, grid: Grid, groups: int) -> None:
    """Checks that the pieces of a dense or convolutional layer fit, and gives the operation its map."""
    c_out, c_in = kernel.shape[:2]
    op.need(c_in * groups == op.input_shape[0] and c_out % groups == 0, "its weight does not fit its input")
    op.need(min(grid.out) >= 1, "its kernel is larger than its input")
    op.need(math.prod(grid.kernel) <= 2**16 and grid.area() <= MOST_ENTRIES, "it is too large")
    once = all(max(grid.padding[2 * a : 2 * a + 2]) <= grid.size[a] for a in (0, 1))
    op.need(once or not grid.circular, "its padding wraps around more than once")
    op.need("bias" not in op.tensors or op.tensors["bias"].shape == (c_out,), "its bias does not fit")
    op.map = Map(kernel, grid, groups)
    if op["skip"]:
        fits = c_out == op.input_shape[0] and grid.out == grid.size and grid.stride == (1, 1)
        top, left = grid.padding[::2]
        fits &= top in range(0, grid.reach[0] + 1, grid.dilation[0])
        fits &= left in range(0, grid.reach[1] + 1, grid.dilation[1])
        op.need(fits, "the identity is no tap of its kernel")


def _dense_shape(op: Operation) -> Shape:
    weight = op.tensors["weight"]
    op.need(len(op.input_shape) == 1 and weight.ndim == 2, "it takes vectors")
    _layer(op, weight[:, :, None, None], Grid((1, 1), (1, 1)), 1)
    return (len(weight),)


def _conv_shape(op: Operation, axes: int) -> Shape:
    """Along one axis it is a convolution of an image of height 1."""
    weight, one, none = op.tensors["weight"], (1,) * (2 - axes), (0, 0) * (2 - axes)
    op.need(len(op.input_shape) == axes + 1 and weight.ndim == axes + 2, "wrong dimensions")
    stride, dilation = (op[name] or (1,) * axes for name in ("stride", "dilation"))
    padding = op["padding"] or (0, 0) * axes
    op.need(len(stride) == len(dilation) == axes and len(padding) == 2 * axes, "wrong attributes")
    kernel = weight.reshape(*weight.shape[:2], *one, *weight.shape[2:])
    size_in = one + op.input_shape[1:]
    grid = Grid(size_in, kernel.shape[2:], one + stride, none + padding, one + dilation, op["circular"])
    _layer(op, kernel, grid, op["groups"])
    return (len(weight), *grid.out[2 - axes :])


def _run_layer(op: Operation, x: Array) -> Array:
    y = _linear_layer(op, x)
    return y + op.tensors["bias"].reshape(-1, *[1] * (y.ndim - 2)) if "bias" in op.tensors else y


def _linear_layer(op: Operation, x: Array) -> Array:
    y = op.map.apply(x).reshape(len(x), *op.output_shape)
    return x + y if op["skip"] else y


def _whole_map(op: Operation) -> tuple[Map, Fraction]:
    """The layer's map with `skip` folded in, and how far rounding may have moved it (in ℓ2 and ℓ∞)."""
    if not op["skip"]:
        return op.map, ZERO
    kernel, grid = op.map.kernel.copy(), op.map.grid
    o = np.arange(len(kernel))  # output channel o reads channel o, which is o % c of its group
    top, left = grid.padding[0] // grid.dilation[0], grid.padding[2] // grid.dilation[1]
    centre = (o, o % kernel.shape[1], top, left)
    kernel[centre] += 1.0
    return op.map._replace(kernel=kernel), U64 * exact(np.abs(kernel[centre]).max())


def _layer_constant(op: Operation, norm: str) -> Fraction:
    full, slip = _whole_map(op)
    return up((full.sums()[0] if norm == "linf" else full.magnitude()) + slip)


def _layer_loss(op: Operation, k: Fraction) -> Loss:
    bias = op.tensors.get("bias", np.zeros(1))
    offset = up(size(bias) * root(Fraction(math.prod(op.map.grid.out))))
    return Loss(op.map.taps() + 1 + op["skip"], up(op.map.magnitude() + op["skip"]), offset)


def _pool_shape(op: Operation) -> Shape:
    kernel, stride, padding = op["kernel"], op["stride"], op["padding"]
    fits = len(op.input_shape) == 3 and len(kernel) == len(stride) == len(padding) == 2
    op.need(fits and all(2 * p <= k for p, k in zip(padding, kernel, strict=True)), "wrong windows")
    grid = Grid(op.input_shape[1:], kernel, stride, (padding[0], padding[0], padding[1], padding[1]))
    op.need(min(grid.out) >= 1, "its window is larger than its input")
    op.need(math.prod(kernel) <= 2**16 and op.input_shape[0] * grid.area() <= MOST_ENTRIES, "it is too large")
    op.map = Map(np.ones((1, 1, *kernel)), grid)
    return (op.input_shape[0], *grid.out)


def _average(op: Operation, x: Array) -> Array:
    """Window means, padding counted: the convolution by ones, divided by the window's size."""
    return op.map.grid.windows(x).sum(axis=(4, 5)) / op.map.taps()


def _average_constant(op: Operation, norm: str) -> Fraction:
    return ONE if norm == "linf" else up(op.map.magnitude() / op.map.taps())


def _maximum(op: Operation, x: Array) -> Array:
    return op.map.grid.windows(x, -np.inf).max(axis=(4, 5))


def _maximum_constant(op: Operation, norm: str) -> Fraction:
    """√(most windows that share a pixel): |max_S a − max_S b| ≤ ‖(a − b)_S‖, a pixel counts once a window."""
    grid, shared = op.map.grid, 1
    for axis in (0, 1):
        seen = np.concatenate([grid.reads(axis, r)[1] for r in range(grid.kernel[axis])])
        shared *= int(np.bincount(seen).max())
    return ONE if norm == "linf" else root(Fraction(shared))


# Scalings, nonlinearities, shapes and joins


def _broadcast(op: Operation, name: str) -> Shape:
    """Spreads the tensor over one sample; it may not have an entry for each sample of a batch."""
    try:
        op.tensors[name] = np.broadcast_to(op.tensors[name], (1, *op.input_shape))[0]
    except ValueError:
        op.need(False, f"its {name} does not fit its input")
    op.need(name == "offset" or not op["divide"] or op.tensors[name].all(), "it divides by zero")
    return op.input_shape


def _scale_constant(op: Operation, norm: str) -> Fraction:
    factor = np.abs(op.tensors["factor"])
    return 1 / exact(factor.min()) if op["divide"] else exact(factor.max())


def _halves(op: Operation) -> Shape:
    half = op.input_shape[0] // 2
    op.need(op.input_shape[0] == 2 * half, "it needs an even number of channels")
    op.need(op.tensors.get("theta", np.zeros(half)).shape == (half,), "its angles do not fit")
    return op.input_shape


def _min_max(op: Operation, x: Array) -> Array:
    """(max(a, b), min(a, b)) of the two halves: sorting a pair moves no two pairs further apart."""
    a, b = np.split(x, 2, axis=1)
    return np.concatenate([np.maximum(a, b), np.minimum(a, b)], axis=1)


def _groups(op: Operation) -> Shape:
    op.need(op.input_shape[0] % op["size"] == 0, "its groups do not fit")
    return op.input_shape


def _group_sort(op: Operation, x: Array) -> Array:
    """Sorting is made of exchanges max/min of a pair."""
    return np.sort(x.reshape(len(x), -1, op["size"], *op.input_shape[1:]), axis=2).reshape(x.shape)


def _householder(op: Operation, x: Array) -> Array:
    """z − 2·min(vᵀz, 0)·v, v = (sin θ/2, −cos θ/2): continuous, with orthogonal pieces.

    With sines and cosines good to 8u, 2γ₁₀ + 2γ₉(1 + γ₁₀) + 3u(1 + γ₁₉) ≤ 2γ₂₁ of ‖z‖ is lost.
    """
    half = op.tensors["theta"].reshape(-1, *[1] * (x.ndim - 2)) / 2
    (a, b), sine, cosine = np.split(x, 2, axis=1), np.sin(half), np.cos(half)
    behind = 2 * np.minimum(a * sine - b * cosine, 0.0)
    return np.concatenate([a - behind * sine, b + behind * cosine], axis=1)


def _smooth(
    run: Callable[[Operation, Array], Array],
    slope: Callable[[Operation], Fraction],
    origin: Fraction = ZERO,
    **attributes: Any,
) -> Rule:
    """f entry by entry, |f′| ≤ slope, |f(0)| ≤ origin; computed to within 32u of slope·|x| + origin."""

    def loss(op: Operation, k: Fraction) -> Loss:
        at_zero = origin / abs(exact(op["beta"])) if "beta" in op.attributes else origin
        return Loss(32, k, up(at_zero * root(Fraction(math.prod(op.input_shape)))))

    return Rule(run, attributes, constant=lambda op, norm: slope(op), loss=loss, elementary=True)


def _softplus(op: Operation, x: Array) -> Array:
    """The smooth function: that torch answers x itself past its threshold counts as its rounding."""
    z = op["beta"] * x
    return (np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z)))) / op["beta"]


def _nonzero(value: Any, what: str) -> float:
    need(value != 0, f"{what} is 0")
    return real(value, what)


def _gelu(op: Operation, x: Array) -> Array:
    if op["approximate"] == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    z = x / math.sqrt(2.0)
    return 0.5 * x * (1.0 + np.fromiter(map(math.erf, z.ravel().tolist()), float, z.size).reshape(z.shape))


def _gelu_slope(op: Operation) -> Fraction:
    """Φ + xφ is largest at √2: (1 + erf 1)/2 + e⁻¹/√π = 1.128904145…; of the approximation 1.12899306…."""
    op.need(op["approximate"] in ("none", "tanh"), "unknown approximation")
    return Fraction("1.1289041452") if op["approximate"] == "none" else Fraction("1.1289930688")


def _reshape(op: Operation) -> Shape:
    op.need(math.prod(op["shape"]) == math.prod(op.input_shape), "it changes the number of entries")
    return op["shape"]


def _permute(op: Operation) -> Shape:
    op.need(sorted(op["order"]) == list(range(len(op.input_shape))), "this is no permutation")
    return tuple(op.input_shape[k] for k in op["order"])


def _unshuffled(op: Operation) -> Shape:
    f = op["factor"]
    fits = len(op.input_shape) == 3 and not any(n % f for n in op.input_shape[1:])
    op.need(fits, "its squares do not fit")
    c, h, w = op.input_shape
    return (c * f * f, h // f, w // f)


def _unshuffle(op: Operation, x: Array) -> Array:
    f, (c, h, w) = op["factor"], op.input_shape
    squares = x.reshape(len(x), c, h // f, f, w // f, f).transpose(0, 1, 3, 5, 2, 4)
    return squares.reshape(len(x), *op.output_shape)


def _sides(op: Operation) -> list[tuple[int, int]]:
    op.need(len(op["padding"]) == 2 * (len(op.input_shape) - 1) > 0, "wrong padding")
    return [(0, 0), (0, 0), *zip(op["padding"][::2], op["padding"][1::2], strict=True)]


def _padded(op: Operation) -> Shape:
    return tuple(n + a + b for n, (a, b) in zip(op.input_shape, _sides(op)[1:], strict=True))


def _copies(op: Operation, norm: str) -> Fraction:
    """√(most copies of one pixel)."""
    most = math.prod(-(-m // n) for n, m in zip(op.input_shape[1:], op.output_shape[1:], strict=True))
    return ONE if norm == "linf" else root(Fraction(most))


def _same_shapes(op: Operation) -> Shape:
    op.need(op.shapes[0] == op.shapes[1], "its inputs differ in shape")
    return op.input_shape


def _concat(op: Operation) -> Shape:
    dim = op["dim"]
    op.need(all(dim < len(s) for s in op.shapes), "there is no such dimension")
    op.need(len({(s[:dim], s[dim + 1 :]) for s in op.shapes}) == 1, "its inputs do not fit together")
    along = [s[dim] for s in op.shapes]
    op.need(op["sizes"] in (None, along), "its sizes are wrong")
    return (*op.input_shape[:dim], sum(along), *op.input_shape[dim + 1 :])


def _root_of_squares(constants: list[Fraction], norm: str) -> Fraction:
    return max(constants) if norm == "linf" else root(sum((k * k for k in constants), ZERO))


def _factor(op: Operation, x: Array) -> Array:
    return x / op.tensors["factor"] if op["divide"] else x * op.tensors["factor"]


def _offset(op: Operation, x: Array) -> Array:
    return x - op.tensors["offset"] if op["subtract"] else x + op.tensors["offset"]


_SKIP: dict[str, Any] = {"skip": (flag, False)}
_CONV: dict[str, Any] = {"stride": (sizes, None), "padding": (pads, None), "dilation": (sizes, None)}
_CONV |= {"groups": (whole, 1), "circular": (flag, False), **_SKIP}
_POOL: dict[str, Any] = {"kernel": (sizes, ...), "stride": (sizes, ...), "padding": (pads, (0, 0))}
_PAD: dict[str, Any] = {"padding": (pads, ...)}
_ROUNDINGS: Any = (lambda v, what: whole(v, what, 1, 64), 1)
_LAYER: dict[str, Any] = {"constant": _layer_constant, "loss": _layer_loss, "linear": True}

RULES: dict[str, Rule] = {
    "dense": Rule(_run_layer, _SKIP, "weight bias?", _dense_shape, **_LAYER),
    "conv2d": Rule(_run_layer, _CONV, "weight bias?", lambda op: _conv_shape(op, 2), **_LAYER),
    "conv1d": Rule(_run_layer, _CONV, "weight bias?", lambda op: _conv_shape(op, 1), **_LAYER),
    "avgpool": Rule(_average, _POOL, "", _pool_shape, _average_constant,
                    lambda op, k: Loss(op.map.taps() + 1, k, peak=Fraction(op.map.taps())), linear=True),
    "maxpool": Rule(_maximum, _POOL, "", _pool_shape, _maximum_constant),
    "scale": Rule(_factor, {"divide": (flag, False), "roundings": _ROUNDINGS}, "factor",
                  lambda op: _broadcast(op, "factor"), _scale_constant,
                  lambda op, k: Loss(op["roundings"], k), linear=True),
    "translate": Rule(_offset, {"subtract": (flag, False), "roundings": _ROUNDINGS}, "offset",
                      lambda op: _broadcast(op, "offset"), linear=True,
                      loss=lambda op, k: Loss(op["roundings"], k, size(op.tensors["offset"]))),
    "relu": Rule(lambda op, x: np.maximum(x, 0.0)),
    "abs": Rule(lambda op, x: np.abs(x)),
    "minmax": Rule(_min_max, output=_halves),
    "groupsort": Rule(_group_sort, {"size": (whole, ...)}, "", _groups),
    "leakyrelu": Rule(lambda op, x: np.where(x > 0, x, op["slope"] * x), {"slope": (real, ...)},
                      constant=lambda op, norm: max(ONE, abs(exact(op["slope"]))),
                      loss=lambda op, k: Loss(2, k)),  # the slope is rounded too
    "householder": Rule(_householder, {}, "theta", _halves, loss=lambda op, k: Loss(21, Fraction(2)),
                        constant=lambda op, norm: root(Fraction(2)) if norm == "linf" else ONE),
    "sigmoid": _smooth(lambda op, x: 1.0 / (1.0 + np.exp(-x)), lambda op: Fraction(1, 4), Fraction(1, 2)),
    "tanh": _smooth(lambda op, x: np.tanh(x), lambda op: ONE),
    "elu": _smooth(lambda op, x: np.where(x > 0, x, op["alpha"] * np.expm1(np.minimum(x, 0.0))),
                   lambda op: max(ONE, abs(exact(op["alpha"]))), alpha=(real, 1.0)),
    "softplus": _smooth(_softplus, lambda op: ONE, Fraction(7, 10), beta=(_nonzero, 1.0),  # ln 2 < 0.7
                        threshold=(lambda v, what: number(v, what, 14.0), 20.0)),
    "gelu": _smooth(_gelu, _gelu_slope, approximate=(text, "none")),
    "reshape": Rule(lambda op, x: x.reshape(len(x), *op.output_shape), {"shape": (sizes, ...)}, "",
                    _reshape, linear=True),
    "permute": Rule(lambda op, x: x.transpose(0, *(1 + k for k in op["order"])), {"order": (pads, ...)}, "",
                    _permute, linear=True),
    "pixelunshuffle": Rule(_unshuffle, {"factor": (whole, ...)}, "", _unshuffled, linear=True),
    "pad": Rule(lambda op, x: np.pad(x, _sides(op)), _PAD, "", _padded, linear=True),
    "circularpad": Rule(lambda op, x: np.pad(x, _sides(op), "wrap"), _PAD, "", _padded, _copies, linear=True),
    "sum": Rule(lambda op, x, y: x + y, output=_same_shapes, loss=lambda op, k: Loss(1, k), arity=2,
                combine=lambda constants, norm: sum(constants, ZERO)),
    "concat": Rule(lambda op, *x: np.concatenate(x, 1 + op["dim"]), output=_concat, arity=None,
                   attributes={"dim": (lambda v, what: whole(v, what, 0), ...), "sizes": (listing, None)},
                   combine=_root_of_squares),
    "user rule": Rule(lambda op, x: x, constant=lambda op, norm: ZERO),  # its user's word is all there is
}  # fmt: skip


# ----------------------------------------------------------------------------------------------------------
# ‖A‖ ≤ claim


class Unproved(Exception):
    """This way does not prove the claim."""


def prove(a: Map, claim: Fraction, norm: str, method: str, about: str) -> str:
    """Raises Rejected unless ‖A‖ ≤ claim is proved; says how."""
    need(claim >= 0, f"{about} is below what rounding may hide")
    if norm == "linf":
        need(a.sums()[0] <= claim, f"{about} is below the largest row sum")
        return "row sums"
    if a.magnitude() <= claim:
        return "sums of entries"
    ways, why = [("checked Cholesky", prove_exactly), ("symbols", prove_by_symbols)], ""
    for how, way in ways[::-1] if "symbols" in method else ways:
        try:
            for part in a.parts():
                if part.kernel.any():
                    way(part, claim)
            return how
        except (Unproved, np.linalg.LinAlgError) as reason:
            why += f"; {how}: {reason}"
    raise Rejected(f"{about} is not proved{why}")


def _scaled(kernel: Array, claim: Fraction, lost: Callable[[Array], Fraction]) -> tuple[Array, Fraction]:
    """The kernel times a power of two, largest entry in [½, 1), and the claim less what is lost, squared."""
    exponent = math.frexp(float(np.abs(kernel).max()))[1]
    kernel = np.ldexp(kernel, -exponent)
    goal = claim / Fraction(2) ** exponent - lost(kernel)
    if goal <= 0:
        raise Unproved("the claim is too small")
    return kernel, goal * goal


def prove_exactly(a: Map, claim: Fraction) -> None:
    """‖A‖ ≤ claim by a checked Cholesky of the finite operator's own Gram matrix."""
    (d, c, kh, kw), circular = a.kernel.shape, a.grid.circular
    outputs, work = _cheaper_side(a)
    if work > MOST_WORK:
        raise Unproved("the operator is too large")

    def lost(kernel: Array) -> Fraction:
        """By underflow in scaling; and by adding up taps of a wrapped kernel that meet on one pixel."""
        tiny = root(Fraction(kernel.size * math.prod(a.grid.out))) * TINY[U64]
        return tiny + gamma(kw + 1) * a._replace(kernel=kernel).magnitude() if circular else tiny

    kernel, goal = _scaled(a.kernel, claim, lost)
    a = Map(kernel, a.grid)
    blocks, first = _gram(a, outputs)
    terms = (c if outputs else d) * kh * kw
    if circular:  # an upper bound for any way of wrapping: every pixel, every pair of taps
        terms = (c if outputs else d) * math.prod(a.grid.size if outputs else a.grid.out) * kh**2
    underflow = terms * MOST_ENTRIES * TINY[U64]
    _prove_gram(blocks, first, gamma(terms) * a.magnitude() ** 2 + underflow, goal)


def _cheaper_side(a: Map) -> tuple[bool, float]:
    """Whether AAᵀ is cheaper than AᵀA, and what it costs."""
    (d, c, kh, _), (h, w), (p, q) = a.kernel.shape, a.grid.size, a.grid.out
    reach, costs = a.grid.reach[0] * (1 + a.grid.circular), []
    for block, inner, count, band in ((c * w, d * q, h, reach), (d * q, c * w, p, reach // a.grid.stride[0])):
        band = min(count - 1, band)
        work = 2.0 * block**2 * (count * (1 + band) * (2 + band) * block + kh**2 * inner)
        fits = block * max(block, inner) * (kh + 2 * band) <= 2 * MOST_ENTRIES and count <= 2**12
        costs.append(work if fits else math.inf)
    return costs[1] <= costs[0], min(costs)


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
        for pair in zip(*(index.tolist() for index in a.grid.reads(0, r)), strict=True):
            own, other = pair if outputs else pair[::-1]
            meets[own].setdefault(other, []).append(r)
    products: dict[tuple[int, int], Array] = {}
    known: dict[Any, Array] = {}

    def block(i: int, j: int) -> Array:
        shared = sorted((r, t) for k in meets[i] if k in meets[j] for r in meets[i][k] for t in meets[j][k])
        key = (i == j, *shared)
        if key not in known:
            known[key] = np.zeros((len(strips[0]), len(strips[0])))
            for r, t in shared:
                if (r, t) not in products:
                    products[r, t] = strips[r] @ strips[t].T
                known[key] += products[r, t]
            if i == j:
                known[key] = _mirrored(known[key])
        return known[key]

    lowest: dict[int, int] = {}
    for n, mine in enumerate(meets):
        for k in mine:
            lowest.setdefault(k, n)
    first = [min((lowest[k] for k in mine), default=n) for n, mine in enumerate(meets)]
    return [[block(i, j) for j in range(first[i], i + 1)] for i in range(len(meets))], first


def _mirrored(g: Array) -> Array:
    """The symmetric matrix with g's lower triangle."""
    return np.tril(g) + np.tril(g, -1).T


def _prove_gram(blocks: list[list[Array]], first: list[int], error: Fraction, goal: Fraction) -> None:
    """λ_max ≤ goal for every matrix within `error` of the symmetric G with these lower blocks."""
    longest = max(sum(block.shape[1] for block in row) for row in blocks)
    below = error + goal * longest * (4 * longest + 64) * U64
    for _ in range(2):
        s = float(goal - below)
        excess = _excess(blocks, first, s) + error
        if Fraction(s) + excess <= goal:
            return
        below = 2 * (below + excess)
    raise Unproved("the error terms are too large")


def _excess(blocks: list[list[Array]], first: list[int], s: float) -> Fraction:
    """e with λ_max(G) ≤ s + e; LinAlgError where sI − G is not positive definite.

    L is the Cholesky factor of sI − G, by rows of blocks within the envelope of G; R is made from it afresh.
    """
    alive = [min(first[i:]) for i in range(len(blocks))] + [len(blocks)]
    lower: dict[int, dict[int, Array]] = {}
    inverse: dict[int, Array] = {}
    sums = [np.zeros(len(row[-1])) for row in blocks]
    diagonal = squares = longest_row = np.float64(0.0)  # np.maximum keeps a NaN, and exact() rejects it
    for i, row in enumerate(blocks):
        shifted = {first[i] + k: -block for k, block in enumerate(row)}
        shifted[i][np.diag_indices(len(row[-1]))] += s
        diagonal = np.maximum(diagonal, np.abs(np.diagonal(shifted[i])).max())
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
        lengths = np.sum([(block * block).sum(axis=1) for block in mine.values()], axis=0)
        squares, longest_row = squares + lengths.sum(), np.maximum(longest_row, lengths.max())
        for old in [k for k in lower if k < alive[i + 1]]:
            del lower[old], inverse[old]
    order, longest = sum(map(len, sums)), max(sum(block.shape[1] for block in row) for row in blocks)
    # ‖|L||L|ᵀ‖ is at most ‖L‖_F², and at most the entries in one of its rows times L's longest row, squared.
    reach = [0] * len(blocks)
    for i, begin in enumerate(first):
        for j in range(begin, i + 1):
            reach[i] += len(sums[j])
            reach[j] += len(sums[i]) if j < i else 0
    spread = min(exact(squares), max(reach) * exact(longest_row)) * (1 + 2 * gamma(order * longest + 2))
    worst = exact(np.concatenate(sums).max()) * (1 + 2 * gamma(order + 2))
    return worst + gamma(longest) * spread + U64 * exact(diagonal) + order * longest * TINY[U64]


def _product(left: dict[int, Array], right: dict[int, Array], keys: range) -> Array | float:
    """Σ_k left[k]·right[k]ᵀ as one product."""
    return np.hstack([left[k] for k in keys]) @ np.hstack([right[k] for k in keys]).T if keys else 0.0


def prove_by_symbols(a: Map, claim: Fraction) -> None:
    """‖A‖ ≤ claim because A is a part of a circular convolution over phases, whose symbols are that small."""
    (d, c, kh, kw), grid, (sy, sx) = a.kernel.shape, a.grid, a.grid.stride
    sides = []
    for axis, (n, s, p) in enumerate(zip(grid.size, grid.stride, grid.out, strict=True)):
        circle = n if grid.circular else -(-(n + max(grid.padding[2 * axis : 2 * axis + 2])) // s) * s
        # Every output is a row of the circle's operator, and reads outside the image fall on zeros.
        if circle % s or p * s > circle:
            raise Unproved("the operator is no part of a circular one")
        sides.append(circle // s)
    gh, gw = sides
    small, large = sorted((2 * d, 2 * sy * sx * c))
    work = gh * gw * float(small) * (small * (large + 4.0 * small) + kh * kw * large)
    many = gh * gw > 2**17 or gh * gw * kh * kw > 2**24 or kh * kw * small * large > MOST_ENTRIES
    if many or work > MOST_WORK:
        raise Unproved("there are too many symbols")
    half = [(k, q) for k in range(gh) for q in range(gw) if (k, q) <= (-k % gh, -q % gw)]  # ω, −ω: one norm
    shifts = [[t * grid.dilation[x] - grid.padding[2 * x] for t in range((kh, kw)[x])] for x in (0, 1)]
    met = sorted({(y // sy, x // sx) for y in shifts[0] for x in shifts[1]})
    steps = {step: k for k, step in enumerate(met)}

    def phases(kernel: Array) -> Array:
        """Tap y of stride s reads phase y % s at step y // s: (steps, c_out·s²c_in)."""
        taps = np.zeros((len(steps), d, sy * sx, c))
        for r, y in enumerate(shifts[0]):
            for t, x in enumerate(shifts[1]):
                taps[steps[y // sy, x // sx], :, (y % sy) * sx + x % sx] += kernel[:, :, r, t]
        return taps.reshape(len(steps), -1)

    def lost(kernel: Array) -> Fraction:
        """‖F̂ − F‖: products' γ, cosines within 32u (their angle within 20u, the library 4 ulp), underflow."""
        total = size(np.abs(phases(kernel)).sum(axis=0)) * (1 + 2 * gamma(len(steps)))
        return 2 * (gamma(len(steps) + 1) + 32 * U64) * total + 4 * kernel.size * TINY[U64]

    kernel, goal = _scaled(a.kernel, claim, lost)
    taps, chunk = phases(kernel), max(1, CHUNK // (small * large))
    for k in range(0, len(half), chunk):
        # Angles are reduced exactly, as integers, before a float is formed.
        turns = [[(f * y * gw + g * x * gh) % (gh * gw) for y, x in steps] for f, g in half[k : k + chunk]]
        angle = 2.0 * math.pi * (np.array(turns, dtype=np.float64) / (gh * gw))
        for real_part, imaginary in zip(np.cos(angle) @ taps, np.sin(angle) @ taps, strict=True):
            re, im = real_part.reshape(d, -1), imaginary.reshape(d, -1)
            f = np.block([[re, -im], [im, re]])
            f = f if len(f) >= f.shape[1] else f.T
            error = gamma(len(f)) * size(f) ** 2 + f.size * TINY[U64]
            _prove_gram([[_mirrored(f.T @ f)]], [0], error, goal)


# ----------------------------------------------------------------------------------------------------------
# Bounds along the graph, chains, margins


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
    record(entry, "bounds", "operations chains margins")
    ops, chains = program.operations, []
    bounds = listing(entry["operations"], "bounds.operations", len(ops))
    values = [exact(number(record(e, "a bound", "method value")["value"], "a bound")) for e in bounds]
    for e in listing(entry["chains"], "bounds.chains"):
        record(e, "a chain", "first last method value")
        last = whole(e["last"], "the end of a chain", 1, len(ops) - 2)
        first = whole(e["first"], "the beginning of a chain", 0, last - 1)
        chains.append(Chain(first, last, text(e["method"], "a method"), exact(number(e["value"], "a bound"))))
        for i in range(first, last + 1):
            joined = i == first or ops[i].inputs == [ops[i - 1].output]
            ops[i].need(ops[i].rule.linear and joined, "it is no link of a linear chain")
    need(len(chains) <= len(ops), "there are more chains than operations")
    methods = [text(e["method"], "a method") for e in bounds]
    return Claims(values, methods, chains, matrix(entry["margins"], "bounds.margins", program.classes))


def check_bounds(program: Program, claims: Claims, norm: str, say: Say) -> None:
    """Every claim of an operation and of a chain."""
    for op, claim, method in zip(program.operations, claims.values, claims.methods, strict=True):
        about = f"{op.where}: the claimed bound {float(claim)}"
        if "weight" in op.tensors:
            full, slip = _whole_map(op)
            how = prove(full, claim - slip, norm, method, about)
        elif op.rule is RULES["avgpool"] and op.map is not None and norm == "l2":
            how = prove(op.map, claim * op.map.taps(), norm, method, about)
        else:
            need(claim >= op.constant(norm), f"{about} is below {float(op.constant(norm))}")
            how = "ASSUMED" if op.rule is RULES["user rule"] else "constant"
        say(f"bound     {op.where[10:]:<40} ≤ {float(claim):.9g}  {how}")
    for chain in claims.chains:
        links = slice(chain.first, chain.last + 1)
        about = f"chain {chain.first} to {chain.last}: the claimed bound {float(chain.value)}"
        how = _check_chain(program.operations[links], claims.values[links], chain, norm, about)
        say(f"chain     {f'{chain.first} to {chain.last}':<40} ≤ {float(chain.value):.9g}  {how}")


def _check_chain(links: list[Operation], claims: list[Fraction], chain: Chain, norm: str, about: str) -> str:
    folded = _folded(links)
    if folded is not None:
        slip = 2 * gamma(2 * len(links)) * (folded.sums()[0] if norm == "linf" else folded.magnitude())
        return prove(folded, chain.value - slip, norm, chain.method, about) + " of folded weights"
    need(norm == "l2", f"{about} cannot be checked in ℓ∞")
    joint, error = _joint(links, claims, about)
    return prove(joint, chain.value - error, norm, chain.method, about) + " of the chain's matrix"


def _folded(links: list[Operation]) -> Map | None:
    """One layer with the scalings beside it in its weights, two roundings each; None where that is not so."""
    layers = [op for op in links if "weight" in op.tensors]
    beside = all(op.rule in (RULES["scale"], RULES["translate"]) for op in links if op not in layers)
    if len(layers) != 1 or not beside or layers[0]["skip"] or layers[0].map is None:
        return None
    kernel, grid, groups = layers[0].map
    for k, op in enumerate(links):
        if "factor" in op.tensors:
            channels = op.tensors["factor"].reshape(op.input_shape[0], -1)
            factor = 1.0 / channels[:, 0] if op["divide"] else channels[:, 0]
            if k < links.index(layers[0]):  # each group reads channels of its own
                inner = np.repeat(factor.reshape(groups, -1), len(kernel) // groups, axis=0)[:, :, None, None]
            else:
                inner = factor[:, None, None, None]
            meant, kernel = (kernel != 0) & (inner != 0), kernel * inner
            if (channels != channels[:, :1]).any() or not (np.abs(kernel[meant]) > 1e-290).all():
                return None
    return Map(kernel, grid, groups) if np.isfinite(kernel).all() else None


def _joint(links: list[Operation], claims: list[Fraction], about: str) -> tuple[Map, Fraction]:
    """The chain's matrix M, applied to the identity, and how far (Frobenius) it may be from exact.

    Mᵀ comes out row by row; error′ = K·error + γ_n‖|A|‖·‖M‖_F + underflow, operation by operation.
    """
    n, m = math.prod(links[0].input_shape), math.prod(links[-1].output_shape)
    fits = n * m <= MOST_ENTRIES and n * sum(op.work() for op in links) <= MOST_WORK
    need(fits, f"{about} is too large to check")
    result, squares = np.empty((n, m)), [ZERO] * len(links)
    chunk = max(1, CHUNK // max(op.entries() for op in links))
    for k in range(0, n, chunk):
        part = np.eye(min(chunk, n - k), n, k).reshape(-1, *links[0].input_shape)
        for i, op in enumerate(links):
            squares[i] += size(part) ** 2
            if op.rule is not RULES["translate"]:
                part = _linear_layer(op, part) if "weight" in op.tensors else op.rule.run(op, part)
        result[k : k + chunk] = part.reshape(len(part), -1)
    error = ZERO
    for op, claim, square in zip(links, claims, squares, strict=True):
        loss = op.rule.loss(op, claim)
        tiny = loss.terms * root(Fraction(n * math.prod(op.output_shape))) * TINY[U64]
        error = up(claim * error + gamma(loss.terms) * loss.gain * root(square) + tiny)
    return Map(result[:, :, None, None], Grid((1, 1), (1, 1))), error


def graph_constants(program: Program, claims: Claims, norm: str) -> dict[str, Fraction]:
    """K of every value as a function of the input, from the claims."""
    constants = {"input": ONE}
    for k, (op, claim) in enumerate(zip(program.operations, claims.values, strict=True)):
        ways = [op.rule.combine([constants[name] for name in op.inputs], norm) * claim]
        ends = [chain for chain in claims.chains if chain.last == k]
        ways += [constants[program.operations[chain.first].inputs[0]] * chain.value for chain in ends]
        constants[op.output] = up(min(ways))
    return constants


def least_margins(program: Program, claims: Claims, form: str, norm: str) -> list[list[Fraction]]:
    """What each margin must at least be: K times the dual norm of the rows' difference, and so on."""
    constant = graph_constants(program, claims, norm)[program.head.inputs[0]]
    weight, order = program.head.tensors["weight"], 1 if norm == "linf" else 2
    if form == "lmt":
        return [[up(root(Fraction(2)) * constant * claims.values[-1])] * len(weight)] * len(weight)
    if form == "simple":
        rows = norms(weight, order)
        return [[up(constant * (a + b)) for b in rows] for a in rows]
    return [[up(constant * d) for d in row] for row in distances(weight, order)]


def distances(weight: Array, order: int) -> list[list[Fraction]]:
    """At least ‖w_j − w_i‖; a computed difference is off by one rounding. Zero only for equal rows."""
    return [[d * (1 + 2 * U64) for d in norms(weight - row, order)] for row in weight]


def check_margins(program: Program, claims: Claims, form: str, norm: str) -> None:
    least = least_margins(program, claims, form, norm)
    for i, row in enumerate(claims.margins.tolist()):
        for j, claim in enumerate(row):
            enough = claim == 0 if i == j else Fraction(claim) >= least[i][j]
            need(enough, f"margin ({i}, {j}) is {claim}, below {float(least[i][j])}, or not 0 for i = j")


# ----------------------------------------------------------------------------------------------------------
# Rounding errors


class Affine(NamedTuple):
    """constant + slope·t, t = ‖x‖ + r."""

    constant: Fraction
    slope: Fraction = ZERO

    def times(self, factor: Fraction) -> Affine:
        return Affine(up(factor * self.constant), up(factor * self.slope))

    def plus(self, *others: Affine) -> Affine:
        parts = (self, *others)
        return Affine(up(sum((a.constant for a in parts), ZERO)), up(sum((a.slope for a in parts), ZERO)))


class LogitError(NamedTuple):
    """δ_ij = constant_ij + slope_ij·t; no sum of the evaluation exceeds peak(t), and values are off by `values`."""

    constant: Array
    slope: Array
    peak: Affine
    values: dict[str, Affine]

    def rows(self, label: Array, t: Array) -> Array:
        """δ of each sample's label against each class, rounded up."""
        return (self.constant[label] + self.slope[label] * t[:, None]) * SAFE


def logit_error(program: Program, claims: Claims, norm: str, u: Fraction) -> LogitError:
    """δ for an evaluation of the Program with unit roundoff u, each sum in any order."""
    sizes_of, errors, peaks = {"input": Affine(ZERO, ONE)}, {"input": Affine(ZERO)}, [Affine(ZERO, ONE)]
    for op, claim in zip(program.operations[:-1], claims.values[:-1], strict=True):
        k = claim if norm == "l2" else op.constant("l2")
        loss = op.rule.loss(op, k)
        size_in = Affine(ZERO).plus(*(sizes_of[name] for name in op.inputs))
        error_in = Affine(ZERO).plus(*(errors[name] for name in op.inputs))
        summed = size_in.plus(error_in).times(loss.gain).plus(Affine(loss.offset))
        peaks.append(summed.times(loss.peak))
        tiny = Affine(up(loss.terms * root(Fraction(math.prod(op.output_shape))) * TINY[u]))
        sizes_of[op.output] = size_in.times(k).plus(Affine(loss.offset))
        errors[op.output] = error_in.times(k).plus(summed.times(gamma(loss.terms, u)), tiny)
    last, weight = program.head.inputs[0], program.head.tensors["weight"]
    bias = program.head.tensors.get("bias", np.zeros(len(weight))).tolist()
    both = sizes_of[last].plus(errors[last])
    logits = [both.times(r).plus(Affine(abs(Fraction(b)))) for r, b in zip(norms(weight), bias, strict=True)]
    n = weight.shape[1] + 1
    own = [logit.times(gamma(n, u)).plus(Affine(n * TINY[u])) for logit in logits]
    delta = [
        [errors[last].times(d).plus(own[i], own[j]) for j, d in enumerate(row)]
        for i, row in enumerate(distances(weight, 2))
    ]
    constant, slope = (np.array([[float(a[k]) for a in row] for row in delta]) for k in (0, 1))
    peaks += logits
    peak = Affine(max(a.constant for a in peaks), max(a.slope for a in peaks))
    return LogitError(constant, slope, peak, errors)


def error_at(
    program: Program, claims: Claims, ours: LogitError, lengths: Mapping[str, Array], label: Array, u: Fraction
) -> Array:
    """δ of each sample's label against each class at r = 0, from the measured sizes of the values there, rounded up."""
    length = lengths["input"]
    carried = {"input": np.zeros_like(length)}

    def reached(name: str) -> Array:
        """‖z‖ + carried."""
        off = ours.values[name]
        return (lengths[name] + float(off.constant) + float(off.slope) * length + carried[name]) * SAFE

    for op, claim in zip(program.operations[:-1], claims.values[:-1], strict=True):
        loss = op.rule.loss(op, claim)
        total = sum((carried[name] for name in op.inputs), np.zeros_like(length)) * float(claim)
        if loss.terms:
            size_in = sum((reached(name) for name in op.inputs), np.zeros_like(length))
            rounded = float(up(gamma(loss.terms, u))) * (float(loss.gain) * size_in + float(loss.offset))
            total = total + rounded + float(up(loss.terms * root(Fraction(math.prod(op.output_shape))) * TINY[u]))
        carried[op.output] = total * SAFE
    last, weight = program.head.inputs[0], program.head.tensors["weight"]
    bias = np.abs(program.head.tensors.get("bias", np.zeros(len(weight))))
    n = weight.shape[1] + 1
    rows = np.array([float(r) for r in norms(weight)])
    apart = np.array([[float(up(d)) for d in row] for row in distances(weight, 2)])
    own = (reached(last)[:, None] * rows + bias) * float(up(gamma(n, u))) * SAFE + float(up(n * TINY[u]))
    return (apart[label] * carried[last][:, None] + own + np.take_along_axis(own, label[:, None], 1)) * SAFE


def check_errors(program: Program, claims: Claims, settings: Settings, entry: Any) -> dict[str, LogitError]:
    """Recomputes δ for each arithmetic the proof speaks about; the stated ones must not be smaller."""
    units = {"float64": U64} | ({"float32": U32} if settings.semantics == "float32" else {})
    record(entry, "error", " ".join(units))
    found = {}
    for name, u in units.items():
        found[name] = logit_error(program, claims, settings.norm, u)
        record(entry[name], f"error.{name}", "constant slope")
        parts = [matrix(entry[name][k], f"error.{name}.{k}", program.classes) for k in ("constant", "slope")]
        for claimed, ours in zip(parts, found[name], strict=False):
            need((claimed >= ours).all(), f"error.{name} is too small")
        found[f"stated {name}"] = found[name]._replace(constant=parts[0], slope=parts[1])
    return found


# ----------------------------------------------------------------------------------------------------------
# Certificates


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
    norm, form, semantics = content["norm"], content["form"], content["semantics"]
    need(norm in ("l2", "linf"), "norm must be l2 or linf")
    need(form in ("margin", "simple", "lmt"), "form must be margin, simple or lmt")
    need(semantics in ("real", "float32"), "semantics must be real or float32")
    need(norm == "l2" or (form != "lmt" and semantics == "real"), "this form or semantics is for l2 only")
    if semantics == "float32":
        for op in program.operations:
            op.need(not op.rule.elementary, "no float32 error is stated for it: real semantics only")
        need(set(program.types.values()) <= {"F32"}, "a tensor of the float32 network is not of type F32")
    entry = record(content["epsilon"], "epsilon", "text value")
    written, value = text(entry["text"], "epsilon.text"), number(entry["value"], "epsilon.value")
    try:
        power = written.lower().partition("e")[2]
        need(len(written) <= 100 and (not power or abs(int(power)) <= 400), "epsilon.text is too long")
        said = Fraction(written)
    except (ValueError, ZeroDivisionError):
        raise Rejected("epsilon.text is no decimal number or fraction") from None
    need(said >= 0 and up(said) == Fraction(value), "epsilon.value is not epsilon.text, rounded up")
    return Settings(norm, form, semantics, value, written)


def read_certificates(content: dict[str, Any], program: Program, settings: Settings) -> Certificates:
    """The claims about each input, and that verdicts follow from radii."""
    entry = record(content["inputs"], "inputs", "format file sha256 count dtype meaning labels")
    n, classes = whole(entry["count"], "inputs.count"), program.classes
    need(math.prod(program.input_shape) * n <= MOST_BYTES, "there are too many inputs")
    need(text(entry["format"], "inputs.format") in ("npz", "idx", "cifar10"), "inputs.format is unknown")
    means = {"uint8": "float32(k/255)", "float32": "as stored", "float64": "as stored"}
    known = means.get(text(entry["dtype"], "inputs.dtype")) == entry["meaning"]
    need(known, "inputs.dtype or its meaning is unknown")
    need(settings.semantics == "real" or entry["dtype"] != "float64", "float64 inputs of a float32 network")
    for label in [] if entry["labels"] is None else listing(entry["labels"], "inputs.labels", n):
        whole(label, "a true label", 0, classes - 1)
    table = record(content["certificates"], "certificates", "label margin radius certified")
    columns = {name: listing(column, f"certificates.{name}", n) for name, column in table.items()}
    label = np.array([whole(v, "a label", 0, classes - 1) for v in columns["label"]])
    margin = np.array([-math.inf if v is None else real(v, "a margin") for v in columns["margin"]])
    radius = np.array([math.inf if v == "inf" else number(v, "a radius") for v in columns["radius"]])
    certified = np.array([flag(v, "a verdict") for v in columns["certified"]])
    _hold(certified == (radius > settings.epsilon), "its verdict does not follow from its radius and ε")
    _hold((radius == 0) | (margin > 0), "its radius needs a positive margin")
    return Certificates(label, margin, radius, certified)


def check_certificates(
    program: Program, claims: Claims, errors: dict[str, LogitError], certificates: Certificates, x: Array
) -> None:
    """Evaluates every input and compares label, margin and radius with what that proves."""
    work = len(x) * sum(op.work() for op in program.operations)
    need(work <= 100 * MOST_WORK, "evaluating all inputs would take too long")
    batch = max(1, min(1000, CHUNK // max(op.entries() for op in program.operations)))
    for k in range(0, len(x), batch):
        part = Certificates(*(column[k : k + batch] for column in certificates))
        _check_batch(program, claims, errors, part, to_values(x[k : k + batch]), k)


def _check_batch(
    program: Program, claims: Claims, errors: dict[str, LogitError], part: Certificates, x: Array, begin: int
) -> None:
    label, margin, radius, _ = part
    y, sound, lengths = evaluate(program, x)
    own = np.arange(program.classes) == label[:, None]
    length = np.array([float(n) for n in norms(x.reshape(len(x), -1))])

    def less(a: Array, b: Array) -> Array:
        """a − b for b ≥ 0, rounded down."""
        return a - b - (np.abs(a) + b) * 2.0**-50

    lead, delta = np.take_along_axis(y, label[:, None], 1) - y, errors["float64"].rows(label, length)
    room = proved = less(lead, delta)
    cost = claims.margins[label]
    if "float32" in errors:
        theirs, at_x = errors["float32"], error_at(program, claims, errors["float64"], lengths, label, U32)
        room, cost = less(proved, at_x), (cost + theirs.slope[label]) * SAFE
        delta = (delta + at_x) * SAFE
        farthest = exact((np.where(radius > 0, radius + length, 0.0) * SAFE).max())
        fits = theirs.peak.constant + theirs.peak.slope * farthest < 2**127
        need(fits, "float32 might overflow within a claimed radius")
    needed = np.where(cost == 0, 0.0, radius[:, None] * cost * SAFE)
    reached = (own | ((room > 0) & (needed <= room))).all(axis=1)
    may_lead = (own | (lead + np.abs(lead) * 2.0**-50 >= -delta)).all(axis=1)
    stated = errors["stated float64"].rows(label, length).max(axis=1)
    low = np.where(own, np.inf, lead).min(axis=1) - 8 * stated - np.abs(lead).max(axis=1) * 2.0**-40
    told = margin > -np.inf
    _hold(sound | ~told, "its evaluation overflows, yet it claims a margin", begin)
    _hold(~sound | may_lead, "another class leads its label", begin)
    _hold(~told | (own | (margin[:, None] <= proved)).all(axis=1), "its margin is not proved", begin)
    # Not needed for the claim, but a margin that is not this Program's shows that something was changed.
    _hold(~told | (margin >= low), "its margin is far below what this Program has", begin)
    _hold((radius == 0) | (sound & reached), "its radius is not proved", begin)


def evaluate(program: Program, x: Array) -> tuple[Array, Array, dict[str, Array]]:
    """(logits, whether every value on the way was finite, the size of each value) of a batch, in float64."""
    last_use = {name: k for k, op in enumerate(program.operations) for name in op.inputs}
    values, lengths, y = {"input": x}, {"input": lengths_of(x)}, x
    sound = np.ones(len(x), dtype=bool)
    for k, op in enumerate(program.operations):
        y = values[op.output] = op.rule.run(op, *(values[name] for name in op.inputs))
        lengths[op.output] = lengths_of(y)
        sound &= np.isfinite(y.reshape(len(y), -1)).all(axis=1)
        for name in set(op.inputs):
            if last_use[name] == k:
                del values[name]
    return y, sound, lengths


def lengths_of(values: Array) -> Array:
    """At least the ℓ2 norm of each value of a batch; squares that underflow cost at most the last term."""
    flat = values.reshape(len(values), -1)
    n = flat.shape[1]
    return (np.sqrt(np.einsum("ij,ij->i", flat, flat)) + n * 2.0**-500) * float(up(1 + 2 * gamma(n + 4)))


def to_values(x: Array) -> Array:
    """The exact inputs: uint8 k means the float32 nearest to k/255."""
    return (x.astype(np.float32) / np.float32(255) if x.dtype == np.uint8 else x).astype(np.float64)


def _hold(good: Array, what: str, begin: int = 0) -> None:
    bad = np.flatnonzero(~good)
    need(not len(bad), f"certificate {begin + int(bad[0]) if len(bad) else 0}: {what}")


if __name__ == "__main__":
    sys.exit(main())
