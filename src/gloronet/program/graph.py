"""Questions about the graph that torch.export writes: which nodes count, where one stands, what may stand for it."""

from __future__ import annotations

import re
from typing import Any

import torch
import torch.fx
from torch import Tensor, nn

from gloronet.operators.base import Shape
from gloronet.operators.rules import MODULE_RULES, ModuleRule


def needed(nodes: list[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes the output depends on, in order: what a hook computes for itself is no part of the function."""
    wanted = {n for n in nodes if n.op in ("output", "placeholder")}
    for node in reversed(nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    return [n for n in nodes if n in wanted]


def has_clean_rule(module: nn.Module) -> bool:
    registered = MODULE_RULES.get(type(module))
    hooks = nn.modules.module
    return (
        registered is not None
        and type(module).forward is registered.forward
        and type(module).__call__ is nn.Module.__call__
        and "forward" not in vars(module)
        and not any(
            vars(m)[name]
            for m in module.modules()
            for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        )
        and not (hooks._global_forward_hooks or hooks._global_forward_pre_hooks)
        and not any(torch.nn.utils.parametrize.is_parametrized(m) for m in module.modules())
    )


def describe(node: torch.fx.Node, root: nn.Module) -> str:
    path = path_of(node)
    module = submodule(root, path)
    if module is not None and not list(module.children()) and module is not root:
        return f"{type(module).__name__} at {path}"
    operation = str(node.target).removeprefix("aten.").split(".")[0]
    return f"the operation {operation} at {path or 'the top of the network'}"


def path_of(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    return clean(list(stack.values())[-1][0]) if stack else ""


def clean(path: str) -> str:
    """The module's own path: torch.export marks a second call of the same module as path@1."""
    return re.sub(r"@\d+", "", path)


def submodule(root: nn.Module, path: str) -> nn.Module | None:
    try:
        return root.get_submodule(clean(path))
    except AttributeError:
        return None


def attribute(module: nn.Module, name: str) -> Tensor:
    owner, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(owner), leaf)


def field_of(rule: ModuleRule, module: nn.Module, shape: Shape, name: str) -> Tensor:
    return getattr(rule(module, shape, "l2"), name)


def same_size(a: Any, b: Any) -> bool:
    if isinstance(a, torch.SymInt) and isinstance(b, torch.SymInt):
        return a.node.expr == b.node.expr
    return isinstance(a, int) and isinstance(b, int) and a == b


def is_sequence(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("val"), list | tuple)


def is_mutable(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if node.target is torch.ops.aten.detach_.default:  # of torch.tensor(…) written in a forward: no value changes
        return getattr(node.args[0], "target", None) is not torch.ops.aten.lift_fresh_copy.default
    return bool(schema is not None and schema.is_mutable)
