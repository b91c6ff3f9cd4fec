"""Records → figures, each with the rows it was drawn from. A figure with nothing measured is not drawn."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from gloronet.report import style
from gloronet.reproduce import painters, paper, points
from gloronet.reproduce.records import read


@dataclass(frozen=True)
class Drawing:
    """A figure to be: its rows, one object a line of the CSV, and how to paint them."""

    name: str
    title: str
    caption: str
    lacking: str
    """What no record holds, where it cannot be drawn."""
    rows: Sequence[Any]
    paint: Callable[[Figure, Sequence[Any]], None]

    @property
    def png(self) -> bytes | None:
        return style.png(self.paint, self.rows) if self.rows else None

    @property
    def csv(self) -> bytes | None:
        if not self.rows:
            return None
        text = io.StringIO()
        out = csv.writer(text, lineterminator="\n")
        out.writerow([f.name for f in dataclasses.fields(self.rows[0])])
        out.writerows(["" if v is None else v for v in dataclasses.astuple(row)] for row in self.rows)
        return text.getvalue().encode("utf-8")


def drawings(folder: Path) -> list[Drawing]:
    """The three figures, in their order; one without rows cannot be drawn and says why."""
    records = read(folder)
    return [
        Drawing(
            "certified_accuracy",
            "Certified accuracy against radius",
            "Share of the test images that are right and proved stable beyond each radius, by bounds: of each row "
            "the seed with the median VRA. The dots are the VRA at ε.",
            "certified accuracy against radius is not measured",
            points.curves(records),
            painters.curves,
        ),
        Drawing(
            "vra_against_seconds",
            "VRA against training time",
            f"Hollow: the paper's figure, after its epochs × its seconds an epoch on an {paper.HARDWARE}; crosses: "
            "literature, from the paper, not run here. Filled: ours, VRA by bounds, the mean of the seeds over the "
            "median of their seconds, on the machines the table of costs names. Rows with no VRA to speak of "
            "(under 1 %) are left out.",
            "no row has both its VRA and its training seconds measured",
            points.speeds(records),
            painters.speeds,
        ),
        Drawing(
            "lipschitz",
            "Lipschitz constants from above and below",
            "The true global constant lies between the two ends of a bar. Filled: ours, means of the seeds; hollow: "
            "the paper's, whose upper end is an estimate. A net that gives one answer to everything is left out.",
            "no row has its constants measured",
            points.constants(records),
            painters.constants,
        ),
    ]
