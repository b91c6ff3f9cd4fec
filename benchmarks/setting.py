"""What the benchmarks have in common: the paper's networks with data of the right size, and a timed training."""

from __future__ import annotations

import dataclasses
import gc
import statistics
from typing import Any, NamedTuple

import torch

import gloronet as gn
from gloronet.train.fast import Fast

BATCH = 512


class Setting(NamedTuple):
    """A network of the paper, and the data it is trained on."""

    shape: tuple[int, int, int]
    classes: int
    images: int
    epsilon: str
    augmentation: str


SETTINGS = {
    "2C2F": Setting((1, 28, 28), 10, 60_000, "0.3", "none"),
    "4C3F": Setting((1, 28, 28), 10, 60_000, "1.58", "none"),
    "6C2F": Setting((3, 32, 32), 10, 50_000, "36/255", "crop-flip"),
    "8C2F": Setting((3, 64, 64), 200, 100_000, "36/255", "crop-flip"),
}
LOSSES = {"plain": "plain", "certified": "emma"}
"""What is compared: cross-entropy without estimates, and the certified loss with them."""


def made(setting: Setting, images: int | None = None) -> gn.data.Dataset:
    """Random images of that size: the time of a step does not depend on what is in them."""
    generator = torch.Generator().manual_seed(0)

    def part(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randint(0, 256, (n, *setting.shape), dtype=torch.uint8, generator=generator)
        return x, torch.randint(0, setting.classes, (n,), generator=generator)

    names = tuple(map(str, range(setting.classes)))
    return gn.data.Dataset("made", *part(images or setting.images), *part(10), names)


def built(architecture: str, setting: Setting, seed: int = 0) -> gn.GloRoNet:
    torch.manual_seed(seed)
    module = gn.models.build(architecture, setting.shape, setting.classes)
    return gn.GloRoNet(module, setting.epsilon, setting.shape)


def fast(device: str, compiled: bool = True) -> Fast:
    """All that a long training gets on that device, or all but the compiler."""
    found = Fast.on(gn.train.pick_device(device), 10**9, print)
    return found if compiled else dataclasses.replace(found, compile=False)


def timed(
    net: gn.GloRoNet, data: gn.data.Dataset, config: gn.TrainConfig, device: str, compiled: bool = True
) -> dict[str, Any]:
    """Trains, and answers the seconds of each epoch in which nothing was compiled or captured, with their median."""
    gc.collect()
    history = gn.fit(net, data, config, device=device, fast=fast(device, compiled))
    epochs = [row["seconds"] for row in history[device.startswith("cuda") :] if row["preparing"] == 0]
    steps = -(-len(data.train_x) // config.batch_size)
    return {
        "epoch_seconds": epochs,
        "epoch_seconds_median": statistics.median(epochs),
        "step_seconds": statistics.median(epochs) / steps,
        "preparing_seconds": sum(row["preparing"] for row in history),
    }
