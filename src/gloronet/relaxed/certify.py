"""Certificates about sets of classes: label → set, everything else as in `net.certify`.

For each k the radius is that of the pair that changes sides first,

    r_k = min_{j∈T_k, i∉T_k} (y_j − y_i)/K_ji,

with leads from below, less what evaluating them can lose, and K from above. Nearer than r_k every class in
T_k stays ahead of every class outside, so T_k stays the set of the k largest. Its classes may change places
among themselves; and r_k may be larger than r_1, for the pairs inside no longer count, or smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gloronet.config import parse_epsilon
from gloronet.margins import reach_down
from gloronet.net import BOTTOM, GloRoNet
from gloronet.relaxed.sets import Relaxation, least_across, ranking


@dataclass(frozen=True)
class RelaxedCertificates:
    """What is proved about a batch: ‖x′ − x‖ < radii[:, k − 1] ⇒ the k largest logits at x′ are order[:, :k].

    They are so as a set: their order may change. The answer at ε is the smallest such set that is certified,
    and ⊥ where none is. `semantics` says which arithmetic the claim is about.
    """

    order: Tensor
    """(B, m): the classes, the largest logit first; T_k is the first k."""
    radii: Tensor
    """(B, K): r_k for k = 1, …, K; 0 where nothing is proved, or where T_k does not count as an answer."""
    epsilon: float
    semantics: str

    @property
    def certified(self) -> Tensor:
        """Whether some set that counts is certified at ε."""
        return (self.radii > self.epsilon).any(1)

    @property
    def k(self) -> Tensor:
        """How many classes the set has: the smallest certified at ε; where there is none, that of largest radius."""
        sharpest = (self.radii > self.epsilon).int().argmax(1)
        return torch.where(self.certified, sharpest, self.radii.argmax(1)) + 1

    @property
    def radius(self) -> Tensor:
        """The radius of that set."""
        return self.radii.gather(1, self.k[:, None] - 1).squeeze(1)

    @property
    def members(self) -> Tensor:
        """(B, m) bool: which classes are in that set."""
        ranks = torch.arange(self.order.shape[1], device=self.order.device)
        return torch.zeros_like(self.order, dtype=torch.bool).scatter(1, self.order, ranks < self.k[:, None])

    @property
    def prediction(self) -> Tensor:
        """(B, K): the classes of the certified set, filled up with BOTTOM; BOTTOM alone is ⊥."""
        ranks = torch.arange(self.radii.shape[1], device=self.order.device)
        told = self.certified[:, None] & (ranks < self.k[:, None])
        return torch.where(told, self.order[:, : self.radii.shape[1]], BOTTOM)


@torch.no_grad()
def certify_relaxed(
    net: GloRoNet,
    x: Tensor,
    relaxation: Relaxation,
    epsilon: float | str | None = None,
    semantics: str = "real",
    per_sample: bool = False,
) -> RelaxedCertificates:
    """‖x′ − x‖ < radius ⇒ the k likeliest classes at x′ are those at x, so the label there is one of them.

    One evaluation in float64 serves all k. `semantics` and `per_sample` as in `net.certify`, which `Top(1)`
    is, bit for bit.
    """
    net._check_semantics(semantics)
    net._check(x)
    eps, most = net.epsilon if epsilon is None else parse_epsilon(epsilon), relaxation.most(net.classes)
    with torch.autocast(x.device.type, enabled=False):
        centre = net._proof().at(x, semantics, per_sample)
        order = ranking(centre.logits)
        radii = least_across(order, most, lambda label: reach_down(*centre.leads(label)))
    sound, limit = centre.scope()
    counted = sound[:, None] & relaxation.counted(order)
    radii = torch.where(counted, torch.minimum(radii, limit[:, None]), 0.0)
    return RelaxedCertificates(order, radii, eps, semantics)
