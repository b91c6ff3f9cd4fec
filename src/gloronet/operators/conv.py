"""Convolutions as they are executed: real size, stride, dilation, groups, zero padding on each side.

The bound is the smaller of two that both hold: polyphase symbols (always available), and where the
predicted work fits a budget a checked Cholesky of the exact finite operator, whose Gram matrix is
block-banded by image rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gloronet.operators import columns
from gloronet.operators.base import Arithmetic, LinearOperator, Proved, Shape
from gloronet.operators.circular import circle_bound, matrix_bound, replication, unwrap, wrap
from gloronet.operators.norms import BandedGram, gram_bound, mirrored
from gloronet.operators.rounding import (
    TINY,
    U64,
    gamma,
    ldexp,
    norm_up,
    norms_up,
    product,
    root,
    scale_exponent,
    scaled,
    total,
    up,
)
from gloronet.operators.symbols import symbol_bound

BUDGET = 1.0e12
"""Floating-point operations one exact bound may cost: about twenty seconds on two cores."""


@dataclass(frozen=True, eq=False)
class Conv2d(LinearOperator):
    """x ↦ W∗x + b, or with `skip` x ↦ x + W∗x + b as one operator of norm ‖I + W‖."""

    rule: ClassVar[str] = "conv2d"

    weight: Tensor
    bias: Tensor | None = None
    stride: Shape = (1, 1)
    padding: Shape = (0, 0, 0, 0)
    """Zeros at (top, bottom, left, right); with `circular` the image wraps around instead."""
    dilation: Shape = (1, 1)
    groups: int = 1
    skip: bool = False
    circular: bool = False

    @property
    def output_shape(self) -> Shape:
        return (self.weight.shape[0], *(len(range(*axis)) for axis in self._axes()))

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return self._convolve(x, self.weight, self.bias)

    def apply(self, x: Tensor) -> Tensor:
        return self._convolve(x, self.weight, None)

    def adjoint(self, y: Tensor) -> Tensor:
        x = self._transposed(y, self.weight)
        return x + y if self.skip else x

    def bound(self, norm: str) -> Proved:
        kernel, slip = self._kernel()
        if norm == "linf":
            sums = self._sums(kernel.abs())[0]
            return Proved(total(sums, slip), "row sums")
        if self.circular:
            return self._circular_bound(kernel, slip)
        symbols = symbol_bound(kernel, self.input_shape[1:], self.stride, self.padding, self.dilation)
        best = Proved(total(symbols, slip), "polyphase symbols")
        if self._work() <= BUDGET:
            exact = Proved(total(self._exact_bound(kernel), slip), "checked Cholesky")
            best = min(best, exact)
        return best

    def row_sum(self) -> Tensor:
        ones = self.weight.new_ones(1, *self.input_shape)
        if not self.skip:
            return self._convolve(ones, self.weight.abs(), None).amax()
        kernel, _ = self._kernel(self.weight.dtype)
        return self._convolve(ones, kernel.abs(), None, plain=True).amax()

    def arithmetic(self) -> Arithmetic:
        c_in, kh, kw = self.weight.shape[1:]
        rows, columns = self._sums(self.weight.double().abs(), grouped=True)
        gain = product(root(rows), root(columns))
        h, w = self.output_shape[1:]
        bias = 0.0 if self.bias is None else up(norm_up(self.bias) * root(float(h * w)))
        return Arithmetic(c_in * kh * kw + 1 + self.skip, total(gain, 1.0 if self.skip else 0.0), bias)

    def injected(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        y = self._convolve(x.abs(), self.weight.abs(), None if self.bias is None else self.bias.abs())
        return norms_up(y.flatten(1)) * (1.0 + 2.0 * gamma(self.weight[0].numel() + 4))

    # How it is computed

    def _axes(self) -> Iterator[tuple[int, int, int]]:
        """range(...) of the first padded row read for each output row, and likewise for columns."""
        for axis in (0, 1):
            padded = self.input_shape[1 + axis] + sum(self.padding[2 * axis : 2 * axis + 2])
            reach = self.dilation[axis] * (self.weight.shape[2 + axis] - 1)
            yield 0, padded - reach, self.stride[axis]

    def _convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, plain: bool = False) -> Tensor:
        groups = 1 if plain else self.groups
        image, padding = (wrap(x, self.padding), (0, 0, 0, 0)) if self.circular else (x, self.padding)
        top, bottom, left, right = padding
        if _is_iterate(x) and groups == 1 and bias is None:
            y = columns.convolve_one(image, weight, self.stride, padding, self.dilation)
        elif x.dtype == torch.float64 and groups == 1:
            y = columns.convolve(image, weight, bias, self.stride, padding, self.dilation)
        elif top == bottom and left == right:
            y = F.conv2d(image, weight, bias, self.stride, (top, left), self.dilation, groups)
        else:
            padded = F.pad(image, (left, right, top, bottom))
            y = F.conv2d(padded, weight, bias, self.stride, 0, self.dilation, groups)
        return x + y if self.skip and not plain else y

    def _transposed(self, y: Tensor, weight: Tensor, plain: bool = False) -> Tensor:
        top, _, left, _ = self.padding
        _, h, w = self.input_shape
        # Rows at the end that no window reaches come back as output padding.
        unread = [(end - 1) % step for _, end, step in self._axes()]
        groups = 1 if plain else self.groups
        if _is_iterate(y) and groups == 1 and not self.circular:
            return columns.transpose_one(y, weight, (h, w), self.stride, self.padding, self.dilation)
        x = F.conv_transpose2d(y, weight, None, self.stride, 0, unread, groups, self.dilation)
        return unwrap(x, self.padding) if self.circular else x[:, :, top : top + h, left : left + w]

    # How it is bounded

    def _kernel(self, dtype: torch.dtype = torch.float64) -> tuple[Tensor, float]:
        """The ungrouped kernel with `skip` folded in, and how far folding may be from exact.

        x + W∗x adds 1 to the centre tap of each channel; every rounding sits on a diagonal there.
        """
        weight = self.weight.to(dtype)
        if self.groups > 1:
            out, inner = weight.shape[0] // self.groups, weight.shape[1]
            full = weight.new_zeros(weight.shape[0], inner * self.groups, *weight.shape[2:])
            for g in range(self.groups):
                rows = slice(g * out, (g + 1) * out)
                full[rows, g * inner : (g + 1) * inner] = weight[rows]
            weight = full
        if not self.skip:
            return weight, 0.0
        row, column = self.padding[0] // self.dilation[0], self.padding[2] // self.dilation[1]
        centre = torch.zeros_like(weight)
        centre[:, :, row, column] = torch.eye(weight.shape[0], dtype=dtype, device=weight.device)
        folded = weight + centre
        return folded, up(U64 * float(folded.detach()[:, :, row, column].diagonal().abs().max()))

    def _circular_bound(self, kernel: Tensor, slip: float) -> Proved:
        """Symbols, exact where the outputs fill the circle (with `skip` they do); else the small matrix.

        Where neither fits, the norm of the padding times that of the convolution of the padded image.
        """
        size, outputs = self.input_shape[1:], self.output_shape[1:]
        full = all(n == out * s for n, out, s in zip(size, outputs, self.stride, strict=True))
        exact = (
            None if full else matrix_bound(kernel, size, outputs, self.stride, self.padding, self.dilation)
        )
        if exact is not None:
            return Proved(total(exact, slip), "checked Cholesky")
        symbols = circle_bound(kernel, size, outputs, self.stride, self.dilation)
        if symbols is not None:
            return Proved(total(symbols, slip), "circular symbols")
        (h, w), (top, bottom, left, right) = size, self.padding
        image = (kernel.shape[1], h + top + bottom, w + left + right)
        inner = Conv2d(image, kernel, None, self.stride, dilation=self.dilation).bound("l2").value
        copies = root(float(replication(size, self.padding)))
        return Proved(total(product(copies, inner), slip), "padding times convolution")

    def _sums(self, magnitude: Tensor, grouped: bool = False) -> tuple[float, float]:
        """The largest row sum and the largest column sum of |A|, rounded up."""
        ones = magnitude.new_ones(1, *self.input_shape)
        across = magnitude.new_ones(1, *self.output_shape)
        plain = not grouped
        top, bottom, left, right = self.padding
        padded = wrap(ones, self.padding) if self.circular else F.pad(ones, (left, right, top, bottom))
        rows = F.conv2d(padded, magnitude, None, self.stride, 0, self.dilation, 1 if plain else self.groups)
        columns = self._transposed(across, magnitude, plain)
        terms = 2.0 * gamma(magnitude[0].numel() + magnitude.shape[0] * magnitude[0, 0].numel() + 4)
        return up(float(rows.max()) * (1.0 + terms)), up(float(columns.max()) * (1.0 + terms))

    def _side(self) -> tuple[bool, float]:
        """Whether the Gram matrix of the outputs (AAᵀ) is the cheaper one, and what it costs."""
        (c, h, w), (d, p, q) = self.input_shape, self.output_shape
        reach = self.dilation[0] * (self.weight.shape[2] - 1)
        taps = self.weight.shape[2]
        work = {}
        for outputs, block, inner, rows, band in (
            (True, d * q, c * w, p, min(p - 1, reach // self.stride[0])),
            (False, c * w, d * q, h, min(h - 1, reach)),
        ):
            factor = rows * (1 + band) * (2 + band) * 2.0 * float(block) ** 3
            work[outputs] = factor + 2.0 * taps**2 * float(block) ** 2 * inner
        outputs = work[True] <= work[False]
        return outputs, work[outputs]

    def _work(self) -> float:
        return self._side()[1]

    def _exact_bound(self, kernel: Tensor) -> float:
        """‖A‖₂ from above by a checked Cholesky of the block-banded AAᵀ or AᵀA."""
        exponent = scale_exponent(kernel)
        if exponent is None:
            return float("inf")
        if not kernel.any():
            return 0.0
        kernel = scaled(kernel, -exponent)
        outputs, _ = self._side()
        blocks, reads = self._row_blocks(kernel, outputs)
        rows = self._gram_rows(blocks, reads)
        row_sum, column_sum = self._sums(kernel.abs())
        # An entry of the Gram matrix is a sum of at most this many products that are not zero.
        terms = kernel.shape[2] * kernel.shape[3] * max(kernel.shape[:2]) + kernel.shape[2]
        size = up(row_sum * column_sum)  # ‖|A|ᵀ|A|‖₂ ≤ ‖A‖₁‖A‖_∞
        order = float(sum(row[0].shape[0] for row in rows))
        gram = BandedGram(rows, total(up(gamma(terms) * size), up(order * terms * TINY)))
        plain = Conv2d(self.input_shape, kernel, None, self.stride, self.padding, self.dilation)
        shape = plain.output_shape if outputs else plain.input_shape

        def matvec(v: Tensor) -> Tensor:
            v = v.reshape(1, *shape)
            v = plain.apply(plain.adjoint(v)) if outputs else plain.adjoint(plain.apply(v))
            return v.reshape(-1)

        lost = up(root(float(plain.weight.numel()) * self.output_shape[1] * self.output_shape[2]) * TINY)
        return ldexp(total(root(gram_bound(gram, matvec)), lost), exponent)

    def _row_blocks(self, kernel: Tensor, outputs: bool) -> tuple[list[Tensor], list[dict[int, int]]]:
        """A as blocks: one matrix per kernel row (image row ↦ image row), and which block meets which row.

        With `outputs`, reads[o] = {input row: kernel row} for each output row o; otherwise the blocks are
        transposed and reads[i] = {output row: kernel row} for each input row i.
        """
        c, h, w = self.input_shape
        d, p, q = self.output_shape
        blocks = []
        for r in range(kernel.shape[2]):
            block = kernel.new_zeros(q, d, w, c)
            for k in range(kernel.shape[3]):
                for o in range(q):
                    i = o * self.stride[1] + k * self.dilation[1] - self.padding[2]
                    if 0 <= i < w:
                        block[o, :, i] += kernel[:, :, r, k]
            matrix = block.reshape(q * d, w * c)
            blocks.append(matrix if outputs else matrix.T.contiguous())
        reads: list[dict[int, int]] = [{} for _ in range(p if outputs else h)]
        for o in range(p):
            for r in range(kernel.shape[2]):
                i = o * self.stride[0] + r * self.dilation[0] - self.padding[0]
                if 0 <= i < h:
                    reads[o if outputs else i][i if outputs else o] = r
        return blocks, reads

    @staticmethod
    def _gram_rows(blocks: list[Tensor], reads: list[dict[int, int]]) -> list[list[Tensor]]:
        """The lower blocks of the Gram matrix; rows far from the border share theirs."""
        pairs: dict[tuple[int, int], Tensor] = {}
        known: dict[tuple[tuple[int, int], ...], Tensor] = {}
        size = blocks[0].shape[0]
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, mine in enumerate(reads):
            for k in mine:
                first.setdefault(k, i)
                last[k] = i
        # A dilated kernel leaves zero blocks inside the band: the band is its reach, not its first gap.
        band = max((last[k] - first[k] for k in first), default=0)
        rows = []
        for i, mine in enumerate(reads):
            row = []
            for j in range(i, max(0, i - band) - 1, -1):
                shared = tuple(sorted((r, reads[j][k]) for k, r in mine.items() if k in reads[j]))
                if shared not in known:
                    block = blocks[0].new_zeros(size, size)
                    for r, t in shared:
                        if (r, t) not in pairs:
                            pairs[r, t] = blocks[r] @ blocks[t].T
                        block += pairs[r, t]
                    known[shared] = mirrored(block) if i == j else block
                row.append(known[shared])
            rows.append(row)
        return rows


def _is_iterate(x: Tensor) -> bool:
    """A single image on a GPU, for which cuDNN's kernels take several times as long as a matrix product."""
    return x.is_cuda and len(x) == 1
