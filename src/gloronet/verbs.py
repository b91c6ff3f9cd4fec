"""What the command line does, as plain functions: each reads a run folder and adds its files to it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from gloronet import attacks, data, models, presets, report, zoo
from gloronet.certify import Table, certify_set, disjoint_balls, gallery, regions
from gloronet.config import Config, changed, from_dict, read_toml, to_dict
from gloronet.errors import ConfigError, GloroError
from gloronet.lower import lower_margins, vra_at
from gloronet.net import SEMANTICS, GloRoNet
from gloronet.program.bound import Bound, ChainBound, LayerBound
from gloronet.proof import write as write_proof
from gloronet.run import create, load, save
from gloronet.train import fit, joined, pick_device, progress_on

console = Console(stderr=True)
"""Progress goes to stderr, results to stdout."""


SMALL_STEP = 2e7
"""Weights times batch below which a second thread costs more, in waiting, than it brings."""


def train(
    recipe: str = "digits",
    out: Path | None = None,
    *,
    changes: Sequence[str] = (),
    device: str | None = None,
    root: Path | None = None,
    attacked: int = 500,
) -> Path | None:
    """Trains a recipe into a new run folder, then certifies, attacks and reports it.

    Of the processes of a torchrun all train, the first does the rest, and the others answer None.
    """

    def folder(config: Config) -> Path:
        name = recipe.replace("/", "-") if recipe in presets.names() else Path(recipe).stem
        return create(out or _free_folder(Path("runs"), name), config)

    return _train(lambda: changed(presets.read(recipe), changes), folder, False, device, root, attacked)


def resume(
    run: Path, *, device: str | None = None, root: Path | None = None, attacked: int = 500
) -> Path | None:
    """Goes on with a training that was stopped, to the very weights it would have reached."""
    return _train(lambda: read_toml(run / "config.toml"), lambda _: run, True, device, root, attacked)


def certify(
    run: Path,
    *,
    epsilon: str | None = None,
    per_sample: bool = False,
    proof: bool = False,
    root: Path | None = None,
    device: str | None = None,
) -> Table:
    """Bounds the net and certifies the test set: bound.json, certificates.csv, gallery.npz, report.html.

    The VRA is counted under each semantics; the certificates written are `"real"`. With `proof`, they go
    into `proof.json` too, for `gloronet check`.
    """
    config, net, dataset = _open(run, root, device)
    began = time.perf_counter()
    proved = _bound(run, net)
    vras: dict[str, float] = {}
    tables: dict[str, Table] = {}
    names = [s for s in SEMANTICS if s == "real" or net.speaks_of(s)]
    with _bar("certifying", len(names) * len(dataset.test_x)) as advance:
        for semantics in names:
            tables[semantics] = certify_set(
                net, dataset.test_x, dataset.test_y, epsilon, semantics, per_sample, progress=advance
            )
            vras[semantics] = tables[semantics].vra
    table = tables["real"]
    seconds = time.perf_counter() - began
    gap = disjoint_balls(table, dataset.test_x)
    if gap < 0 and net.norm == "l2":
        raise GloroError(
            f"Certified balls of different labels overlap by {-gap:g}: please report this as a bug."
        )
    table.write(run / "certificates.csv")
    before = _read_summary(run)
    kept: dict[str, Any] = {}
    if (before.get("digest"), before.get("epsilon")) == (proved.digest, table.epsilon):
        kept = {k: v for k, v in before.items() if k.startswith("pgd")}
    else:  # what is there is about another ε or another net
        for stale in ("attacks.csv", "attacks_minimal.csv", "proof.json"):
            (run / stale).unlink(missing_ok=True)
    if not kept or not (run / "gallery.npz").exists():
        _write_npz(run / "gallery.npz", gallery(table, dataset.test_x))
    if proof:
        write_proof(net, dataset.test_x, dataset.test_y, run, epsilon or config.epsilon)
    if dataset.input_shape == (2,):
        _write_npz(run / "regions.npz", regions(net, dataset.test_x, dataset.test_y))
    summary = {
        "clean": table.clean,
        "vra": table.vra,
        "vra_by_semantics": vras,
        "mean_radius": table.mean_radius,
        "median_radius": float(np.median(np.where(table.right, table.radius, 0.0))),
        "epsilon": table.epsilon,
        "epsilon_text": epsilon or config.epsilon,
        "semantics": table.semantics,
        "samples": len(table.label),
        "classes": list(dataset.classes),
        "data": dataset.name,
        "digest": proved.digest,
        **kept,
        **{name: before[name] for name in ("trained",) if name in before},
        **_provenance(),
    }
    spent = {k: v for k, v in before.get("seconds", {}).items() if k == "train" or (k == "attack" and kept)}
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
    proved = _bound(run, net)
    off = proved.margins[~torch.eye(len(proved.margins), dtype=torch.bool)]
    return (
        f"{net.explain()}\nmargin constants K_ij from {float(off.min()):.6f} to {float(off.max()):.6f}; "
        f"proved in {proved.seconds:.2f} s; digest {proved.digest[:16]}"
    )


def headroom(
    run: Path, *, steps: int = 500, root: Path | None = None, device: str | None = None
) -> list[tuple[str, float, float]]:
    """(which constants, largest K_ij, VRA): what tighter constants could buy at most.

    The bound certifies. The estimate is power iteration until it stands; the lower one was found by search.
    """
    _, net, dataset = _open(run, root, device)
    place = next(net.parameters()).device
    proved = _bound(run, net)
    x = data.to_unit(dataset.test_x.to(place))
    logits = torch.cat([net.program().freeze()(part).cpu() for part in x.split(1000)])
    with torch.no_grad():
        estimated = net.double().lipschitz_estimate(2000).cpu()
    train = data.to_unit(dataset.train_x[:1000].to(place))
    with _bar("searching", steps) as advance:
        found = lower_margins(net, train, steps, progress=advance)
    rows = (
        ("bound", proved.margins),
        ("estimate, converged", estimated),
        ("lower bound, found by search", found),
    )
    return [(name, float(k.max()), vra_at(logits, dataset.test_y, k, net.epsilon)) for name, k in rows]


class ZooCheck(NamedTuple):
    """What a net of the zoo claims on its test set, and what was found here."""

    claimed: dict[str, float]
    found: dict[str, float]
    files: list[str]
    """The proof, the model and the official test images, as `gloronet check` takes them."""


def zoo_check(name: str, *, root: Path | None = None, device: str | None = None) -> ZooCheck:
    """Proves the bound of a zoo net anew and certifies its whole test set; a claim that is not met is an error."""
    folder, claims = zoo.folder(name), zoo.claims(name)
    config, net, dataset = _open(folder, root, device)
    with _bar("bounding", None) as advance:
        net.bound(lambda layer: advance(0, f"bounding {layer or 'the top'}"))
    found = {}
    with _bar("certifying", len(claims["vra"]) * len(dataset.test_x)) as advance:
        for semantics in claims["vra"]:
            table = certify_set(net, dataset.test_x, dataset.test_y, config.epsilon, semantics, progress=advance)
            found[semantics] = table.vra
    missed = [semantics for semantics, vra in claims["vra"].items() if found[semantics] < vra]
    if missed:
        raise GloroError(
            f"{name} claims a VRA of {claims['vra'][missed[0]]:.2%} ({missed[0]}); found here: {found[missed[0]]:.2%}."
        )
    images = data.data_root(root) / claims["inputs"]
    files = [folder / "proof.json", folder / "model.safetensors", images]
    return ZooCheck(claims["vra"], found, [str(file) for file in files])


def summary_table(run: Path) -> Any:
    """The table printed at the end: clean / PGD / VRA at ε / mean radius / seconds."""
    return report.summary_table(_read_summary(run))


def _bound(run: Path, net: GloRoNet) -> Bound:
    """The run's bound: read from bound.json where it is about this very net, proved and written otherwise."""
    path = run / "bound.json"
    with _bar("bounding", None) as advance:
        proved = net.bound(lambda name: advance(0, f"bounding {name or 'the top'}"), known=_read_bound(path))
    table = dataclasses.asdict(proved) | {"margins": proved.margins.tolist()}
    table["layers"] = [dataclasses.asdict(layer) for layer in net.layers()]
    _write_json(path, table | {"sha256": _seal(table)})
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
    """Against damage, not against malice: `gloronet check` trusts no such file."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def _train(
    recipe: Callable[[], Config],
    folder: Callable[[Config], Path],
    resuming: bool,
    device: str | None,
    root: Path | None,
    attacked: int,
) -> Path | None:
    """Recipe and folder are asked for by rank 0 alone: they may be on no other machine."""
    with joined() as ranks:
        pick_device(device)
        told = ranks.bytes_from_first(json.dumps(to_dict(recipe())).encode() if ranks.writes else None)
        config = from_dict(json.loads(told))
        dataset = _data(config.data.name, root, shown=ranks.writes)
        ranks.require_shares(len(dataset.train_x), config.train.batch_size)
        torch.manual_seed(config.train.seed)
        net = build(config, dataset)
        ranks.meet()  # no folder is made before every process could begin
        run = folder(config) if ranks.writes else None
        if config.train.batch_size * sum(p.numel() for p in net.parameters()) < SMALL_STEP:
            torch.set_num_threads(1)
        progress = progress_on(console)
        history = fit(net, dataset, config.train, out=run, resume=resuming, device=device, progress=progress)
    if run is None:
        return None
    save(net, run, config)
    trained = {"seconds": {"train": sum(row["seconds"] for row in history)}, "trained": _provenance()}
    _write_json(run / "summary.json", trained)
    certify(run, root=root, device=device)
    if attacked and config.norm == "l2":
        attack(run, samples=attacked, root=root, device=device)
    return run


def _add_adversaries(path: Path, adversarial: np.ndarray, distance: np.ndarray) -> None:
    """Puts the nearest adversarial image found beside each image of the gallery that was attacked."""
    try:
        with np.load(path) as stored:
            arrays = {name: stored[name] for name in ("index", "images")}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise ConfigError(
            f"{path} is missing or damaged; delete it and run: gloronet certify {path.parent}"
        ) from None
    index = arrays["index"]
    attacked = index < len(distance)
    shown = np.zeros((len(index), *adversarial.shape[1:]), adversarial.dtype)
    far = np.full(len(index), np.inf)
    shown[attacked], far[attacked] = adversarial[index[attacked]], distance[index[attacked]]
    _write_npz(path, arrays | {"adversarial": shown, "adversarial_distance": far})


def build(config: Config, dataset: data.Dataset) -> GloRoNet:
    """The net a config describes, freshly initialised from torch's global generator, for this data set."""
    shape, classes = dataset.input_shape, len(dataset.classes)
    module = models.build(
        config.model.architecture, shape, classes, config.model.activation, config.model.init
    )
    return GloRoNet(module, config.epsilon, shape, config.form, config.norm, config.train.power_iterations)


def _open(run: Path, root: Path | None, device: str | None) -> tuple[Config, GloRoNet, data.Dataset]:
    net = load(run).to(pick_device(device))
    config = read_toml(run / "config.toml")
    return config, net, _data(config.data.name, root)


def _data(name: str, root: Path | None, shown: bool = True) -> data.Dataset:
    """The data set of that name; where its images have to be decoded first, a bar says how far that is."""
    if not shown:
        return data.load(name, root)
    with _bar(f"reading {name}", None) as advance:
        return data.load(name, root, lambda what, done, total: advance(0, f"{what}: {done:,} of {total:,}"))


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
    """The commit of the checkout this package runs from, if it does; a copy without history is told it."""
    if told := os.environ.get("GLORONET_COMMIT"):
        return told
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
