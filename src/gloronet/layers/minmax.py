"""MinMax: an activation that only reorders its inputs, so its Jacobian is orthogonal and norms survive."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gloronet import operators
from gloronet.errors import ConfigError
from gloronet.operators import rule


class MinMax(nn.Module):
    """Splits dimension 1 into halves a and b and returns (max(a, b), min(a, b)).

    The output is a permutation of the input: ‖MinMax(x)‖ = ‖x‖, and the Lipschitz constant is 1 in every
    ℓp norm.

    >>> MinMax()(torch.tensor([[1.0, 5.0, 3.0, 4.0]]))
    tensor([[3., 5., 1., 4.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] % 2:
            raise ConfigError(
                f"MinMax pairs the two halves of dimension 1, whose size must be even; "
                f"the input has shape {tuple(x.shape)}. Use an even number of channels or units."
            )
        a, b = x.chunk(2, dim=1)
        return torch.cat((torch.maximum(a, b), torch.minimum(a, b)), dim=1)


@rule(MinMax)
def _(module: MinMax, input_shape: tuple[int, ...], norm: str) -> operators.MinMax:
    return operators.MinMax(input_shape)
