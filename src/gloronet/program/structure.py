"""A cheap fingerprint of everything about a module, but its tensors' values, that can change what it computes.

Tracing costs a good part of a second, so a Program is kept until the fingerprint changes: a replaced
submodule or tensor, a hook, a patched method, a rule, an attribute such as BatchNorm's eps, also one of the class,
of a hook, or of an object that is an attribute, four levels deep, of modules there at any depth, and what a function
has by default. Values of parameters and buffers are compared on their own, bit by bit. (A global that a hand-written
forward reads, and what a closure holds, is beyond it.)
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from types import FunctionType, MappingProxyType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gloronet.operators.rules import MODULE_RULES

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_OWN = frozenset(("training", "_parameters", "_buffers", "_modules", "_compiled_call_impl", *_HOOKS))
"""Told apart below, or no part of the function: compiled code is for training, nothing is proved of it."""
_FOREIGN = frozenset((*sys.stdlib_module_names, "numpy"))
"""Packages whose classes nobody is expected to change."""
_BARE = frozenset((list, tuple, set, frozenset, dict, OrderedDict, bytes, bytearray))
"""They have no attributes of their own, or never use them."""
_CALLED = frozenset(("__call__", "__iter__", "__getattr__", "__getattribute__", "__getitem__", "__len__"))


def structure(module: nn.Module) -> tuple[Any, ...]:
    """Equal for two moments only if the module would be traced to the same operations at both."""
    return _Walk().all_of(module)


def plain(value: Any) -> Any:
    """Equal for two moments only if the value is the same, as far as it can be looked into."""
    return _Walk().plain(value)


class _Same:
    """Equal to itself alone. It keeps the object: the id of one that is gone may be given to another."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


class _Walk:
    """One look at everything. What was told once is named by its identity when it is met again."""

    def __init__(self) -> None:
        self.told: set[int] = set()
        self.classes: dict[type, Any] = {}

    def all_of(self, module: nn.Module) -> tuple[Any, ...]:
        shared = nn.modules.module
        modules = list(module.named_modules(remove_duplicate=False))
        self.told.update(id(m) for _, m in modules)
        self.told.update(id(t) for _, m in modules for _, t in _tensors(m))
        common = self._hooks((shared._global_forward_hooks, shared._global_forward_pre_hooks))
        return (common, *(self._one(name, m) for name, m in modules))

    def _one(self, name: str, m: nn.Module) -> tuple[Any, ...]:
        hooks = self._hooks(vars(m)[which] for which in _HOOKS)
        # By identity, too: two names may be of one tensor, and are then traced as one.
        tensors = tuple((k, _Same(t), t.dtype, tuple(t.shape), t.device, t.requires_grad) for k, t in _tensors(m))
        attributes = tuple((k, self.plain(v)) for k, v in vars(m).items() if k not in _OWN)
        rule = MODULE_RULES.get(type(m))
        return name, _Same(m), type(m), type(m).forward, rule, hooks, tensors, attributes, self._class(type(m))

    def _hooks(self, kinds: Any) -> tuple[Any, ...]:
        return tuple(tuple((k, self.plain(h)) for k, h in hooks.items()) for hooks in kinds)

    def _class(self, kind: type, depth: int = 4) -> Any:
        """What an instance finds in its classes: numbers that `forward` reads, and the methods it calls."""
        if kind not in self.classes:
            self.classes[kind] = ()  # met again on the way, it is being told
            self.classes[kind] = tuple(
                (k, self.plain(v, depth))
                for c in kind.__mro__
                if _may_change(c)
                for k, v in vars(c).items()
                if k[:2] != "__" or k in _CALLED
            )
        return self.classes[kind]

    def plain(self, value: Any, depth: int = 4) -> Any:
        if type(value) in _BARE and not value:  # as most are that torch keeps in a module
            return type(value)
        if isinstance(value, str | int | float | bool | type(None) | torch.dtype | torch.device):
            return (type(value), repr(value))
        if id(value) in self.told:
            return _Same(value)
        if isinstance(value, nn.Module):  # one that is not registered: its tensors are not compared elsewhere
            inside = [t for m in value.modules() for _, t in _tensors(m) if id(t) not in self.told]
            return (*self.all_of(value), *map(_bits, inside))
        if isinstance(value, Tensor):
            return _bits(value)
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return (value.dtype, value.shape, value.tobytes())
        if not depth or isinstance(value, ModuleType):
            return _Same(value)
        if isinstance(value, FunctionType):
            held = (value.__defaults__, value.__kwdefaults__, vars(value))
            return (_Same(value), *(self.plain(v, depth - 1) if v else None for v in held))
        held = self._held(value, depth - 1)
        if type(value) in _BARE:
            return held
        return (held, tuple((k, self.plain(v, depth - 1)) for k, v in _attributes(value)))

    def _held(self, value: Any, depth: int) -> Any:
        """What it is, and what it has in it, or what its class has for it."""
        if isinstance(value, np.ndarray):
            return (value.shape, self.plain(value.tolist(), depth))
        if (packed := _packed(value)) is not None:
            return (type(value), packed)
        if isinstance(value, list | tuple | set | frozenset | deque):
            return (type(value), tuple(self.plain(v, depth) for v in value))
        if isinstance(value, dict | MappingProxyType):
            return (type(value), tuple((repr(k), self.plain(v, depth)) for k, v in value.items()))
        return (_Same(value), self._class(value if isinstance(value, type) else type(value), depth))


def _tensors(m: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((k, t) for k, t in (*m._parameters.items(), *m._buffers.items()) if t is not None)


def _packed(value: Any) -> bytes | None:
    """The bytes of what is nothing but bytes: an array, a number of C."""
    try:
        return bytes(memoryview(value))
    except (TypeError, ValueError):  # none of that kind, or no longer there
        return None


def _bits(t: Tensor) -> Any:
    flat = t.detach().cpu().contiguous().reshape(-1)
    return t.dtype, tuple(t.shape), flat.view(torch.uint8).numpy().tobytes()


def _may_change(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    if package == "torch":
        return issubclass(kind, nn.Module) and kind is not nn.Module
    return package not in _FOREIGN


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, in its dict or in slots."""
    if isinstance(value, type):
        return
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)
