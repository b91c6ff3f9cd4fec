"""Randomized smoothing (Cohen, Rosenfeld, Kolter 2019): the *stochastic* baseline to compare bounds with.

The smoothed classifier g answers the class that the network gives most often when Gaussian noise is added:
g(x) = argmax_c P(f(x + η) = c), η ~ N(0, σ²I). Where `smoothed_certify` answers a class,

    with probability at least 1 − α over the sampling, g(x′) = g(x) for all ‖x′ − x‖₂ < σ·Φ⁻¹(p_lower),

p_lower being a lower confidence bound of the class's probability. Unlike a bound, such a certificate is wrong
with probability up to α, for each sample anew; it speaks about g, which takes thousands of forward passes
to evaluate, not about the network itself; and the theorem is about real arithmetic, its noise exactly Gaussian.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from gloronet.attacks import Logits
from gloronet.config import parse_epsilon
from gloronet.data import to_unit
from gloronet.errors import ConfigError
from gloronet.net import BOTTOM

COLUMNS = ("index", "label", "answer", "radius")
BLOCK = 500
"""Noisy copies drawn at a time, whatever the batch size: the numbers depend on how many are asked for at once."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class SmoothedCertificates:
    """One entry a sample, on the CPU, and the settings; each holds with probability at least 1 − `alpha`."""

    label: Tensor
    """The smoothed classifier's answer; BOTTOM where p_lower ≤ 1/2: it abstains."""
    radius: Tensor
    """σ·Φ⁻¹(p_lower) in float64; 0 where it abstains."""
    count: Tensor
    """How many of the n noisy copies were given the class that the first n0 chose."""
    p_lower: Tensor
    """Below this class's probability, with probability at least 1 − `alpha`; float64."""
    sigma: float
    n0: int
    n: int
    alpha: float


