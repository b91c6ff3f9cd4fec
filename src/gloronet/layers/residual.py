"""Residual: a branch added to its own input."""

from __future__ import annotations

from torch import Tensor, nn

from gloronet.errors import ConfigError


class Residual(nn.Module):
    """x + inner(x). With a linear inner map W this is the one operator I + W."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        branch = self.inner(x)
        if branch.shape != x.shape:  # broadcasting would add without a word what was never meant to be added
            raise ConfigError(
                f"Residual adds a branch to its input, but the branch turned shape {tuple(x.shape)} into "
                f"{tuple(branch.shape)}. Make the inner module keep the shape."
            )
        return x + branch
