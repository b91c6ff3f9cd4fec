"""What the command line does, as plain functions: each reads a run folder and adds its files to it."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import subprocess
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gloronet import attacks, data, models, presets, report
from gloronet.certify import Table, certify_set, disjoint_balls, gallery, regions
from gloronet.config import Config, from_dict, read_toml, to_dict
from gloronet.errors import ConfigError, GloroError
from gloronet.net import GloRoNet
from gloronet.run import create, load, save
from gloronet.train import fit, pick_device, progress_on

console = Console(stderr=True)
"""Progress goes to stderr, results to stdout."""


def train(
    recipe: str = "digits",
    out: Path | None = None,
    *,
    changes: Sequence[str] = (),
    device: str | None = None,
    root: Path | None = None,
    attacked: int = 500,
) -> Path:
    """Trains a recipe into a new run folder, then certifies, attacks and reports it."""
    pick_device(device)
    config = _changed(presets.read(recipe), changes)
    dataset = data.load(config.data.name, root)
    torch.manual_seed(config.train.seed)
    net = _build(config, dataset)
    run = create(out or _free_folder(Path("runs"), Path(recipe).stem), config)
    return _train(net, dataset, config, run, False, device, root, attacked)


def resume(run: Path, *, device: str | None = None, root: Path | None = None, attacked: int = 500) -> Path:
    """Goes on with a training that was stopped, to the very weights it would have reached."""
    config = read_toml(run / "config.toml")
    dataset = data.load(config.data.name, root)
    torch.manual_seed(config.train.seed)
    net = _build(config, dataset)
    return _train(net, dataset, config, run, True, device, root, attacked)


def certify(
    run: Path, *, epsilon: str | None = None, root: Path | None = None, device: str | None = None
) -> Table:
    """Bounds the net and certifies the test set: bound.json, certificates.csv, gallery.npz, report.html."""
    config, net, dataset = _open(run, root, device)
    began = time.perf_counter()
    with _bar("bounding", None) as advance:
        proved = net.bound(lambda path: advance(0, f"bounding {path or 'the top'}"))
    with _bar("certifying", len(dataset.test_x)) as advance:
        table = certify_set(net, dataset.test_x, dataset.test_y, epsilon, progress=advance)
    seconds = time.perf_counter() - began
    gap = disjoint_balls(table, dataset.test_x)
    if gap < 0:
        raise GloroError(
            f"Two certified balls with different labels overlap by {-gap:g}: please report this as a bug."
        )
    rows = [dataclasses.asdict(layer) for layer in net.layers()]
    bound = {"digest": proved.digest, "norm": proved.norm, "form": proved.form, "constant": proved.constant}
    _write_json(
        run / "bound.json",
        bound | {"layers": rows, "margins": proved.margins.tolist(), "seconds": proved.seconds},
    )
    table.write(run / "certificates.csv")
    for stale in ("attacks.csv", "attacks_minimal.csv"):
        (run / stale).unlink(missing_ok=True)  # they were about another ε or another net
    _write_npz(run / "gallery.npz", gallery(table, dataset.test_x))
    if dataset.input_shape == (2,):
        _write_npz(run / "regions.npz", regions(net, dataset.test_x, dataset.test_y))
    summary = {
        "clean": table.clean,
        "vra": table.vra,
        "mean_radius": table.mean_radius,
        "median_radius": float(np.median(np.where(table.right, table.radius, 0.0))),
        "epsilon": table.epsilon,
        "epsilon_text": epsilon or config.epsilon,
        "semantics": table.semantics,
        "samples": len(table.label),
        "classes": list(dataset.classes),
        "data": dataset.name,
        **_provenance(),
    }
    old = _read_summary(run)
    spent = {k: v for k, v in old.get("seconds", {}).items() if k == "train"}
    _write_json(run / "summary.json", summary | {"seconds": spent | {"certify": seconds}})
    report.write(run)
    return table


def attack(
    run: Path,
    *,
    samples: int = 1000,
    steps: int = 100,
    restarts: int = 10,
    clip: bool = True,
    root: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Attacks the first test samples by PGD at ε, and looks for the nearest adversarial point of each."""
    summary = _read_summary(run)
    if "epsilon" not in summary:
        raise ConfigError(f"{run} has no certificates yet; run: gloronet certify {run}")
    _, net, dataset = _open(run, root, device)
    if net.norm != "l2":
        raise ConfigError(f"The attack works in the l2 norm; {run} is certified in {net.norm}.")
    place = next(net.parameters()).device
    began = time.perf_counter()
    count = min(samples or len(dataset.test_x), len(dataset.test_x))
    generator = torch.Generator().manual_seed(0)
    epsilon = float(summary["epsilon"])
    far = max(4.0 * epsilon, 1e-3)
    at_epsilon, nearest, closest = [], [], []
    box = (0.0, 1.0) if clip else None
    with _bar("attacking", count) as advance:
        for k in range(0, count, 500):
            part = slice(k, min(k + 500, count))
            x, y = data.to_unit(dataset.test_x[part].to(place)), dataset.test_y[part].to(place)
            options: dict[str, Any] = {"clip": box, "generator": generator}
            found = attacks.pgd(net.logits, x, y, epsilon, steps=steps, restarts=restarts, **options)
            at_epsilon += attacks.rows(found, k)
            small = attacks.minimal(net.logits, x, y, far, **options)
            nearest += attacks.rows(small, k)
            closest.append(small.x.cpu().numpy())
            advance(len(x))
    attacks.write_csv(run / "attacks.csv", at_epsilon)
    attacks.write_csv(run / "attacks_minimal.csv", nearest)
    _add_adversaries(
        run / "gallery.npz", np.concatenate(closest), np.array([row["distance"] for row in nearest])
    )
    withstood = 1.0 - float(np.mean([row["success"] for row in at_epsilon]))
    found_in = {
        "pgd": withstood,
        "pgd_samples": count,
        "pgd_steps": steps,
        "pgd_restarts": restarts,
        "pgd_clip": clip,
    }
    seconds = summary.get("seconds", {}) | {"attack": time.perf_counter() - began}
    _write_json(run / "summary.json", summary | found_in | {"seconds": seconds})
    report.write(run)
    return found_in


