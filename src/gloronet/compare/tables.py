"""The rows of a comparison as text: a table, what differs in the settings, and what to mind when reading them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gloronet.compare.sides import ATTACKS, Row, Side
from gloronet.config import parse_epsilon
from gloronet.report.counts import down, up
from gloronet.report.rows import NORMS
from gloronet.reproduce import text
from gloronet.reproduce.table import MISSING, Column, Table
from gloronet.reproduce.table import Row as Line


def table(rows: Sequence[Row]) -> Table:
    """One line a run, shares in per cent. What all runs have in common is the title, and no column."""
    common = {heading: {cell(row) for row in rows} for heading, cell in _ABOUT.items()}
    same = [(name, *cells) for name, cells in common.items() if len(cells) == 1]
    title = " · ".join(f"ε = {cell}" if name == "ε" else cell for name, cell in same)
    about = {heading: cell for heading, cell in _ABOUT.items() if len(common[heading]) > 1}
    columns = [Column("run"), *(Column(heading, kind="text") for heading in about)]
    cells: list[Callable[[Row], str]] = [lambda row: row.name, *about.values()]
    for column, cell in _measured(rows):
        columns.append(column)
        cells.append(cell)
    lines = tuple(Line(tuple(cell(row) for cell in cells)) for row in rows)
    return Table(title, tuple(columns), lines)


def differences(sides: Sequence[Side]) -> dict[str, list[Any]]:
    """The settings that are not the same everywhere: of every run, None where it has none."""
    keys = dict.fromkeys(key for side in sides for key in side.settings)
    values = {key: [side.settings.get(key) for side in sides] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def written(values: Sequence[Any]) -> list[str]:
    return [MISSING if value is None else str(value) for value in values]


def notes(sides: Sequence[Side]) -> tuple[str, ...]:
    """What to know before putting one number beside another."""
    rows = [side.row for side in sides]
    said = []
    if len({row.data for row in rows}) > 1:
        said.append("Different data sets: shares are of different test images, and radii of different inputs.")
    elif len({row.samples for row in rows} - {None}) > 1:
        each = ", ".join(f"{row.name}: {row.samples}" for row in rows if row.samples is not None)
        said.append(f"Certified on different numbers of test samples ({each}).")
    if len({parse_epsilon(row.epsilon) for row in rows}) > 1:
        said.append("Certified at different ε: each VRA and PGD is at its run's own; the curves say the rest.")
    if len({row.norm for row in rows}) > 1:
        said.append("Certified in different norms: their radii cannot be compared.")
    if any(row.seconds is not None for row in rows) and len({row.hardware for row in rows}) > 1:
        said.append("Trained on different machines: seconds compare the machines too.")
    crowded = [row for row in rows if (row.side_by_side or 1) > 1]
    if crowded:
        shared = ", ".join(f"{row.name}: {row.side_by_side} at once" for row in crowded)
        said.append(f"Trainings that shared their machine ({shared}): their seconds are no measure of speed.")
    without = [side.row for side in sides if side.curve is None]
    if without:
        some = "; ".join(f"gloronet certify {row.run}" for row in without)
        said.append(f"No curve where certificates.csv is missing: {some}.")
    return tuple(said)


_ABOUT: dict[str, Callable[[Row], str]] = {
    "data": lambda row: row.data,
    "network": lambda row: row.network,
    "ε": lambda row: row.epsilon if row.norm == "l2" else f"{row.epsilon} ({NORMS[row.norm]})",
}


def _measured(rows: Sequence[Row]) -> list[tuple[Column, Callable[[Row], str]]]:
    """Each column with what it says of a run; an attack or semantics that no run has is left out but for the first."""
    attacks = [name for name in ATTACKS if name == "pgd" or any(name in row.attacks for row in rows)]
    semantics = dict.fromkeys(["real", *(name for row in rows for name in row.vra)])
    return [
        (Column("clean"), lambda row: _share(row.clean)),
        *(_attack(name, [row.attacks[name].samples for row in rows if name in row.attacks]) for name in attacks),
        *((Column(f"VRA, {name}", kind="bound main" if name == "real" else "bound"), partial(_vra, name))
          for name in semantics),
        (Column("mean radius", kind="bound"), lambda row: _number(row.mean_radius, down)),
        (Column("K", kind="bound"), lambda row: _number(row.constant, up)),
        (Column("largest K_ij", kind="bound"), lambda row: _number(row.largest_margin, up)),
        (Column("training seconds"), lambda row: text.amount(row.seconds)),
        (Column("epochs"), lambda row: MISSING if row.epochs is None else str(row.epochs)),
    ]  # fmt: skip


def _attack(name: str, samples: Sequence[int]) -> tuple[Column, Callable[[Row], str]]:
    """On how many samples stands in the heading where it is the same for all."""
    same = len(set(samples)) == 1
    heading = f"{ATTACKS[name]} of {samples[0]:,}" if same else ATTACKS[name]

    def cell(row: Row) -> str:
        if name not in row.attacks:
            return MISSING
        found = row.attacks[name]
        return text.share(found.share) if same else f"{text.share(found.share)} (of {found.samples:,})"

    return Column(heading), cell


def _share(share: float | None) -> str:
    return MISSING if share is None else text.share(share)


def _vra(semantics: str, row: Row) -> str:
    return _share(row.vra.get(semantics))


def _number(value: float | None, rounded: Callable[[float], str]) -> str:
    return MISSING if value is None else rounded(value)
