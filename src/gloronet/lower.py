"""Lipschitz constants from below: how much a tighter bound could buy (the paper's §6.3 and Appendix E).

For a pair of classes (i, j), any two inputs give a lower bound of K_ij,

    |(y_j − y_i)(x₁) − (y_j − y_i)(x₂)| / ‖x₁ − x₂‖  ≤  K_ij,

and Adam looks for two that make it large. Between this and the proved bound lies the true constant. These
numbers certify nothing; they say whether refining the bound is worth the work. So does the last function,
which counts VRA as the paper does, with power iteration in place of a bound.

The network is evaluated in float64, its Program frozen. Points are kept apart, and a little more than
rounding can add is taken off each quotient, so that no lower bound passes the upper one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gloronet.attacks.ball import distance, like, norm
from gloronet.errors import ConfigError
from gloronet.margins import certified_estimate
from gloronet.net import GloRoNet
from gloronet.operators.rules import evaluating
from gloronet.program.program import FrozenProgram, run
from gloronet.train.fast import Graphs

FLOOR = 1e-3
"""Inputs are kept at least this far apart, so that the quotient is a quotient and not rounding noise."""
ALLOWANCE = 2.0**-40
"""What is taken off a difference of logits, as a share of the largest of them: 2¹² times the unit roundoff."""

Progress = Callable[[int], None]


class Lower(NamedTuple):
    """A constant from below, with the pairs of inputs that witness it."""

    value: float
    """The one number the paper reports."""
    quotients: Tensor
    """(P,): the best of each pair of points, float64."""
    points: Tensor
    """(2, P, …): where it was reached, float64."""


def global_lower(
    net: GloRoNet,
    points: Tensor,
    pairs: int = 100,
    steps: int = 7500,
    lr: float = 1e-3,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Lower:
    """value ≤ max_ij K_ij: the largest quotient over all pairs of inputs, for the class j = F(x₁) and any i.

    `pairs` random pairs of `points` go uphill together. The paper's Appendix E: 100 pairs, 7,500 steps of
    Adam as Keras sets it, and the maximum over all of them.
    """
    start = torch.stack([_drawn(points, pairs, generator) for _ in (1, 2)])

    def gap(y: Tensor) -> Tensor:
        return _widest(y, y[0].argmax(1))

    quotients, where = _climb(net.program().freeze(), start, gap, _separate, steps, lr, progress)
    return Lower(float(quotients.max()), quotients, where)


def local_lower(
    net: GloRoNet,
    points: Tensor,
    epsilon: float | None = None,
    centres: int = 100,
    steps: int = 5000,
    lr: float = 1e-3,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Lower:
    """The mean over random centres x₀ of the largest quotient with ‖x₁ − x₀‖ ≤ ε, ‖x₂ − x₀‖ ≤ ε; j = F(x₀).

    x₁ and x₂ begin at random `points` and are brought back into the ball after every step (ε: the net's own
    when not given). The paper's Appendix E: 100 centres, 5,000 steps of Adam as Keras sets it.
    """
    radius = net.epsilon if epsilon is None else epsilon
    if not radius > 0:
        raise ConfigError(f"A local constant needs a ball of radius above 0, not {radius!r}.")
    program = net.program().freeze()
    centre, first, second = (_drawn(points, centres, generator) for _ in range(3))
    label = program(centre).argmax(1)

    def gap(y: Tensor) -> Tensor:
        return _widest(y, label)

    def hold(pair: Tensor) -> None:
        _hold_in_ball(pair, centre, radius)

    quotients, where = _climb(program, torch.stack([first, second]), gap, hold, steps, lr, progress)
    return Lower(float(quotients.mean()), quotients, where)


def lower_margins(
    net: GloRoNet,
    starts: Tensor,
    steps: int = 500,
    restarts: int = 4,
    lr: float = 0.01,
    progress: Progress | None = None,
) -> Tensor:
    """m×m constants K_ij from below, found from random pairs of `starts`; float64, symmetric, 0 on the diagonal."""
    m = net.classes
    classes = torch.combinations(torch.arange(m)).repeat(restarts, 1).to(starts.device)
    generator = torch.Generator().manual_seed(0)
    a, b = (_drawn(starts, len(classes), generator) for _ in (1, 2))
    noise = torch.randn(a.shape, generator=generator, dtype=torch.float64).to(a.device)

    def gap(y: Tensor) -> Tensor:
        moved = (y[0] - y[1]).gather(1, classes)
        return (moved[:, 1] - moved[:, 0]).abs()

    start = torch.stack([a, b + 0.01 * noise])
    best, _ = _climb(net.program().freeze(), start, gap, _separate, steps, lr, progress)
    found = torch.zeros(m, m, dtype=torch.float64)
    for (i, j), quotient in zip(classes.tolist(), best.tolist(), strict=True):
        found[i, j] = found[j, i] = max(float(found[i, j]), quotient)
    return found


def vra_at(logits: Tensor, labels: Tensor, margins: Tensor, epsilon: float) -> float:
    """The share of samples right and ahead of every class by more than ε·K_ij, for any matrix of constants."""
    answer = logits.argmax(1)
    lead = logits.gather(1, answer[:, None]) - logits
    own = torch.arange(logits.shape[1]) == answer[:, None]
    ahead = ((lead > epsilon * margins[answer]) | own).all(1)
    return float((ahead & (answer == labels)).double().mean())


class EstimatedVRA(NamedTuple):
    """A VRA counted with estimates: it can exceed what is true, and proves nothing."""

    vra: float
    margins: Tensor
    """m×m, from below, in the network's own arithmetic."""
    iterations: int
    """Of power iteration, in the layer that took the most."""


