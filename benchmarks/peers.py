"""Seconds per epoch of certified training on a CPU: ours beside what a user would otherwise run.

    python -m benchmarks.peers --data FOLDER [--gloro-python PATH]

The same network (2C2F with MinMax), the same data (MNIST, batch 512, no augmentation), the same loss
(cross-entropy over logits and ⊥ at ε = 0.3), Adam:

- ours: `gn.fit`, with 5 power iterations a step and with 1, and plain training in the same loop;
- an eager PyTorch loop whose hidden layers carry torch's `spectral_norm` (1 iteration), so that K is taken
  for 1. It costs what such loops cost, but it proves less than it seems to: on a convolution `spectral_norm`
  sees the kernel reshaped to a matrix, whose norm is no bound of the convolution's;
- the original `gloro` package (TensorFlow, its default of 5 iterations), run by the Python that has it, with
  and without the refresh of the power iterates its `fit` ends every epoch with.

Kinds take turns. Every timed epoch is the first whole one of a fresh net that has trained on two batches, so
that nobody's start-up is timed. TensorFlow gets images that are float32 already; the others convert theirs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

import gloronet as gn
from benchmarks import record

EPSILON, BATCH, SHAPE, CLASSES = 0.3, 512, (1, 28, 28), 10
OURS, OURS_1, PLAIN = "ours", "ours, 1 iteration", "ours, plain training"
EAGER, GLORO, GLORO_STEPS = "eager loop, spectral_norm", "gloro, as its fit does", "gloro, steps alone"
ITERATIONS = {OURS: 5, OURS_1: 1, PLAIN: 0, EAGER: 1}
KINDS = (OURS, OURS_1, PLAIN, EAGER, GLORO, GLORO_STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--rounds", type=int, default=3, help="timed epochs of each kind")
    parser.add_argument("--images", type=int, help="only the first N, for a quick look")
    parser.add_argument(
        "--gloro-python", default=sys.executable, help="a Python that has gloro and tensorflow"
    )
    options = parser.parse_args()
    if shutil.which(options.gloro_python) is None:
        parser.error(f"--gloro-python: there is no program {options.gloro_python}.")
    if options.rounds < 1 or (options.images is not None and options.images <= BATCH):
        parser.error(f"--rounds must be at least 1 and --images more than a batch of {BATCH}.")

    data = first_images(gn.data.load("mnist", options.data), options.images)
    folder = gn.data.data_root(options.data) / "mnist"
    rounds = [one_round(data, folder, options.gloro_python) for _ in range(options.rounds)]
    report(rounds, len(data.train_x))


def one_round(data: gn.data.Dataset, folder: Path, gloro_python: str) -> dict[str, Any]:
    """An epoch of each kind: its seconds and mean loss, and what the process with gloro said."""
    certified = gn.TrainConfig(
        epochs=1, batch_size=BATCH, loss="ce", lr_schedule="constant", power_iterations=ITERATIONS[OURS]
    )
    gloro = gloro_epoch(gloro_python, folder, len(data.train_x))
    epochs = {
        OURS: our_epoch(data, certified),
        OURS_1: our_epoch(data, dataclasses.replace(certified, power_iterations=ITERATIONS[OURS_1])),
        PLAIN: our_epoch(data, dataclasses.replace(certified, loss="plain")),
        EAGER: eager_epoch(data),
    }
    if gloro["installed"]:
        epochs[GLORO] = {"seconds": gloro["seconds"], "loss": gloro["loss"]}
        epochs[GLORO_STEPS] = {"seconds": gloro["steps_seconds"], "loss": gloro["loss"]}
    return {"epochs": epochs, "gloro": gloro}


def our_epoch(data: gn.data.Dataset, config: gn.TrainConfig) -> dict[str, float]:
    torch.manual_seed(config.seed)
    net = gn.GloRoNet(gn.models.build("2C2F", SHAPE, CLASSES), EPSILON, SHAPE)
    gn.fit(net, first_images(data, warm_up(data)), config, device="cpu")
    (epoch,) = gn.fit(net, data, config, device="cpu")
    return {"seconds": epoch["seconds"], "loss": epoch["loss"]}


def eager_epoch(data: gn.data.Dataset) -> dict[str, float]:
    """The loop a user would write: layers normalised to 1, ⊥ from the differences of the last layer's rows."""
    torch.manual_seed(0)
    net = gn.models.build("2C2F", SHAPE, CLASSES)
    *hidden, last = (layer for layer in net if isinstance(layer, nn.Conv2d | nn.Linear))
    for layer in hidden:
        spectral_norm(layer, n_power_iterations=ITERATIONS[EAGER])
    # The same Adam as ours, fused too: what differs is the price of the norms, not that of the optimiser.
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, eps=1e-7, fused=True)
    generator = torch.Generator().manual_seed(0)

    def train(images: Tensor, labels: Tensor) -> float:
        net.train()
        total = 0.0
        for batch in torch.randperm(len(images), generator=generator).split(BATCH):
            x, y = images[batch].float() / 255, labels[batch]
            logits = net(x)
            loss = cross_entropy(with_bottom(logits, last.weight), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        return total / len(images)

    train(data.train_x[: warm_up(data)], data.train_y[: warm_up(data)])
    began = time.perf_counter()
    loss = train(data.train_x, data.train_y)
    return {"seconds": time.perf_counter() - began, "loss": loss}


def with_bottom(logits: Tensor, rows: Tensor) -> Tensor:
    """(B, m+1): ⊥ is max over i ≠ j of y_i + ε·‖w_j − w_i‖, with j the largest logit's index and K = 1."""
    top = logits.argmax(1)
    margins = (rows[:, None] - rows).norm(dim=2)
    raised = (logits + EPSILON * margins[top]).scatter(1, top[:, None], -torch.inf)
    return torch.cat([logits, raised.amax(1, keepdim=True)], dim=1)


def gloro_epoch(python: str, folder: Path, images: int) -> dict[str, Any]:
    """What peer_gloro.py printed: an epoch's seconds and the versions, or that gloro is not installed there."""
    script = Path(__file__).with_name("peer_gloro.py")
    settings = {"batch": BATCH, "epsilon": EPSILON, "images": images, "threads": torch.get_num_threads()}
    arguments = [f"--{name}={value}" for name, value in settings.items()]
    done = subprocess.run([python, str(script), str(folder), *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"gloro failed under {python}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def report(rounds: list[dict[str, Any]], images: int) -> None:
    seconds = {kind: [r["epochs"][kind]["seconds"] for r in rounds if kind in r["epochs"]] for kind in KINDS}
    losses = {kind: [r["epochs"][kind]["loss"] for r in rounds if kind in r["epochs"]] for kind in KINDS}
    medians = {kind: statistics.median(times) for kind, times in seconds.items() if times}
    ratios = {
        f"to {ours}": {kind: median / medians[ours] for kind, median in medians.items()}
        for ours in (OURS, OURS_1)
    }
    gloro = rounds[0]["gloro"]
    iterations = ITERATIONS | dict.fromkeys((GLORO, GLORO_STEPS), gloro.get("power_iterations"))
    title = f"MNIST, 2C2F, {images:,} images, CPU: an epoch of training"
    shown = Table("what", "iterations", "seconds", "÷ ours", "÷ ours, 1", title=title)
    for kind in KINDS:
        if kind in medians:
            shares = (f"{part[kind]:.2f}×" for part in ratios.values())
            shown.add_row(kind, str(iterations[kind] or "–"), f"{medians[kind]:.2f}", *shares)
        else:
            shown.add_row(kind, "–", "not installed", "–", "–")
    Console().print(shown)
    result = {
        "settings": {"net": "2C2F", "images": images, "batch": BATCH, "epsilon": EPSILON, "loss": "ce"},
        "power_iterations": iterations,
        "epoch_seconds": seconds,
        "epoch_seconds_median": medians,
        "epoch_ratio": ratios,
        "epoch_loss": losses,
        "gloro": gloro["versions"] if gloro["installed"] else f"not installed: {gloro['why']}",
    }
    print(f"record: {record.append('peers-cpu', result)}")


def first_images(data: gn.data.Dataset, count: int | None) -> gn.data.Dataset:
    return dataclasses.replace(data, train_x=data.train_x[:count], train_y=data.train_y[:count])


def warm_up(data: gn.data.Dataset) -> int:
    """Images in two batches, the second as short as an epoch's last: all the shapes the epoch will have."""
    return BATCH + (len(data.train_x) % BATCH or BATCH)


if __name__ == "__main__":
    main()
