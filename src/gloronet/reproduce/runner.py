"""Rows are trained where they have to be, measured where something is missing, and kept as records.

A row is a preset, and its record is `results/ROW.json`. The run folder of each seed lies under `runs/`: one that is
finished is reused, one that was stopped is resumed, and a net that the zoo has is taken from there. A group of columns
that is in the record is not measured again.
"""

from __future__ import annotations

import dataclasses
import fcntl
import fnmatch
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gloronet import folder, presets, verbs, zoo
from gloronet.config import Config, changed, read_toml, split_noise, to_dict
from gloronet.errors import ConfigError, DataError
from gloronet.reproduce import columns, paper
from gloronet.reproduce.columns import GROUPS, Effort, Opened
from gloronet.reproduce.records import TIGHTNESS
from gloronet.train.checkpoint import write_atomically

SEEDS = {"tuned": (0, 1, 2), "tuned-relu": (0, 1, 2)}
"""Which seeds a family of rows is trained with; any other with seed 0 alone."""
CHOSEN = {
    "tuned": "on 5,000 training images held out (benchmarks/records/trials.jsonl), never on the test set; "
    "the number of epochs by the GPU time there was",
    "averaged": "nothing was chosen: the trainings of the row with our settings, their logits averaged",
    "lmt": "the settings of the paper's GloRo (ReLU, CE), as it gives none for LMT; what else the preset's comment "
    "names was tried on training images held out",
    "smoothing": "nothing was chosen: a plain training with noise, σ as in the preset",
    "tuned-relu": "those of the row with MinMax, chosen on 5,000 training images held out; for ReLU only "
    "what the comment of its preset names was chosen there anew",
}
FLIPPING = ("default", "tfds", "authors", "crop-flip")
CHOSEN |= dict.fromkeys(
    ("authors-minmax", "authors-relu-ce", "authors-relu-trades"),
    "nothing was chosen: the settings of the code its authors published, where they differ from the paper's; "
    "of its epochs that code kept the best on the test images, and this is the last",
)
PAPER = "the paper's own settings; what the paper leaves open is said in the preset"


def _mirrors(row: str) -> bool:
    """Whether a mirror image is an image of the same class: so its training says, by flipping them."""
    return row.startswith("tuned/") and split_noise(presets.read(row).train.augmentation)[0] in FLIPPING


ALSO: dict[str, dict[str, Callable[[str], bool]]] = {
    "main": {"mirrored": _mirrors, "smoothing": lambda row: row.startswith("smoothing/")},
}
"""Groups that only some rows of a table have."""


class Plan(NamedTuple):
    """What a table of the paper needs."""

    families: tuple[str, ...]
    groups: tuple[str, ...]


PLANS = {
    "main": Plan(
        ("standard", "minmax", "authors-minmax", "tuned", "lmt", "smoothing"), ("training", "accuracy", "attack")
    ),
    "relu": Plan(
        ("relu-ce", "relu-trades", "authors-relu-ce", "authors-relu-trades", "tuned-relu"),
        ("training", "accuracy", "attack"),
    ),
    "cost": Plan(("standard", "minmax", "tuned", "relu-ce", "relu-trades", "tuned-relu"), ("training", "cost")),
    "lipschitz": Plan(("standard", "minmax", "tuned", "relu-trades"), ("training", "lipschitz")),
}

