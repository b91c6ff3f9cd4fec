"""Smooth nonlinearities. Acting on each entry alone, f has K = max|f′| in ℓ2 and in ℓ∞ alike.

They are elementary functions: no library states the error of its float32 kernels, so certificates speak
about their exact values only (`semantics="real"`). Evaluated in float64, one is taken on trust to be
within 8 ulp of K·|x| + |f(0)|, which is at least |f(x)|: SLEEF, glibc and CUDA state 1 or 2 ulp for the
exponentials and error functions it is made of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from gloronet.operators.base import Arithmetic, Proved
from gloronet.operators.pointwise import Pointwise
from gloronet.operators.rounding import product, root, up

GELU_SLOPES = {"none": 1.1289041452, "tanh": 1.1289930688}
"""At least max|f′| of x·Φ(x), and of its approximation by tanh (see `GELU`)."""


@dataclass(frozen=True, eq=False)
class Smooth(Pointwise):
    """f(x) entry by entry with |f′| ≤ `slope()` and |f(0)| ≤ `origin()`."""

    elementary: ClassVar[bool] = True

    def slope(self) -> float:
        return 1.0

    def origin(self) -> float:
        return 0.0

    def bound(self, norm: str) -> Proved:
        return Proved(self.slope(), "largest slope")

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(16, self.slope(), product(self.origin(), root(float(math.prod(self.input_shape)))))


@dataclass(frozen=True, eq=False)
class Sigmoid(Smooth):
    """σ(x) = 1/(1 + e⁻ˣ): σ′ = σ(1 − σ) ≤ 1/4."""

    rule: ClassVar[str] = "sigmoid"

    def slope(self) -> float:
        return 0.25

    def origin(self) -> float:
        return 0.5

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.sigmoid(x)


@dataclass(frozen=True, eq=False)
class Tanh(Smooth):
    """tanh′ = 1 − tanh² ≤ 1."""

    rule: ClassVar[str] = "tanh"

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return torch.tanh(x)


@dataclass(frozen=True, eq=False)
class ELU(Smooth):
    """x where x > 0, alpha·(eˣ − 1) elsewhere: slopes 1 and alpha·eˣ, so K = max(1, |alpha|)."""

    rule: ClassVar[str] = "elu"

    alpha: float = 1.0

    def slope(self) -> float:
        return max(1.0, abs(self.alpha)) if math.isfinite(self.alpha) else math.inf

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.elu(x, self.alpha)


@dataclass(frozen=True, eq=False)
class Softplus(Smooth):
    """log(1 + e^{βx})/β: the slope is σ(βx) < 1 for every β but 0.

    torch answers x itself where βx > `threshold`, "for numerical stability": a jump of
    log(1 + e^{−threshold})/|β|, which no constant bounds. We take it for what it is, a part of torch's
    rounding, not of the function: the certified function is the smooth one, and it is what is evaluated
    here. So `threshold` must be at least 14, where the jump is less than one rounding of x in float32;
    a float64 module with the usual 20 is up to 2.1e-9/|β| away from the certified function there.
    """

    rule: ClassVar[str] = "softplus"

    beta: float = 1.0
    threshold: float = 20.0

    def slope(self) -> float:
        usable = math.isfinite(self.beta) and self.beta != 0.0 and self.threshold >= 14.0
        return 1.0 if usable else math.inf

    def origin(self) -> float:
        return up(math.log(2.0) / abs(self.beta)) if self.beta else math.inf

    def arithmetic(self) -> Arithmetic:
        return super().arithmetic()._replace(peak=2.0 * max(1.0, abs(self.beta)))  # βx, and a sum of two

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        z = self.beta * x
        return (torch.relu(z) + torch.log1p(torch.exp(-z.abs()))) / self.beta


@dataclass(frozen=True, eq=False)
class GELU(Smooth):
    """x·Φ(x), or with `approximate="tanh"` ½x(1 + tanh p), p = √(2/π)(x + 0.044715x³). K = 1.1289….

    Both are odd but for x/2, so f′(x) + f′(−x) = 1, and it is enough to bound f′ on x ≥ 0, where it is
    positive. There (xΦ)′ = Φ + xφ has the derivative φ(x)(2 − x²), so it is largest at √2: K = (1 + erf 1)/2
    + e⁻¹/√π = 1.12890414518…. For tanh, tests/test_rules.py proves the constant by subdivision: on
    [a, b] T = tanh p and p′ increase and S = 1 − T² decreases, so f′ ≤ ½(1 + T(b)) + ½b·S(a)·p′(b).
    """

    rule: ClassVar[str] = "gelu"

    approximate: str = "none"

    def slope(self) -> float:
        return GELU_SLOPES[self.approximate]

    def __call__(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return F.gelu(x, approximate=self.approximate)
