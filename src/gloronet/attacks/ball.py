"""The balls an attack may move in: checked, sampled, and kept to as float64 measures them."""

from __future__ import annotations

import torch
from torch import Tensor

from gloronet.errors import ConfigError

Interval = tuple[float, float]


def checked(
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


def random_point(centre: Tensor, radius: Tensor, generator: torch.Generator | None) -> Tensor:
    """Uniform points of the balls around each centre."""
    device = centre.device if generator is None else generator.device
    normal = torch.randn(centre.shape, dtype=centre.dtype, device=device, generator=generator)
    share = torch.rand(len(centre), dtype=torch.float64, device=device, generator=generator)
    length = radius * share.to(radius.device) ** (1 / centre[0].numel())
    normal = normal.to(centre.device)
    return centre + normal * like((length / norm(normal)).to(centre.dtype), centre)


def project(point: Tensor, centre: Tensor, radius: Tensor, box: Interval) -> Tensor:
    """The point, clipped to the box and drawn towards the centre until it is inside the ball.

    Rounding a point to float32 moves it, possibly out again, so each is measured as it is, in float64,
    and drawn in further while it is outside; the last try is the centre itself. The 2⁻³⁶ covers the
    rounding of the measurement: whoever adds up the squares in another order agrees.
    """
    point = point.clamp(*box)
    step = point.double() - centre.double()
    for slack in (2**-22, 2**-16, 2**-8, 1.0):
        outside = distance(point, centre) > radius * (1 - 2**-36)
        if not outside.any():
            break
        scale = like((1 - slack) * radius / norm(step), step)
        shorter = (centre.double() + scale * step).to(point.dtype).clamp(*box)
        point = torch.where(like(outside, point), shorter, point)
    return point


def distance(a: Tensor, b: Tensor) -> Tensor:
    return norm(a.double() - b.double())


def norm(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x.flatten(1), dim=1)


def like(values: Tensor, x: Tensor) -> Tensor:
    """One value a sample, shaped to broadcast over x."""
    return values.reshape(-1, *[1] * (x.dim() - 1))
