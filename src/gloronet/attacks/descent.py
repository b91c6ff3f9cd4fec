"""Our own attack: descent on the margin, one restart for each rival class, and the nearest point by bisection."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from gloronet.attacks.attack import Attack, Logits, Progress, others, pick, score
from gloronet.attacks.ball import Interval, checked, distance, like, norm, project, random_point


def pgd(
    logits_fn: Logits,
    x: Tensor,
    labels: Tensor,
    epsilon: float | Tensor,
    *,
    steps: int = 100,
    restarts: int = 10,
    step_size: float | None = None,
    clip: Interval | None = (0.0, 1.0),
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Attack:
    """Projected gradient descent on the margin, within ‖x′ − x‖₂ ≤ ε (one radius, or one a sample).

    Steps go down the normalised gradient; their length begins with `step_size` (8·ε/steps when not given)
    and falls linearly to 0. The first start is x and descends on y_label − max of the others. The r-th
    restart begins at a random point of the ball and descends on y_label − y_i for the rival i that is
    r-th strongest at x; samples already broken sit it out. Of all points visited, the one of lowest
    margin is returned. `progress(done, total)` counts steps.
    """
    x, box = x.detach(), clip or (-math.inf, math.inf)
    radius = checked(x, labels, epsilon, box, steps, restarts)
    length = 8 * radius / steps if step_size is None else torch.full_like(radius, step_size)
    with torch.no_grad():
        logits = logits_fn(x)
    rivals = others(logits, labels).argsort(dim=1, descending=True)[:, :-1]
    best, margin, broken = x.clone(), *score(logits, labels)
    for restart in range(restarts):
        left = (~broken).nonzero().squeeze(1)
        if not len(left):
            break
        centre, label, ball = x[left], labels[left], radius[left]
        stride = like(length[left].to(x.dtype), x)
        point, rival = centre, None
        if restart > 0:
            point = project(random_point(centre, ball, generator), centre, ball, box)
            rival = rivals[left, (restart - 1) % rivals.shape[1]]
        for step in range(steps + 1):  # the last one has length 0 and only looks
            value, wrong, downhill = _look(logits_fn, point, label, rival)
            better = value < margin[left]
            improved = left[better]
            best[improved], margin[improved], broken[improved] = point[better], value[better], wrong[better]
            point = project(point + (1 - step / steps) * stride * downhill, centre, ball, box)
            if progress is not None and step < steps:
                progress(restart * steps + step + 1, restarts * steps)
    with torch.no_grad():
        margin, success = score(logits_fn(best), labels)
    return Attack(best, labels, success, distance(best, x), margin, radius)


def minimal(
    logits_fn: Logits,
    x: Tensor,
    labels: Tensor,
    max_epsilon: float | Tensor,
    *,
    halvings: int = 8,
    steps: int = 20,
    restarts: int = 3,
    clip: Interval | None = (0.0, 1.0),
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Attack:
    """A small adversarial change for each sample, by bisection over ε with `pgd`.

    The distance bounds the sample's true robust radius from above; it is inf where nothing was found
    within `max_epsilon`, the result's `epsilon`. `progress(done, total)` counts the calls of `pgd`.
    """

    def attack(which: Tensor, epsilon: float | Tensor) -> Attack:
        inputs = logits_fn, x[which], labels[which], epsilon
        return pgd(*inputs, steps=steps, restarts=restarts, clip=clip, generator=generator)

    best = attack(torch.arange(len(x), device=x.device), max_epsilon)
    low, high = torch.zeros_like(best.distance), best.distance.clone()
    for done in range(1, halvings + 1):
        if progress is not None:
            progress(done, halvings + 1)
        left = (best.success & (high > 0)).nonzero().squeeze(1)
        if not len(left):
            continue
        middle = (low[left] + high[left]) / 2
        closer = attack(left, middle)
        won, lost = left[closer.success], left[~closer.success]
        best.x[won], best.margin[won] = closer.x[closer.success], closer.margin[closer.success]
        high[won], low[lost] = closer.distance[closer.success], middle[~closer.success]
    if progress is not None:
        progress(halvings + 1, halvings + 1)
    return replace(best, distance=high.where(best.success, math.inf))


def _look(
    logits_fn: Logits, point: Tensor, labels: Tensor, rival: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The score of the points, and the unit directions in which the label's lead falls fastest.

    Its lead over the rival, or over the strongest at hand where none is given; 0 where it is flat.
    """
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        logits = logits_fn(point)
        margin, wrong = score(logits, labels)
        lead = margin if rival is None else pick(logits, labels) - pick(logits, rival)
        (gradient,) = torch.autograd.grad(lead.sum(), point)
    gradient = gradient.double()  # a tiny gradient's square would be 0 in float32
    unit = torch.nan_to_num(gradient / like(norm(gradient), gradient), 0.0, 0.0, 0.0)
    return margin.detach(), wrong, -unit.to(point.dtype)
