"""Losses: functions of logits (B, m), margins (m, m), labels (B,), ε and λ to a scalar; no model in sight.

All share one signature, so that a config can name them; those without λ ignore it. `margins[j, i]` is a
Lipschitz constant of y_j − y_i and 0 on the diagonal; which form it has (margin, simple, lmt) was decided
before. Everything is computed in float32 at least, also under autocast: bf16 logits swallow a margin.

Those with ⊥ among their outputs take another one in its place: `bottom=gn.relaxed.Top(3).bottom_logit`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from gloronet.margins import bottom_logit

Loss = Callable[[Tensor, Tensor, Tensor, float | Tensor, float | Tensor], Tensor]
Bottom = Callable[[Tensor, Tensor, float | Tensor], Tensor]

KERAS_EPSILON = 1e-7
"""The least probability that Keras tells from 0."""


def plain(
    logits: Tensor, margins: Tensor, labels: Tensor, epsilon: float | Tensor, lam: float | Tensor = 1.0
) -> Tensor:
    """Cross-entropy of the m logits: training without ⊥, for warm-up epochs and standard nets.

    `ce` with ε = 0 is not this: there ⊥ still equals the second-best logit.
    """
    return F.cross_entropy(_wide(logits), labels)


def ce(
    logits: Tensor,
    margins: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    lam: float | Tensor = 1.0,
    bottom: Bottom = bottom_logit,
) -> Tensor:
    """Cross-entropy of the m + 1 outputs (y, y_⊥) with the label; ⊥ is never right.

    >>> y, K = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> ce(y, K, torch.tensor([0]), epsilon=2.0)  # y_⊥ = 0 + 2·1, so the loss is log((2e² + 1)/e²)
    tensor(0.7586)
    """
    logits = _wide(logits)
    outputs = torch.cat((logits, bottom(logits, margins, epsilon).unsqueeze(1)), dim=1)
    return F.cross_entropy(outputs, labels)


def trades_kl(
    logits: Tensor,
    margins: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    lam: float | Tensor = 1.0,
    bottom: Bottom = bottom_logit,
) -> Tensor:
    """CE(y, label) + λ·KL(softmax(y)⊕0 ‖ softmax(y, y_⊥)), where the divergence is LSE(y, y_⊥) − LSE(y)."""
    logits = _wide(logits)
    return F.cross_entropy(logits, labels) + lam * _divergence(logits, bottom(logits, margins, epsilon)).mean()


def trades_kl_clipped(
    logits: Tensor,
    margins: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    lam: float | Tensor = 1.0,
    bottom: Bottom = bottom_logit,
) -> Tensor:
    """`trades_kl` as Keras computes it, from probabilities: one below 1e-7 counts as 1e-7, and has no gradient.

    Where ⊥ is ahead of every class by more than 16, all that is left of the divergence is minus the entropy of
    softmax(y): a sample that far from being certified no longer asks for a smaller constant.
    """
    logits = _wide(logits)
    outputs = torch.cat((logits, bottom(logits, margins, epsilon).unsqueeze(1)), dim=1)
    p, q = (F.softmax(y, dim=1).clamp(KERAS_EPSILON, 1) for y in (logits, outputs))
    divergence = (p * (p.log() - q[:, :-1].log())).sum(dim=1) + KERAS_EPSILON * (KERAS_EPSILON / q[:, -1]).log()
    return F.cross_entropy(logits, labels) + lam * divergence.mean()


def trades_ce(
    logits: Tensor,
    margins: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    lam: float | Tensor = 1.0,
    bottom: Bottom = bottom_logit,
) -> Tensor:
    """TRADES with the soft cross-entropy −Σ softmax(y)_i·log softmax(y, y_⊥)_i in place of KL.

    It is the divergence plus the entropy of softmax(y), so it asks for confident answers as well.
    """
    logits = _wide(logits)
    log_p = F.log_softmax(logits, dim=1)
    entropy = -(log_p.exp() * log_p).sum(dim=1)
    soft = _divergence(logits, bottom(logits, margins, epsilon)) + entropy
    return F.cross_entropy(logits, labels) + lam * soft.mean()


def emma(
    logits: Tensor, margins: Tensor, labels: Tensor, epsilon: float | Tensor, lam: float | Tensor = 1.0
) -> Tensor:
    """EMMA (LiResNet): cross-entropy of z + r·ε·K_label, where z_i = y_i − y_label.

    r_i = clip(−z_i / max(ε·K_label,i, 1e-8), 0.01, 1), held fixed: a rival that could overtake the label
    within ε is pushed only as far as the tie, the others by all of ε.
    """
    z = _wide(logits)
    z = z - z.gather(1, labels.unsqueeze(1))
    push = epsilon * margins.index_select(0, labels)
    r = (-z / push.clamp_min(1e-8)).clamp(0.01, 1).detach()
    return F.cross_entropy(z + r * push, labels)


def lmt(
    logits: Tensor, margins: Tensor, labels: Tensor, epsilon: float | Tensor, lam: float | Tensor = 1.0
) -> Tensor:
    """Lipschitz-margin training: cross-entropy of y + ε·K_label, every logit but the label's pushed up.

    With margins of form `"lmt"` this is the published loss: √2·ε·K·‖W‖₂ for every rival.
    """
    return F.cross_entropy(_wide(logits) + epsilon * margins.index_select(0, labels), labels)


LOSSES: dict[str, Loss] = {
    "plain": plain,
    "ce": ce,
    "trades-kl": trades_kl,
    "trades-kl-clipped": trades_kl_clipped,
    "trades-ce": trades_ce,
    "emma": emma,
    "lmt": lmt,
}


def _divergence(logits: Tensor, bottom: Tensor) -> Tensor:
    """LSE(y, y_⊥) − LSE(y) = softplus(y_⊥ − LSE(y)), without the cancellation of the difference."""
    return F.softplus(bottom - logits.logsumexp(dim=1))


def _wide(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
