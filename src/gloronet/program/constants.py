"""The tensors of a Program, resolved live: parameters by name, and what is computed from them alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn


class Ref(NamedTuple):
    """Stands for a named tensor in a recipe's arguments."""

    name: str


class Recipe(NamedTuple):
    """One operation on tensors that do not depend on the input."""

    name: str
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass
class Constants:
    """Called, it answers every tensor the Program uses, from the module as it is at that moment."""

    module: nn.Module
    parameters: dict[str, str] = field(default_factory=dict)
    """Name in the graph → path of a parameter or buffer."""
    fixed: dict[str, Tensor] = field(default_factory=dict)
    sources: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    recipes: list[Recipe] = field(default_factory=list)
    used: dict[str, str] = field(default_factory=dict)
    """Name in the Program → name in the graph."""

    def __call__(self) -> dict[str, Tensor]:
        known: dict[str, Any] = {name: self._resolve(path) for name, path in self.parameters.items()}
        device = next((t.device for t in known.values()), torch.device("cpu"))
        known |= {name: t.to(device) for name, t in self.fixed.items()}
        for recipe in self.recipes:
            args, kwargs = pytree.tree_map_only(
                Ref,
                lambda ref: known[ref.name],
                (recipe.args, recipe.kwargs),
                is_leaf=lambda a: isinstance(a, Ref),
            )
            known[recipe.name] = recipe.target(*args, **kwargs)
        known |= {name: source() for name, source in self.sources.items()}
        return {name: known[inner] for name, inner in self.used.items()}

    def _resolve(self, path: str) -> Tensor:
        owner, _, name = path.rpartition(".")
        return getattr(self.module.get_submodule(owner), name)

    def prune(self, needed: set[str]) -> None:
        """Forgets what no operation uses, directly or through a recipe."""
        self.used = {name: inner for name, inner in self.used.items() if name in needed}
        wanted = set(self.used.values())
        kept = []
        for recipe in reversed(self.recipes):
            if recipe.name in wanted:
                kept.append(recipe)
                leaves = pytree.tree_leaves(
                    (recipe.args, recipe.kwargs), is_leaf=lambda a: isinstance(a, Ref)
                )
                wanted |= {leaf.name for leaf in leaves if isinstance(leaf, Ref)}
        self.recipes = kept[::-1]
        self.parameters = {n: p for n, p in self.parameters.items() if n in wanted}
        self.fixed = {n: t for n, t in self.fixed.items() if n in wanted}
        self.sources = {n: s for n, s in self.sources.items() if n in wanted}
