"""Records → the paper's tables, ours beside the paper's figures. Reads JSON and never touches a model.

A column holds bounds or estimates, never both, and says which. The difference is ours − the paper's, in points of
VRA by bounds. What was not measured is a dash; what we did not run is marked as literature; what holds only with
high probability is marked stochastic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from gloronet.reproduce import audit, paper, text
from gloronet.reproduce.measures import cost, lipschitz, tightness
from gloronet.reproduce.records import Record, data_set, mean, read
from gloronet.reproduce.rows import (
    FAMILIES,
    MAIN,
    NOT_MEASURED,
    RELU,
    SMOOTHING,
    Line,
    data_sets,
    lines,
    literature,
)
from gloronet.reproduce.table import MISSING, Column, Row, Table


def main(folder: Path) -> list[Table]:
    """Standard, GloRo with the paper's settings and with ours, and the literature: a table a data set."""
    records = read(folder)
    found = []
    for slug in data_sets(records):
        here = [*lines(records, slug, MAIN, relu=False), *literature(records, slug, smoothing_apart=True)]
        found += _results(slug, here, records)
    return [*found, *_smoothing(records)]


def relu(folder: Path) -> list[Table]:
    """The same for ReLU networks."""
    records = read(folder)
    found = []
    for slug in data_sets(records):
        found += _results(slug, lines(records, slug, RELU, relu=True), records)
    return found


def summary(folder: Path) -> list[Table]:
    """The headline rows alone: our settings beside the paper's figures."""
    records = read(folder)
    columns = (
        Column("row"),
        Column("VRA", "paper"),
        Column("VRA by bounds: mean (min…max)", "ours", "bound"),
        Column("difference, points"),
        Column("clean", "ours"),
        Column("PGD", "ours"),
    )
    rows, absent = [], []
    for data in paper.DATA:
        for name, activation in (("tuned", "MinMax"), ("tuned-relu", "ReLU")):
            title = f"{data.title}, {activation}"
            record = next((r for r in records if r.row == f"{name}/{data.slug}"), None)
            ours = record.values("accuracy", "vra", "real") if record is not None else []
            if record is None or not ours:
                absent.append(title)
                continue
            printed = paper.training(data.slug)[FAMILIES[name].paper].vra
            spread = text.shares(record, "accuracy", "vra", "real")
            aside = f"{spread[:-1]}; {text.seeds(len(ours))})" if len(ours) > 1 else f"{spread} (1 seed)"
            cells = (
                title,
                text.printed(printed),
                aside if len(ours) == len(record.seeds) else spread,
                text.difference(mean(ours), printed),
                text.shares(record, "accuracy", "clean"),
                text.shares(record, "attack", "pgd"),
            )
            rows.append(Row(cells, "ours"))
    if not rows:
        return [Table("", columns, (), ("No record of a row with our settings is in results/ yet.",))]
    notes = ["In per cent. Same networks, same ε; the paper's VRA rests on power iteration, ours on proved bounds."]
    if absent:
        notes.append(f"Not measured yet: {'; '.join(absent)}.")
    measured = [r for r in records if r.family in ("tuned", "tuned-relu")]
    return [Table("", columns, tuple(rows), (*notes, *_attacks(measured), *audit.notes(measured)))]


TABLES: dict[str, Callable[[Path], list[Table]]] = {
    "main": main,
    "relu": relu,
    "cost": cost,
    "lipschitz": lipschitz,
    "tightness-vs-iterations": tightness,
}
"""By the name `gloronet reproduce` gives them."""


