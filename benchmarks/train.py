"""What certified training costs beside plain training: the same loop, the same network, one with estimates.

    python -m benchmarks.train [2C2F 4C3F 6C2F 8C2F] [--device cuda]     seconds an epoch
    python -m benchmarks.train --memory [--device cuda]                  memory an instance
    python -m benchmarks.train --growth [--device cuda]                  how the ratio moves with batch, width, depth

On a GPU an epoch is the paper's whole data set at batch 512, in the form a long training gets (compiled and
captured). On a CPU the large networks take a few steps, and their epoch is so many times the step. Memory is
measured in a process of its own each: libraries keep workspaces of an earlier training.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import gloronet as gn
from benchmarks import record
from benchmarks.setting import BATCH, LOSSES, SETTINGS, Setting, built, made, timed
from gloronet.reproduce.columns import training_memory

CPU_STEPS = {"2C2F": 118, "4C3F": 12, "6C2F": 6, "8C2F": 1}
ROUNDS = {"2C2F": 5, "4C3F": 3, "6C2F": 2, "8C2F": 1}
GROWTH: dict[str, dict[int, tuple[str, int]]] = {
    "batch size, 6C2F": {batch: ("6C2F", batch) for batch in (128, 256, 512, 1024, 2048)},
    "channels of the first layer": {
        w: (f"c({w},3,1).c({w},4,2).c({2 * w},3,1).c({2 * w},4,2).d(512).d(10)", BATCH) for w in (16, 32, 64, 128)
    },
    "convolutions of 64 channels": {
        d: ("c(64,4,2)." + "c(64,3,1)." * d + "c(64,4,2).d(512).d(10)", BATCH) for d in (1, 2, 4, 8, 16)
    },
}
"""What grows → its size → architecture and batch, on 32×32 colour images."""
CPU_GROWTH = {
    "batch size, 2C2F": {batch: ("2C2F", batch) for batch in (64, 128, 256, 512, 1024)},
    "channels of the first layer": {w: (f"c({w},4,2).c({2 * w},4,2).d(100).d(10)", 256) for w in (8, 16, 32, 64)},
    "convolutions of 16 channels": {
        d: ("c(16,4,2)." + "c(16,3,1)." * d + "c(16,4,2).d(100).d(10)", 256) for d in (1, 2, 4, 8)
    },
}
"""The same on a CPU, on 28×28 grey images."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", help=f"which networks (default: {' '.join(SETTINGS)})")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--growth", action="store_true", help="cost against batch size, width and depth instead")
    parser.add_argument("--memory", action="store_true", help="peak memory an instance instead")
    parser.add_argument("--power-iterations", type=int, default=1)
    options = parser.parse_args()
    unknown = [name for name in options.nets if name not in SETTINGS]
    if unknown:
        parser.error(f"unknown networks {unknown}; choose of {', '.join(SETTINGS)}.")
    place = gn.train.pick_device(options.device).type
    if options.growth:
        grow(place, options.power_iterations)
    elif options.memory:
        weigh(options.nets or list(SETTINGS), place, options.power_iterations)
    else:
        compare(options.nets or list(SETTINGS), place, options.power_iterations)


def compare(nets: list[str], device: str, iterations: int) -> None:
    title = f"an epoch of training, batch {BATCH}, {iterations} power iteration(s) a step"
    shown = Table("net", "certified", "plain", "ratio", title=title)
    results = {}
    for name in nets:
        results[name] = r = one_net(name, device, iterations)
        times = (f"{r[kind]['epoch_seconds_typical']:.4f} s" for kind in ("certified", "plain"))
        shown.add_row(name, *times, f"{r['ratio']:.3f}×")
    Console().print(shown)
    name = f"train-{device}" if iterations == 1 else f"train-{device}-{iterations}-iterations"
    print(f"record: {record.append(name, {'settings': settings(iterations), 'results': results})}")


def weigh(nets: list[str], device: str, iterations: int) -> None:
    shown = Table("net", "certified", "plain", "ratio", title=f"peak memory an instance, batch {BATCH}")
    results: dict[str, dict[str, float]] = {}
    for name in nets:
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            results[name] = r = {kind: pool.apply(memory, (name, kind, device, iterations)) for kind in LOSSES}
        r["ratio"] = r["certified"] / r["plain"]
        shown.add_row(name, *(f"{r[kind] / 1024:.0f} KiB" for kind in ("certified", "plain")), f"{r['ratio']:.3f}×")
    Console().print(shown)
    print(f"record: {record.append(f'memory-{device}', {'settings': settings(iterations), 'results': results})}")


