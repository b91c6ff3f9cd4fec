"""What the command line does, as plain functions: each reads a run folder and adds its files to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from gloronet import attacks, data, folder, npz, presets, report, zoo
from gloronet.certify import Table, certify_set, disjoint_balls, gallery, regions
from gloronet.config import Config, changed, from_dict, parse_epsilon, read_toml, split_noise, to_dict
from gloronet.errors import ConfigError, GloroError
from gloronet.export import export_onnx, require_exportable
from gloronet.lower import global_lower, local_lower, lower_margins, vra_at, vra_estimate_to_tolerance
from gloronet.net import SEMANTICS, LayerRow
from gloronet.program import Bound
from gloronet.proof import write as write_proof
from gloronet.relaxed import Affinity, Relaxation, RelaxedTable, Top, certify_relaxed_set
from gloronet.run import create, load, save
from gloronet.smoothing import SmoothedTable, smoothed_set
from gloronet.train import fit, joined, pick_device, progress_on

ATTACKERS = {"gloronet": attacks.pgd, "art": attacks.pgd_art}
"""Whose PGD: ours, or that of the library the paper used."""
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

    def new_run(config: Config) -> Path:
        name = recipe.replace("/", "-") if recipe in presets.names() else Path(recipe).stem
        return create(out or _free_folder(Path("runs"), name), config)

    return _train(lambda: changed(presets.read(recipe), changes), new_run, False, device, root, attacked)


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
    config, net, dataset = folder.open_run(run, root, device)
    began = time.perf_counter()
    proved = folder.bound_of(run, net)
    vras: dict[str, float] = {}
    tables: dict[str, Table] = {}
    names = [s for s in SEMANTICS if s == "real" or net.speaks_of(s)]
    with folder.bar("certifying", len(names) * len(dataset.test_x)) as advance:
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
    before = folder.read_summary(run)
    kept: dict[str, Any] = {}
    if (before.get("digest"), before.get("epsilon")) == (proved.digest, table.epsilon):
        kept = {k: v for k, v in before.items() if k.startswith("pgd")}
    else:  # what is there is about another ε or another net
        for stale in ("attacks.csv", "attacks_minimal.csv", "attacks_art.csv", "proof.json"):
            (run / stale).unlink(missing_ok=True)
        for relaxed in run.glob("certificates-*.csv"):
            relaxed.unlink()
    if not kept or not (run / "gallery.npz").exists():
        folder.write_npz(run / "gallery.npz", gallery(table, dataset.test_x))
    if proof:
        write_proof(net, dataset.test_x, dataset.test_y, run, epsilon or config.epsilon)
    if dataset.input_shape == (2,):
        folder.write_npz(run / "regions.npz", regions(net, dataset.test_x, dataset.test_y))
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
        **folder.provenance(),
    }
    still = ("train", "attack", "attack_art") if kept else ("train",)
    spent = {k: v for k, v in before.get("seconds", {}).items() if k in still}
    folder.write_json(run / "summary.json", summary | {"seconds": spent | {"certify": seconds}})
    report.write(run)
    return table


def relax(
    run: Path,
    *,
    top: int | None = None,
    affinity: Sequence[Sequence[str]] = (),
    epsilon: str | None = None,
    per_sample: bool = False,
    root: Path | None = None,
    device: str | None = None,
) -> dict[str, dict[str, RelaxedTable]]:
    """Certifies the test set under relaxed guarantees: certificates-top3.csv, certificates-affinity.csv.

    A table for each guarantee and semantics; those written are `"real"`. Affinity sets name classes, or give
    their indices. Nothing else in the run changes.
    """
    _, net, dataset = folder.open_run(run, root, device)
    relaxations: dict[str, Relaxation] = {}
    if top is not None:
        relaxations[f"top{top}"] = Top(top)
    if affinity:
        relaxations["affinity"] = Affinity([[_class(c, dataset) for c in members] for members in affinity])
    for relaxation in relaxations.values():
        relaxation.most(net.classes)  # so that a mistake is told before the work begins
    folder.bound_of(run, net)
    names = [s for s in SEMANTICS if s == "real" or net.speaks_of(s)]
    tables: dict[str, dict[str, RelaxedTable]] = {}
    with folder.bar("certifying", len(relaxations) * len(names) * len(dataset.test_x)) as advance:
        for name, relaxation in relaxations.items():
            tables[name] = {
                semantics: certify_relaxed_set(
                    net, dataset.test_x, dataset.test_y, relaxation, epsilon, semantics, per_sample, progress=advance
                )
                for semantics in names
            }
            tables[name]["real"].write(run / f"certificates-{name}.csv")
    return tables


def attack(
    run: Path,
    *,
    samples: int = 1000,
    steps: int = 100,
    restarts: int = 10,
    clip: bool = True,
    by: str = "gloronet",
    root: Path | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Attacks the first test samples by PGD at ε: ours (attacks.csv), or ART's (attacks_art.csv).

    Ours also looks for the nearest adversarial point of each (attacks_minimal.csv). What it found goes into
    the summary, under names that begin with "pgd" or "pgd_art".
    """
    summary = folder.read_summary(run)
    if "epsilon" not in summary:
        raise ConfigError(f"{run} has no certificates yet; run: gloronet certify {run}")
    if by not in ATTACKERS:
        raise ConfigError(f"an attack is by one of {', '.join(ATTACKERS)}, not {by!r}.")
    _, net, dataset = folder.open_run(run, root, device)
    if net.norm != "l2":
        raise ConfigError(f"The attack works in the l2 norm; {run} is certified in {net.norm}.")
    place = next(net.parameters()).device
    began = time.perf_counter()
    count = min(samples or len(dataset.test_x), len(dataset.test_x))
    epsilon = float(summary["epsilon"])
    far = max(4.0 * epsilon, 1e-3)
    at_epsilon, nearest, closest = [], [], []
    options: dict[str, Any] = {
        "clip": (0.0, 1.0) if clip else None,
        "generator": torch.Generator().manual_seed(0),
    }
    with folder.bar("attacking", count) as advance:
        for k in range(0, count, 500):
            part = slice(k, min(k + 500, count))
            x, y = data.to_unit(dataset.test_x[part].to(place)), dataset.test_y[part].to(place)
            found = ATTACKERS[by](net.logits, x, y, epsilon, steps=steps, restarts=restarts, **options)
            at_epsilon += attacks.rows(found, k)
            if by == "gloronet":
                small = attacks.minimal(net.logits, x, y, far, **options)
                nearest += attacks.rows(small, k)
                closest.append(small.x.cpu().numpy())
            advance(len(x))
    mark = "" if by == "gloronet" else f"_{by}"
    attacks.write_csv(run / f"attacks{mark}.csv", at_epsilon)
    if by == "gloronet":
        attacks.write_csv(run / "attacks_minimal.csv", nearest)
        _add_adversaries(
            run / "gallery.npz", np.concatenate(closest), np.array([row["distance"] for row in nearest])
        )
    withstood = 1.0 - float(np.mean([row["success"] for row in at_epsilon]))
    found_in = {
        f"pgd{mark}": withstood,
        f"pgd{mark}_samples": count,
        f"pgd{mark}_steps": steps,
        f"pgd{mark}_restarts": restarts,
        f"pgd{mark}_clip": clip,
    }
    seconds = summary.get("seconds", {}) | {f"attack{mark}": time.perf_counter() - began}
    folder.write_json(run / "summary.json", summary | found_in | {"seconds": seconds})
    report.write(run)
    return found_in


