"""Standardize: input standardisation as a layer, so that radii stay in units of the raw input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gloronet.errors import ConfigError


class Standardize(nn.Module):
    """(x − mean) / std, with one number for everything or one for each channel of (C, H, W) or entry of (d,).

    Its Lipschitz constant is 1/min(std), in ℓ2 and in ℓ∞.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", _shaped("mean", mean))
        self.register_buffer("std", _shaped("std", std))
        if self.mean.shape != self.std.shape:
            raise ConfigError("Standardize needs as many means as standard deviations.")
        if not bool((self.std > 0).all()):
            raise ConfigError(f"Standardize needs standard deviations above 0, not {std!r}.")

    def forward(self, x: Tensor) -> Tensor:
        mean, std = self.mean, self.std
        if mean.dim() and (x.dim() not in (2, 4) or x.shape[1] != len(mean)):
            raise ConfigError(
                f"Standardize holds {len(mean)} channels, so its input must have shape "
                f"(batch, {len(mean)}, height, width) or (batch, {len(mean)}), not {tuple(x.shape)}."
            )
        if x.dim() == 2:
            mean, std = mean.flatten(), std.flatten()
        return (x - mean) / std


def _shaped(name: str, value: float | Sequence[float]) -> Tensor:
    tensor = torch.as_tensor(value, dtype=torch.float32)
    if tensor.dim() > 1 or not bool(tensor.isfinite().all()):
        raise ConfigError(f"Standardize needs a finite {name}, one number or one a channel, not {value!r}.")
    return tensor.reshape(-1, 1, 1) if tensor.dim() else tensor
