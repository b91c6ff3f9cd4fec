"""The spectral norm of a strided, zero-padded convolution, from above, by polyphase symbols.

A convolution of stride s reads its input in s² phases; over phases it has stride 1, ⌈k/s⌉² taps and
s²·c_in channels. Embed the n×n image in a circle of N ≥ n + (larger one-sided pad), s | N: the wrap
meets only zeros, so the finite operator is a corner of the circular one, whose norm is the largest
norm of the symbols

    F(ω) = Σ_a w_a e^{iω·a}      over the DFT grid of side N/s.

At N = n the circle would alias real pixels and the value would not be an upper bound. Each F(ω) is
taken as the real matrix [[Re, −Im], [Im, Re]] of the same norm; ω and −ω share one norm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gloronet.operators.norms import SLACKS, mirrored
from gloronet.operators.rounding import (
    TINY,
    U64,
    gamma,
    ldexp,
    norm_up,
    root,
    scale_exponent,
    scaled,
    total,
    up,
)

_BATCH_ENTRIES = 2**24


def symbol_bound(
    kernel: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> float:
    """Returns s with ‖A‖₂ ≤ s, A the zero-padded convolution by `kernel` (c_out, c_in, kh, kw).

    `size` is the input's (h, w), `padding` (top, bottom, left, right).
    """
    exponent = scale_exponent(kernel)
    if exponent is None:
        return math.inf
    if not kernel.any():
        return 0.0
    kernel = scaled(kernel, -exponent)
    (top, bottom, left, right), (sh, sw) = padding, stride
    rows, phase_h, grid_h = _axis(kernel.shape[2], size[0], sh, top, bottom, dilation[0])
    cols, phase_w, grid_w = _axis(kernel.shape[3], size[1], sw, left, right, dilation[1])
    taps, offsets = _polyphase(kernel, rows, phase_h, cols, phase_w, sh, sw)
    square = _largest_square(_symbols(taps, offsets, grid_h, grid_w))
    return ldexp(total(root(square), _symbol_error(taps)), exponent)


def _axis(k: int, n: int, s: int, before: int, after: int, dilation: int) -> tuple[list[int], list[int], int]:
    """Each tap's step in the phase grid, its phase, and the grid's side N/s."""
    shifts = [r * dilation - before for r in range(k)]
    circle = n + max(before, after)  # every read outside the image falls on zeros, from either side
    return [t // s for t in shifts], [t % s for t in shifts], -(-circle // s)


def _polyphase(
    kernel: Tensor, rows: list[int], ph: list[int], cols: list[int], pw: list[int], sh: int, sw: int
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Taps (T, c_out, sh·sw·c_in) of the stride-1 convolution over phases, with their offsets."""
    c_out, c_in = kernel.shape[:2]
    offsets = sorted({(a, b) for a in rows for b in cols})
    taps = kernel.new_zeros(len(offsets), c_out, sh * sw, c_in)
    for i, (a, p) in enumerate(zip(rows, ph, strict=True)):
        for j, (b, q) in enumerate(zip(cols, pw, strict=True)):
            taps[offsets.index((a, b)), :, p * sw + q] += kernel[:, :, i, j]
    return taps.flatten(2), offsets


def _symbols(taps: Tensor, offsets: list[tuple[int, int]], gh: int, gw: int) -> list[Tensor]:
    """Real forms of F(ω) on half the grid, in chunks of shape (B, 2·c_out, 2·s²c_in)."""
    t, m, n = taps.shape
    grid = [(k, q) for k in range(gh) for q in range(gw) if (k, q) <= (-k % gh, -q % gw)]
    # Angles are reduced exactly, as integers modulo the grid, before a single float is formed.
    turn_h = torch.tensor([[(k * a) % gh / gh for a, _ in offsets] for k, _ in grid], dtype=torch.float64)
    turn_w = torch.tensor([[(q * b) % gw / gw for _, b in offsets] for _, q in grid], dtype=torch.float64)
    angle = (2.0 * math.pi * (turn_h + turn_w)).to(taps.device)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    chunk = max(1, _BATCH_ENTRIES // (4 * m * n))
    chunks = []
    for k in range(0, len(grid), chunk):
        real = (cosine[k : k + chunk] @ taps.reshape(t, -1)).reshape(-1, m, n)
        imag = (sine[k : k + chunk] @ taps.reshape(t, -1)).reshape(-1, m, n)
        chunks.append(torch.cat([torch.cat([real, -imag], 2), torch.cat([imag, real], 2)], 1))
    return chunks


def _symbol_error(taps: Tensor) -> float:
    """‖F̂(ω) − F(ω)‖ for every ω: the products' γ_T and an absolute error of 80u a cosine or sine.

    The angle is below 4π with at most 5 roundings (error ≤ 4π·5u < 63u); 17u is left for the library's own.
    """
    absolute = taps.abs().sum(0)
    return up((gamma(taps.shape[0] + 1) + 80.0 * U64) * 2.0 * norm_up(absolute), 8)


def _largest_square(chunks: list[Tensor]) -> float:
    """At least max over all matrices of ‖F‖², by one checked Cholesky for the whole batch.

    The same proof as in `norms.py`, with one block and one s for all matrices.
    """
    grams, error = [], 0.0
    for matrices in chunks:
        f = matrices if matrices.shape[1] >= matrices.shape[2] else matrices.mT
        m, n = f.shape[1:]
        g = mirrored(f.mT @ f)
        squared = float((f * f).sum((1, 2)).max()) * (1.0 + 2.0 * gamma(m * n + 2))
        error = max(error, total(up(gamma(m) * squared), m * n * TINY))
        grams.append(g)
    guess = max(_largest_eigenvalue(g) for g in grams)
    if not (math.isfinite(guess) and guess > 0.0):
        return math.inf
    for slack in SLACKS:
        s = guess * (1.0 + slack)
        excesses = [_excess(g, s) for g in grams]
        if all(e is not None for e in excesses):
            return total(s, max(e for e in excesses if e is not None), error)
    return math.inf


def _largest_eigenvalue(g: Tensor, sweeps: int = 60) -> float:
    """An untrusted guess of the largest eigenvalue in a batch: block power iteration, then the finalists exactly."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(g.shape[0], g.shape[2], 4, generator=generator, dtype=torch.float64).to(g.device)
    for _ in range(sweeps // 10):
        for _ in range(10):
            v = g @ v
            v = v / v.norm(dim=1, keepdim=True).clamp_min(TINY)
        v, _ = torch.linalg.qr(v)
    values = (v * (g @ v)).sum(1).amax(1)
    best = values.topk(min(4, len(values))).indices
    return float(torch.linalg.eigvalsh(g[best]).max())


def _excess(g: Tensor, s: float) -> float | None:
    n = g.shape[-1]
    shifted = s * torch.eye(n, dtype=g.dtype, device=g.device) - g
    lower, info = torch.linalg.cholesky_ex(shifted)
    if bool(info.any()) or not torch.isfinite(lower).all():
        return None
    lower = torch.tril(lower)
    residual = (shifted - lower @ lower.mT).abs()
    worst = float(torch.maximum(residual, residual.mT).sum(-1).max())
    squares = float((lower * lower).sum((1, 2)).max()) * (1.0 + 2.0 * gamma(n * n + 2))
    diagonal = float(shifted.diagonal(dim1=-2, dim2=-1).abs().max())
    excess = total(
        up(worst * (1.0 + gamma(4 * n + 8))), up(gamma(n) * squares), up(U64 * diagonal), up(n * n * TINY)
    )
    return excess if math.isfinite(excess) else None
