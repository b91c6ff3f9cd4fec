"""Records → the rows that figures are drawn from, and that stand beside them as CSV."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gloronet.errors import ConfigError
from gloronet.report.files import Array
from gloronet.reproduce import paper
from gloronet.reproduce.records import Record, data_set, mean, value
from gloronet.reproduce.rows import MAIN, RELU, Line, data_sets, lines, literature


@dataclass(frozen=True)
class CurveRow:
    data: str
    row: str
    seed: object
    radius: float
    certified: float
    vra: float
    epsilon: str


@dataclass(frozen=True)
class SpeedRow:
    data: str
    row: str
    source: str
    seconds: float
    vra: float


@dataclass(frozen=True)
class ConstantRow:
    data: str
    row: str
    source: str
    upper: float | None
    lower_global: float | None
    lower_local: float | None


def curves(records: list[Record]) -> list[CurveRow]:
    rows = []
    for data, line in _every(records):
        seed = line.record.median_seed("accuracy", "curve") if line.record is not None else None
        if seed is None or line.record is None:
            continue
        path, curve = line.record.path, seed["accuracy"]["curve"]
        radius, certified = (_floats(path, curve, name) for name in ("radius", "certified"))
        if len(radius) != len(certified) or (np.diff(radius) < 0).any():
            raise ConfigError(f"{path}: a curve needs rising radii and one share for each.")
        vra = value(seed, path, "accuracy", "vra", "real") or 0.0
        rows += [
            CurveRow(data.title, line.label, seed.get("seed"), float(r), float(c), vra, data.epsilon)
            for r, c in zip(radius, certified, strict=True)
        ]
    return rows


def speeds(records: list[Record]) -> list[SpeedRow]:
    rows = []
    for data, line in _every(records):
        vra, seconds = mean(line.values("accuracy", "vra", "real")), line.values("training", "seconds")
        if vra is not None and seconds and vra > 0.01:
            rows.append(SpeedRow(data.title, line.label, "ours", float(np.median(seconds)), float(vra)))
    measured = {row.data for row in rows}
    for slug in data_sets(records):
        data, printed = data_set(slug, records), paper.training(slug)
        # Ours of two kinds may stand beside one row of the paper: it is drawn with the one that has its settings.
        beside = lines(records, slug, ("minmax", "relu-ce", "relu-trades"))
        for line in (*beside, *literature(records, slug)):
            figures = printed.get(line.family.paper)
            if data.title in measured and figures and figures.seconds and figures.vra and figures.vra > 1:
                source = "literature" if line.literature else "paper"
                rows.append(SpeedRow(data.title, line.label, source, figures.seconds, figures.vra / 100))
    return rows


def constants(records: list[Record]) -> list[ConstantRow]:
    rows = []
    for data, line in _every(records):
        ours = [line.values("lipschitz", name) for name in ("upper", "lower_global", "lower_local")]
        if not any(ours):
            continue
        means = [float(np.mean(v)) if v and math.isfinite(max(v)) else None for v in ours]
        if means[1] == 0:  # one answer to everything: its zeros have no place on a logarithmic axis
            continue
        rows.append(ConstantRow(data.title, line.label, "ours", *means))
        figures = paper.lipschitz(data.slug).get(line.family.lipschitz)
        if figures is not None:
            rows.append(ConstantRow(data.title, line.label, "paper", *dataclasses.astuple(figures)))
    return rows


def _every(records: list[Record]) -> list[tuple[paper.DataSet, Line]]:
    return [
        (data_set(slug, records), line)
        for slug in data_sets(records)
        for line in lines(records, slug, (*MAIN, *RELU))
    ]


def _floats(path: Path, curve: Any, name: str) -> Array:
    try:
        found = np.asarray(curve[name], dtype=np.float64)
    except (TypeError, ValueError, KeyError) as e:
        raise ConfigError(f"{path}: the curve has no list of numbers {name} ({e!r}).") from None
    if found.ndim != 1 or not len(found) or np.isnan(found).any():
        raise ConfigError(f"{path}: the curve has no list of numbers {name}.")
    return found