def lipschitz(run: Path) -> tuple[Bound, list[LayerRow]]:
    """The run's bound, and each layer's estimate and bound: as in bound.json, written where it was not there."""
    net = load(run)
    return folder.bound_of(run, net), net.layers()


class Headroom(NamedTuple):
    """A matrix of constants, and the VRA it would give."""

    constants: str
    largest: float
    """max K_ij."""
    vra: float


def headroom(
    run: Path, *, steps: int = 500, root: Path | None = None, device: str | None = None
) -> list[Headroom]:
    """What tighter constants could buy at most.

    The bound certifies. The estimates are power iteration, as the paper counts (float32, to a tolerance) and
    until it stands in float64; the lower one was found by search.
    """
    _, net, dataset = folder.open_run(run, root, device)
    place = next(net.parameters()).device
    proved = folder.bound_of(run, net)
    x = data.to_unit(dataset.test_x.to(place))
    logits = torch.cat([net.program().freeze()(part).cpu() for part in x.split(1000)])
    paper = vra_estimate_to_tolerance(net, x, dataset.test_y.to(place))
    with torch.no_grad():
        estimated = net.double().lipschitz_estimate(2000).cpu()
    train = data.to_unit(dataset.train_x[:1000].to(place))
    with folder.bar("searching", steps) as advance:
        found = lower_margins(net, train, steps, progress=advance)

    def row(name: str, margins: torch.Tensor) -> Headroom:
        return Headroom(name, float(margins.max()), vra_at(logits, dataset.test_y, margins, net.epsilon))

    return [
        row("bound", proved.margins),
        Headroom("estimate, as the paper counts", float(paper.margins.max()), paper.vra),
        row("estimate, converged", estimated),
        row("lower bound, found by search", found),
    ]


