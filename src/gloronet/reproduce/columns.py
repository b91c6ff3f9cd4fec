"""A trained run → the columns of the paper's tables, in groups that are measured one by one.

Each group is a function of the opened run to plain numbers, ready for JSON. What a machine cannot measure is
None, never 0.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gloronet import attacks, folder, verbs
from gloronet.averaged import certify_averaged_set
from gloronet.certify import Table, at_once, certify_set, disjoint_balls
from gloronet.config import Config, TrainConfig
from gloronet.data import Dataset, to_unit
from gloronet.errors import GloroError
from gloronet.lower import global_lower, local_lower, vra_at, vra_estimate_to_tolerance
from gloronet.net import SEMANTICS, GloRoNet
from gloronet.train import Progress, fit
from gloronet.train.fast import WARM, Fast

WRITTEN = {"36/255": "0.141"}
"""How the paper writes an ε that it rounds: such rows have the VRA at the rounded one as well."""
CURVE = 121
"""Points of the curve of certified accuracy, from radius 0 to three times ε."""
TIMED = WARM + 4
"""Epochs a training is timed for. The short batch at the end comes once in each, and is captured when it comes for the
WARM + 1st time; an epoch in which anything was prepared does not count."""


class Opened(NamedTuple):
    """A finished run with its net and data, and how thoroughly it is to be measured."""

    run: Path
    config: Config
    net: GloRoNet
    data: Dataset
    root: Path | None
    device: str | None
    effort: Effort

    @property
    def place(self) -> torch.device:
        return next(self.net.parameters()).device


class Effort(NamedTuple):
    """The paper's own numbers, unless told otherwise."""

    attacked: int = 1000
    """Test samples that are attacked, evenly spaced; 0: all."""
    steps: int = 100
    restarts: int = 10
    global_steps: int = 7500
    local_steps: int = 5000
    smoothed: int = 1000
    noisy: int = 100_000
    side_by_side: int = 1
    """How many trainings share the device: their seconds are then no measure of speed."""


def training(o: Opened) -> dict[str, Any]:
    """How it was trained, from the run's own files; as the zoo says where the net is from there."""
    trained: dict[str, Any] = folder.read_summary(o.run).get("trained", {})
    if not (o.run / "metrics.jsonl").exists():
        return trained
    history = [json.loads(line) for line in (o.run / "metrics.jsonl").read_text().splitlines()]
    return {
        "epochs": len(history),
        "seconds": sum(row["seconds"] for row in history),
        "preparing_seconds": sum(row["preparing"] for row in history),
        "seconds_per_epoch": _median_epoch(history),
        "side_by_side": o.effort.side_by_side,
        "vra_estimate_in_training": history[-1]["vra_estimate"],
        **trained,
    }


def accuracy(o: Opened) -> dict[str, Any]:
    """Clean accuracy and VRA by bounds under each semantics; apart from these, VRA by the paper's protocol."""
    net, x, y = o.net, o.data.test_x, o.data.test_y
    proved = folder.bound_of(o.run, net)
    names = [s for s in SEMANTICS if s == "real" or net.speaks_of(s)]
    tables: dict[str, Table] = {}
    with folder.bar("certifying", len(names) * len(x)) as advance:
        for semantics in names:
            tables[semantics] = certify_set(net, x, y, o.config.epsilon, semantics, progress=advance)
    table = tables["real"]
    estimate = vra_estimate_to_tolerance(net, to_unit(x.to(o.place)), y.to(o.place))
    radii = np.linspace(0.0, 3 * table.epsilon, CURVE)
    rounded = WRITTEN.get(o.config.epsilon)
    return {
        "clean": table.clean,
        "vra": {semantics: t.vra for semantics, t in tables.items()},
        "vra_at": {rounded: _share(table, float(rounded))} if rounded else {},
        "vra_paper_protocol": estimate.vra,
        "paper_protocol_iterations": estimate.iterations,
        "mean_radius": table.mean_radius,
        "disjoint_ball_gap": _audited(table, x) if net.norm == "l2" else None,
        "curve": {"radius": radii.tolist(), "certified": [_share(table, r) for r in radii]},
        "bound_seconds": proved.seconds,
        "digest": proved.digest,
    }


def mirrored(o: Opened) -> dict[str, Any]:
    """Clean accuracy and VRA, by bounds, of the logits averaged over an image and its mirror image."""
    return averaged([o.net], o, flip=True)


