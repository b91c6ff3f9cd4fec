"""ℓ2 attacks on the m logits: what an adversary really achieves, the upper side of every certified curve.

An attack returns points, and everything it says about them is recomputed from these very points: the
distance ‖x′ − x‖ in float64, never above ε, and the margin in the network's own arithmetic.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gloronet.errors import ConfigError

COLUMNS = ("index", "label", "success", "distance", "margin", "epsilon")

Logits = Callable[[Tensor], Tensor]
Progress = Callable[[int, int], None]
Interval = tuple[float, float]


@dataclass(frozen=True)
class Attack:
    """One entry a sample: the adversarial points, or the best attempts where `success` is false."""

    x: Tensor
    labels: Tensor
    success: Tensor
    """Whether the label predicted at `x` differs from the given one."""
    distance: Tensor
    """‖x′ − x‖₂ in float64; 0 for points that were misclassified to begin with."""
    margin: Tensor
    """y_label − max of the others at `x`, in the network's arithmetic."""
    epsilon: Tensor
    """The radius the attack was allowed, float64."""


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
    radius = _checked(x, labels, epsilon, box, steps, restarts)
    length = 8 * radius / steps if step_size is None else torch.full_like(radius, step_size)
    with torch.no_grad():
        logits = logits_fn(x)
    rivals = _others(logits, labels).argsort(dim=1, descending=True)[:, :-1]
    best, margin, broken = x.clone(), *_score(logits, labels)
    for restart in range(restarts):
        left = (~broken).nonzero().squeeze(1)
        if not len(left):
            break
        centre, label, ball = x[left], labels[left], radius[left]
        stride = _like(length[left].to(x.dtype), x)
        point, rival = centre, None
        if restart > 0:
            point = _project(_random(centre, ball, generator), centre, ball, box)
            rival = rivals[left, (restart - 1) % rivals.shape[1]]
        for step in range(steps + 1):  # the last one has length 0 and only looks
            value, wrong, downhill = _look(logits_fn, point, label, rival)
            better = value < margin[left]
            improved = left[better]
            best[improved], margin[improved], broken[improved] = point[better], value[better], wrong[better]
            point = _project(point + (1 - step / steps) * stride * downhill, centre, ball, box)
            if progress is not None and step < steps:
                progress(restart * steps + step + 1, restarts * steps)
    with torch.no_grad():
        margin, success = _score(logits_fn(best), labels)
    return Attack(best, labels, success, _distance(best, x), margin, radius)


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


def rows(attack: Attack, start: int = 0) -> list[dict[str, int | float]]:
    """The rows of `attacks.csv`, one a sample; `start` is the index of the first."""
    fields = (attack.labels, attack.success.int(), attack.distance, attack.margin, attack.epsilon)
    samples = zip(*(field.tolist() for field in fields), strict=True)
    return [dict(zip(COLUMNS, (i, *sample), strict=True)) for i, sample in enumerate(samples, start)]


def write_csv(path: Path, rows: Iterable[Mapping[str, int | float]]) -> None:
    """Writes all rows or none: no reader sees half a file, and a failure leaves the old one in place."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with unfinished.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _look(
    logits_fn: Logits, point: Tensor, labels: Tensor, rival: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The score of the points, and the unit directions in which the label's lead falls fastest.

    Its lead over the rival, or over the strongest at hand where none is given; 0 where it is flat.
    """
    with torch.enable_grad():
        point = point.detach().requires_grad_()
        logits = logits_fn(point)
        margin, wrong = _score(logits, labels)
        lead = margin if rival is None else _pick(logits, labels) - _pick(logits, rival)
        (gradient,) = torch.autograd.grad(lead.sum(), point)
    gradient = gradient.double()  # a tiny gradient's square would be 0 in float32
    unit = torch.nan_to_num(gradient / _like(_norm(gradient), gradient), 0.0, 0.0, 0.0)
    return margin.detach(), wrong, -unit.to(point.dtype)


def _score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The margin y_label − max_{i≠label} y_i, and whether another class is predicted (first on ties)."""
    margin = _pick(logits, labels) - _others(logits, labels).amax(dim=1)
    return margin, logits.argmax(dim=1) != labels


def _pick(logits: Tensor, classes: Tensor) -> Tensor:
    return logits.gather(1, classes.unsqueeze(1)).squeeze(1)


def _others(logits: Tensor, labels: Tensor) -> Tensor:
    return logits.scatter(1, labels.unsqueeze(1), -math.inf)


def _random(centre: Tensor, radius: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform points of the balls around each centre."""
    device = centre.device if generator is None else generator.device
    normal = torch.randn(centre.shape, dtype=centre.dtype, device=device, generator=generator)
    share = torch.rand(len(centre), dtype=torch.float64, device=device, generator=generator)
    length = radius * share.to(radius.device) ** (1 / centre[0].numel())
    normal = normal.to(centre.device)
    return centre + normal * _like((length / _norm(normal)).to(centre.dtype), centre)


def _project(point: Tensor, centre: Tensor, radius: Tensor, box: Interval) -> Tensor:
    """The point, clipped to the box and drawn towards the centre until it is inside the ball.

    Rounding a point to float32 moves it, possibly out again, so each is measured as it is, in float64,
    and drawn in further while it is outside; the last try is the centre itself. The 2⁻³⁶ covers the
    rounding of the measurement: whoever adds up the squares in another order agrees.
    """
    point = point.clamp(*box)
    step = point.double() - centre.double()
    for slack in (2**-22, 2**-16, 2**-8, 1.0):
        outside = _distance(point, centre) > radius * (1 - 2**-36)
        if not outside.any():
            break
        scale = _like((1 - slack) * radius / _norm(step), step)
        shorter = (centre.double() + scale * step).to(point.dtype).clamp(*box)
        point = torch.where(_like(outside, point), shorter, point)
    return point


def _distance(a: Tensor, b: Tensor) -> Tensor:
    return _norm(a.double() - b.double())


def _norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def _like(values: Tensor, x: Tensor) -> Tensor:
    """One value a sample, shaped to broadcast over x."""
    return values.reshape(-1, *[1] * (x.dim() - 1))


def _checked(
    x: Tensor, labels: Tensor, epsilon: float | Tensor, box: Interval, steps: int, restarts: int
) -> Tensor:
    """ε as one float64 radius a sample, after checking everything an attack is given."""
    if x.dim() < 2 or not x.is_floating_point() or labels.shape != x.shape[:1]:
        raise ConfigError(
            f"an attack needs a batch of floating-point inputs with a label each, not {x.dtype} of shape "
            f"{tuple(x.shape)} with labels of shape {tuple(labels.shape)}."
        )
    if not bool(((x >= box[0]) & (x <= box[1]) & x.isfinite()).all()):
        raise ConfigError(f"inputs must be finite and within {box}, the range the attack clips to.")
    radius = torch.as_tensor(epsilon, dtype=torch.float64, device=x.device)
    if radius.shape not in ((), x.shape[:1]):
        raise ConfigError(f"epsilon must be one number or one a sample, not of shape {tuple(radius.shape)}.")
    if not bool(((radius >= 0) & radius.isfinite()).all()):
        raise ConfigError("the epsilon of an attack must be finite and at least 0.")
    if steps < 1 or restarts < 1:
        raise ConfigError(f"an attack needs at least 1 step and 1 restart, not {steps} and {restarts}.")
    return radius.expand(len(x)).clone()