def _results(slug: str, here: list[Line], records: list[Record]) -> list[Table]:
    """Proved, clean, attacked: one data set, no table where it has no rows. What readers come for stands first."""
    if not here:
        return []
    data = data_set(slug, records)
    at = (Column(f"ours, bound, real, at {data.printed}", "VRA", "bound"),) if data.printed else ()
    columns = (
        Column("row"),
        Column("paper", "VRA"), Column("ours, bound, real", "VRA", "bound main"), Column("ours − paper, points", "VRA"),
        Column("ours, bound, float32", "VRA", "bound"), *at,
        Column("ours, estimate, the paper's protocol", "VRA", "estimate"),
        Column("paper", "clean"), Column("ours", "clean"),
        Column("paper", "PGD"), Column("ours", "PGD"), Column("ours, by ART", "PGD"),
        Column("run here", kind="text"),
    )  # fmt: skip
    rows = []
    for line in here:
        figures, record = paper.training(slug).get(line.family.paper), line.record
        clean, pgd, vra = (figures.clean, figures.pgd, figures.vra) if figures else (None, None, None)
        beside = [("accuracy", "vra", "float32"), *([("accuracy", "vra_at", data.printed)] if data.printed else [])]
        cells = (
            line.label,
            text.printed(vra),
            text.shares(record, "accuracy", "vra", "real"),
            text.difference(mean(line.values("accuracy", "vra", "real")), vra),
            *(text.shares(record, *way) for way in beside),
            text.shares(record, "accuracy", "vra_paper_protocol"),
            text.printed(clean),
            text.shares(record, "accuracy", "clean"),
            text.printed(pgd),
            text.shares(record, "attack", "pgd"),
            text.shares(record, "attack", "pgd_art"),
            line.run_here,
        )
        rows.append(Row(cells, line.kind))
        if record is not None and record.values("mirrored", "vra"):
            flipped = [MISSING] * len(columns)
            flipped[0] = f"{line.label}, flip-averaged logits"
            flipped[2] = text.shares(record, "mirrored", "vra")
            flipped[-5] = text.shares(record, "mirrored", "clean")
            flipped[-1] = line.run_here
            rows.append(Row(tuple(flipped), line.kind))
    own = [line.record for line in here if line.record is not None]
    return [Table(data.title, columns, tuple(rows), (*_attacks(own), *audit.notes(own)))]


def _attacks(records: Iterable[Record]) -> list[str]:
    """How hard the attack was, for each way it was done."""
    ways: dict[str, list[str]] = {}
    for record in records:
        for key in ("samples", "steps", "restarts"):
            record.values("attack", key)
        for attack in (seed["attack"] for seed in record.seeds if seed.get("attack")):
            named = {"samples": "images", "steps": "steps", "restarts": "restarts"}
            known = [f"{attack[key]:,} {name}" for key, name in named.items() if attack.get(key)]
            rows = ways.setdefault(", ".join(known), [])
            rows += [] if record.row in rows else [record.row]
    ways.pop("", None)
    if len(ways) == 1:
        return [f"PGD: {next(iter(ways))}."]
    return [f"PGD: {how} ({', '.join(rows)})." for how, rows in ways.items()]


def _smoothing(records: list[Record]) -> list[Table]:
    """Randomized smoothing, apart: its certificates hold with probability 1 − α each, they are no bounds."""
    columns = (
        Column("row"),
        Column("paper", "VRA, stochastic"), Column("ours", "VRA, stochastic"),
        Column("ours − paper, points", "VRA, stochastic"),
        Column("paper", "clean"), Column("ours", "clean"),
        Column("how", kind="text"),
        Column("run here", kind="text"),
    )  # fmt: skip
    rows = []
    for record in (r for slug in data_sets(records) for r in records if r.data == slug and r.family == SMOOTHING):
        figures = paper.training(record.data).get(paper.STOCHASTIC)
        known = [(name, record.values("smoothing", key)) for name, key in
                 (("images", "samples"), ("σ", "sigma"), ("n", "n"), ("n₀", "n0"), ("α", "alpha"))]  # fmt: skip
        how = [f"{v[0]:,.0f} images" if name == "images" else f"{name} = {v[0]:,g}" for name, v in known if v]
        cells = (
            f"{data_set(record.data, records).title}: {paper.STOCHASTIC}",
            text.printed(figures.vra if figures else None),
            text.shares(record, "smoothing", "vra"),
            text.difference(mean(record.values("smoothing", "vra")), figures.vra if figures else None),
            text.printed(figures.clean if figures else None),
            text.shares(record, "smoothing", "clean"),
            ", ".join(how) or MISSING,
            text.seeds(len(record.seeds)) if record.seeds else NOT_MEASURED,
        )
        rows.append(Row(cells, "stochastic"))
    why = "Stochastic: each certificate holds with probability 1 − α over the noise drawn; none of them is a bound."
    return [Table("Randomized smoothing (stochastic)", columns, tuple(rows), (why,))] if rows else []
