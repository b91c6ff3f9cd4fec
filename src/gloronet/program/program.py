"""What a network really computes: an immutable list of named operations on named tensors.

Live, its tensors are the module's own parameters, for estimates while training. Frozen, they are
copies, hashed together with the structure: what bounds, proofs and exports speak about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from gloronet.operators.base import Operator, Shape
from gloronet.operators.rules import Vouched

INPUT = "input"
"""The name of the value that is the network's input."""


@dataclass(frozen=True)
class Op:
    """One operation: `output = operator(*inputs)`."""

    path: str
    """Where it stands in the module, for tables and errors."""
    kind: type[Operator]
    input_shape: Shape
    inputs: tuple[str, ...]
    output: str
    tensors: dict[str, str] = field(default_factory=dict)
    """The operator's tensor fields → names of tensors."""
    attributes: dict[str, Any] = field(default_factory=dict)

    def operator(self, tensors: dict[str, Tensor]) -> Operator:
        """The operator on these tensors (live or frozen)."""
        mine = {f: tensors[name] for f, name in self.tensors.items()}
        arguments: dict[str, Any] = {"state": mine} if self.kind is Vouched else dict(mine)
        return self.kind(self.input_shape, **arguments, **self.attributes)

    def describe(self) -> dict[str, Any]:
        """Plain data, for the digest and the proof."""
        plain = {k: v if _is_plain(v) else type(v).__qualname__ for k, v in self.attributes.items()}
        return {
            "path": self.path,
            "rule": self.kind.rule,
            "input_shape": list(self.input_shape),
            "inputs": list(self.inputs),
            "output": self.output,
            "tensors": self.tensors,
            "attributes": plain,
        }


@dataclass(frozen=True)
class Program:
    """The traced network. `live` resolves its tensors to the module's parameters, at every call anew."""

    input_shape: Shape
    ops: tuple[Op, ...]
    live: Callable[[], dict[str, Tensor]] = field(repr=False, compare=False)
    answers: tuple[Callable[[], bool], ...] = field(default=(), repr=False, compare=False)
    """Whether each rule that may read a parameter still answers the attributes that are part of the Program."""

    def holds(self) -> bool:
        """Whether no value of a parameter has made this another Program."""
        return all(answer() for answer in self.answers)

    def operators(self) -> list[Operator]:
        """The operators on live tensors: differentiable, in the module's own arithmetic."""
        tensors = self.live()
        return [op.operator(tensors) for op in self.ops]

    @torch.no_grad()
    def freeze(self) -> FrozenProgram:
        """A copy of everything the function depends on, now."""
        tensors = {name: t.detach().clone() for name, t in self.live().items()}
        return FrozenProgram(self.input_shape, self.ops, tensors)


@dataclass(frozen=True)
class FrozenProgram:
    """A Program with its own tensors: an exact function, which `digest` names."""

    input_shape: Shape
    ops: tuple[Op, ...]
    tensors: dict[str, Tensor] = field(repr=False)

    @cached_property
    def operators(self) -> list[Operator]:
        """The operators in float64; float32 weights become float64 exactly."""
        doubled = {n: t.double() if t.is_floating_point() else t for n, t in self.tensors.items()}
        return [op.operator(doubled) for op in self.ops]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the structure and of every tensor, bit for bit."""
        h = hashlib.sha256()
        structure = {"input_shape": list(self.input_shape), "ops": [op.describe() for op in self.ops]}
        h.update(json.dumps(structure, sort_keys=True).encode())
        for name in sorted(self.tensors):
            t = self.tensors[name].contiguous().cpu()
            h.update(f"\n{name} {t.dtype} {tuple(t.shape)}\n".encode())
            h.update(t.reshape(-1).view(torch.uint8).numpy().tobytes())
        return h.hexdigest()

    @property
    def opaque(self) -> bool:
        """Whether a module of a user's rule is in it, whose Python attributes the digest cannot see."""
        return any(op.kind is Vouched for op in self.ops)

    def same_tensors(self, tensors: dict[str, Tensor]) -> bool:
        """Whether these tensors equal the frozen ones, bit for bit but for the sign of zero."""
        return tensors.keys() == self.tensors.keys() and all(
            t.dtype == tensors[n].dtype and t.device == tensors[n].device and torch.equal(t, tensors[n])
            for n, t in self.tensors.items()
        )

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The network's output on a batch, evaluated in float64."""
        return run(self.ops, self.operators, x.double())


def run(ops: Iterable[Op], operators: Iterable[Operator], x: Tensor) -> Tensor:
    """Evaluates the operations in order; the last output is the result."""
    return evaluated(ops, operators, x)[-1]


def evaluated(ops: Iterable[Op], operators: Iterable[Operator], x: Tensor) -> list[Tensor]:
    """The input and what each operation answers, in order."""
    values = {INPUT: x}
    for op, operator in zip(ops, operators, strict=True):
        values[op.output] = operator(*(values[name] for name in op.inputs))
    return list(values.values())


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(v) for v in value)
    return isinstance(value, str | int | float | bool) or value is None
