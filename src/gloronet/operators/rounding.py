"""Floating point that errs on the safe side: small helpers for numbers proved from above.

Every function takes and returns non-negative float64 and answers at least the exact value.
Assumed: IEEE round-to-nearest, unit roundoff u = 2⁻⁵³, no Strassen-like matrix products.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from gloronet.errors import ConfigError

U64 = 2.0**-53
U32 = 2.0**-24
TINY = 2.0**-1074
"""The smallest positive float64: what one underflow can cost."""
SMALLEST_NORMAL = 2.0**-1022
"""From here on multiplying by a power of two is exact."""


P = ParamSpec("P")
T = TypeVar("T")


def as_written(function: Callable[P, T]) -> Callable[P, T]:
    """Keeps torch.compile out of a function and of all it calls.

    Roundings are counted for the operations that stand in the code, in their order; a compiler may regroup,
    fuse and replace them.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        # Only now: to decorate by it would load the compiler with the library, a second for nothing.
        return torch.compiler.disable(function)(*args, **kwargs)

    return call


def require_gradual_underflow() -> None:
    """Refuses a processor that was told to take subnormal numbers for zero: a constant could become 0."""
    if TINY == 0.0:
        raise ConfigError(
            "Nothing is proved while subnormal numbers count as zero: torch.set_flush_denormal(False)."
        )


def gamma(n: int, unit: float = U64) -> float:
    """γ_n = n·u/(1 − n·u), rounded up: the relative error of n roundings in a row (Higham, 3.1).

    >>> gamma(1) > 2.0**-53
    True
    """
    if n * unit >= 0.5:
        return math.inf
    return up(n * unit / (1.0 - n * unit)) if n else 0.0


def up(x: float, roundings: int = 4) -> float:
    """At least x/(1 − u)^roundings: undoes that many roundings of a non-negative result.

    Not a number means nothing is known, so it becomes infinity. A product that underflowed
    to zero must be caught by the caller (`product`), which knows that its factors were not zero.
    """
    if math.isnan(x):
        return math.inf
    if x == 0.0 or math.isinf(x):
        return x
    return math.nextafter(x * (1.0 + 2.0 * roundings * U64), math.inf)


def product(*factors: float) -> float:
    """Π factors, rounded up; zero only when a factor is exactly zero, so K never underflows to 0."""
    if any(f == 0.0 for f in factors):
        return 0.0 if all(math.isfinite(f) for f in factors) else math.inf
    result = 1.0
    for f in factors:
        result = max(up(result * f, 1), TINY)
    return result


def total(*terms: float) -> float:
    """Σ terms, rounded up."""
    if not all(math.isfinite(t) for t in terms):
        return math.inf
    try:
        return up(math.fsum(terms), 1)
    except OverflowError:  # fsum's word for a sum past the largest float
        return math.inf


def root(x: float) -> float:
    """√x, rounded up."""
    return up(math.sqrt(x), 1) if math.isfinite(x) and x >= 0.0 else math.inf


def scale_exponent(x: Tensor) -> int | None:
    """e with max|x|·2⁻ᵉ in [½, 1); 0 for a zero or empty tensor; None when an entry is not finite."""
    if x.numel() == 0:
        return 0
    largest = float(x.abs().max())
    if not math.isfinite(largest):
        return None
    return math.frexp(largest)[1]


def scaled(x: Tensor, exponent: int) -> Tensor:
    """x·2^exponent in float64, exact but for underflow (at most 2⁻¹⁰⁷⁴ an entry)."""
    x = x.double()
    while exponent:  # 2**±1000 at a time: the factor itself must not overflow
        step = max(-1000, min(1000, exponent))
        x = x * 2.0**step
        exponent -= step
    return x


def ldexp(x: float, exponent: int) -> float:
    """x·2^exponent, rounded up: exact but at the ends, infinity on overflow, never zero on underflow."""
    if x == 0.0 or math.isinf(x):
        return x
    try:
        result = math.ldexp(x, exponent)
    except OverflowError:
        return math.inf
    return result if exponent >= 0 or result >= SMALLEST_NORMAL else math.nextafter(result, math.inf)


def norm_up(x: Tensor, order: int = 2) -> float:
    """At least the exact ℓ1 or ℓ2 norm of all entries together; infinity when one is not finite.

    >>> norm_up(torch.tensor([3.0, 4.0])) >= 5.0
    True
    """
    return float(norms_up(x.reshape(1, -1), order)[0]) if x.numel() else 0.0


def norms_up(rows: Tensor, order: int = 2) -> Tensor:
    """At least the exact ℓ1 or ℓ2 norm of each row (along the last dimension), as float64."""
    x = rows.double()
    n = x.shape[-1]
    finite = torch.isfinite(x).all(-1)
    largest = x.abs().amax(-1) if n else x.new_zeros(x.shape[:-1])
    safe = torch.where(finite & (largest > 0), largest, torch.ones_like(largest))
    # A power of two near the largest entry keeps the squares clear of overflow and underflow.
    mantissa, _ = torch.frexp(safe)
    power = safe / (2.0 * mantissa)  # exact: the quotient is a power of two
    y = x / power[..., None]
    slack = 1.0 + 2.0 * gamma(n + 8)
    value = y.abs().sum(-1) if order == 1 else (y * y).sum(-1).sqrt()
    value = (value * slack + (n + 1) * 2.0**-500) * power * slack
    value = torch.nextafter(value, torch.full_like(value, math.inf))
    value = torch.where(largest > 0, value, torch.zeros_like(value))
    return torch.where(finite, value, torch.full_like(value, math.inf))


def lengths_up(values: Tensor) -> Tensor:
    """At least the exact ℓ2 norm of each value of a batch, (B, …) float64 → (B,), in one pass.

    For what may be off by 2⁻⁵⁰⁰, which squares that underflow cost at the most, and infinite from 2⁵¹¹ on.
    """
    flat = values.flatten(1)
    n = flat.shape[1]
    size = torch.linalg.vector_norm(flat, dim=1)
    return (size + (n + 1) * 2.0**-500) * (1.0 + 2.0 * gamma(n + 8))
