"""One run of a comparison, read from its folder or from the zoo. What was not measured is None, never zero.

Numbers are counted from the rows of `certificates.csv` and `attacks.csv` where these are there; those that have no
rows, such as the VRA in float32, are as `summary.json` has them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gloronet import zoo
from gloronet.config import Config, parse_epsilon, read_toml, settings
from gloronet.errors import ConfigError
from gloronet.proof import checker
from gloronet.report import counts, rows
from gloronet.report.files import Array
from gloronet.reproduce.records import value

ATTACKS = {"pgd": "PGD", "pgd_art": "PGD (ART)"}
LONGEST = 44
"""Letters of a name; a longer one is cut in the middle."""


class Attacked(NamedTuple):
    """The share of the attacked samples that were right and stayed right."""

    share: float
    samples: int


@dataclass(frozen=True)
class Row:
    """What a comparison tells of one run."""

    name: str
    run: str
    """As it was given."""
    data: str
    network: str
    norm: str
    epsilon: str
    """At which it was certified; the run's own where it was not."""
    samples: int | None = None
    clean: float | None = None
    attacks: dict[str, Attacked] = field(default_factory=dict)
    """By whose PGD: `pgd` is ours, `pgd_art` ART's."""
    vra: dict[str, float] = field(default_factory=dict)
    """By bounds, under each semantics that was certified."""
    mean_radius: float | None = None
    constant: float | None = None
    """K, proved, up to the last hidden layer."""
    largest_margin: float | None = None
    """The largest K_ij, proved."""
    seconds: float | None = None
    """Of training."""
    side_by_side: int | None = None
    """How many trainings shared the machine, where that is known."""
    epochs: int | None = None
    hardware: str | None = None


@dataclass(frozen=True)
class Side:
    row: Row
    settings: dict[str, Any]
    curve: tuple[Array, Array] | None
    """(radius, share) as `counts.curve` has it; None where no rows are there."""


def read(runs: Sequence[str]) -> list[Side]:
    """Every run once, under names that tell them apart."""
    places = [_place(run) for run in runs]
    for k, place in enumerate(places):
        if place in places[:k]:
            raise ConfigError(f"{runs[k]} is named twice.")
    named = zip(runs, _names(runs), strict=True)
    return [_of_zoo(run, name) if run.startswith(zoo.PREFIX) else _of_folder(run, name) for run, name in named]


def _of_folder(run: str, name: str) -> Side:
    folder = Path(run)
    trained = rows.read(folder) if rows.is_certified(folder) else rows.read_trained(folder)
    path, summary, bound = folder / "summary.json", trained.summary, trained.bound
    epsilon, samples = str(summary.get("epsilon_text", trained.config.epsilon)), value(summary, path, "samples")
    parse_epsilon(epsilon, f"{path}: epsilon_text")
    row = replace(
        _recipe(run, name, trained.config, epsilon),
        clean=value(summary, path, "clean"),
        mean_radius=value(summary, path, "mean_radius"),
        samples=None if samples is None else int(samples),
        attacks=_attacks(summary, path),
        vra=_shares(summary, path, "vra_by_semantics"),
        constant=bound.constant if bound else None,
        largest_margin=float(bound.margins.max()) if bound else None,
        seconds=value(summary, path, "seconds", "train"),
        epochs=len(trained.metrics["epoch"]) if trained.metrics else None,
        hardware=_hardware(summary),
    )
    curve = None
    if isinstance(trained, rows.Run):
        row, curve = _counted(row, trained), counts.curve(trained.certificates.radius, trained.certificates.right)
    return Side(row, settings(trained.config), curve)


def _counted(row: Row, run: rows.Run) -> Row:
    """What the rows say, in place of what was recorded."""
    semantics = run.certificates.semantics
    vra = {semantics[0]: counts.vra(run).share} if len(semantics) == 1 else {}
    attacks = {}
    if run.attack is not None:
        held = counts.withstood(run, run.attack)
        attacks["pgd"] = Attacked(held.share, held.total)
    return replace(
        row,
        samples=len(run.certificates),
        clean=counts.clean(run).share,
        mean_radius=float(counts.worth(run).mean()),
        vra=row.vra | vra,
        attacks=row.attacks | attacks,
    )


def _of_zoo(run: str, name: str) -> Side:
    """What is claimed of the net, and the certificates in its proof."""
    entry, claims = zoo.folder(run), zoo.claims(run)
    path, config = entry / "zoo.json", read_toml(entry / "config.toml")
    try:
        proof = checker.read_proof(checker.read_file(entry / "proof.json"))
    except checker.Rejected as reason:
        raise ConfigError(f"{entry / 'proof.json'} is damaged ({reason}); install gloronet again.") from None
    certificates = proof["certificates"]
    radius = np.array([float(r) for r in certificates["radius"]])  # an infinite one is written "inf"
    right = np.array(certificates["label"]) == np.array(proof["inputs"]["labels"])
    shared, epochs = (value(claims, path, "trained", key) for key in ("side_by_side", "epochs"))
    row = replace(
        _recipe(run, name, config, proof["epsilon"]["text"]),
        samples=len(radius),
        clean=float(right.mean()),
        vra=_shares(claims, path, "vra"),
        mean_radius=float(np.where(right, radius, 0.0).mean()),
        largest_margin=float(np.max(proof["bounds"]["margins"])),
        seconds=value(claims, path, "trained", "seconds"),
        side_by_side=None if shared is None else int(shared),
        epochs=None if epochs is None else int(epochs),
        hardware=_hardware(claims),
    )
    return Side(row, settings(config), counts.curve(radius, right))


def _recipe(run: str, name: str, config: Config, epsilon: str) -> Row:
    """What is known before anything is measured."""
    network = f"{config.model.architecture}, {config.model.activation}"
    return Row(name, run, config.data.name, network, config.norm, epsilon)


def _attacks(summary: dict[str, Any], path: Path) -> dict[str, Attacked]:
    found = {name: (value(summary, path, name), value(summary, path, f"{name}_samples")) for name in ATTACKS}
    return {
        name: Attacked(share, int(samples))
        for name, (share, samples) in found.items()
        if share is not None and samples is not None
    }


def _shares(table: dict[str, Any], path: Path, key: str) -> dict[str, float]:
    """Every share under the key, checked."""
    inner = table.get(key) or {}
    if not isinstance(inner, dict):
        raise ConfigError(f"{path}: {key} is {inner!r}, not an object.")
    found = {name: value(table, path, key, name) for name in inner}
    return {name: share for name, share in found.items() if share is not None}


def _hardware(table: dict[str, Any]) -> str | None:
    trained = table.get("trained")
    told = trained.get("hardware") if isinstance(trained, dict) else None
    return None if told is None else str(told)


def _place(run: str) -> Path:
    return Path(run) if run.startswith(zoo.PREFIX) else Path(run).resolve()


def _names(runs: Sequence[str]) -> list[str]:
    """The last part of each path, the whole of those that share it; printable, and short enough for a table."""
    ends = [run if run.startswith(zoo.PREFIX) else os.path.basename(os.path.abspath(run)) or run for run in runs]
    told = [end if ends.count(end) == 1 else run for end, run in zip(ends, runs, strict=True)]
    shown = [_short("".join(c if c.isprintable() else "\ufffd" for c in name)) for name in told]
    return [name if shown.count(name) == 1 else f"{name} ({k})" for k, name in enumerate(shown, 1)]


def _short(name: str) -> str:
    half = LONGEST // 2
    return name if len(name) <= LONGEST else f"{name[:half]}…{name[-half + 1:]}"