class Tightness(NamedTuple):
    """Three constants of one net, from above and from below: the figure of the paper's §6.3."""

    upper: float
    """max K_ij, proved."""
    lower: float
    """The largest quotient found anywhere."""
    local: float
    """The mean of the largest quotients found within ε of test points."""


def tightness(
    run: Path,
    *,
    global_steps: int = 500,
    local_steps: int = 500,
    root: Path | None = None,
    device: str | None = None,
) -> Tightness:
    """The net's constant from above, and from below over all inputs and round test points (Appendix E)."""
    _, net, dataset = folder.open_run(run, root, device)
    place = next(net.parameters()).device
    proved = folder.bound_of(run, net)
    x = data.to_unit(dataset.test_x.to(place))
    generator = torch.Generator().manual_seed(0)
    with folder.bar("searching everywhere", global_steps) as advance:
        lower = global_lower(net, x, steps=global_steps, generator=generator, progress=advance)
    with folder.bar("searching round test points", local_steps) as advance:
        local = local_lower(net, x, steps=local_steps, generator=generator, progress=advance)
    return Tightness(float(proved.margins.max()), lower.value, local.value)


def smooth(
    run: Path,
    *,
    sigma: float | None = None,
    n0: int = 100,
    n: int = 100_000,
    alpha: float = 0.001,
    samples: int = 1000,
    root: Path | None = None,
    device: str | None = None,
) -> SmoothedTable:
    """Certifies the run's net by randomized smoothing on evenly spaced test samples: smoothing.json.

    σ is that of the noise it was trained with, unless given. Stochastic: each certificate is wrong with probability
    up to α.
    """
    config, net, dataset = folder.open_run(run, root, device)
    noise = split_noise(config.train.augmentation)[1] if sigma is None else sigma
    if not noise:
        raise ConfigError(f"{run} was not trained with noise; say --sigma, or train a preset smoothing/….")
    place = next(net.parameters()).device
    with folder.bar("sampling", samples) as advance:
        table = smoothed_set(
            net.logits, dataset.test_x.to(place), dataset.test_y, config.epsilon, noise, n0, n, alpha,
            batch_size=10_000 if place.type == "cuda" else 1000, samples=samples, progress=advance,
        )  # fmt: skip
    folder.write_json(run / "smoothing.json", table.summary() | folder.provenance())
    return table


def export(run: Path, out: Path, *, epsilon: str | None = None) -> Path:
    """Writes a run, or `zoo:NAME`, as an ONNX file that answers with certificates; its bound is proved first."""
    net, shipped = load(run), str(run).startswith(zoo.PREFIX)
    require_exportable(net)
    home = zoo.folder(str(run)) if shipped else run
    config = read_toml(home / "config.toml")
    parse_epsilon(epsilon or config.epsilon)
    if shipped:
        with folder.bar("bounding", None) as advance:
            net.bound(lambda layer: advance(0, f"bounding {layer or 'the top'}"))
    else:
        folder.bound_of(run, net)
    names = folder.read_summary(home).get("classes") or data.classes.BY_DATA_SET.get(config.data.name)
    return export_onnx(net, out, epsilon=epsilon or config.epsilon, classes=names)


class ZooCheck(NamedTuple):
    """What a net of the zoo claims on its test set, and what was found here."""

    claimed: dict[str, float]
    found: dict[str, float]
    files: tuple[Path, Path, Path]
    """The proof, the model and the official test images, as `gloronet check` takes them."""


