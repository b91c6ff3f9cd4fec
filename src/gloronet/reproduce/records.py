"""Records read: one JSON file a row, what was measured and nothing else.

A number that is not there is not there: it has no default, and a mean is taken over the seeds that have it.
A file that is there but cannot be read stops everything with its name: no table is made of half the records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from gloronet.errors import ConfigError
from gloronet.report.files import read_json
from gloronet.reproduce import paper

TIGHTNESS = "tightness-vs-iterations"

_SHARES = {"clean", "vra", "real", "float32", "vra_estimate", "vra_paper_protocol"}
_SHARES |= {"vra_at", "vra_of_these", "pgd", "pgd_art"}


@dataclass(frozen=True)
class Record:
    """A row and its seeds, as measured."""

    row: str
    config: dict[str, Any]
    chosen: str
    seeds: tuple[dict[str, Any], ...]
    path: Path

    @property
    def family(self) -> str:
        """What comes before the data set: `tuned` of `tuned/cifar10`."""
        return self.row.rpartition("/")[0] or self.row

    @property
    def data(self) -> str:
        """The data set's part of the name; where the name has none, the config's."""
        named = self.row.rpartition("/")[2] if "/" in self.row else ""
        return named or str(self.config.get("data", {}).get("name", self.row))

    @property
    def relu(self) -> bool:
        return self.config.get("model", {}).get("activation") == "relu"

    def values(self, *way: str) -> list[float]:
        """The number at the end of the way, of every seed that has it."""
        found = (value(seed, self.path, *way) for seed in self.seeds)
        return [number for number in found if number is not None]

    def texts(self, group: str, name: str) -> set[str]:
        """What the seeds say about a group: hardware, commit, version."""
        groups = (seed.get(group) or {} for seed in self.seeds)
        return {str(g[name]) for g in groups if g.get(name) is not None}

    def median_seed(self, group: str, name: str) -> dict[str, Any] | None:
        """Of the seeds with that entry, the one with the median VRA by bounds; the lower of two in the middle."""
        having = [s for s in self.seeds if (s.get(group) or {}).get(name) is not None]
        judged = [(value(s, self.path, "accuracy", "vra", "real"), k) for k, s in enumerate(having)]
        order = sorted((vra, k) for vra, k in judged if vra is not None)
        return having[order[(len(order) - 1) // 2][1]] if order else None


def read(folder: Path) -> list[Record]:
    """Every record of the folder by its row's name; none where there is no folder yet."""
    paths = sorted(Path(folder).glob("*.json")) if Path(folder).is_dir() else []
    found: dict[str, Record] = {}
    for path in paths:
        if path.stem == TIGHTNESS:
            continue
        record = _record(path)
        if record.row in found:
            raise ConfigError(f"{path} and {found[record.row].path} both hold the row {record.row}.")
        found[record.row] = record
    return [found[row] for row in sorted(found)]


def read_tightness(folder: Path) -> dict[str, Any] | None:
    """The record of bounds against power iterations, None where it was not measured."""
    path = Path(folder) / f"{TIGHTNESS}.json"
    if not path.exists():
        return None
    table = read_json(path)
    if not isinstance(table, dict) or not _objects(table.get("rows")):
        raise ConfigError(f"{path} is not an object with a list of rows.")
    for row in table["rows"]:
        if not isinstance(row.get("power_iterations"), int):
            raise ConfigError(f"{path}: a row does not say its power_iterations.")
        for name in set(row) - {"seed"}:
            value(row, path, name)
    return table


def value(table: dict[str, Any], path: Path, *way: str) -> float | None:
    """The number at the end of the way, or None where any part of it is missing or null; checked."""
    here: Any = table
    for name in way:
        if here is None:
            return None
        if not isinstance(here, dict):
            raise ConfigError(f"{path}: {'.'.join(way)} leads through {here!r}, which is not an object.")
        here = here.get(name)
    if here is None:
        return None
    if isinstance(here, bool) or not isinstance(here, int | float) or math.isnan(here):
        raise ConfigError(f"{path}: {'.'.join(way)} is {here!r}, not a number.")
    if _SHARES & set(way) and not 0 <= here <= 1:
        raise ConfigError(f"{path}: {'.'.join(way)} is {here!r}; a share lies between 0 and 1.")
    return float(here)


def exact(number: float) -> Fraction:
    """The decimal number that was written, not its nearest float: means and differences come out exactly.

    >>> exact(0.1) + exact(0.2) == exact(0.3)
    True
    """
    return Fraction(repr(float(number)))


def mean(numbers: Iterable[float]) -> Fraction | None:
    """
    >>> mean([0.1, 0.2, 0.6])
    Fraction(3, 10)
    """
    found = [exact(number) for number in numbers]
    return sum(found, Fraction(0)) / len(found) if found else None


def data_set(slug: str, records: list[Record]) -> paper.DataSet:
    """The paper's data set of that name, or one made of what the records say."""
    known = next((data for data in paper.DATA if data.slug == slug), None)
    if known is not None:
        return known
    config = next(record.config for record in records if record.data == slug)
    net = str(config.get("model", {}).get("architecture", "network not recorded"))
    return paper.DataSet(slug, slug, slug, str(config.get("epsilon", "?")), net)


def _record(path: Path) -> Record:
    table = read_json(path)
    if not isinstance(table, dict) or not isinstance(table.get("row"), str) or not table["row"]:
        raise ConfigError(f"{path} is not a record: it names no row.")
    seeds, config = (default if table.get(k) is None else table[k] for k, default in (("seeds", []), ("config", {})))
    if not _objects(seeds):
        raise ConfigError(f"{path} is not a record: seeds is not a list of objects.")
    if not isinstance(config, dict) or not _objects([config.get(key, {}) for key in ("data", "model", "train")]):
        raise ConfigError(f"{path} is not a record: config is not an object with tables data, model and train.")
    for seed in seeds:
        wrong = [name for name, group in seed.items() if name != "seed" and not isinstance(group, dict | None)]
        if wrong:
            raise ConfigError(f"{path}: {wrong[0]} is not an object.")
    return Record(table["row"], config, str(table.get("chosen") or ""), tuple(seeds), path)


def _objects(rows: Any) -> bool:
    return isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
