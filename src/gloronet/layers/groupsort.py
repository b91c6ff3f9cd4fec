"""GroupSort: sorts small groups of channels, so it only reorders its inputs."""

from __future__ import annotations

from torch import Tensor, nn

from gloronet import operators
from gloronet.errors import ConfigError
from gloronet.operators import rule
from gloronet.operators.pointwise import group_sort


class GroupSort(nn.Module):
    """Sorts each `size` neighbours along dimension 1, upwards.

    The output is a permutation of the input, and the Lipschitz constant is 1 in every ℓp norm.

    >>> import torch
    >>> GroupSort(2)(torch.tensor([[5.0, 1.0, 3.0, 4.0]]))
    tensor([[1., 5., 3., 4.]])
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        if size < 1:
            raise ConfigError(f"GroupSort sorts groups of 1 or more, not of {size!r}.")
        self.size = size

    def extra_repr(self) -> str:
        return f"{self.size}"

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() < 2 or x.shape[1] % self.size:
            raise ConfigError(
                f"GroupSort sorts groups of {self.size} along dimension 1, whose size must be a multiple; "
                f"the input has shape {tuple(x.shape)}. Use another number of channels or units."
            )
        return group_sort(x, self.size)


@rule(GroupSort)
def _(module: GroupSort, input_shape: tuple[int, ...], norm: str) -> operators.GroupSort:
    return operators.GroupSort(input_shape, module.size)
