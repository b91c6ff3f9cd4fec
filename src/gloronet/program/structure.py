"""A cheap fingerprint of everything about a module, but its tensors' values, that can change what it computes.

Tracing costs a good part of a second, so a Program is kept until the fingerprint changes: a replaced
submodule, a hook, a patched method, a rule, an attribute such as BatchNorm's eps, also one of the class, or of
an object that is an attribute, four levels deep. Values of parameters and buffers are compared on their own,
bit by bit. (A global that a hand-written forward reads, and what a closure holds, is beyond it.)
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gloronet.operators.rules import MODULE_RULES

_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_CODE = (type, ModuleType, FunctionType)
_OWN = frozenset(("training", "_parameters", "_buffers", "_modules", "_compiled_call_impl", *_HOOKS))
"""Told apart above, or no part of the function: compiled code is for training, nothing is proved of it."""


def structure(module: nn.Module) -> tuple[Any, ...]:
    """Equal for two moments only if the module would be traced to the same operations at both."""
    shared = nn.modules.module
    parts: list[Any] = [tuple(shared._global_forward_hooks), tuple(shared._global_forward_pre_hooks)]
    for name, m in module.named_modules(remove_duplicate=False):
        hooks = tuple(tuple((k, id(h)) for k, h in vars(m)[which].items()) for which in _HOOKS)
        tensors = tuple(
            (k, t.dtype, tuple(t.shape))
            for k, t in (*m._parameters.items(), *m._buffers.items())
            if t is not None
        )
        attributes = tuple((k, _plain(v)) for k, v in vars(m).items() if k not in _OWN)
        rule = MODULE_RULES.get(type(m))
        parts.append((name, id(m), type(m), type(m).forward, rule, hooks, tensors, attributes, _of_class(type(m))))
    return tuple(parts)


def _of_class(kind: type) -> tuple[Any, ...]:
    """What an instance finds in its classes: numbers that `forward` reads, and the methods it calls."""
    own = (c for c in kind.__mro__ if not c.__module__.startswith("torch."))
    return tuple((k, _plain(v)) for c in own for k, v in vars(c).items() if k == "__call__" or k[:2] != "__")


class _Same:
    """Equal to itself alone. It keeps the object: the id of one that is gone may be given to another."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _plain(value: Any, depth: int = 4) -> Any:
    if isinstance(value, str | int | float | bool | type(None) | torch.dtype | torch.device):
        return (type(value), repr(value))
    if isinstance(value, Tensor):
        return (
            value.dtype,
            tuple(value.shape),
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return (value.dtype, value.shape, value.tobytes())
    if isinstance(value, list | tuple | set | frozenset) and depth:
        return (type(value), tuple(_plain(v, depth - 1) for v in value))
    if isinstance(value, dict) and depth:
        return tuple((repr(k), _plain(v, depth - 1)) for k, v in value.items())
    inside = _attributes(value) if depth and not isinstance(value, _CODE) else ()
    return (_Same(value), tuple((k, _plain(v, depth - 1)) for k, v in inside))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, in its dict or in slots."""
    yield from getattr(value, "__dict__", {}).items()
    for kind in type(value).__mro__:
        for name, slot in vars(kind).items():
            if isinstance(slot, MemberDescriptorType) and hasattr(value, name):
                yield name, getattr(value, name)
