"""PGD of the Adversarial Robustness Toolbox (ART), the library the paper used: the door to it, and the only one.

ART ascends the cross-entropy from random starts with steps of one length. Where it stops is all we take
from it: the point is put back into the ball and the box, and scored anew.

Note: how far a cross-entropy pulls depends on the scale of the logits, which no label depends on. Too small, and it
pulls at all rivals alike; too large, and it is flat wherever the label leads. So ART is given the logits times a
factor that makes their median lead LEAD. Of 200 images of MNIST at ε = 1.2 it then leaves 166 of the zoo's net right,
as ours does; 184 at a lead of 1. Of a plain 2C2F at ε = 1 they are 123, ours 123, and 145 at a lead of 1.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gloronet.attacks.attack import Attack, Logits, score
from gloronet.attacks.ball import Interval, checked, distance, project
from gloronet.errors import ConfigError

LEAD = 10.0
"""The label's median lead over its strongest rival, in the logits that ART sees; 30 did no better, 3 worse."""


def pgd_art(
    logits_fn: Logits,
    x: Tensor,
    labels: Tensor,
    epsilon: float,
    *,
    steps: int = 100,
    restarts: int = 10,
    step_size: float | None = None,
    clip: Interval | None = (0.0, 1.0),
    generator: torch.Generator | None = None,
) -> Attack:
    """ART's projected gradient descent within ‖x′ − x‖₂ ≤ ε, from `restarts` random points of each ball.

    Every step is `step_size` long (5·ε/steps when not given: of six lengths tried on two small digits nets
    none broke more). Points misclassified to begin with are left as they are; of the others the last
    successful attempt is returned, or the first one.
    """
    classifier, descent = _library()
    x, box = x.detach(), clip or (-torch.inf, torch.inf)
    radius = checked(x, labels, float(epsilon), box, steps, restarts)
    with torch.no_grad():
        logits = logits_fn(x)
    lead, wrong = score(logits, labels)
    left = (~wrong).nonzero().squeeze(1)
    best = x.clone()
    stride = step_size or 5 * float(epsilon) / steps or 1.0  # ART wants more than 0, even for ε = 0
    if len(left):
        subject = classifier(
            model=_Model(logits_fn, x, _factor(lead[left])),
            loss=nn.CrossEntropyLoss(),
            input_shape=tuple(x.shape[1:]),
            nb_classes=logits.shape[1],
            clip_values=clip,
            device_type="cpu" if x.device.type == "cpu" else "gpu",
        )
        attack = descent(
            subject,
            norm=2,
            eps=float(epsilon),
            eps_step=stride,
            max_iter=steps,
            num_random_init=restarts,
            batch_size=len(left),
            verbose=False,
        )
        with _surroundings(generator):
            found = attack.generate(x[left].cpu().numpy(), labels[left].cpu().numpy())
        points = torch.from_numpy(found).to(x.device, x.dtype)
        best[left] = project(points, x[left], radius[left], box)
    with torch.no_grad():
        margin, success = score(logits_fn(best), labels)
    return Attack(best, labels, success, distance(best, x), margin, radius)


def _factor(leads: Tensor) -> float:
    """What makes the median of the leads LEAD; 1 where there is none to speak of."""
    factor = LEAD / float(leads.median()) if bool(leads.median() > 0) else 1.0
    return factor if math.isfinite(factor) else 1.0


def art_is_here() -> bool:
    """Whether the library is installed."""
    return importlib.util.find_spec("art") is not None


def _library() -> tuple[Any, Any]:
    try:
        from art.attacks.evasion import ProjectedGradientDescent
        from art.estimators.classification import PyTorchClassifier
    except ImportError as e:
        raise ConfigError(
            f'The Adversarial Robustness Toolbox cannot be imported ({e}); run: pip install "gloronet[attack]"'
        ) from None
    return PyTorchClassifier, ProjectedGradientDescent


class _Model(nn.Module):
    """Scaled logits as a module that owns nothing: ART may move it, switch its mode and clear its gradients."""

    def __init__(self, logits_fn: Logits, like: Tensor, factor: float) -> None:
        super().__init__()
        self._held = (logits_fn,)  # in a tuple: were it a module, it would be registered as a part of this one
        self._device, self._dtype, self._factor = like.device, like.dtype, factor

    def forward(self, x: Tensor) -> Tensor:
        logits = _InputOnly.apply(self._held[0], x.to(self._device, self._dtype))
        return (self._factor * logits).to(x.device, torch.float32)


class _InputOnly(torch.autograd.Function):
    """The logits, differentiable in x alone: ART calls `backward`, which would fill the parameters' gradients."""

    @staticmethod
    def forward(ctx: Any, logits_fn: Logits, x: Tensor) -> Tensor:
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.logits = logits_fn(ctx.x)
        return ctx.logits.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, torch.autograd.grad(ctx.logits, ctx.x, gradients[0])[0]


@contextmanager
def _surroundings(generator: torch.Generator | None) -> Iterator[None]:
    """What ART needs while it runs, given back as it was.

    It takes gradients, whatever the caller switched off; it draws from NumPy's global generator, which is
    seeded from ours; and it hands torch tensors to `np.array` in the way of NumPy 1, at which NumPy 2 warns.
    """
    before = np.random.get_state()  # noqa: NPY002
    device = None if generator is None else generator.device
    seed = torch.randint(2**31, (), generator=generator, device=device)
    np.random.seed(int(seed))  # noqa: NPY002
    try:
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
            yield
    finally:
        np.random.set_state(before)  # noqa: NPY002