def lipschitz(run: Path) -> str:
    """The per-layer table of estimates and bounds, and the margin constants."""
    net = load(run)
    proved = net.bound()
    off = proved.margins[~torch.eye(len(proved.margins), dtype=torch.bool)]
    return (
        f"{net.explain()}\nmargin constants K_ij from {float(off.min()):.6f} to {float(off.max()):.6f}; "
        f"proved in {proved.seconds:.2f} s; digest {proved.digest[:16]}"
    )


def summary_table(run: Path) -> Any:
    """The table printed at the end: clean / PGD / VRA at ε / mean radius / seconds."""
    return report.summary_table(_read_summary(run))


def _train(
    net: GloRoNet,
    dataset: data.Dataset,
    config: Config,
    run: Path,
    resuming: bool,
    device: str | None,
    root: Path | None,
    attacked: int,
) -> Path:
    history = fit(
        net, dataset, config.train, out=run, resume=resuming, device=device, progress=progress_on(console)
    )
    save(net, run, config)
    _write_json(run / "summary.json", {"seconds": {"train": sum(row["seconds"] for row in history)}})
    certify(run, root=root, device=device)
    if attacked and config.norm == "l2":
        attack(run, samples=attacked, root=root, device=device)
    return run


def _add_adversaries(path: Path, adversarial: np.ndarray, distance: np.ndarray) -> None:
    """Puts the nearest adversarial image found beside each image of the gallery that was attacked."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in ("index", "images")}
    index = arrays["index"]
    attacked = index < len(distance)
    shown = np.zeros((len(index), *adversarial.shape[1:]), adversarial.dtype)
    far = np.full(len(index), np.inf)
    shown[attacked], far[attacked] = adversarial[index[attacked]], distance[index[attacked]]
    _write_npz(path, arrays | {"adversarial": shown, "adversarial_distance": far})


def _build(config: Config, dataset: data.Dataset) -> GloRoNet:
    shape, classes = dataset.input_shape, len(dataset.classes)
    module = models.build(
        config.model.architecture, shape, classes, config.model.activation, config.model.init
    )
    return GloRoNet(module, config.epsilon, shape, config.form, config.norm, config.train.power_iterations)


def _open(run: Path, root: Path | None, device: str | None) -> tuple[Config, GloRoNet, data.Dataset]:
    net = load(run).to(pick_device(device))
    config = read_toml(run / "config.toml")
    return config, net, data.load(config.data.name, root)


def _changed(config: Config, changes: Sequence[str]) -> Config:
    """The config with `section.key=value` applied; values are TOML, or plain text."""
    table = to_dict(config)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=50, not {change!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *sections, name = key.strip().split(".")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {change}: {section} is a value, not a section.")
        inner[name] = value
    return from_dict(table)


def _free_folder(parent: Path, name: str) -> Path:
    candidates = (parent / (name if k == 1 else f"{name}-{k}") for k in range(1, 10_000))
    return next(path for path in candidates if not path.exists())


@contextmanager
def _bar(what: str, total: int | None) -> Iterator[Any]:
    """A live bar on a terminal; elsewhere nothing moves."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)

        def advance(steps: int, description: str = what) -> None:
            bar.update(task, advance=steps, description=description)

        yield advance


def _provenance() -> dict[str, Any]:
    from gloronet import __version__

    chip = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else platform.processor() or platform.machine()
    )
    return {
        "version": __version__,
        "commit": _commit(),
        "hardware": f"{chip}, {torch.get_num_threads()} threads, torch {torch.__version__}",
    }


def _commit() -> str | None:
    """The commit of the checkout this package runs from, if it does."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _read_summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        return json.loads(path.read_text()) if path.exists() else {}
    except json.JSONDecodeError as e:
        raise ConfigError(f"{path} is damaged ({e}); delete it and run: gloronet certify {run}") from None


def _write_json(path: Path, table: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(table, indent=1) + "\n")
    os.replace(part, path)


def _write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("wb") as f:
        np.savez_compressed(f, **arrays)  # type: ignore[arg-type]
    os.replace(part, path)
