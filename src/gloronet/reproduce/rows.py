"""Which rows a table has: the paper's, beside the record of each, and every other record there is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gloronet.reproduce import paper, text
from gloronet.reproduce.records import Record

LITERATURE = "literature"
APART = "literature; ours in the table of smoothing"
NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Family:
    """Rows of one kind, and what the paper calls theirs."""

    label: str
    paper: str = ""
    lipschitz: str = ""
    certification: str = ""


_MINMAX = ("GloRo (MinMax)",) * 3
_RELU = ("GloRo (ReLU)",) * 2

FAMILIES = {
    "standard": Family("Standard", "Standard", "Standard"),
    "minmax": Family("GloRo (MinMax), the paper's settings", *_MINMAX),
    "tuned": Family("GloRo (MinMax), our settings", *_MINMAX),
    "relu-ce": Family("GloRo (ReLU, CE), the paper's settings", "GloRo (ReLU, CE)", *_RELU),
    "relu-trades": Family("GloRo (ReLU, TRADES), the paper's settings", "GloRo (ReLU, TRADES)", *_RELU),
    # Of the paper's two ReLU rows, TRADES has the VRA at least as high on every data set: that one is to beat.
    "tuned-relu": Family("GloRo (ReLU), our settings", "GloRo (ReLU, TRADES)", *_RELU),
    "authors-minmax": Family("GloRo (MinMax), the authors' code", *_MINMAX),
    "authors-relu-ce": Family("GloRo (ReLU, CE), the authors' code", "GloRo (ReLU, CE)", *_RELU),
    "authors-relu-trades": Family("GloRo (ReLU, TRADES), the authors' code", "GloRo (ReLU, TRADES)", *_RELU),
    "lmt": Family("LMT", "LMT"),
    "smoothing": Family(paper.STOCHASTIC, paper.STOCHASTIC, "", paper.STOCHASTIC),
    "averaged": Family("seed-averaged logits"),
}
MAIN = ("standard", "minmax", "tuned")
RELU = ("relu-ce", "relu-trades", "tuned-relu")
SMOOTHING = "smoothing"


@dataclass(frozen=True)
class Line:
    """A row of a table before its numbers are written out."""

    label: str
    family: Family
    record: Record | None = None
    literature: bool = False
    apart: bool = False
    """Whether ours of the same kind stand in a table of their own."""

    def values(self, *way: str) -> list[float]:
        """As the record's; none where there is no record."""
        return self.record.values(*way) if self.record is not None else []

    @property
    def run_here(self) -> str:
        if self.literature:
            return APART if self.apart else LITERATURE
        if self.record is None or not self.record.seeds:
            return NOT_MEASURED
        of = (self.record.seeds[0].get("accuracy") or {}).get("of")
        return f"{text.seeds(len(of['seeds']))}, averaged" if of else text.seeds(len(self.record.seeds))

    @property
    def kind(self) -> str:
        if self.literature:
            return "literature"
        return "ours" if self.label.endswith("our settings") else ""


def lines(records: Iterable[Record], slug: str, families: Iterable[str], relu: bool | None = None) -> list[Line]:
    """The families' rows of a data set, then every other record with that activation; `relu=None` takes both.

    GloRo and standard rows that the paper has are there even where nothing was measured; all others only where
    it was.
    """
    here = {record.family: record for record in records if record.data == slug}
    printed = paper.training(slug)
    ours = {*MAIN, *RELU}
    named = [n for n in families if n in here or (n in ours and FAMILIES[n].paper in printed)]
    others = [n for n, r in here.items() if n not in {*ours, SMOOTHING} and relu in (None, r.relu)]
    return [_line(name, slug, here.get(name)) for name in [*named, *others]]


def literature(records: Iterable[Record], slug: str, smoothing_apart: bool = False) -> Iterator[Line]:
    """The paper's rows that no record of ours stands beside."""
    run = {FAMILIES[r.family].paper for r in records if r.data == slug and r.family in FAMILIES}
    for name in paper.training(slug):
        apart = smoothing_apart and name == paper.STOCHASTIC and name in run
        if apart or name not in run | {FAMILIES[n].paper for n in (*MAIN, *RELU)}:
            yield Line(name, Family(name, name, "", name), literature=True, apart=apart)


def data_sets(records: Iterable[Record]) -> list[str]:
    """The paper's four, then any other that was measured."""
    ours = [data.slug for data in paper.DATA]
    return ours + sorted({record.data for record in records} - set(ours))


def _line(name: str, slug: str, record: Record | None) -> Line:
    family = FAMILIES.get(name, Family(name))
    if name not in FAMILIES and record is not None:  # a row nobody named: at least say which network it is
        family = Family(f"{name}, {record.config.get('model', {}).get('architecture', 'network not recorded')}")
    return Line(family.label, family, record)
