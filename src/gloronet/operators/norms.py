"""The spectral norm of a matrix, from above: checked Cholesky, block-banded (dense is one block).

The claim: `gram_bound` returns b with λ_max(AᵀA) ≤ b, in exact arithmetic, from float64 blocks of
G = fl(AᵀA). The proof trusts no factorisation. Pick any s and any lower-triangular L, form

    R = fl((sI − G) − LLᵀ).

LLᵀ is positive semidefinite, so sI − G ≥ −‖(sI − G) − LLᵀ‖, and with u = 2⁻⁵³, γ_k = ku/(1 − ku),
k the longest inner product of the band and N the order of G:

    λ_max(AᵀA) ≤ s + (1 + γ)·‖R‖_∞ + γ_k‖L‖_F² + u·max|s − g_ii| + ‖G − AᵀA‖ + underflow.

An untrusted Lanczos guess of λ_max gives s; Cholesky gives L; both may be wrong, and then R is large
or the factorisation breaks down and a larger s is tried. The bound that comes out holds either way.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

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

SLACKS = (2e-7, 1e-6, 2e-5, 2e-4, 2e-3, 2e-2, 2e-1)
"""How far above the guess s is tried: room for a checker on another BLAS, within 1e-6 of the norm."""


@dataclass(frozen=True)
class BandedGram:
    """fl(AᵀA) as lower blocks: rows[i][d] = G[i, i − d], and how far it may be from AᵀA."""

    rows: list[list[Tensor]]
    error: float

    @property
    def order(self) -> int:
        return sum(row[0].shape[0] for row in self.rows)


def dense_bound(a: Tensor) -> float:
    """Returns s with ‖A‖₂ ≤ s for a matrix A of floats; infinity when an entry is not finite.

    >>> 5.0 <= dense_bound(torch.tensor([[3.0, 0.0], [4.0, 0.0]])) < 5.0000001
    True
    """
    exponent = scale_exponent(a)
    if exponent is None:
        return math.inf
    frobenius = norm_up(a)
    if frobenius == 0.0 or min(a.shape) == 1:
        return frobenius
    a = scaled(a, -exponent)
    if a.shape[0] < a.shape[1]:
        a = a.T
    m, n = a.shape
    squared = up(norm_up(a) ** 2)
    gram = BandedGram([[mirrored(a.T @ a)]], total(up(gamma(m) * squared), m * n * TINY))
    # What scaling down lost to underflow, as ‖ΔA‖_F.
    lost = up(root(m * n) * TINY)
    square = gram_bound(gram, lambda v: a.T @ (a @ v))
    return min(frobenius, ldexp(total(root(square), lost), exponent))


def gram_bound(gram: BandedGram, matvec: Callable[[Tensor], Tensor]) -> float:
    """Returns b ≥ λ_max(AᵀA); `matvec` (v ↦ AᵀAv, any vector shape flattened) only serves to guess s."""
    guess = largest_ritz_value(matvec, gram.order, gram.rows[0][0])
    if not (math.isfinite(guess) and guess > 0.0):
        return math.inf
    for slack in SLACKS:
        s = guess * (1.0 + slack)
        excess = _checked_cholesky(gram.rows, s)
        if excess is not None:
            return total(s, excess, gram.error)
    return math.inf


def largest_ritz_value(
    matvec: Callable[[Tensor], Tensor], n: int, like: Tensor, steps: int = 1000, tolerance: float = 1e-8
) -> float:
    """A guess of the largest eigenvalue, from below: Lanczos with full reorthogonalisation.

    It stops when twenty more steps raise it by no more than `tolerance`, relatively: then it is within the slack.
    """
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(n, generator=generator, dtype=torch.float64).to(like.device)
    v = v / v.norm()
    steps = min(steps, n)
    basis = torch.empty(steps, n, dtype=torch.float64, device=like.device)
    alphas: list[float] = []
    betas: list[float] = []
    theta = 0.0
    for k in range(steps):
        basis[k] = v
        w = matvec(v)
        alphas.append(float(w @ v))
        q = basis[: k + 1]
        for _ in range(2):
            w = w - q.T @ (q @ w)
        beta = float(w.norm())
        exhausted = k + 1 == steps or not beta > 1e-14 * abs(alphas[0])
        if exhausted or (k + 1) % 20 == 0:
            t = torch.diag(torch.tensor(alphas, dtype=torch.float64))
            b = torch.tensor(betas, dtype=torch.float64)
            t = t + torch.diag(b, 1) + torch.diag(b, -1)
            if not torch.isfinite(t).all():
                return math.nan
            before, theta = theta, float(torch.linalg.eigvalsh(t)[-1])
            if exhausted or theta - before <= tolerance * abs(theta):
                return theta
        betas.append(beta)
        v = w / beta
    return theta


def mirrored(g: Tensor) -> Tensor:
    """The symmetric matrix with g's lower triangle: exact, and as close to AᵀA as g is."""
    lower = torch.tril(g)
    return lower + torch.tril(g, -1).mT


