"""MNIST on a CPU: what certified training and certifying cost beside plain training and plain inference.

    python -m benchmarks.mnist --data FOLDER

Trains the preset `mnist` (2C2F), certifies the 10,000 test images by bounds, then times epochs of the same
loop with and without the certified loss, in turn, and inference with and without certificates.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

import gloronet as gn
from benchmarks import record
from gloronet import presets, proof
from gloronet.certify import certify_set
from gloronet.train import progress_on


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--epochs", type=int, help="instead of the preset's, for a quick look")
    parser.add_argument("--rounds", type=int, default=3, help="timed epochs of each kind")
    options = parser.parse_args()

    config = presets.read("mnist")
    recipe = dataclasses.replace(config.train, epochs=options.epochs or config.train.epochs)
    data = gn.data.load("mnist", options.data)
    net = build(config)
    began = time.perf_counter()
    gn.fit(net, data, recipe, device="cpu", progress=progress_on())
    training = time.perf_counter() - began

    proved = net.bound()
    began = time.perf_counter()
    table = certify_set(net, data.test_x, data.test_y)
    certifying = time.perf_counter() - began

    vras = {"real": table.vra}
    for name, per_sample in (("float32", False), ("float32, per sample", True)):
        part = certify_set(net, data.test_x, data.test_y, semantics="float32", per_sample=per_sample)
        vras[name] = part.vra
    proof_seconds, check_seconds = proved_and_checked(net, data, config.epsilon)

    plain = dataclasses.replace(recipe, loss="plain")
    epochs: dict[str, list[float]] = {"certified": [], "plain": []}
    for _ in range(options.rounds):
        for name, settings in (("certified", recipe), ("plain", plain)):
            once = dataclasses.replace(settings, epochs=1)
            epochs[name].append(gn.fit(build(config), data, once, device="cpu")[0]["seconds"])
    certified_epoch, plain_epoch = (statistics.median(epochs[k]) for k in ("certified", "plain"))

    images = gn.data.to_unit(data.test_x)
    plain_inference = seconds(lambda: [net.logits(part) for part in images.split(1000)])
    bottom_inference = seconds(lambda: [net(part) for part in images.split(1000)])
    certify = seconds(lambda: [net.certify(part) for part in images.split(1000)])

    rows = [
        ("an epoch of training", certified_epoch, plain_epoch),
        ("10,000 images: logits and ⊥, float32", bottom_inference, plain_inference),
        ("10,000 images: certificates, float64", certify, plain_inference),
    ]
    shown = Table("what", "certified", "plain", "ratio", title="MNIST, 2C2F")
    for what, ours, theirs in rows:
        shown.add_row(what, f"{ours:.2f} s", f"{theirs:.2f} s", f"{ours / theirs:.2f}×")
    console = Console()
    console.print(shown)
    console.print(
        f"{recipe.epochs} epochs in {training:.0f} s; bound in {proved.seconds:.2f} s; "
        f"certified in {certifying:.2f} s: clean {table.clean:.2%}, VRA at 0.3 {table.vra:.2%} by bounds"
    )
    console.print("VRA: " + ", ".join(f"{name} {value:.2%}" for name, value in vras.items()))
    console.print(f"proof of 10,000 certificates: written in {proof_seconds:.1f} s, checked in {check_seconds:.1f} s")
    path = record.append(
        "mnist-cpu",
        {
            "config": gn.config.to_dict(dataclasses.replace(config, train=recipe)),
            "training_seconds": training,
            "epoch_seconds": epochs,
            "epoch_ratio": certified_epoch / plain_epoch,
            "bound_seconds": proved.seconds,
            "plain_inference_seconds": plain_inference,
            "bottom_inference_seconds": bottom_inference,
            "certify_seconds": certify,
            "certify_ratio": certify / plain_inference,
            "clean": table.clean,
            "vra": table.vra,
            "mean_radius": table.mean_radius,
            "vra_by_semantics": vras,
            "proof_seconds": proof_seconds,
            "check_seconds": check_seconds,
            "epsilon": config.epsilon,
            "semantics": table.semantics,
        },
    )
    console.print(f"record: {path}")


def build(config: gn.Config) -> gn.GloRoNet:
    torch.manual_seed(config.train.seed)
    m = config.model
    module = gn.models.build(m.architecture, (1, 28, 28), 10, m.activation, m.init)
    return gn.GloRoNet(module, config.epsilon, (1, 28, 28), config.form, config.norm)


def proved_and_checked(net: gn.GloRoNet, data: gn.data.Dataset, epsilon: str) -> tuple[float, float]:
    """Seconds to write the proof of the whole test set, and to check it in a process that knows nothing of us."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        files = proof.write(net, data.test_x, data.test_y, folder, epsilon)
        written = time.perf_counter() - began
        command = [sys.executable, proof.checker.__file__, files.proof, files.model, files.inputs]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return written, time.perf_counter() - began


@torch.no_grad()
def seconds(work: Callable[[], object], rounds: int = 5) -> float:
    """The median of a few rounds, after one to warm up."""
    times = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