def settings(iterations: int) -> dict[str, Any]:
    return {"batch": BATCH, "power_iterations": iterations, "loss": LOSSES, "data": "made, of the real size"}


def one_net(name: str, device: str, iterations: int) -> dict[str, Any]:
    """Both kinds of training of one network, with their ratios."""
    setting = SETTINGS[name]
    whole = -(-setting.images // BATCH)
    images = setting.images if device == "cuda" else min(setting.images, CPU_STEPS[name] * BATCH)
    data = made(setting, images)
    steps = -(-images // BATCH)
    found: dict[str, Any] = {kind: [] for kind in LOSSES}
    for _ in range(1 if device == "cuda" else ROUNDS[name]):  # in turn, as a CPU's speed changes with what else it does
        for kind in LOSSES:
            config = recipe(kind, setting, 7 if device == "cuda" else 2, iterations)
            found[kind].append(timed(built(name, setting), data, config, device))
    result: dict[str, Any] = {"steps_timed": steps, "steps_of_an_epoch": whole}
    for kind, rounds in found.items():
        epochs = [seconds * whole / steps for r in rounds for seconds in r["epoch_seconds"]]
        typical = statistics.median(epochs) if device == "cuda" else min(epochs)  # the one that nobody disturbed
        result[kind] = rounds[0] | {"epoch_seconds": epochs, "epoch_seconds_typical": typical}
    result["ratio"] = result["certified"]["epoch_seconds_typical"] / result["plain"]["epoch_seconds_typical"]
    return result


def grow(device: str, iterations: int) -> None:
    setting = SETTINGS["6C2F" if device == "cuda" else "2C2F"]
    images = 20_480 if device == "cuda" else 4096
    data = made(setting, images)
    results: dict[str, list[dict[str, Any]]] = {}
    shown = Table("what grows", "size", "certified step", "plain step", "ratio", title="not compiled")
    for what, sizes in (GROWTH if device == "cuda" else CPU_GROWTH).items():
        results[what] = []
        for size, (architecture, batch) in sizes.items():
            row: dict[str, Any] = {"size": size, "architecture": architecture, "batch": batch}
            row |= dict.fromkeys(LOSSES, math.inf)
            for kind in list(LOSSES) * (1 if device == "cuda" else 9):
                config = dataclasses.replace(
                    recipe(kind, setting, 6 if device == "cuda" else 2, iterations), batch_size=batch
                )
                epochs = timed(built(architecture, setting), data, config, device, compiled=False)["epoch_seconds"]
                row[kind] = min(row[kind], min(epochs) * batch / images)
            row["ratio"] = row["certified"] / row["plain"]
            results[what].append(row)
            times = (f"{1e3 * row[kind]:.2f} ms" for kind in ("certified", "plain"))
            shown.add_row(what, str(size), *times, f"{row['ratio']:.2f}×")
    Console().print(shown)
    how = {"power_iterations": iterations, "loss": LOSSES, "images": images, "compiled": False}
    print(f"record: {record.append(f'growth-{device}', {'settings': how, 'results': results})}")


def recipe(kind: str, setting: Setting, epochs: int, iterations: int) -> gn.TrainConfig:
    return gn.TrainConfig(
        epochs=epochs, batch_size=BATCH, loss=LOSSES[kind], power_iterations=iterations,
        augmentation=setting.augmentation, lr_schedule="constant",
    )  # fmt: skip


def memory(name: str, kind: str, device: str, iterations: int) -> float:
    """Peak bytes an instance that a training takes, weights and optimiser included, the data set not.

    On a CPU, what it adds to the process's peak; on Linux only.
    """
    setting = SETTINGS[name]
    net, config = built(name, setting), recipe(kind, setting, 1, iterations)
    if device == "cuda":
        return training_memory(net, made(setting, 3 * BATCH), config)
    data = made(setting, 2 * BATCH)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: a process inherits its parent's
    before = _kibibytes("VmRSS")
    gn.fit(net, data, config, device="cpu")
    return 1024 * (_kibibytes("VmHWM") - before) / BATCH


def _kibibytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


if __name__ == "__main__":
    main()