def zoo_check(name: str, *, root: Path | None = None, device: str | None = None) -> ZooCheck:
    """Proves the bound of a zoo net anew and certifies its whole test set; a claim that is not met is an error."""
    entry, claims = zoo.folder(name), zoo.claims(name)
    config, net, dataset = folder.open_run(entry, root, device)
    with folder.bar("bounding", None) as advance:
        net.bound(lambda layer: advance(0, f"bounding {layer or 'the top'}"))
    found = {}
    with folder.bar("certifying", len(claims["vra"]) * len(dataset.test_x)) as advance:
        for semantics in claims["vra"]:
            table = certify_set(net, dataset.test_x, dataset.test_y, config.epsilon, semantics, progress=advance)
            found[semantics] = table.vra
    missed = [semantics for semantics, vra in claims["vra"].items() if found[semantics] < vra]
    if missed:
        raise GloroError(
            f"{name} claims a VRA of {claims['vra'][missed[0]]:.2%} ({missed[0]}); found here: {found[missed[0]]:.2%}."
        )
    images = data.data_root(root) / claims["inputs"]
    return ZooCheck(claims["vra"], found, (entry / "proof.json", entry / "model.safetensors", images))


def _train(
    recipe: Callable[[], Config],
    run_for: Callable[[Config], Path],
    resuming: bool,
    device: str | None,
    root: Path | None,
    attacked: int,
) -> Path | None:
    """Recipe and run folder are asked for by rank 0 alone: they may be on no other machine."""
    with joined() as ranks:
        pick_device(device)
        told = ranks.bytes_from_first(json.dumps(to_dict(recipe())).encode() if ranks.writes else None)
        config = from_dict(json.loads(told))
        dataset = folder.load_data(config.data.name, root, shown=ranks.writes)
        ranks.require_shares(len(dataset.train_x), config.train.batch_size)
        torch.manual_seed(config.train.seed)
        net = folder.build(config, dataset)
        ranks.meet()  # no folder is made before every process could begin
        run = run_for(config) if ranks.writes else None
        if config.train.batch_size * sum(p.numel() for p in net.parameters()) < SMALL_STEP:
            torch.set_num_threads(1)
        progress = progress_on(folder.console)
        history = fit(net, dataset, config.train, out=run, resume=resuming, device=device, progress=progress)
    if run is None:
        return None
    save(net, run, config)
    trained = {"seconds": {"train": sum(row["seconds"] for row in history)}, "trained": folder.provenance()}
    folder.write_json(run / "summary.json", trained)
    certify(run, root=root, device=device)
    if attacked and config.norm == "l2":
        attack(run, samples=attacked, root=root, device=device)
    return run


def _class(text: str, dataset: data.Dataset) -> int:
    """The index of a class, by its name or, where no class has that name, by the index itself."""
    if text in dataset.classes:
        return dataset.classes.index(text)
    if text.isdecimal() and int(text) < len(dataset.classes):
        return int(text)
    known = ", ".join(dataset.classes[:10]) + (", …" if len(dataset.classes) > 10 else "")
    raise ConfigError(f"{dataset.name} has no class {text!r}; its classes are {known}.")


def _add_adversaries(path: Path, adversarial: np.ndarray, distance: np.ndarray) -> None:
    """Puts the nearest adversarial image found beside each image of the gallery that was attacked."""
    try:
        arrays = npz.read(path, ("index", "images"))
        index, images = arrays["index"], arrays["images"]
    except (OSError, ValueError, KeyError):
        raise ConfigError(
            f"{path} is missing or damaged; delete it and run: gloronet certify {path.parent}"
        ) from None
    attacked = index < len(distance)
    shown = np.zeros((len(index), *adversarial.shape[1:]), adversarial.dtype)
    far = np.full(len(index), np.inf)
    shown[attacked], far[attacked] = adversarial[index[attacked]], distance[index[attacked]]
    kept = {"index": index, "images": images}
    folder.write_npz(path, kept | {"adversarial": shown, "adversarial_distance": far})


def _free_folder(parent: Path, name: str) -> Path:
    candidates = (parent / (name if k == 1 else f"{name}-{k}") for k in range(1, 10_000))
    return next(path for path in candidates if not path.exists())
