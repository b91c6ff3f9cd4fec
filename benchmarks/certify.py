"""What certificates cost beside plain inference: a test set of the size of CIFAR-10's, 10,000 images, 6C2F.

    python -m benchmarks.certify [--device cuda] [--net 6C2F]

Plain is the float32 network on the same batches; certificates are `"real"`, evaluated in float64 with the
margin constants at hand. The bound itself, which is proved once a net, is timed apart.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import gloronet as gn
from benchmarks import record
from benchmarks.setting import SETTINGS, built, made
from gloronet.certify import at_once, certify_set
from gloronet.data import to_unit

IMAGES = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--net", default="6C2F", choices=SETTINGS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    place = gn.train.pick_device(options.device)
    setting = SETTINGS[options.net]
    data = made(setting, IMAGES)
    x, labels = data.train_x, data.train_y
    net = built(options.net, setting).to(place).eval()
    bound_seconds = seconds(net.bound, 1, place)[0]

    @torch.no_grad()
    def plain() -> list[torch.Tensor]:
        return [net.logits(to_unit(part.to(place))).argmax(1).cpu() for part in x.split(at_once(place))]

    times = {
        "plain": seconds(plain, options.rounds, place),
        "certified": seconds(lambda: certify_set(net, x, labels), options.rounds, place),
        "certified, float32": seconds(
            lambda: certify_set(net, x, labels, semantics="float32"), options.rounds, place
        ),
    }
    medians = {kind: statistics.median(of) for kind, of in times.items()}
    shown = Table("what", "seconds", "÷ plain", title=f"{IMAGES:,} images, {options.net}, from and to the CPU's memory")
    for kind, median in medians.items():
        shown.add_row(kind, f"{median:.4f}", f"{median / medians['plain']:.2f}×")
    Console().print(shown)
    result = {
        "net": options.net, "images": IMAGES, "batch": at_once(place), "seconds": times, "seconds_median": medians,
        "ratio": medians["certified"] / medians["plain"], "bound_seconds": bound_seconds,
    }  # fmt: skip
    print(f"record: {record.append(f'certify-{place.type}', result)}")


def seconds(work: Callable[[], object], rounds: int, place: torch.device) -> list[float]:
    """Of each round, after one to warm up (none where there is but one)."""
    times = []
    for k in range(rounds + (rounds > 1)):
        began = time.perf_counter()
        work()
        if place.type == "cuda":
            torch.cuda.synchronize()
        if k or rounds == 1:
            times.append(time.perf_counter() - began)
    return times


if __name__ == "__main__":
    main()
