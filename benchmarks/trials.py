"""Settings tried on images held out of the training set: how every tuned preset was chosen.

    python -m benchmarks.trials FILE --data FOLDER [--at-once 6]

Each line of FILE is a preset and what is changed in it, `speedrun train.epochs=30 train.lr=0.01`. Each trains on
all but 5,000 training images in a process of its own, several side by side (so the seconds in a record are no
measure of speed), and is judged by bounds on the images left out. The test set is not looked at. Every trial adds
a line to `records/trials.jsonl`.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import gloronet as gn
from benchmarks import record
from gloronet import presets
from gloronet.certify import Table, certify_set, disjoint_balls
from gloronet.folder import build
from gloronet.train.fast import Fast

MULTIPLES = (0.5, 1.5, 2.0, 3.0)
"""Of ε, at which the share of right answers certified is recorded besides ε itself."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", help="lines of PRESET KEY=VALUE …")
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--one", action="store_true", help="FILE is itself a line; run it here")
    options = parser.parse_args()
    if options.one:
        try_out(options.file, options.data, options.device, options.at_once)
        return
    lines = [line.strip() for line in Path(options.file).read_text().splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    threads = str(max(1, (os.cpu_count() or 1) // options.at_once))

    def elsewhere(line: str) -> int:
        data = ["--data", str(options.data)] if options.data else []
        command = [sys.executable, "-m", "benchmarks.trials", line, "--one", "--device", options.device, *data]
        command += ["--at-once", str(options.at_once)]
        return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": threads}, check=False).returncode

    with ThreadPoolExecutor(options.at_once) as pool:
        failed = [line for line, code in zip(lines, pool.map(elsewhere, lines), strict=True) if code]
    if failed:
        raise SystemExit("failed:\n" + "\n".join(failed))


def try_out(line: str, root: Path | None, device: str, at_once: int) -> None:
    preset, *changes = shlex.split(line)
    config = gn.config.changed(presets.read(preset), changes)
    data = gn.data.load(config.data.name, root).holdout(5000)
    found = one_run(config, data, config.train.seed, device)
    result = {
        "preset": preset, "changes": changes, "config": gn.config.to_dict(config),
        "evaluated_on": "5,000 held-out training images, by bounds", "side_by_side": at_once, **found,
    }  # fmt: skip
    record.append("trials", result)
    shares = " ".join(f"{k}ε {v:.2%}" for k, v in found["vra_at_multiples"].items())
    print(f"VRA {found['vra']:.2%} clean {found['clean']:.2%} [{shares}] training {found['training_vra_estimate']:.2%} "
          f"K {found['margin_constants']['bound']:.3g} {found['wall_seconds']:.0f} s: {line}", flush=True)  # fmt: skip


def one_run(
    config: gn.Config, data: gn.data.Dataset, seed: int, device: str, fast: Fast | None = None
) -> dict[str, Any]:
    """Trains with that seed and certifies `data`'s test images by bounds, `"real"`."""
    recipe = dataclasses.replace(config.train, seed=seed)
    torch.manual_seed(seed)
    net = build(config, data)
    began = time.perf_counter()
    history = gn.fit(net, data, recipe, device=device, fast=fast)
    whole = time.perf_counter() - began
    preparing = sum(row["preparing"] for row in history)
    began = time.perf_counter()
    proved = net.bound()
    bound_seconds = time.perf_counter() - began
    table = certify_set(net, data.test_x, data.test_y)
    gap = disjoint_balls(table, data.test_x)
    if gap < 0:
        raise SystemExit(f"Certified balls of different labels overlap by {-gap:g}.")
    return {
        "seed": seed, "wall_seconds": whole, "preparing_seconds": preparing, "training_seconds": whole - preparing,
        "bound_seconds": bound_seconds, "clean": table.clean, "vra": table.vra,
        "vra_at_multiples": {str(k): _vra(table, k * table.epsilon) for k in MULTIPLES},
        "training_vra_estimate": history[-1]["vra_estimate"],
        "margin_constants": {"estimate": history[-1]["lipschitz_estimate"], "bound": float(proved.margins.max())},
    }  # fmt: skip


def _vra(table: Table, epsilon: float) -> float:
    return float((table.right & (table.radius > epsilon)).mean())


if __name__ == "__main__":
    main()
