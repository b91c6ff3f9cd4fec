"""What a case is: a test whose docstring tells its story and that returns two answers, naive and ours.

Both answers, with the numbers in them, stand on docs/soundness.md: a case that passes has also been compared
with its row there. `python -m tests.soundness.page` writes the page anew.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from tests.soundness import naive
from torch import Tensor, nn

import gloronet as gn

PAGE = Path(__file__).parent.parent.parent / "docs" / "soundness.md"
AGAIN = "docs/soundness.md says otherwise; write it anew with python -m tests.soundness.page"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


class Answers(NamedTuple):
    naive: str
    gloronet: str


class Case(NamedTuple):
    """One row of the page."""

    name: str
    run: Callable[[], Answers]

    def row(self) -> str:
        """Runs the case; its story is its docstring."""
        story = " ".join((inspect.getdoc(self.run) or "").split())
        return f"| {self.name} | {story} | {' | '.join(self.run())} |"


def case(name: str) -> Callable[[Callable[[], Answers]], Callable[[], None]]:
    """Makes a test of a case: it runs, and what it answers is what the page says."""

    def make(run: Callable[[], Answers]) -> Callable[[], None]:
        mine = Case(name, run)

        @functools.wraps(run)
        def test() -> None:
            here = mine.row()
            rows = PAGE.read_text(encoding="utf-8").splitlines()
            (there,) = [line for line in rows if line.startswith(f"| {name} |")] or [AGAIN]
            assert NUMBER.sub("#", here) == NUMBER.sub("#", there), AGAIN
            # Another processor rounds otherwise; what the page says must still be so.
            for a, b in zip(NUMBER.findall(here), NUMBER.findall(there), strict=True):
                assert float(a) == pytest.approx(float(b), rel=0.01), AGAIN

        test.case = mine  # type: ignore[attr-defined]
        return test

    return make


def number(value: float | Tensor) -> str:
    """Four digits: enough to see what is wrong, few enough to be the same on every processor."""
    return f"{float(value):.4g}"


# Networks, built from the numbers that make the trap


def linear(weight: object, bias: object = None, dtype: torch.dtype = torch.float64) -> nn.Linear:
    rows = torch.as_tensor(weight, dtype=dtype)
    layer = nn.Linear(rows.shape[1], rows.shape[0], bias=bias is not None).to(dtype)
    with torch.no_grad():
        layer.weight.copy_(rows)
        if bias is not None:
            layer.bias.copy_(torch.as_tensor(bias, dtype=dtype))
    return layer


def conv(kernel: object, **settings: Any) -> nn.Conv2d:
    """A convolution of one channel, without bias, by a kernel (h, w)."""
    weight = torch.as_tensor(kernel, dtype=torch.float64)
    layer = nn.Conv2d(1, 1, tuple(weight.shape), bias=False, dtype=torch.float64, **settings)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def at(*values: float) -> Tensor:
    """One input with these entries."""
    return torch.tensor([values], dtype=torch.float64)


X, ACROSS = at(0.9, 0.1), at(0.49, 0.51)
"""On either side of x₀ = x₁, which is 0.8/√2 = 0.5657 away from X."""


def certified(
    module: nn.Module, shape: tuple[int, ...], epsilon: float | str = 0.1, **kind: str
) -> gn.GloRoNet:
    return gn.GloRoNet(module, epsilon, shape, **kind).eval()


# What is true


def disproof(module: nn.Module, x: Tensor, point: Tensor, radius: float) -> str:
    """The words for a point that disproves a certificate: nearer to x than the radius, and answered
    otherwise."""
    pairs = zip(point.flatten().tolist(), x.flatten().tolist(), strict=True)
    square = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs)
    assert radius == float("inf") or square < Fraction(radius) ** 2
    with torch.no_grad():
        assert int(module(point).argmax(1)) != int(module(x).argmax(1))
    return f"with another label at {number(float(square) ** 0.5)}"


def claimed_radius(module: nn.Module, k: float, x: Tensor = X) -> float:
    """What somebody's constant K before a last layer of rows (1, 0) and (0, 1) makes of the logits at x."""
    return naive.radius(module(x).detach()[0], torch.full((2, 2), k * 2**0.5))


def jacobian(module: nn.Module, x: Tensor) -> Tensor:
    """The matrix of a module at one input (a batch of one), in float64."""
    j = torch.autograd.functional.jacobian(module.double(), x.double())
    return j.reshape(-1, x.numel())


def spectral(matrix: Tensor) -> float:
    return float(torch.linalg.matrix_norm(matrix.double(), 2))
