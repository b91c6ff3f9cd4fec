"""Lipschitz constants from below, by search: how much a tighter bound could buy (the paper's §6.3).

For a pair of classes (i, j), any two inputs give a lower bound of K_ij,

    |(y_j − y_i)(x) − (y_j − y_i)(x′)| / ‖x − x′‖  ≤  K_ij,

and Adam looks for two that make it large. Between this and the proved bound lies the true constant. These
numbers certify nothing; they say whether refining the bound is worth the work.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from gloronet.net import GloRoNet
from gloronet.program.program import FrozenProgram, run

FLOOR = 1e-3
"""Inputs are kept at least this far apart, so that the quotient is a quotient and not rounding noise."""


def lower_margins(
    net: GloRoNet,
    starts: Tensor,
    steps: int = 500,
    restarts: int = 4,
    lr: float = 0.01,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """m×m constants K_ij from below, found from random pairs of `starts`; float64, symmetric, 0 on the diagonal."""
    program = net.program().freeze()
    m = net.classes
    pairs = torch.combinations(torch.arange(m)).repeat(restarts, 1).to(starts.device)
    generator = torch.Generator().manual_seed(0)
    pick = torch.randint(len(starts), (2, len(pairs)), generator=generator)
    a, b = (starts[pick[k].to(starts.device)].double() for k in (0, 1))
    noise = torch.randn(a.shape, generator=generator, dtype=torch.float64).to(a.device)
    points = torch.stack([a, b + 0.01 * noise]).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=lr)
    best = torch.zeros(len(pairs), dtype=torch.float64, device=a.device)
    for _ in range(steps):
        ratio = _ratios(program, points, pairs)
        best = torch.maximum(best, ratio.detach())
        optimizer.zero_grad()
        (-ratio.clamp_min(1e-12).log().sum()).backward()
        optimizer.step()
        with torch.no_grad():
            points[1] += _apart(points)
        if progress is not None:
            progress(1)
    found = torch.zeros(m, m, dtype=torch.float64, device=a.device)
    for k, (i, j) in enumerate(pairs.tolist()):
        found[i, j] = found[j, i] = max(float(found[i, j]), float(best[k]))
    return found.cpu()


def vra_at(logits: Tensor, labels: Tensor, margins: Tensor, epsilon: float) -> float:
    """The share of samples right and ahead of every class by more than ε·K_ij, for any matrix of constants."""
    answer = logits.argmax(1)
    lead = logits.gather(1, answer[:, None]) - logits
    own = torch.arange(logits.shape[1]) == answer[:, None]
    ahead = ((lead > epsilon * margins[answer]) | own).all(1)
    return float((ahead & (answer == labels)).double().mean())


def _ratios(program: FrozenProgram, points: Tensor, pairs: Tensor) -> Tensor:
    y = run(program.ops, program.operators, points.flatten(0, 1)).reshape(2, len(pairs), -1)
    margin = y.gather(2, pairs[None, :, 1:].expand(2, -1, -1)) - y.gather(2, pairs[None, :, :1].expand(2, -1, -1))
    distance = (points[0] - points[1]).flatten(1).norm(dim=1)
    return (margin[0] - margin[1]).abs().squeeze(1) / distance.clamp_min(FLOOR / 2)


def _apart(points: Tensor) -> Tensor:
    """What moves the second point of a pair away until FLOOR lies between them."""
    gap = points[1] - points[0]
    distance = gap.flatten(1).norm(dim=1).reshape(-1, *[1] * (gap.dim() - 1))
    away = torch.where(distance > 0, gap / distance.clamp_min(1e-300), torch.full_like(gap, gap[0].numel() ** -0.5))
    return away * (FLOOR - distance).clamp_min(0.0)