def _checked_cholesky(rows: list[list[Tensor]], s: float) -> float | None:
    """Returns e with λ_max(G) ≤ s + e for the symmetric block-banded G, or None when s is too small.

    Keeps only the last block rows of L that the band reaches. L's own accuracy is not used:
    R is formed from the finished L by fresh products.
    """
    band = max(len(row) for row in rows)
    longest = band * max(row[0].shape[0] for row in rows)
    order = sum(row[0].shape[0] for row in rows)
    done: deque[dict[int, Tensor]] = deque(maxlen=band)
    sums: deque[Tensor] = deque(maxlen=band)
    worst, squares, diagonal, entries = 0.0, 0.0, 0.0, 0
    for i, row in enumerate(rows):
        first = i - len(row) + 1
        target = {i - d: -block for d, block in enumerate(row)}
        target[i] = target[i] + s * torch.eye(row[0].shape[0], dtype=row[0].dtype, device=row[0].device)
        diagonal = max(diagonal, float(target[i].diagonal().abs().max()))
        current: dict[int, Tensor] = {}
        done.append(current)
        factor = {j: done[j - i - 1] for j in range(first, i + 1)}
        for j in range(first, i + 1):
            rest = target[j]
            before = [k for k in range(first, j) if k in factor[j]]
            if before:
                rest = rest - _stack(current, before) @ _stack(factor[j], before).mT
            if j < i:
                lower = factor[j][j]
                current[j] = torch.linalg.solve_triangular(lower, rest.mT, upper=False).mT
            else:
                lower, info = torch.linalg.cholesky_ex(mirrored(rest))
                if int(info) or not torch.isfinite(lower).all():
                    return None
                current[i] = torch.tril(lower)
        sums.append(torch.zeros(row[0].shape[0], dtype=torch.float64, device=row[0].device))
        for j in range(first, i + 1):
            upto = [k for k in range(first, j + 1) if k in factor[j]]
            residual = (target[j] - _stack(current, upto) @ _stack(factor[j], upto).mT).abs()
            if j < i:
                sums[-1] += residual.sum(1)
                sums[j - i - 1] += residual.sum(0)
            else:
                sums[-1] += torch.maximum(residual, residual.mT).sum(1)
            squares += float((current[j] * current[j]).sum())
            entries += current[j].numel()
        worst = max(worst, *(float(t.max()) for t in sums))
    squares = up(squares * (1.0 + 2.0 * gamma(entries)))
    excess = total(
        up(worst * (1.0 + gamma(4 * longest + 8))),
        up(gamma(longest) * squares),
        up(U64 * diagonal),
        up(float(order) * longest * TINY),
    )
    return excess if math.isfinite(excess) else None


def _stack(blocks: dict[int, Tensor], keys: list[int]) -> Tensor:
    return blocks[keys[0]] if len(keys) == 1 else torch.cat([blocks[k] for k in keys], dim=1)
