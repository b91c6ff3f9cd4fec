"""Runs side by side: one table, what differs in their settings, and their curves of certified accuracy in one figure.

    gloronet compare runs/digits runs/digits-2 zoo:mnist-0.3

Reads the files of run folders and of the zoo, and never touches a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gloronet.compare import page, tables
from gloronet.compare.sides import Row, read

__all__ = ["Comparison", "Row", "compare"]


@dataclass(frozen=True)
class Comparison:
    """What was found, and the page that shows it."""

    runs: tuple[Row, ...]
    differences: dict[str, list[Any]]
    """Settings that are not the same in all runs: of each, in their order; None where a run has none."""
    notes: tuple[str, ...]
    """What to know before putting one number beside another."""
    page: Path


def compare(runs: Sequence[str], out: Path = Path("compare")) -> Comparison:
    """Compares run folders and `zoo:NAME`s; writes `out/compare.html` and the figure with its rows beside it.

    `out` is new, empty or an earlier comparison, which is replaced; any other folder is refused and left alone.
    """
    page.require_ours(out)
    sides = read(runs)
    rows = tuple(side.row for side in sides)
    differences, notes = tables.differences(sides), tables.notes(sides)
    return Comparison(rows, differences, notes, page.write(sides, differences, notes, out))
