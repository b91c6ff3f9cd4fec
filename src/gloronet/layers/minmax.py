"""MinMax: an activation that only reorders its inputs, so its Jacobian is orthogonal and norms survive."""

from __future__ import annotations

from typing import Any

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
        if x.is_cuda and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _Exchange.apply(x)
        a, b = x.chunk(2, dim=1)
        return torch.cat((torch.maximum(a, b), torch.minimum(a, b)), dim=1)


class _Exchange(torch.autograd.Function):
    """The same with a third of the memory traffic, which is what a GPU waits for.

    Written into place, and backward by the one bit a pair that says whether it was exchanged. (At a tie the
    derivative is that of "not exchanged"; torch's own would take the mean of both.)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        y = torch.empty_like(x)
        high, low = y.chunk(2, dim=1)
        torch.maximum(a, b, out=high)
        torch.minimum(a, b, out=low)
        ctx.save_for_backward(a < b)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        (exchanged,) = ctx.saved_tensors
        high, low = gradient.chunk(2, dim=1)
        if torch.is_grad_enabled():  # a derivative of this derivative is wanted
            return torch.cat((torch.where(exchanged, low, high), torch.where(exchanged, high, low)), dim=1)
        result = torch.empty_like(gradient)
        a, b = result.chunk(2, dim=1)
        torch.where(exchanged, low, high, out=a)
        torch.where(exchanged, high, low, out=b)
        return result


@rule(MinMax)
def _(module: MinMax, input_shape: tuple[int, ...], norm: str) -> operators.MinMax:
    return operators.MinMax(input_shape)
