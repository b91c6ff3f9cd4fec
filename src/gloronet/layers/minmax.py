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
        if torch.is_grad_enabled() and (x.is_cuda or torch.compiler.is_compiling()):
            return _Exchange.apply(x)
        return _exchange(*x.chunk(2, dim=1))


class _Exchange(torch.autograd.Function):
    """The same for training on a GPU, which waits for memory: backward by one bit a pair, whether it was exchanged.

    torch's own backward reads the input once more, and under the compiler loses its layout: each gradient is then
    copied before the convolution can use it. (At a tie the derivative is that of "not exchanged"; torch's own
    would take the mean of both.)
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        ctx.save_for_backward(a < b)
        if torch.compiler.is_compiling():
            return _exchange(a, b)
        y = torch.empty_like(x)
        high, low = y.chunk(2, dim=1)
        torch.maximum(a, b, out=high)
        torch.minimum(a, b, out=low)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        (exchanged,) = ctx.saved_tensors
        high, low = gradient.chunk(2, dim=1)
        if torch.compiler.is_compiling() or torch.is_grad_enabled():  # a derivative of this derivative is wanted
            return torch.cat((torch.where(exchanged, low, high), torch.where(exchanged, high, low)), dim=1)
        result = torch.empty_like(gradient)
        a, b = result.chunk(2, dim=1)
        torch.where(exchanged, low, high, out=a)
        torch.where(exchanged, high, low, out=b)
        return result


def _exchange(a: Tensor, b: Tensor) -> Tensor:
    return torch.cat((torch.maximum(a, b), torch.minimum(a, b)), dim=1)


@rule(MinMax)
def _(module: MinMax, input_shape: tuple[int, ...], norm: str) -> operators.MinMax:
    return operators.MinMax(input_shape)
