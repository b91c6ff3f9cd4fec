"""The least work that keeps training sound and the final bound tight: variants of the norm estimate.

    python -m benchmarks.estimates --data FOLDER [--preset mnist --device cpu]

Each variant trains a preset (`speedrun`) on all but 5,000 training images, and is judged by its step's time, by
how far the largest estimated margin constant is below the bound half-way and at the end, and by the VRA (by
bounds, at the ε of the preset) on the images left out. Steps are captured but not compiled, as compiling each
variant would take longer than training it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import gloronet as gn
from benchmarks import record
from benchmarks.setting import fast
from gloronet import presets
from gloronet.certify import certify_set
from gloronet.folder import build

VARIANTS: dict[str, dict[str, Any]] = {
    "no estimate: plain training": {"loss": "plain"},
    "1 iteration every 16th step": {"power_iterations": 1, "refresh_every": 16},
    "1 iteration every 4th step": {"power_iterations": 1, "refresh_every": 4},
    "1 iteration every 2nd step": {"power_iterations": 1, "refresh_every": 2},
    "1 iteration a step": {"power_iterations": 1},
    "2 iterations a step": {"power_iterations": 2},
    "5 iterations a step": {"power_iterations": 5},
    "1 iteration a step, nothing side by side": {"power_iterations": 1, "overlap": False},
    "5 iterations a step, nothing side by side": {"power_iterations": 5, "overlap": False},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--preset", default="speedrun")
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    place = gn.train.pick_device(options.device)
    config = gn.config.changed(presets.read(options.preset), options.changes)
    data = gn.data.load(config.data.name, options.data).holdout(5000)
    variants = {k: v for k, v in VARIANTS.items() if place.type == "cuda" or "overlap" not in v}
    results = {name: one_variant(config, data, variant, options.device) for name, variant in variants.items()}

    shown = Table("variant", "step", "below the bound: half-way", "at the end", "clean", "VRA")
    for name, r in results.items():
        gaps = (f"{r[k]:.2%}" if r[k] is not None else "–" for k in ("gap_half_way", "gap_at_the_end"))
        shown.add_row(name, f"{1e3 * r['step_seconds']:.3f} ms", *gaps, f"{r['clean']:.2%}", f"{r['vra']:.2%}")
    Console().print(shown)
    result = {"config": gn.config.to_dict(config), "evaluated_on": "held-out training images", "results": results}
    print(f"record: {record.append(f'estimates-{place.type}', result)}")


class HalfWay(gn.train.Progress):
    """Keeps a copy of the net as it is half-way, to be bounded when training is over."""

    def __init__(self, net: gn.GloRoNet, epoch: int) -> None:
        self.net, self.at, self.weights, self.estimate = net, epoch, {}, None

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        if metrics["epoch"] == self.at:
            self.weights = copy.deepcopy(self.net.state_dict())
            self.estimate = metrics["lipschitz_estimate"]


def one_variant(config: gn.Config, data: gn.data.Dataset, variant: dict[str, Any], device: str) -> dict[str, Any]:
    settings = {k: v for k, v in variant.items() if k != "overlap"}
    recipe = dataclasses.replace(config.train, **settings)
    torch.manual_seed(recipe.seed)
    net = build(config, data)
    quick = fast(device, compiled=False)
    quick = dataclasses.replace(quick, overlap=variant.get("overlap", quick.overlap))
    half = HalfWay(net, recipe.epochs // 2)
    history = gn.fit(net, data, recipe, device=device, fast=quick, progress=half)
    settled = [row["seconds"] for row in history if row["preparing"] == 0]
    table = certify_set(net, data.test_x, data.test_y)
    at_the_end = _gap(history[-1]["lipschitz_estimate"], net)
    half_way = None
    if half.estimate is not None:
        net.load_state_dict(half.weights)
        half_way = _gap(half.estimate, net)
    return {
        "settings": variant, "step_seconds": statistics.median(settled) / -(-len(data.train_x) // recipe.batch_size),
        "gap_half_way": half_way, "gap_at_the_end": at_the_end, "clean": table.clean, "vra": table.vra,
        "training_vra_estimate": history[-1]["vra_estimate"],
    }  # fmt: skip


def _gap(estimate: float | None, net: gn.GloRoNet) -> float | None:
    """How far the estimate of the largest margin constant is below the bound, as a share of the bound."""
    return None if estimate is None else 1 - estimate / float(net.bound().margins.max())


if __name__ == "__main__":
    main()
