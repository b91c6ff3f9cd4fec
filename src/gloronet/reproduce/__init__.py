"""The paper, row by row: runs its rows, keeps a record of each, renders its tables beside the paper's figures.

    gloronet reproduce main --rows 'tuned/*'

`runner` completes the records in `results/`, one JSON a row; `tables`, `figures` and `page` read nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from gloronet.errors import ConfigError
from gloronet.reproduce import page
from gloronet.reproduce.columns import Effort
from gloronet.reproduce.records import TIGHTNESS
from gloronet.reproduce.runner import PLANS, Bench
from gloronet.reproduce.table import Table
from gloronet.reproduce.tables import TABLES

TIGHTNESS_ROW = "mnist"
"""The preset whose training is repeated with more power iterations, unless another is named."""


def reproduce(
    what: str,
    rows: Sequence[str] = (),
    *,
    results: Path = Path("results"),
    runs: Path = Path("runs"),
    seeds: Sequence[int] | None = None,
    changes: Sequence[str] = (),
    device: str | None = None,
    root: Path | None = None,
    effort: Effort | None = None,
    note: Callable[[str], None] = print,
) -> list[Table]:
    """Runs what the table lacks, writes records, tables, figures and the page, and answers the table."""
    if what not in TABLES:
        raise ConfigError(f"There is no table {what!r}; there are {', '.join(TABLES)}.")
    bench = Bench(results, runs, note, effort or Effort(), device, root, tuple(changes))
    if what == TIGHTNESS:
        if len(rows) > 1 or seeds is not None:
            raise ConfigError(f"{TIGHTNESS} takes one preset, and its seed by --set train.seed.")
        bench.tightness(rows[0] if rows else TIGHTNESS_ROW)
    else:
        bench.complete(what, rows, seeds)
    page.write(results)
    return TABLES[what](results)


__all__ = ["PLANS", "TABLES", "Effort", "reproduce"]