@torch.no_grad()
def vra_estimate_to_tolerance(
    net: GloRoNet,
    x: Tensor,
    labels: Tensor,
    epsilon: float | None = None,
    tolerance: float = 1e-5,
    batch: int = 1000,
) -> EstimatedVRA:
    """The share of samples right and not ⊥, as the paper counts: float32 logits, and power iteration to convergence.

    Each layer's iteration ends when its σ changes by at most `tolerance`·σ in a step. The net's kept
    iterates are where it begins, and stay as they are.
    """
    margins, iterations = net.settled_estimate(tolerance)
    radius = net.epsilon if epsilon is None else epsilon
    hits = 0
    with evaluating(net.module):
        for inputs, truth in zip(x.split(batch), labels.split(batch), strict=True):
            logits = net.logits(inputs)
            hits += int((certified_estimate(logits, margins, radius) & (logits.argmax(1) == truth)).sum())
    return EstimatedVRA(hits / len(x), margins.cpu(), iterations)


def _climb(
    program: FrozenProgram,
    start: Tensor,
    gap: Callable[[Tensor], Tensor],
    hold: Callable[[Tensor], None],
    steps: int,
    lr: float,
    progress: Progress | None,
) -> tuple[Tensor, Tensor]:
    """Adam uphill on gap/‖x₁ − x₂‖ from all pairs (2, P, …) at once: the best of each, and where it was.

    `gap` takes the logits (2, P, m) to a numerator each; `hold` mends the points, in place, before the first
    step and after every one. Only tensors that stay where they are change, so a CUDA graph can hold the step.
    """
    pair = start.clone()
    hold(pair)
    pair.requires_grad_()
    best, where = torch.zeros_like(pair[0].flatten(1)[:, 0]), pair.detach().clone()
    # Keras' settings. Each pair has its own coordinates, so Adam takes their sum as so many searches.
    optimizer = torch.optim.Adam([pair], lr=lr, eps=1e-7, capturable=pair.is_cuda)

    def step() -> tuple[Tensor, ...]:
        y = run(program.ops, program.operators, pair.flatten(0, 1)).unflatten(0, pair.shape[:2])
        spare = ALLOWANCE * y.detach().abs().amax((0, 2))  # ≥ 2⁻⁴¹ of the gap: for the distance's rounding too
        quotient = (gap(y) - spare) / distance(pair[0], pair[1])
        with torch.no_grad():
            better = quotient > best
            best.copy_(torch.where(better, quotient, best))
            where.copy_(torch.where(like(better, pair[0]), pair, where))
        # The logarithm, lest the size of the network set the size of Adam's steps.
        (pair.grad,) = torch.autograd.grad(-quotient.clamp_min(1e-12).log().sum(), pair)
        optimizer.step()
        with torch.no_grad():
            hold(pair)
        return ()

    graphs = Graphs(pair.device, lambda text: warnings.warn(text, stacklevel=2)) if pair.is_cuda else None
    for _ in range(steps):
        if graphs is None:
            step()
        else:
            graphs("step", step, ())
        if progress is not None:
            progress(1)
    return best.cpu(), where.cpu()


def _widest(y: Tensor, label: Tensor) -> Tensor:
    """max_i |(y_j − y_i)(x₁) − (y_j − y_i)(x₂)| for j = label: (2, P, m), (P,) → (P,)."""
    moved = y[0] - y[1]
    return (moved.gather(1, label[:, None]) - moved).abs().amax(1)


def _drawn(points: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """So many random points, in float64."""
    device = None if generator is None else generator.device
    return points[torch.randint(len(points), (count,), generator=generator, device=device).to(points.device)].double()


def _hold_in_ball(pair: Tensor, centre: Tensor, radius: float) -> None:
    """Brings both points within `radius` of the centre, and keeps them apart, in place.

    The last thousandth of the radius is left free: what moves the second point away does not move it out.
    """
    floor = min(FLOOR, radius / 2000)
    inner = radius - 2 * floor
    step = pair - centre
    size = norm(step.flatten(0, 1)).clamp_min(inner)
    pair.copy_(centre + step * (inner / size).reshape(2, -1, *[1] * (centre.dim() - 1)))
    _separate(pair, floor)


def _separate(pair: Tensor, floor: float = FLOOR) -> None:
    """Moves the second point of a pair away from the first until `floor` lies between them, in place."""
    gap = pair[1] - pair[0]
    apart = like(norm(gap), gap)
    away = torch.where(apart > 0, gap / apart.clamp_min(1e-300), torch.full_like(gap, gap[0].numel() ** -0.5))
    pair[1] += away * (floor - apart).clamp_min(0.0)
