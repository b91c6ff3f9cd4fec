"""Householder: an activation that reflects pairs of channels at a learned line, so norms survive."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gloronet import operators
from gloronet.errors import ConfigError
from gloronet.operators import rule
from gloronet.operators.pointwise import householder


class Householder(nn.Module):
    """Pairs (a, b) of the halves of dimension 1: kept where a·sin(θ/2) > b·cos(θ/2), else reflected there.

    One angle θ a pair, learned. It starts at π/2, where the layer is MinMax. The Lipschitz constant is 1
    in ℓ2 and √2 in ℓ∞.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 2 or channels % 2:
            raise ConfigError(f"Householder needs an even number of channels, not {channels!r}.")
        self.theta = nn.Parameter(torch.full((channels // 2,), math.pi / 2))

    def extra_repr(self) -> str:
        return f"{2 * len(self.theta)}"

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] != 2 * len(self.theta):
            raise ConfigError(
                f"Householder holds {len(self.theta)} angles, so dimension 1 must have size "
                f"{2 * len(self.theta)}; the input has shape {tuple(x.shape)}."
            )
        return householder(x, self.theta)


@rule(Householder)
def _(module: Householder, input_shape: tuple[int, ...], norm: str) -> operators.Householder:
    return operators.Householder(input_shape, module.theta)
