"""Program → K from below: fast, differentiable, for training only. Nothing here certifies."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gloronet.operators.base import LinearOperator, Operator
from gloronet.program.bound import head, steps
from gloronet.program.program import INPUT, Program

Job = Callable[[], Tensor]
Spread = Callable[[Sequence[Job]], list[Tensor]]


def estimate(program: Program, iterates: dict[str, Tensor], iterations: int, norm: str) -> tuple[Any, Tensor]:
    """(K, W): K up to the last hidden layer from below, differentiable; W the head's weight."""
    tensors = program.live()
    operators = [op.operator(tensors) for op in program.ops]
    return _constant(program, operators, iterates, iterations, norm), _head_weight(program, tensors)


def in_turn(jobs: Sequence[Job]) -> list[Tensor]:
    """What the jobs answer, one after the other."""
    return [job() for job in jobs]


def advance(
    program: Program, iterates: dict[str, Tensor], iterations: int, norm: str, spread: Spread = in_turn
) -> dict[str, Tensor]:
    """The iterates after so many steps of power iteration; ℓ∞ needs none.

    No layer waits for another: `spread` does them all, in any order or at once.
    """
    if norm == "linf" or iterations <= 0:
        return iterates
    jobs = {
        op.output: functools.partial(operator.advance, iterates[op.output], iterations)
        for op, operator in steps(program, program.operators())
        if isinstance(operator, LinearOperator) and op.output in iterates
    }
    return dict(zip(jobs, spread(list(jobs.values())), strict=True))


@torch.no_grad()
def settle(
    program: Program, iterates: dict[str, Tensor], tolerance: float, most: int, norm: str
) -> tuple[dict[str, Tensor], int]:
    """The iterates once no step changes their σ by more than tolerance·σ, and the most steps one of them took.

    Each goes its own way, for `most` steps at the longest. σ that stands can still be far below the norm: it
    is an estimate like any other.
    """
    settled, longest = dict(iterates), 0
    for op, operator in steps(program, program.operators()):
        if norm == "linf" or not isinstance(operator, LinearOperator) or op.output not in iterates:
            continue
        u, before = iterates[op.output], math.inf
        for count in range(1, most + 1):
            sigma, moved = operator.estimate(u, 1, norm)
            assert moved is not None
            u, before, change = moved, float(sigma), abs(float(sigma) - before)
            longest = max(longest, count)
            if change <= tolerance * before:
                break
        settled[op.output] = u
    return settled, longest


class SplitEstimate:
    """K for one step of training, with its derivative taken apart from the loss's, so that neither waits.

    The loss sees K as one number. While its backward pass runs, `differentiate` takes dK/dW, and with it
    dK/du, which for K = ‖Au‖·… is AᵀAu up to a factor: the next power iterate, for free. `add_gradients`
    then completes the chain rule, dL/dW += dL/dK·dK/dW.
    """

    def __init__(self, program: Program, iterates: dict[str, Tensor], norm: str) -> None:
        self._program, self._iterates, self._norm = program, iterates, norm
        self._live = program.live()
        # A view of its own: what flows back to the weight from here passes this stream first.
        self.weight = _head_weight(program, self._live).view_as(_head_weight(program, self._live))
        self._gradients: dict[str, Tensor] = {}

    def constant(self) -> Any:
        """K, a number that gathers the loss's gradient; with the iterates as they stand."""
        self._leaves = {n: t.detach().requires_grad_(t.requires_grad) for n, t in self._live.items()}
        self._starts = {n: u.detach().requires_grad_() for n, u in self._iterates.items()}
        with torch.enable_grad():
            operators = [op.operator(self._leaves) for op in self._program.ops]
            self._value = _constant(self._program, operators, self._starts, 0, self._norm)
        self._seen = self._value
        if isinstance(self._value, Tensor):
            self._seen = self._value.detach().requires_grad_(self._value.requires_grad)
        return self._seen

    def differentiate(self, iterations: int, spread: Spread = in_turn) -> None:
        """Takes dK/dW, and moves the kept iterates on by so many power iterations, by `spread` as in `advance`."""
        if not isinstance(self._value, Tensor) or not self._value.requires_grad:
            return
        weights = {n: leaf for n, leaf in self._leaves.items() if leaf.requires_grad}
        moved = self._starts if iterations else {}
        found = iter(torch.autograd.grad(self._value, [*weights.values(), *moved.values()], allow_unused=True))
        # Laid out as the weights are: adding them is then one kernel, at the end, where the step waits for it.
        for (name, weight), gradient in zip(weights.items(), found, strict=False):
            if gradient is not None:
                alike = gradient.stride() == weight.stride()
                self._gradients[name] = gradient if alike else torch.empty_like(weight).copy_(gradient)
        directions = {n: g for n, g in zip(moved, found, strict=True) if g is not None}
        if directions:
            self._move(directions, iterations - 1, spread)

    @torch.no_grad()
    def _move(self, directions: dict[str, Tensor], iterations: int, spread: Spread) -> None:
        """The iterates become these directions, scaled to 1, and then go on; one of size 0 stays as it is."""
        sizes = torch._foreach_norm(list(directions.values()))
        after = {
            name: torch.where(size > 0, direction / size, self._iterates[name])
            for (name, direction), size in zip(directions.items(), sizes, strict=True)
        }
        after = advance(self._program, after, iterations, self._norm, spread)
        torch._foreach_copy_([self._iterates[name] for name in after], list(after.values()))

    def add_gradients(self) -> None:
        """Adds dL/dK·dK/dW to the gradients of the parameters, after the loss's backward pass."""
        if not self._gradients or self._seen.grad is None:
            return
        parts = torch._foreach_mul(list(self._gradients.values()), self._seen.grad)
        tensors = [self._live[name] for name in self._gradients]
        gathered, added, others, theirs = [], [], [], []
        for tensor, part in zip(tensors, parts, strict=True):
            if tensor.is_leaf and tensor.grad is not None:
                gathered.append(tensor.grad)
                added.append(part)
            else:  # through a parametrisation
                others.append(tensor)
                theirs.append(part)
        if gathered:
            torch._foreach_add_(gathered, added)
        if others:
            torch.autograd.backward(others, theirs)


def _constant(
    program: Program, operators: Sequence[Operator], iterates: dict[str, Tensor], iterations: int, norm: str
) -> Any:
    constants: dict[str, Any] = {INPUT: 1.0}
    for op, operator in steps(program, operators):
        sigma, _ = operator.estimate(iterates.get(op.output), iterations, norm)
        constants[op.output] = operator.combine([constants[name] for name in op.inputs], norm) * sigma
    return constants[head(program).inputs[0]]


def _head_weight(program: Program, tensors: dict[str, Tensor]) -> Tensor:
    return tensors[head(program).tensors["weight"]]
