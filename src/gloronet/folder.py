"""A run folder opened: its net, settings and data, its bound, its summary; what every verb begins and ends with."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gloronet import data, models, zoo
from gloronet.config import Config, read_toml
from gloronet.errors import ConfigError
from gloronet.net import GloRoNet
from gloronet.program.bound import Bound, ChainBound, LayerBound
from gloronet.run import load
from gloronet.train import pick_device

console = Console(stderr=True)
"""Progress goes to stderr, results to stdout."""


def open_run(run: Path, root: Path | None, device: str | None) -> tuple[Config, GloRoNet, data.Dataset]:
    require_own(run)
    net = load(run).to(pick_device(device))
    config = read_toml(run / "config.toml")
    return config, net, load_data(config.data.name, root)


def require_own(run: Path) -> None:
    """A net of the zoo is part of the package: nothing is written beside it."""
    if str(run).startswith(zoo.PREFIX):
        name = str(run).removeprefix(zoo.PREFIX)
        raise ConfigError(f"{run} is not a run folder; see it by: gloronet zoo check {name}")


def build(config: Config, dataset: data.Dataset) -> GloRoNet:
    """The net a config describes, freshly initialised from torch's global generator, for this data set."""
    shape, classes = dataset.input_shape, len(dataset.classes)
    module = models.build(
        config.model.architecture, shape, classes, config.model.activation, config.model.init
    )
    return GloRoNet(module, config.epsilon, shape, config.form, config.norm, config.train.power_iterations)


def load_data(name: str, root: Path | None, shown: bool = True) -> data.Dataset:
    """The data set of that name; where its images have to be decoded first, a bar says how far that is."""
    if not shown:
        return data.load(name, root)
    with bar(f"reading {name}", None) as advance:
        return data.load(name, root, lambda what, done, total: advance(0, f"{what}: {done:,} of {total:,}"))


def bound_of(run: Path, net: GloRoNet) -> Bound:
    """The run's bound: read from bound.json where it is about this very net, proved and written otherwise.

    A run that cannot be written to, as in a container's image, is served and exported all the same.
    """
    require_own(run)
    path = run / "bound.json"
    known = _read_bound(path)
    with bar("bounding", None) as advance:
        proved = net.bound(lambda name: advance(0, f"bounding {name or 'the top'}"), known=known)
    if proved is not known:
        table = dataclasses.asdict(proved) | {"margins": proved.margins.tolist()}
        table["layers"] = [dataclasses.asdict(layer) for layer in net.layers()]
        try:
            write_json(path, table | {"sha256": _seal(table)})
        except OSError as e:
            note = f"{path} cannot be written ({e.strerror}): the bound is proved anew each time."
            console.print(note, highlight=False, soft_wrap=True)
    return proved


def _read_bound(path: Path) -> Bound | None:
    """The bound in the file; None when there is none, or it is not as it was written."""
    try:
        table = json.loads(path.read_text())
        seal = table.pop("sha256")
        layers = tuple(LayerBound(r["name"], r["rule"], r["method"], r["bound"]) for r in table["layers"])
        chains = tuple(ChainBound(**chain) for chain in table["chains"])
        margins = torch.tensor(table["margins"], dtype=torch.float64)
        kept = Bound(**(table | {"layers": layers, "chains": chains, "margins": margins}))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return kept if seal == _seal(table) else None


def _seal(table: dict[str, Any]) -> str:
    """Against damage, not against malice: `gloronet check` trusts no such file. Another version proves its own."""
    from gloronet import __version__

    return hashlib.sha256(json.dumps([__version__, table], sort_keys=True).encode()).hexdigest()


@contextmanager
def bar(what: str, total: int | None) -> Iterator[Any]:
    """A live bar on a terminal; elsewhere nothing moves."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        task = shown.add_task(what, total=total)

        def advance(steps: int, description: str = what) -> None:
            shown.update(task, advance=steps, description=description)

        yield advance


def provenance() -> dict[str, Any]:
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
    """The commit of the checkout this package runs from, if it does; a copy without history is told it."""
    if told := os.environ.get("GLORONET_COMMIT"):
        return told
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def read_summary(run: Path) -> dict[str, Any]:
    path = run / "summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not isinstance(summary, dict):
            raise ValueError("it is no object")
    except ValueError as e:
        raise ConfigError(f"{path} is damaged ({e}); delete it and run: gloronet certify {run}") from None
    return summary


def write_json(path: Path, table: dict[str, Any]) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(table, indent=1) + "\n")
    os.replace(part, path)


def write_npz(path: Path, arrays: dict[str, np.ndarray]) -> None:
    part = path.with_name(path.name + ".part")
    with part.open("wb") as f:
        np.savez_compressed(f, **arrays)  # type: ignore[arg-type]
    os.replace(part, path)
