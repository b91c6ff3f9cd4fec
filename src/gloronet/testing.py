"""For a rule of your own: does the constant you vouch for survive an honest attempt to break it?"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gloronet.operators.base import Operator
from gloronet.operators.rules import MODULE_RULES
from gloronet.program import trace


@dataclass(frozen=True)
class Found:
    """The constant a rule claims, and the largest ratio ‖f(x) − f(y)‖/‖x − y‖ that was found."""

    constant: float
    ratio: float


def check_rule(module: nn.Module, input_shape: tuple[int, ...], norm: str = "l2", steps: int = 200) -> Found:
    """Puts a module's rule through the laws; an AssertionError says which one it breaks.

    Far pairs, near pairs and pairs moved by gradient ascent on the ratio, at several scales, in float64; what
    the rule says of shapes and values against the module itself. Surviving proves nothing: the proof is yours.

    >>> check_rule(nn.ReLU(), (3,)).ratio <= 1.0
    True
    """
    module = copy.deepcopy(module).double().eval()
    constant = _constant(module, tuple(input_shape), norm)
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for scale in (1e-3, 1.0, 1e3):
        x = torch.randn(64, *input_shape, generator=generator, dtype=torch.float64) * scale
        for gap in (1e-4, 1.0):
            y = x + gap * scale * torch.randn(x.shape, generator=generator, dtype=torch.float64)
            largest = max(largest, _climb(module, x, y, norm, scale, steps))
    assert largest <= constant * (1 + 1e-6), (
        f"The rule for {type(module).__name__} claims K = {constant:g} in {norm}, "
        f"but two inputs were found whose outputs are {largest:g} times as far apart."
    )
    return Found(constant, largest)


def _constant(module: nn.Module, input_shape: tuple[int, ...], norm: str) -> float:
    registered = MODULE_RULES.get(type(module))
    if registered is not None:
        answer = registered.rule(module, input_shape, norm)
        value = answer.bound(norm).value if isinstance(answer, Operator) else float(answer)
    else:
        operators = trace(module, input_shape).freeze().operators
        value = 1.0
        for operator in operators:
            value *= operator.bound(norm).value
    x = torch.rand(3, *input_shape, dtype=torch.float64)
    alone = torch.cat([module(part) for part in x.split(1)])
    assert torch.allclose(module(x), alone, rtol=1e-12, atol=1e-12), "The module mixes the samples of a batch."
    return value


def _climb(module: nn.Module, x: Tensor, y: Tensor, norm: str, scale: float, steps: int) -> float:
    """The largest ratio on the way up from these pairs."""
    points = torch.stack([x, y]).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.05 * scale)
    best = 0.0
    for _ in range(steps):
        apart = _size(points[0] - points[1], norm)
        ratio = _size(module(points[0]) - module(points[1]), norm) / apart
        ratio = torch.where(apart > 1e-6 * scale, ratio, 0.0)  # nearer, and the quotient is rounding noise
        best = max(best, float(ratio.detach().max()))
        optimizer.zero_grad()
        (-ratio.clamp_min(1e-12).log().sum()).backward()
        optimizer.step()
    return best


def _size(x: Tensor, norm: str) -> Tensor:
    flat = x.flatten(1)
    return flat.norm(dim=1) if norm == "l2" else flat.abs().amax(1)
