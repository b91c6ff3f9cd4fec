"""Muon: momentum whose step is made orthogonal, so that every layer's spectral norm changes by the learning rate.

For a matrix M of momentum with singular value decomposition UΣVᵀ the step is −lr·UVᵀ, reached without the
decomposition by five Newton–Schulz iterations (Jordan et al., 2024). Adam's step, entry by entry of size lr,
has a spectral norm up to lr·√(rows·columns): large for a dense layer, small for a first convolution.

Such steps let every singular value grow, and the gradient of the norm, of rank one, is no stronger in them than
any other direction. So a hidden layer's W is pulled back to the orthogonal matrices after each step,
W ← W + p·(W − W Wᵀ W), which moves its singular values towards 1. What it brings: docs/performance.md.

Biases and other vectors, which have no spectral norm, take Adam's step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

PULL = 0.1
"""p above, and less where the layer is so large that the step would overshoot."""
SMALL = 128
"""Matrices whose smaller side is at most this go through the iteration together, padded by zeros."""
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the odd quintic that drives singular values from (0, 1] towards 1; five times it leaves them in 0.7…1.2."""
VECTORS = 0.05
"""The learning rate of vectors, as a share of that of matrices."""


class Muon(torch.optim.Optimizer):
    """Muon for parameters of two dimensions or more, seen as matrices (first dimension, rest); Adam for vectors.

    Those among `hidden` are pulled to the orthogonal matrices. `lr` may be a tensor on the device; nothing here
    waits for it, so a CUDA graph can hold a step.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Tensor,
        hidden: Iterable[Tensor] = (),
        momentum: float = 0.9,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum})
        self._hidden = {id(p) for p in hidden}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            trained = [p for p in group["params"] if p.grad is not None]
            self._turn([p for p in trained if p.dim() > 1], group)
            self._adapt([p for p in trained if p.dim() <= 1], group)

    def _turn(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        if not matrices:
            return
        momenta = [self._kept(p, "momentum") for p in matrices]
        torch._foreach_lerp_(momenta, _gradients(matrices), 1 - group["momentum"])
        ahead = torch._foreach_lerp(_gradients(matrices), momenta, group["momentum"])  # Nesterov's
        for where in _together(matrices):
            turned = orthogonal(_stacked([ahead[k] for k in where]))
            for k, step in zip(where, turned, strict=True):
                m, n = _sides(matrices[k])
                rate = -group["lr"] * max(1.0, m / n) ** 0.5
                matrices[k].add_((step[:m, :n] * rate).view(matrices[k].shape))
        hidden = [p for p in matrices if id(p) in self._hidden]
        for where in _together(hidden):
            for k, step in zip(where, pulled(_stacked([hidden[k] for k in where])), strict=True):
                m, n = _sides(hidden[k])
                hidden[k].add_(step[:m, :n].view(hidden[k].shape))

    def _adapt(self, vectors: list[Tensor], group: dict[str, Any]) -> None:
        if not vectors:
            return
        count = self._kept(vectors[0], "count", torch.zeros((), device=vectors[0].device)).add_(1)
        first, second = ([self._kept(p, name) for p in vectors] for name in ("mean", "square"))
        gradients = _gradients(vectors)
        torch._foreach_lerp_(first, gradients, 0.1)
        torch._foreach_mul_(second, 0.999)
        torch._foreach_addcmul_(second, gradients, gradients, 0.001)
        size = torch._foreach_sqrt(torch._foreach_div(second, 1 - 0.999**count))
        torch._foreach_add_(size, 1e-7)
        rate = -VECTORS * group["lr"] / (1 - 0.9**count)
        torch._foreach_add_(vectors, torch._foreach_mul(torch._foreach_div(first, size), rate))

    def _kept(self, p: Tensor, name: str, start: Tensor | None = None) -> Tensor:
        if name not in self.state[p]:
            self.state[p][name] = torch.zeros_like(p) if start is None else start
        return self.state[p][name]


def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """(B, m, n) → UVᵀ of each, roughly: singular values between 0.7 and 1.2, in the matrices' own precision.

    >>> torch.linalg.svdvals(orthogonal(torch.tensor([[[3.0, 0.0], [0.0, 0.5]]])))[0] > 0.6
    tensor([True, True])
    """
    a, b, c = COEFFICIENTS
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp_min(1e-20)
    if x.is_cuda:
        x = x.bfloat16()  # the iteration forgives rounding: it only has to end near the orthogonal matrices
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(matrices.dtype)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


def pulled(matrices: Tensor) -> Tensor:
    """(B, m, n) → p·(W − W Wᵀ W) of each: towards the nearest orthogonal matrix, without passing it by far.

    p is at most 1/‖W Wᵀ‖_∞ ≤ 1/σ²: a singular value of any size comes nearer to 1, and none changes its sign.
    """
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    gram = wide @ wide.mT
    size = gram.abs().sum(dim=2).amax(dim=1)
    step = (1 / size.clamp_min(1 / PULL))[:, None, None] * (wide - gram @ wide)
    return step.mT if matrices.shape[1] > matrices.shape[2] else step


def _gradients(parameters: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in parameters if p.grad is not None]


def _together(matrices: list[Tensor]) -> list[list[int]]:
    """Which of the matrices are made orthogonal at once: the small ones, and large ones of equal size."""
    groups: dict[tuple[int, int], list[int]] = {}
    for k, matrix in enumerate(matrices):
        m, n = _sides(matrix)
        groups.setdefault((m <= n, 0) if min(m, n) <= SMALL else (m, n), []).append(k)
    return list(groups.values())


def _sides(tensor: Tensor) -> tuple[int, int]:
    return len(tensor), tensor[0].numel()


def _stacked(tensors: list[Tensor]) -> Tensor:
    """As matrices of one size, padded by zeros: these stay zero in what follows, and change nothing else."""
    rows, columns = (max(sides) for sides in zip(*map(_sides, tensors), strict=True))
    return torch.stack([pad(t.flatten(1), (0, columns - t[0].numel(), 0, rows - len(t))) for t in tensors])
