"""Padding that wraps around, and convolutions on a circle.

Padding is given as (top, bottom, left, right), or (left, right) for one dimension. Read along one axis,
output o of a circular convolution sees Σ_r w_r·x[(o·s + r·d − before) mod n]. If s | n and there are at
most n/s outputs, they are rows of the full circular operator of stride s, whose norm is the largest of
its polyphase symbols at N = n exactly (shifting by `before` is a permutation of the input).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gloronet.operators.base import Shape
from gloronet.operators.norms import dense_bound
from gloronet.operators.rounding import gamma, norm_up, product, root, total
from gloronet.operators.symbols import symbol_bound

LARGEST_SIDE = 2048
"""Rows or columns, the fewer, of a circular operator that is bounded as a dense matrix."""


def wrap(x: Tensor, padding: Sequence[int]) -> Tensor:
    """Copies of the far side around each image of a batch."""
    return F.pad(x, innermost_first(padding), mode="circular") if any(padding) else x


def unwrap(y: Tensor, padding: Sequence[int]) -> Tensor:
    """The adjoint of `wrap`: what lies outside is added to where it was copied from."""
    axes = len(padding) // 2
    for axis in range(axes):
        before, after = padding[2 * axis : 2 * axis + 2]
        dim = y.dim() - axes + axis
        n = y.shape[dim] - before - after
        inner = y.narrow(dim, before, n).clone()
        inner.narrow(dim, n - before, before).add_(y.narrow(dim, 0, before))
        inner.narrow(dim, 0, after).add_(y.narrow(dim, before + n, after))
        y = inner
    return y


def replication(size: Sequence[int], padding: Sequence[int]) -> int:
    """How often the most copied pixel appears: Π⌈(n + before + after)/n⌉ over the axes.

    >>> replication((4, 4), (1, 1, 0, 0)), replication((4,), (4, 4))
    (2, 3)
    """
    most = 1
    for axis, n in enumerate(size):
        most *= -(-(n + sum(padding[2 * axis : 2 * axis + 2])) // n)
    return most


def circle_bound(kernel: Tensor, size: Shape, outputs: Shape, stride: Shape, dilation: Shape) -> float | None:
    """Returns s with ‖A‖₂ ≤ s by symbols at N = n, or None where the outputs do not fit the circle."""
    if any(n % s or out * s > n for n, out, s in zip(size, outputs, stride, strict=True)):
        return None
    return symbol_bound(kernel, size, stride, (0, 0, 0, 0), dilation)  # without padding N is n


def matrix_bound(
    kernel: Tensor, size: Shape, outputs: Shape, stride: Shape, padding: Shape, dilation: Shape
) -> float | None:
    """Returns s with ‖A‖₂ ≤ s from the matrix itself, or None where that is too large."""
    d, c, kh, kw = kernel.shape
    (h, w), (p, q) = size, outputs
    if min(c * h * w, d * p * q) > LARGEST_SIDE or c * h * w * d * p * q > LARGEST_SIDE**2 * 4:
        return None
    matrix = kernel.new_zeros(d, p, q, c, h, w)
    rows, columns = (torch.arange(n, device=kernel.device) for n in (p, q))
    for r in range(kh):
        i = (rows * stride[0] + r * dilation[0] - padding[0]) % h
        for k in range(kw):
            j = (columns * stride[1] + k * dilation[1] - padding[2]) % w
            place = (slice(None), rows[:, None], columns[None, :], slice(None), i[:, None], j[None, :])
            matrix[place] += kernel[:, :, r, k]
    # Taps that meet on one pixel are added: |ΔA| ≤ γ·Σ|taps|, at most the kernel once an output.
    slip = product(gamma(kh * kw), norm_up(kernel), root(float(kh * kw * p * q)))
    return total(dense_bound(matrix.reshape(d * p * q, c * h * w)), slip)


def innermost_first(padding: Sequence[int]) -> list[int]:
    """The order F.pad wants: the last dimension's pair first."""
    pairs = [list(padding[k : k + 2]) for k in range(0, len(padding), 2)]
    return [n for pair in reversed(pairs) for n in pair]