@dataclass(frozen=True)
class Bench:
    """Where runs and records lie, and on what, with which data and how thoroughly rows are measured."""

    results: Path
    runs: Path
    note: Callable[[str], None]
    effort: Effort
    device: str | None = None
    root: Path | None = None
    changes: tuple[str, ...] = ()
    """Settings that differ from the presets: for a quick try, in results of its own."""

    def complete(self, what: str, patterns: Sequence[str] = (), seeds: Sequence[int] | None = None) -> None:
        """Fills the records that the table needs; a row whose data are not here is left out, and that is said."""
        if any(change.partition("=")[0].strip() == "train.seed" for change in self.changes):
            raise ConfigError("Seeds of a table's rows are chosen by --seeds, not by --set train.seed.")
        plan = PLANS[what]
        rows = rows_of(plan, patterns)
        groups = {row: [*plan.groups, *(g for g, where in ALSO.get(what, {}).items() if where(row))] for row in rows}
        chosen = {
            row: list(dict.fromkeys(SEEDS.get(row.split("/")[0], (0,)) if seeds is None else seeds)) for row in rows
        }
        self._announce([
            f"{row} (seed {seed})"
            for row in rows
            for seed in chosen[row]
            if self._missing(row, seed, groups[row])
            and not self._trained(row, seed)
            and zoo.trained_with(self._config(row, seed)) is None
        ])
        for row in rows:
            try:
                for seed in chosen[row]:
                    self._complete(row, seed, groups[row])
                if row.startswith("tuned/") and what == "main" and len(chosen[row]) > 1:
                    self._average(row, sorted(chosen[row]))
            except DataError as e:
                self.note(f"{row} is left out: {e}")

    def tightness(self, row: str, iterations: Sequence[int] = (1, 2, 5, 10)) -> None:
        """How tight bounds become, and what is certified, with more power iterations at every step of training."""
        path = self.results / f"{TIGHTNESS}.json"
        plain = changed(presets.read(row), self.changes)
        record = {"row": row, "config": to_dict(plain), "rows": [], **folder.provenance()}
        if path.exists():
            record = _read(path, "rows", "power_iterations")
            _require_settings(path, record["config"], to_dict(plain))
        for count in iterations:
            if any(r["power_iterations"] == count for r in record["rows"]):
                self.note(f"{row}, {count} iterations: there already")
                continue
            opened = self._opened(row, [*self.changes, f"train.power_iterations={count}"], f"iterations{count}")
            self.note(f"{row}, {count} iterations: measuring")
            found = {"power_iterations": count, "seed": plain.train.seed, **columns.tightness(opened)}
            record["rows"] = sorted([*record["rows"], found], key=lambda r: r["power_iterations"])
            path.parent.mkdir(parents=True, exist_ok=True)
            folder.write_json(path, record)

    def _announce(self, trainings: Sequence[str]) -> None:
        """What may take hours is said before it begins."""
        if len(trainings) > 1:
            which = ", ".join(trainings[:6]) + (", …" if len(trainings) > 6 else "")
            self.note(f"{len(trainings)} are not in {self.runs}, and are trained where their data are here: {which}")

    def _config(self, row: str, seed: int) -> Config:
        return changed(presets.read(row), [*self.changes, f"train.seed={seed}"])

    def _missing(self, row: str, seed: int, groups: Sequence[str]) -> list[str]:
        there = kept(record_path(self.results, row), self._config(row, seed))
        return [group for group in groups if group not in there]

    def _trained(self, row: str, seed: int) -> bool:
        return (self._run(row, f"seed{seed}") / "model.safetensors").exists()

    def _complete(self, row: str, seed: int, groups: Sequence[str]) -> None:
        config, path = self._config(row, seed), record_path(self.results, row)
        missing = self._missing(row, seed, groups)
        if not missing:
            self.note(f"{row}, seed {seed}: there already")
            return
        opened = self._opened(row, [*self.changes, f"train.seed={seed}"], f"seed{seed}")
        there = kept(path, config)
        # No two trainings take the same time to the nanosecond: what is known may be about one no longer here.
        anew = there.get("training", {}).get("seconds") != columns.training(opened)["seconds"]
        if anew:
            missing = list(dict.fromkeys([*groups, *(g for g in there if g in GROUPS)]))
        for group in missing:
            self.note(f"{row}, seed {seed}: {group}")
            where = {} if group == "training" else folder.provenance()  # a training says itself where it took place
            keep(path, row, config, {group: {**GROUPS[group](opened), **where}}, anew and group == missing[0])

    def _average(self, row: str, seeds: Sequence[int]) -> None:
        """A row of its own, `averaged/…`: the logits of all seeds averaged, where all their runs are here."""
        name = row.replace("tuned/", "averaged/")
        if not all(self._trained(row, seed) for seed in seeds):
            return
        opened = [self._opened(row, [*self.changes, f"train.seed={seed}"], f"seed{seed}") for seed in seeds]
        config = dataclasses.replace(opened[0].config, train=dataclasses.replace(opened[0].config.train, seed=0))
        of = {"seeds": list(seeds), "trained_in": [columns.training(o)["seconds"] for o in opened]}
        path = record_path(self.results, name)
        if kept(path, config).get("accuracy", {}).get("of") == of:
            return
        self.note(f"{row}: the average of {len(seeds)} seeds")
        for o in opened:
            folder.bound_of(o.run, o.net)
        found = columns.averaged([o.net for o in opened], opened[0], flip=False)
        accuracy = {**found, "vra": {"real": found["vra"]}, "of": of, **folder.provenance()}
        keep(path, name, config, {"accuracy": accuracy}, anew=True)

    def _opened(self, row: str, changes: Sequence[str], name: str) -> Opened:
        """The run of that name, trained or resumed first where it has to be."""
        run, config = self._run(row, name), changed(presets.read(row), changes)
        if (run / "config.toml").exists() and read_toml(run / "config.toml") != config:
            raise ConfigError(f"{run} holds a run with other settings; move it away, or choose another --runs.")
        placing: dict[str, Any] = {"device": self.device, "root": self.root, "attacked": 0}
        if not (run / "model.safetensors").exists():
            if (run / "checkpoint").is_dir():
                self.note(f"{run.name}: resuming")
                verbs.resume(run, **placing)
            elif shipped := zoo.trained_with(config):
                self.note(f"{run.name}: from the zoo")
                _take(shipped, run)
            else:
                self.note(f"{run.name}: training")
                verbs.train(row, run, changes=changes, **placing)
        _, net, data = folder.open_run(run, self.root, self.device)
        return Opened(run, config, net, data, self.root, self.device, self.effort)

    def _run(self, row: str, name: str) -> Path:
        return self.runs / f"{row.replace('/', '-')}-{name}"


