"""The registry: what each operation of a traced network becomes. The unknown is refused.

Two tables, one per question:
- MODULE_RULES: a module type → `(module, input_shape, norm) -> Operator | float`, added with `@rule(Type)`;
- CALL_RULES: an aten operation, as torch.export writes it → `(Call) -> Step`, all of them in calls.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gloronet.errors import UnsupportedOperation
from gloronet.operators.base import Arithmetic, Operator, Proved, Shape
from gloronet.operators.rounding import norm_up

ModuleRule = Callable[[Any, Shape, str], Operator | float]


class Value(NamedTuple):
    """A tensor that depends on the input; its shape without the batch."""

    name: str
    shape: Shape


class Constant(NamedTuple):
    """A tensor that does not depend on the input."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Call:
    """One operation of the graph: arguments by their names in its schema."""

    arguments: dict[str, Any]
    output_shape: Shape


@dataclass(frozen=True)
class Step:
    """A rule's answer: this operator, on these values, with these tensors and attributes."""

    operator: type[Operator]
    inputs: tuple[Value, ...]
    tensors: dict[str, Constant | float] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


class Registered(NamedTuple):
    rule: ModuleRule
    forward: Any
    """The type's `forward` when the rule was made: a class patched later must not inherit it."""


MODULE_RULES: dict[type[nn.Module], Registered] = {}
CALL_RULES: dict[Any, Callable[[Call], Step | str]] = {}


def rule(module_type: type[nn.Module]) -> Callable[[ModuleRule], ModuleRule]:
    """Registers how to bound modules of exactly this type.

    The function gets (module, input_shape, norm) and returns an Operator, or a float K of which the
    caller vouches that ‖f(x) − f(y)‖ ≤ K‖x − y‖ in that norm for all x, y. Subclasses do not inherit it.
    """
    if not (isinstance(module_type, type) and issubclass(module_type, nn.Module)):
        raise TypeError(f"@rule takes an nn.Module class, not {module_type!r}.")

    def register(function: ModuleRule) -> ModuleRule:
        MODULE_RULES[module_type] = Registered(function, module_type.forward)
        return function

    return register


@dataclass(frozen=True, eq=False)
class Vouched(Operator):
    """A module whose constant a user's rule vouches for; evaluated by the module itself on `state`.

    The user vouches for its arithmetic too: that an evaluation is off by no more than 64 roundings.
    """

    rule: ClassVar[str] = "user rule"

    module: nn.Module
    constant: ModuleRule
    state: dict[str, Tensor]

    @property
    def output_shape(self) -> Shape:
        return tuple(self(self._zero()).shape[1:])

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        with evaluating(self.module):
            return torch.func.functional_call(self.module, self.state, (x,))

    def bound(self, norm: str) -> Proved:
        value: Any = self.constant(self.module, self.input_shape, norm)
        if isinstance(value, Tensor) and value.numel() == 1:
            value = value.item()
        if not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise UnsupportedOperation(
                f"The rule for {type(self.module).__name__} answered {value!r}; it must be finite and at least 0."
            )
        return Proved(float(value), "user rule")

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(64, self.bound("l2").value, norm_up(self(self._zero())))

    def _zero(self) -> Tensor:
        like = next(iter(self.state.values()), torch.zeros(0, dtype=torch.float64))
        return torch.zeros(1, *self.input_shape, dtype=like.dtype, device=like.device)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """eval() for a while, with weights as they are and not as `parametrize.cached()` remembers them.

    Every submodule gets its own mode back.
    """
    modes = {m: m.training for m in module.modules()}
    blocks, parametrize._cache_enabled = parametrize._cache_enabled, 0
    module.eval()
    try:
        yield
    finally:
        parametrize._cache_enabled = blocks
        for m, mode in modes.items():
            m.training = mode