@dataclass(frozen=True)
class SmoothedTable:
    """Smoothed certificates of evenly spaced samples of a labelled set, one row a sample."""

    index: np.ndarray
    """Which samples of the set they are."""
    label: np.ndarray
    answer: np.ndarray
    radius: np.ndarray
    epsilon: float
    settings: dict[str, int | float]

    @property
    def clean(self) -> float:
        """Share of points whose smoothed answer is right, whatever its radius; abstaining is not right."""
        return float((self.answer == self.label).mean())

    @property
    def vra(self) -> float:
        """Share of points both right and certified at ε, each wrongly so with probability up to α."""
        return float(((self.answer == self.label) & (self.radius > self.epsilon)).mean())

    def summary(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        columns = (self.index, self.label, self.answer, self.radius)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return {
            "method": "randomized smoothing",
            "stochastic": True,
            "clean": self.clean,
            "vra": self.vra,
            "epsilon": self.epsilon,
            **self.settings,
            "rows": [dict(zip(COLUMNS, row, strict=True)) for row in rows],
        }


def smoothed_certify(
    logits_fn: Logits,
    x: Tensor,
    sigma: float,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    batch_size: int = 1000,
    generator: Generator | None = None,
    progress: Progress | None = None,
) -> SmoothedCertificates:
    """For each sample, a class and a radius within which the smoothed classifier keeps it, but for a chance of α.

    The class is the most frequent of n0 noisy copies; n fresh ones bound its probability from below. Noise is
    added to the inputs as they are and not clipped. Batches run on the input's device; for the same
    generator the noise is the same, whatever the batch size. `progress(1)` is called after each sample.
    """
    from scipy.special import ndtri  # a fifth of a second to import

    _check(x, sigma, alpha, n0=n0, n=n, batch_size=batch_size)
    chosen, counts = [], []
    for point in x.detach():
        votes = _votes(logits_fn, point, sigma, n0, batch_size, generator)
        chosen.append(int(votes.argmax()))
        counts.append(int(_votes(logits_fn, point, sigma, n, batch_size, generator)[chosen[-1]]))
        if progress is not None:
            progress(1)
    count = np.array(counts, dtype=np.int64)
    p_lower = lower_confidence(count, n, alpha)
    sure = p_lower > 0.5
    return SmoothedCertificates(
        label=torch.from_numpy(np.where(sure, np.array(chosen, dtype=np.int64), BOTTOM)),
        radius=torch.from_numpy(np.where(sure, sigma * ndtri(p_lower), 0.0)),
        count=torch.from_numpy(count),
        p_lower=torch.from_numpy(p_lower),
        sigma=sigma,
        n0=n0,
        n=n,
        alpha=alpha,
    )


def smoothed_predict(
    logits_fn: Logits,
    x: Tensor,
    sigma: float,
    n: int = 1000,
    alpha: float = 0.001,
    batch_size: int = 1000,
    generator: Generator | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """Labels on the CPU, each g(x) or BOTTOM: another class is answered with probability at most α.

    The most frequent class of n noisy copies, where a two-sided binomial test says, at level α, that it is
    more probable than the second most frequent: 2·P(Bin(n₁ + n₂, 1/2) ≥ n₁) ≤ α.
    """
    from scipy.special import betainc

    _check(x, sigma, alpha, n=n, batch_size=batch_size)
    labels = []
    for point in x.detach():
        (first, second), which = _votes(logits_fn, point, sigma, n, batch_size, generator).topk(2)
        tail = betainc(int(first), int(second) + 1, 0.5)  # P(Bin(n₁ + n₂, 1/2) ≥ n₁)
        labels.append(int(which[0]) if 2 * tail <= alpha else BOTTOM)
        if progress is not None:
            progress(1)
    return torch.tensor(labels, dtype=torch.int64)


def smoothed_set(
    logits_fn: Logits,
    x: Tensor,
    labels: Tensor,
    epsilon: float | str,
    sigma: float,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    batch_size: int = 1000,
    samples: int = 1000,
    seed: int = 0,
    progress: Progress | None = None,
) -> SmoothedTable:
    """Certifies `samples` evenly spaced samples of a set (uint8 images or floats in [0, 1]) by sampling.

    Sample i of S is number ⌊i·N/S⌋ of the N: every k-th where S divides N, and all N where S is larger.
    """
    if len(labels) != len(x) or samples < 1 or not len(x):
        raise ConfigError(
            f"smoothing needs at least 1 sample and a label for each, not {samples} samples of {len(x)} "
            f"inputs with {len(labels)} labels."
        )
    count = min(samples, len(x))
    index = torch.arange(count) * len(x) // count
    generator = torch.Generator(x.device).manual_seed(seed)
    radius = parse_epsilon(epsilon)
    chosen = to_unit(x[index.to(x.device)])
    found = smoothed_certify(logits_fn, chosen, sigma, n0, n, alpha, batch_size, generator, progress)
    return SmoothedTable(
        index=index.numpy(),
        label=labels.cpu()[index].numpy(),
        answer=found.label.numpy(),
        radius=found.radius.numpy(),
        epsilon=radius,
        settings={"sigma": sigma, "n0": n0, "n": n, "alpha": alpha, "samples": count, "seed": seed},
    )


def lower_confidence(count: np.ndarray, n: int, alpha: float) -> np.ndarray:
    """p_lower(k) with P(p_lower(K) ≤ p) ≥ 1 − α for K ~ Bin(n, p), whatever p: one-sided Clopper–Pearson.

    The p at which k or more of n have probability α: the α-quantile of Beta(k, n − k + 1); 0 for k = 0.

    >>> lower_confidence(np.array([0, 50, 100]), 100, 0.001).round(4).tolist()
    [0.0, 0.3448, 0.9333]
    """
    from scipy.special import betaincinv

    return np.where(count > 0, betaincinv(np.maximum(count, 1), n - count + 1, alpha), 0.0)


@torch.no_grad()
def _votes(
    logits_fn: Logits, point: Tensor, sigma: float, n: int, batch_size: int, generator: Generator | None
) -> Tensor:
    """How many of n noisy copies of a point are given each class, on the CPU."""
    source = point.device if generator is None else generator.device
    votes: Tensor | None = None
    together = BLOCK * max(1, batch_size // BLOCK)
    for k in range(0, n, together):
        sizes = [min(BLOCK, n - j) for j in range(k, min(k + together, n), BLOCK)]
        noise = torch.cat(
            [torch.randn((size, *point.shape), generator=generator, device=source) for size in sizes]
        )
        for part in noise.to(point).split(batch_size):
            logits = logits_fn(point + sigma * part)
            cast = torch.bincount(logits.argmax(1), minlength=logits.shape[1])
            votes = cast if votes is None else votes + cast
    assert votes is not None  # n is at least 1
    return votes.cpu()


def _check(x: Tensor, sigma: float, alpha: float, **counts: int) -> None:
    if x.dim() < 2 or not len(x) or not x.is_floating_point() or not bool(x.isfinite().all()):
        raise ConfigError(
            f"smoothing needs a batch of finite floating-point inputs, not {x.dtype} of shape {tuple(x.shape)}."
        )
    if not (sigma > 0 and math.isfinite(sigma)):
        raise ConfigError(f"sigma must be a positive number, not {sigma!r}.")
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha must be between 0 and 1, not {alpha!r}.")
    for name, value in counts.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"{name} must be a whole number of at least 1, not {value!r}.")