def _take(shipped: str, run: Path) -> None:
    """Lays a net of the zoo where its own run would lie, with what the zoo says of its training."""
    run.mkdir(parents=True, exist_ok=True)
    folder.write_json(run / "summary.json", {"trained": zoo.claims(shipped)["trained"]})
    for name in ("config.toml", "model.safetensors"):  # the model last: with it, the run is finished
        write_atomically(run / name, (zoo.folder(shipped) / name).read_bytes())


def rows_of(plan: Plan, patterns: Sequence[str]) -> list[str]:
    """The table's rows, those of one data set together; of these, the ones that match a pattern such as `tuned/*`."""
    every = [f"{family}/{data.slug}" for data in paper.DATA for family in plan.families]
    there = presets.names()
    known = [row for row in every if row in there]
    for pattern in patterns:
        if not fnmatch.filter(known, pattern):
            raise ConfigError(f"No row of this table is called {pattern!r}; there are {', '.join(known)}.")
    return [row for row in known if not patterns or any(fnmatch.fnmatch(row, p) for p in patterns)]


def record_path(results: Path, row: str) -> Path:
    return results / f"{row.replace('/', '-')}.json"


def kept(path: Path, config: Config) -> dict[str, Any]:
    """The groups that the record has for the config's seed; a record of other settings is refused."""
    if not path.exists():
        return {}
    record = _read(path, "seeds", "seed")
    _require_settings(path, record["config"], _seedless(config))
    own: dict[str, Any] = next((s for s in record["seeds"] if s["seed"] == config.train.seed), {})
    return {name: group for name, group in own.items() if isinstance(group, dict)}


def keep(path: Path, row: str, config: Config, groups: dict[str, Any], anew: bool = False) -> None:
    """Adds groups to the record's seed, or puts them in place of all it has (`anew`).

    Several processes may do so at once, each for a seed of its own.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        chosen = CHOSEN.get(row.split("/")[0], PAPER)
        record: dict[str, Any] = {"row": row, "config": _seedless(config), "chosen": chosen, "seeds": []}
        if path.exists():
            record = _read(path, "seeds", "seed")
        seed = config.train.seed
        own = next((s for s in record["seeds"] if s["seed"] == seed and not anew), {"seed": seed})
        others = [s for s in record["seeds"] if s["seed"] != seed]
        record["seeds"] = sorted([*others, {**own, **groups}], key=lambda s: s["seed"])
        folder.write_json(path, record)


def _seedless(config: Config) -> dict[str, Any]:
    table = to_dict(config)
    del table["train"]["seed"]
    return table


def _require_settings(path: Path, recorded: dict[str, Any], wanted: dict[str, Any]) -> None:
    if recorded != wanted:
        raise ConfigError(f"{path} is about other settings than this row has now; move it away to measure anew.")


def _read(path: Path, entries: str, key: str) -> dict[str, Any]:
    """The record, if it has a config and a list of entries, each an object with a whole number as key."""
    try:
        record = json.loads(path.read_text())
        config, found = record["config"], record[entries]
        whole = all(isinstance(entry, dict) and isinstance(entry[key], int) for entry in found)
        if whole and isinstance(config, dict) and isinstance(found, list):
            return record
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(f"{path} is not a record; move it away to measure anew.")


@contextmanager
def _alone(results: Path) -> Iterator[None]:
    """One process at a time."""
    with (results / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
