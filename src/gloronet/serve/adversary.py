"""The attack behind the page: the nearest adversarial input found in a bounded time, never inside the radius."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gloronet import attacks
from gloronet.net import GloRoNet
from gloronet.serve.engine import Engine
from gloronet.serve.problems import Problem


class Found(NamedTuple):
    """An input the engine answers differently, and how far it is from the one attacked."""

    x: np.ndarray
    label: int
    distance: float


class BrokenCertificate(AssertionError):
    """An attack inside a certified radius: a bug of ours, which must be heard of."""


def nearest(engine: Engine, net: GloRoNet, x: np.ndarray, label: int, radius: float, seconds: float) -> Found | None:
    """Of one input (1, *shape), answered `label` within `radius`; None where the search found nothing.

    The search looks at the net, the verdict is the engine's: what it does not answer differently does not count.
    """
    deadline = time.monotonic() + seconds

    def logits(batch: Tensor) -> Tensor:
        if time.monotonic() > deadline:
            raise Problem(504, f"The attack was not done within {seconds:g} seconds.")
        return net.logits(batch)

    point, labels = torch.from_numpy(x), torch.tensor([label])
    widest = math.sqrt(x[0].size)
    for far in (max(4 * radius, 4 * net.epsilon, 1e-3), widest):
        generator = torch.Generator().manual_seed(0)
        attack = attacks.minimal(logits, point, labels, min(far, widest), halvings=10, generator=generator)
        if bool(attack.success[0]):
            return _confirmed(engine, x, attack.x.numpy(), label, radius)
    return None


def _confirmed(engine: Engine, x: np.ndarray, there: np.ndarray, label: int, radius: float) -> Found | None:
    """Where the engine rounds to the other side of the boundary, a step further out."""
    step = there.astype(np.float64) - x
    for stretch in (1.0, 1.001, 1.01, 1.1):
        further = np.clip(x + stretch * step, 0.0, 1.0).astype(np.float32)
        found = int(engine.answer(further, None).label[0])
        if found != label:
            distance = float(np.linalg.norm(further.astype(np.float64) - x))
            if distance < radius:
                raise BrokenCertificate(f"an attack at distance {distance!r}, inside the radius {radius!r}")
            return Found(further[0], found, distance)
    return None
