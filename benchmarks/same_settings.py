"""A preset's settings in ours and in the original `gloro` package: whether a result is the settings' or the program's.

    python -m benchmarks.same_settings minmax/mnist-1.58 model.architecture=2C2F train.epochs=30 \
        --data FOLDER --gloro-python PATH

Both train on all but 5,000 training images, drawn alike, on a CPU, and are judged on the images left out: ours by
bounds and by the paper's own protocol, theirs by the latter, which is an estimate. Every step's ε, λ and learning rate
are ours and told to theirs. The preset may ask for nothing that the package has not: Adam, no augmentation.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gloronet as gn
from benchmarks import record
from gloronet import presets, schedules
from gloronet.config import parse_epsilon
from gloronet.folder import build
from gloronet.lower import vra_estimate_to_tolerance
from gloronet.models.architectures import spelled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--gloro-python", required=True, help="a Python that has gloro and tensorflow")
    options = parser.parse_args()
    config = gn.config.changed(presets.read(options.preset), options.changes)
    if (config.train.optimizer, config.train.augmentation, config.train.warmup_epochs) != ("adam", "none", 0):
        parser.error("gloro is run with Adam, without augmentation and without warm-up.")
    if config.train.loss not in ("ce", "trades-kl", "trades-ce"):
        parser.error(f"gloro has no loss {config.train.loss}.")
    data = gn.data.load(config.data.name, options.data).holdout(5000)

    theirs = gloro_run(options.gloro_python, config, data)
    print("theirs:", theirs)
    ours = our_run(config, data)
    print("ours:", ours)
    result = {
        "preset": options.preset, "changes": options.changes, "config": gn.config.to_dict(config),
        "evaluated_on": "5,000 held-out training images", "ours": ours, "gloro": theirs,
    }  # fmt: skip
    print(f"record: {record.append('same-settings-cpu', result)}")


def our_run(config: gn.Config, data: gn.data.Dataset) -> dict[str, Any]:
    torch.manual_seed(config.train.seed)
    net = build(config, data)
    began = time.perf_counter()
    gn.fit(net, data, config.train, device="cpu")
    seconds = time.perf_counter() - began
    table = gn.certify.certify_set(net, data.test_x, data.test_y)
    estimate = vra_estimate_to_tolerance(net, gn.data.to_unit(data.test_x), data.test_y)
    return {"clean": table.clean, "vra": table.vra, "vra_estimate": estimate.vra,
            "margin_estimate": float(estimate.margins.max()), "seconds": seconds}  # fmt: skip


def gloro_run(python: str, config: gn.Config, data: gn.data.Dataset) -> dict[str, Any]:
    model, train = config.model, config.train
    epsilon = parse_epsilon(config.epsilon)
    settings = {
        "network": spelled(model.architecture, len(data.classes)), "activation": model.activation, "init": model.init,
        "epsilon": epsilon, "loss": train.loss, "steps": told(config, len(data.train_x)), "epochs": train.epochs,
        "batch_size": train.batch_size, "power_iterations": train.power_iterations, "seed": train.seed,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    script = Path(__file__).with_name("peer_gloro_fit.py")
    with tempfile.TemporaryDirectory() as folder:
        task = Path(folder) / "task.npz"
        images = {name: getattr(data, name).numpy() for name in ("train_x", "train_y", "test_x", "test_y")}
        np.savez(task, settings=json.dumps(settings), **images)
        began = time.perf_counter()
        done = subprocess.run([python, str(script), str(task)], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"gloro failed under {python}.")
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": time.perf_counter() - began}


def told(config: gn.Config, images: int) -> list[tuple[float, float, float]]:
    """(ε, λ, learning rate) of every step."""
    train, epsilon = config.train, parse_epsilon(config.epsilon)
    target = epsilon if train.epsilon_train is None else parse_epsilon(train.epsilon_train)
    of = (
        schedules.epsilon_schedule(train.epsilon_schedule, target, epsilon, train.epochs),
        schedules.lambda_schedule(train.lam),
        schedules.lr_schedule(train.lr_schedule, train.lr, train.epochs),
    )
    steps = -(-images // train.batch_size)
    times = [epoch + k / steps for epoch in range(train.epochs) for k in range(steps)]
    return [(of[0](t), of[1](t), of[2](t)) for t in times]


if __name__ == "__main__":
    main()
