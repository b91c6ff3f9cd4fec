"""What training and certifying cost, and how tight the constants are: records → tables beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

from gloronet.report.counts import down, nearest, up
from gloronet.reproduce import audit, paper, text
from gloronet.reproduce.records import Record, data_set, mean, read, read_tightness, value
from gloronet.reproduce.rows import MAIN, RELU, SMOOTHING, Line, data_sets, lines, literature
from gloronet.reproduce.table import MISSING, Column, Row, Table

MB = 1e6


def cost(folder: Path) -> list[Table]:
    """Seconds and memory of training, a table a data set; then those of certifying."""
    records = read(folder)
    found = []
    for slug in data_sets(records):
        here = [*lines(records, slug, (*MAIN, *RELU, SMOOTHING)), *literature(records, slug)]
        found += _training(slug, here, records)
    return [*found, _certification(records)]


def lipschitz(folder: Path) -> list[Table]:
    """Global constants from above and below, and local ones from below: a table a data set."""
    records = read(folder)
    found = []
    for slug in data_sets(records):
        found += _constants(slug, lines(records, slug, (*MAIN, *RELU)), records)
    return found


def tightness(folder: Path) -> list[Table]:
    """What more power iterations in training buy."""
    record = read_tightness(folder)
    if record is None:
        return [Table("", (), (), ("How tight bounds are against power iterations in training: not measured.",))]
    path = Path(folder)
    columns = (
        Column("power iterations a step"),
        Column("seeds"),
        Column("upper bound", "global constant", "bound"),
        Column("lower bound", "global constant", "bound"),
        Column("upper ÷ lower", "global constant"),
        Column("bound, real", "VRA", "bound"),
        Column("estimate", "VRA", "estimate"),
        Column("seconds an epoch"),
    )
    rows = []
    for iterations in sorted({row["power_iterations"] for row in record["rows"]}):
        having = [row for row in record["rows"] if row["power_iterations"] == iterations]

        def of(name: str, rows: list[dict[str, object]] = having) -> list[float]:
            return [v for v in (value(row, path, name) for row in rows) if v is not None]

        n = len(having)
        upper, lower = of("upper"), of("lower_global")
        rows.append(
            Row(
                (
                    str(iterations), str(n), _constant(upper, n, up), _constant(lower, n, down), _over(upper, lower),
                    *(text.spread(of(name), n, text.share, text.percent) for name in ("vra", "vra_estimate")),
                    text.amount(text.median(of("seconds_per_epoch"))),
                )
            )
        )  # fmt: skip
    net, train = record.get("config", {}).get("model", {}), record.get("config", {}).get("train", {})
    facts = [str(net[k]) for k in ("architecture", "activation") if k in net]
    facts += [f"{train[k]} {k}" for k in ("epochs",) if k in train] + [str(train[k]) for k in ("loss",) if k in train]
    steps = {row["lower_steps"] for row in record["rows"] if "lower_steps" in row}
    facts += [f"lower bounds by {max(steps):,.0f} steps of Adam"] if len(steps) == 1 else []
    facts += [f"on {record['hardware']}"] if record.get("hardware") else []
    facts += [f"commit {record['commit']}"] if record.get("commit") else []
    return [Table("", columns, tuple(rows), (", ".join(facts) + ".",) if facts else ())]


def _training(slug: str, here: list[Line], records: list[Record]) -> list[Table]:
    columns = (
        Column("row"),
        *(Column(name, "seconds an epoch") for name in ("paper", "ours", "ours ÷ paper")),
        *(Column(name, "epochs") for name in ("paper", "ours")),
        *(Column(name, "training, seconds") for name in ("paper, epochs × seconds", "ours")),
        *(Column(name, "memory an instance, MB") for name in ("paper", "ours", "ours ÷ paper")),
        Column("run here", kind="text"),
    )
    rows = []
    for line in here:
        figures = paper.training(slug).get(line.family.paper)
        epoch, crowd = _epoch(line)
        whole, whole_crowd = _training_seconds(line.record, "seconds")
        memory = text.median(line.values("cost", "memory_per_instance"))
        memory = None if memory is None else memory / MB
        their: tuple[float | None, ...] = (None,) * 4
        if figures is not None:
            their = (figures.seconds_per_epoch, figures.epochs, figures.seconds, figures.memory_mb)
        if not any(their) and epoch is None and memory is None:
            continue
        cells = (
            line.label,
            text.printed(their[0]),
            text.amount(epoch) + _at_once(crowd),
            text.ratio(epoch if crowd == 1 else None, their[0]),
            text.printed(their[1]),
            _range(line.values("training", "epochs")),
            text.amount(their[2]),
            text.amount(whole) + _at_once(whole_crowd),
            text.printed(their[3]),
            text.amount(memory),
            text.ratio(memory, their[3]),
            line.run_here,
        )
        rows.append(Row(cells, line.kind))
    notes = _machines([line.record for line in here if line.record], ("training", "cost"))
    if any("at once" in cell for row in rows for cell in row.cells):
        notes.append(
            "At once: trainings that shared the machine. Their seconds are no measure of speed, and have no ratio."
        )
    return [Table(data_set(slug, records).title, columns, tuple(rows), tuple(notes))] if rows else []


def _epoch(line: Line) -> tuple[float | None, float]:
    """Seconds an epoch: timed with the machine to itself where that was done, else those of the training."""
    timed = text.median(line.values("cost", "seconds_per_epoch"))
    return _training_seconds(line.record, "seconds_per_epoch") if timed is None else (timed, 1.0)


def _training_seconds(record: Record | None, name: str) -> tuple[float | None, float]:
    """The median of the trainings that had the machine to themselves, or else of all; and how many shared it."""
    if record is None:
        return None, 1.0
    found = []
    for seed in record.seeds:
        seconds, crowd = (value(seed, record.path, "training", key) for key in (name, "side_by_side"))
        if seconds is not None:
            found.append((seconds, max(crowd or 1.0, 1.0)))
    used = [(seconds, crowd) for seconds, crowd in found if crowd == 1] or found
    return text.median([seconds for seconds, _ in used]), max((crowd for _, crowd in used), default=1.0)


def _at_once(crowd: float) -> str:
    return f" ({crowd:.0f} at once)" if crowd > 1 else ""


def _certification(records: list[Record]) -> Table:
    columns = (
        Column("row"),
        *(Column(name, "all test images, seconds") for name in ("paper", "ours", "ours ÷ paper")),
        *(Column(name, "memory an instance, MB") for name in ("paper", "ours", "ours ÷ paper")),
        Column("the bound, once, seconds", "ours"),
        Column("run here", kind="text"),
    )
    rows, used = [], []
    for slug in data_sets(records):
        printed = paper.certification(slug)
        for line in (*lines(records, slug, (*MAIN[1:], *RELU, SMOOTHING)), *literature(records, slug)):
            figures, record = printed.get(line.family.certification), line.record
            seconds = text.median(line.values("cost", "certify_seconds"))
            memory = text.median(line.values("cost", "certify_memory_per_instance"))
            memory = None if memory is None else memory / MB
            bound = text.median(line.values("accuracy", "bound_seconds"))
            if figures is None and seconds is None and memory is None:
                continue
            used += [record] if record else []
            cells = (
                f"{data_set(slug, records).title}: {line.label}",
                text.printed(figures.seconds if figures else None),
                text.amount(seconds),
                text.ratio(seconds, figures.seconds if figures else None),
                text.printed(figures.memory_mb if figures else None),
                text.amount(memory),
                text.ratio(memory, figures.memory_mb if figures else None),
                text.amount(bound),
                line.run_here,
            )
            rows.append(Row(cells, line.kind))
    return Table("Certifying", columns, tuple(rows), tuple(_machines(used, ("cost",))))


def _machines(records: Iterable[Record], groups: tuple[str, ...]) -> list[str]:
    """On what the seconds were measured: a ratio of two machines compares the machines too."""
    here = sorted({machine for r in records for group in groups for machine in r.texts(group, "hardware")})
    ours = f"Ours: {'; '.join(here)}; medians of the seeds. A ratio compares the machines as well as the programs."
    return [f"Paper: one {paper.HARDWARE}. {ours}" if here else f"Paper: one {paper.HARDWARE}."]


def _constants(slug: str, here: list[Line], records: list[Record]) -> list[Table]:
    columns = (
        Column("row"),
        Column("global, estimate of the upper bound", "paper", "estimate"),
        *(Column(name, "paper") for name in ("global, from below", "mean local, from below", "upper ÷ lower")),
        Column("global, upper bound", "ours", "bound main"),
        *(Column(name, "ours", "bound") for name in ("global, lower bound", "mean local, lower bound")),
        Column("upper ÷ lower", "ours"),
        Column("run here", kind="text"),
    )
    rows = []
    for line in here:
        figures, record = paper.lipschitz(slug).get(line.family.lipschitz), line.record
        ours = [line.values("lipschitz", name) for name in ("upper", "lower_global", "lower_local")]
        if figures is None and not any(ours):
            continue
        n = len(record.seeds) if record else 0
        theirs = [MISSING] * 4
        if figures is not None:
            theirs = [text.printed(v) for v in (figures.upper, figures.lower_global, figures.lower_local)]
            theirs.append(_over([figures.upper], [figures.lower_global]))
        cells = (
            line.label,
            *theirs,
            *(_constant(values, n, rounded) for values, rounded in zip(ours, (up, down, down), strict=True)),
            _over(ours[0], ours[1]),
            line.run_here,
        )
        rows.append(Row(cells, line.kind))
    own = [line.record for line in here if line.record is not None]
    return [Table(data_set(slug, records).title, columns, tuple(rows), tuple(audit.notes(own)))] if rows else []


def _constant(values: list[float], seeds: int, rounded: Callable[[float], str]) -> str:
    """A mean rounded to the side on which it stays a bound, and the seeds' range; ∞ where one of them is."""
    if math.inf in values:
        return rounded(math.inf)
    return text.spread(values, seeds, rounded, lambda v: rounded(float(v)))


def _over(upper: list[float], lower: list[float]) -> str:
    if math.inf in upper or len(upper) != len(lower):
        return MISSING
    above, below = mean(upper), mean(lower)
    return MISSING if above is None or not below else f"{nearest(float(above / below))}×"


def _range(values: list[float]) -> str:
    return "…".join(dict.fromkeys(f"{v:,.0f}" for v in (min(values), max(values)))) if values else MISSING
