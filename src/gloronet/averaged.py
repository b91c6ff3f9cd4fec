"""Averaged logits: several nets, each at x and, if asked, at its mirror image, certified as one classifier.

    F(x) = (1/n)·Σ_k f_k(g_k(x)),    g_k the identity or the horizontal flip

A flip moves entries and changes none: ‖g(x) − g(x′)‖ = ‖x − x′‖, so f∘g has the margins K_ij of f. And
|Σ_k Δ_k| ≤ Σ_k |Δ_k|, so F has the margins (1/n)·Σ_k K^k_ij. A radius is a lead over a margin, and n
cancels: everything is done with sums, and only what is reported is divided.

Rounding: each term is evaluated in float64 and may be off by its own δ^k; δ^k and K^k are summed up, and
what the sum of the logits loses, γ_{n−1}·Σ_k |ŷ^k|, comes on top of δ. The claim is about the exact
function of the stored weights, that is `semantics="real"`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gloronet.certify import Table, tabulate
from gloronet.config import parse_epsilon
from gloronet.errors import ConfigError
from gloronet.margins import lead_down, radius_down
from gloronet.net import Certificates, GloRoNet
from gloronet.operators.rounding import U64, gamma, norms_up


@torch.no_grad()
def certify_averaged(
    nets: Sequence[GloRoNet], x: Tensor, epsilon: float | str | None = None, flip: bool = False
) -> Certificates:
    """‖x′ − x‖ < radius ⇒ F answers `label` at x′, for the average F of the nets (and of their mirror images).

    `label` is the first index of the largest average. ε is the nets' own, where they agree. With one net
    and no flip these are `net.certify`'s certificates, bit for bit.
    """
    eps = _check(nets, epsilon, flip)
    nets[0]._check(x)
    size = norms_up(x.flatten(1))  # of a mirror image too
    views = (x, x.flip(-1)) if flip else (x,)
    proofs = [net._proof() for net in nets]
    with torch.autocast(x.device.type, enabled=False):
        y = torch.stack([proof.program(view) for proof in proofs for view in views])
        n, summed = len(y), y.sum(0)
        label = summed.argmax(1)
        lost = [proof.error(U64).rows(size, label)[0] for proof in proofs for _ in views]
        margins = _sum_up([proof.bound.margins for proof in proofs]).to(y.device)[label] * len(views)
        lead = lead_down(summed, label, _sum_up([*lost, *_lost_by_sum(y, label)]))
    radius, least = radius_down(lead, margins, label)
    sound = torch.isfinite(y).all(2).all(0) & torch.isfinite(least)
    for proof in proofs:
        sound &= proof.reach(U64, size) > 0
    least = torch.where(sound, _divide(least, n, -torch.inf), -torch.inf)
    return Certificates(label, torch.where(sound, radius, 0.0), least, eps, "real")


def certify_averaged_set(
    nets: Sequence[GloRoNet],
    x: Tensor,
    labels: Tensor,
    epsilon: float | str | None = None,
    flip: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Table:
    """Certifies every sample of a set (uint8 images or floats in [0, 1]) for the average of the nets."""
    _check(nets, epsilon, flip)

    def certify(part: Tensor) -> Certificates:
        return certify_averaged(nets, part, epsilon, flip)

    return tabulate(certify, x, labels, next(nets[0].parameters()).device, batch_size, progress)


def averaged_logits(nets: Sequence[GloRoNet], x: Tensor, flip: bool = False) -> Tensor:
    """F(x) in the modules' own arithmetic, differentiable: what attacks and plain accuracy use."""
    _check(nets, 0.0, flip)
    views = (x, x.flip(-1)) if flip else (x,)
    return torch.stack([net.logits(view) for net in nets for view in views]).mean(0)


def averaged_margins(nets: Sequence[GloRoNet]) -> Tensor:
    """m×m: |(F_j − F_i)(x) − (F_j − F_i)(x′)| ≤ margins[i, j]·‖x − x′‖ for all x, x′, rounded up; flip or not."""
    _check(nets, 0.0, flip=False)
    margins = _sum_up([net.bound().margins for net in nets])
    return torch.where(margins == 0, 0.0, _divide(margins, len(nets), torch.inf))


def _sum_up(terms: Sequence[Tensor]) -> Tensor:
    """Σ terms ≥ 0, rounded up: the sum itself where there is one, 0 only where all are 0.

    k additions lose a factor of at least 1 − γ_k, or nothing where the sum is subnormal, and the product
    one of 1 − u: (1 − γ_k)(1 + 4ku)(1 − u) ≥ 1.
    """
    return torch.stack(list(terms)).sum(0) * (1.0 + gamma(4 * (len(terms) - 1)))


def _lost_by_sum(y: Tensor, label: Tensor) -> list[Tensor]:
    """What the lead of fl(Σ ŷ^k) may have lost by that sum, in any order: γ_{n−1}·Σ_k (|ŷ^k_j| + |ŷ^k_i|).

    γ_{2(n−1)} is at least twice that: room for the roundings here. One term loses nothing.
    """
    if len(y) == 1:
        return []
    sizes = y.abs().sum(0)
    return [gamma(2 * (len(y) - 1)) * (sizes + sizes.gather(1, label[:, None]))]


def _divide(x: Tensor, n: int, towards: float) -> Tensor:
    """x/n, rounded past the exact quotient towards ±∞; x itself for n = 1."""
    return x if n == 1 else torch.nextafter(x / n, torch.full_like(x, towards))


def _check(nets: Sequence[GloRoNet], epsilon: float | str | None, flip: bool) -> float:
    """Refuses nets that cannot be averaged; returns ε."""
    if isinstance(nets, GloRoNet) or not len(nets) or not all(isinstance(net, GloRoNet) for net in nets):
        raise ConfigError("Averaging takes a list of one GloRoNet or more.")
    if any(net.norm != "l2" for net in nets):
        raise ConfigError('Averaged certificates are for norm "l2"; ℓ∞ comes for single nets only.')
    shapes = sorted({net.input_shape for net in nets})
    if len(shapes) > 1:
        raise ConfigError(f"Nets to average take inputs of one shape, not of {_listed(shapes)}.")
    classes = sorted({net.classes for net in nets})
    if len(classes) > 1:
        raise ConfigError(f"Nets to average have the same classes, not {_listed(classes)} of them.")
    if flip and len(shapes[0]) < 2:
        raise ConfigError(f"A horizontal flip is for images; these nets take vectors of shape {shapes[0]}.")
    own = sorted({net.epsilon for net in nets})
    if epsilon is None and len(own) > 1:
        raise ConfigError(
            f"The nets were made for different epsilons, {_listed(own)}: say which one is meant."
        )
    return own[0] if epsilon is None else parse_epsilon(epsilon)


def _listed(values: Sequence[object]) -> str:
    return " and ".join(map(str, values))