def averaged(nets: Sequence[GloRoNet], o: Opened, flip: bool) -> dict[str, Any]:
    """The same for the average of several nets, each proved already."""
    with folder.bar("certifying", len(o.data.test_x)) as advance:
        table = certify_averaged_set(
            nets, o.data.test_x, o.data.test_y, o.config.epsilon, flip, progress=advance
        )
    return {"clean": table.clean, "vra": table.vra, "disjoint_ball_gap": _audited(table, o.data.test_x)}


def attack(o: Opened) -> dict[str, Any]:
    """What PGD leaves right at ε: ours and, where it is installed, that of ART; with the VRA of the same samples."""
    net, effort = o.net, o.effort
    index = evenly(len(o.data.test_x), effort.attacked)
    x, y = o.data.test_x[index], o.data.test_y[index]
    settings: dict[str, Any] = {"steps": effort.steps, "restarts": effort.restarts}
    table = certify_set(net, x, y, o.config.epsilon)
    attackers = {"pgd": attacks.pgd, **({"pgd_art": attacks.pgd_art} if attacks.art_is_here() else {})}
    found: dict[str, float | None] = {"pgd": None, "pgd_art": None}
    for name, attacker in attackers.items():
        withstood = _withstood(attacker, o, x, y, settings)
        broken = index[table.right & table.certified & ~withstood]
        if len(broken):
            raise GloroError(f"{name} broke what is certified, test sample {broken[0]}: please report this as a bug.")
        found[name] = float(withstood.mean())
    return {**found, **settings, "samples": len(index), "vra_of_these": table.vra}


