"""Which sets of classes count as an answer, and the ⊥ that abstains where none of them lasts.

T_k is the set of the k largest logits, by index, the first on ties. While every class in T_k leads every
class outside, no other set is the k largest. The T_k are nested, so what a relaxation allows is one number
a sample: how many classes an answer may name.

    Top(K)            K of them
    Affinity(sets)    as many of the ranking's first as lie within one of the given sets, and always one

All m classes say nothing, so k < m. Plain robustness is k = 1: `Top(1)`, or affinity without sets.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gloronet.errors import ConfigError


class Relaxation(ABC):
    """Says of each ranking of the classes which of T_1 ⊂ T_2 ⊂ … count as an answer."""

    @abstractmethod
    def most(self, classes: int) -> int:
        """The largest k that can count for any sample of a net with so many classes."""

    @abstractmethod
    def longest(self, order: Tensor) -> Tensor:
        """The largest k that counts for each ranking, from 1 to `most`: (B, m) → (B,)."""

    def counted(self, order: Tensor) -> Tensor:
        """(B, most) bool: whether T_k counts, k = 1, 2, …, for each ranking."""
        k = torch.arange(1, self.most(order.shape[1]) + 1, device=order.device)
        return k <= self.longest(order)[:, None]

    def bottom_logit(self, logits: Tensor, margins: Tensor, epsilon: float | Tensor) -> Tensor:
        """y_⊥ = min over T that count of max_{j∈T, i∉T} (y_i + ε·K_ji + max y − y_j): (B, m), (m, m) → (B,).

        max y > y_⊥ ⇔ all of some T that counts lead all others i by more than ε·K_ji. Differentiable; for
        training in the place of `margins.bottom_logit`, which it is for `Top(1)`, bit for bit.

        >>> logits, margins = torch.tensor([[3.0, 2.75, 0.0]]), torch.ones(3, 3)
        >>> Top(1).bottom_logit(logits, margins, 1.0), Top(2).bottom_logit(logits, margins, 1.0)
        (tensor([3.7500]), tensor([1.2500]))
        """
        order = ranking(logits)
        first = logits.gather(1, order[:, :1])

        def below_bottom(label: Tensor) -> Tensor:
            lift = first - logits.gather(1, label[:, None])
            return -(logits + epsilon * margins.index_select(0, label) + lift)

        counted = self.counted(order)
        spared = least_across(order, counted.shape[1], below_bottom)
        return -spared.masked_fill(~counted, -math.inf).amax(1)


@dataclass(frozen=True)
class Top(Relaxation):
    """Relaxed top-K: any T_k with k ≤ K counts.

    >>> Top(2).longest(torch.tensor([[4, 9, 1, 3]]))
    tensor([2])
    """

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise ConfigError(f"top must be a whole number of at least 1, not {self.k!r}.")

    def most(self, classes: int) -> int:
        if self.k >= classes:
            raise ConfigError(
                f"top must be below the number of classes, {classes}, not {self.k}: all classes together say nothing."
            )
        return self.k

    def longest(self, order: Tensor) -> Tensor:
        return torch.full_like(order[:, 0], self.most(order.shape[1]))


@dataclass(frozen=True, init=False)
class Affinity(Relaxation):
    """T_k counts when one of the sets holds all of it; a single class always does.

    >>> Affinity([{0, 2}, {1, 3}]).longest(torch.tensor([[0, 2, 3, 1], [3, 2, 1, 0]]))
    tensor([2, 1])
    """

    sets: tuple[tuple[int, ...], ...]

    def __init__(self, sets: Iterable[Iterable[int]]) -> None:
        try:
            kept = tuple(tuple(sorted(set(members))) for members in sets)
        except TypeError:
            raise ConfigError(f"affinity takes sets of classes, such as [{{3, 5}}, {{4, 9}}], not {sets!r}.") from None
        for c in (c for members in kept for c in members):
            if not isinstance(c, int) or isinstance(c, bool) or c < 0:
                raise ConfigError(f"affinity sets hold classes by index, 0, 1, …, not {c!r}.")
        if not all(kept):
            raise ConfigError("an affinity set without a class allows nothing; leave it out.")
        object.__setattr__(self, "sets", kept)

    def most(self, classes: int) -> int:
        beyond = sorted(c for members in self.sets for c in members if c >= classes)
        if beyond:
            raise ConfigError(f"affinity sets name class {beyond[0]}; the {classes} classes are 0 to {classes - 1}.")
        return min(max(map(len, self.sets), default=1), classes - 1)

    def longest(self, order: Tensor) -> Tensor:
        most = self.most(order.shape[1])
        result = torch.ones_like(order[:, 0])
        for members in self.sets:
            inside = torch.isin(order[:, :most], torch.tensor(members, device=order.device))
            result = torch.maximum(result, inside.long().cumprod(1).sum(1))
        return result


def ranking(logits: Tensor) -> Tensor:
    """(B, m): the classes by their logits, the largest first, and of equals the first index: T_k is its first k.

    >>> ranking(torch.tensor([[1.0, 3.0, 3.0]]))
    tensor([[1, 2, 0]])
    """
    return logits.sort(dim=1, descending=True, stable=True).indices


def least_across(order: Tensor, most: int, value: Callable[[Tensor], Tensor]) -> Tensor:
    """(B, most): for T_1, T_2, … the least value(j)_i of any j inside and any i outside.

    `value` takes a class for each sample, (B,), and answers (B, m).
    """
    outside = torch.ones_like(order, dtype=torch.bool)
    least, found = None, []
    for label in order[:, :most].unbind(1):
        new = value(label)
        least = new if least is None else torch.minimum(least, new)
        outside = outside.scatter(1, label[:, None], False)
        found.append(least.masked_fill(~outside, math.inf).amin(1))
    return torch.stack(found, 1)