def cost(o: Opened) -> dict[str, Any]:
    """Seconds an epoch with the device to itself, memory of training, and seconds and memory of certifying."""
    o.net.bound()
    x = o.data.test_x
    seconds, memory = [], None
    for _ in range(3):
        if o.place.type == "cuda":
            torch.cuda.reset_peak_memory_stats(o.place)
            before = torch.cuda.memory_allocated(o.place)
        began = time.perf_counter()
        certify_set(o.net, x, o.data.test_y, o.config.epsilon)
        seconds.append(time.perf_counter() - began)
        if o.place.type == "cuda":
            peak = torch.cuda.max_memory_allocated(o.place) - before
            memory = peak / min(at_once(o.place), len(x))
    train = o.config.train
    steps = train.epochs * -(-len(o.data.train_x) // train.batch_size)
    few, fast = dataclasses.replace(train, epochs=TIMED, warmup_epochs=0), Fast.on(o.place, steps, _silent)
    history = fit(_fresh(o), o.data, few, device=o.device, fast=fast)
    return {
        "seconds_per_epoch": _median_epoch(history),
        "memory_per_instance": training_memory(_fresh(o), o.data, train) if o.place.type == "cuda" else None,
        "certify_seconds": min(seconds),
        "certify_memory_per_instance": memory,
    }


def lipschitz(o: Opened) -> dict[str, Any]:
    """The margin constant from above, and from below over all inputs and within ε of test points (Appendix E)."""
    proved = folder.bound_of(o.run, o.net)
    x = to_unit(o.data.test_x.to(o.place))
    generator = torch.Generator().manual_seed(0)
    searches: dict[str, tuple[Callable[..., Any], int]] = {
        "lower_global": (global_lower, o.effort.global_steps),
        "lower_local": (local_lower, o.effort.local_steps),
    }
    found: dict[str, float] = {"upper": float(proved.margins.max())}
    for name, (search, steps) in searches.items():
        with folder.bar("searching", steps) as advance:
            found[name] = search(o.net, x, steps=steps, generator=generator, progress=advance).value
    return {**found, "global_steps": o.effort.global_steps, "local_steps": o.effort.local_steps}


def smoothing(o: Opened) -> dict[str, Any]:
    """Randomized smoothing with the σ it was trained with, on evenly spaced test samples: stochastic."""
    options: dict[str, Any] = {"n": o.effort.noisy, "samples": o.effort.smoothed}
    table = verbs.smooth(o.run, root=o.root, device=o.device, **options)
    return {name: value for name, value in table.summary().items() if name != "rows"}


def tightness(o: Opened) -> dict[str, Any]:
    """The constant from above and below, and VRA by it beside VRA by the estimate as training left it."""
    upper = folder.bound_of(o.run, o.net)
    x = to_unit(o.data.test_x.to(o.place))
    with torch.no_grad():
        logits = torch.cat([o.net.program().freeze()(part).cpu() for part in x.split(1000)])
        left = o.net.lipschitz_estimate(0).cpu()
    with folder.bar("searching", o.effort.global_steps) as advance:
        generator = torch.Generator().manual_seed(0)
        lower = global_lower(o.net, x, steps=o.effort.global_steps, generator=generator, progress=advance)
    return {
        "upper": float(upper.margins.max()),
        "lower_global": lower.value,
        "lower_steps": o.effort.global_steps,
        "vra": certify_set(o.net, o.data.test_x, o.data.test_y, o.config.epsilon).vra,
        "vra_estimate": vra_at(logits, o.data.test_y, left, o.net.epsilon),
        "seconds_per_epoch": training(o)["seconds_per_epoch"],
    }


GROUPS: dict[str, Callable[[Opened], dict[str, Any]]] = {
    "training": training,
    "accuracy": accuracy,
    "mirrored": mirrored,
    "attack": attack,
    "cost": cost,
    "lipschitz": lipschitz,
    "smoothing": smoothing,
}


def training_memory(net: GloRoNet, data: Dataset, config: TrainConfig) -> float:
    """Peak bytes an instance of a batch that training takes on a GPU, weights and optimiser included.

    Of steps that are neither compiled nor captured, as a graph's memory is not counted while it runs, and after
    the first epoch, in which cuDNN tries kernels with workspaces that are not used later.
    """

    class AfterTheFirst(Progress):
        def epoch(self, metrics: Mapping[str, Any]) -> None:
            if metrics["epoch"] == 1:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()

    few = 3 * config.batch_size
    data = dataclasses.replace(data, train_x=data.train_x[:few], train_y=data.train_y[:few])
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    every = Fast.on(torch.device("cuda"), 10**9, _silent)
    eager = dataclasses.replace(every, compile=False, capture=False)
    two = dataclasses.replace(config, epochs=2, warmup_epochs=0)
    fit(net, data, two, device="cuda", fast=eager, progress=AfterTheFirst())
    resident = data.train_x.nbytes + data.train_y.nbytes
    return (torch.cuda.max_memory_allocated() - before - resident) / config.batch_size


def evenly(total: int, count: int) -> Tensor:
    """`count` of `total` indices, evenly spaced; all of them when count is 0 or more than there are.

    >>> evenly(10, 4).tolist(), evenly(3, 0).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    count = min(count or total, total)
    return torch.arange(count) * total // count


def _withstood(attacker: Callable[..., Any], o: Opened, x: Tensor, y: Tensor, settings: dict[str, Any]) -> np.ndarray:
    """Which samples are still right after the attack."""
    generator = torch.Generator().manual_seed(0)
    right = []
    with folder.bar("attacking", len(x)) as advance:
        for part, labels in zip(x.split(1000), y.split(1000), strict=True):
            inputs = to_unit(part.to(o.place)), labels.to(o.place)
            found = attacker(o.net.logits, *inputs, o.net.epsilon, generator=generator, **settings)
            right.append((~found.success).cpu().numpy())
            advance(len(part))
    return np.concatenate(right)


def _audited(table: Table, x: Tensor) -> float | None:
    """How far apart certified balls of different labels are, at the least; None where there are no two."""
    gap = disjoint_balls(table, x)
    if gap < 0:
        raise GloroError(f"Certified balls of different labels overlap by {-gap:g}: please report this as a bug.")
    return gap if np.isfinite(gap) else None


def _silent(text: str) -> None:
    """For features that are not to be had: the training itself has said so."""


def _fresh(o: Opened) -> GloRoNet:
    torch.manual_seed(o.config.train.seed)
    return folder.build(o.config, o.data)


def _median_epoch(history: list[dict[str, Any]]) -> float | None:
    """The median seconds of an epoch after the first in which nothing was compiled or captured."""
    seconds = [row["seconds"] for row in history[1:] if row["preparing"] == 0]
    return statistics.median(seconds) if seconds else None


def _share(table: Table, radius: float) -> float:
    """The share of samples right and certified beyond that radius; at 0, right."""
    return float((table.right & ((table.radius > radius) | (radius == 0))).mean())
