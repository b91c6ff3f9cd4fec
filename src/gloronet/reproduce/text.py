"""Numbers as tables write them. What is not there is a dash, never a zero."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from fractions import Fraction

from gloronet.reproduce.records import Record, exact, mean
from gloronet.reproduce.table import MISSING


def percent(share: Fraction | None) -> str:
    """A share in per cent, to the nearest hundredth.

    >>> percent(Fraction("0.61234")), percent(None)
    ('61.23', '–')
    """
    return MISSING if share is None else f"{_hundredths(100 * share):.2f}"


def share(value: float) -> str:
    return percent(exact(value))


def printed(value: float | None) -> str:
    """A figure of the paper, as it stands there.

    >>> printed(99.0), printed(2515.6), printed(12000000.0)
    ('99.0', '2,515.6', '12,000,000')
    """
    if value is None:
        return MISSING
    return f"{value:,.0f}" if value >= 1000 and value == int(value) else f"{value:,}"


def difference(ours: Fraction | None, paper: float | None) -> str:
    """Ours − the paper's, in points: exactly the difference of the two numbers shown.

    >>> difference(Fraction("0.61234"), 58.4), difference(Fraction("0.5"), 58.4), difference(None, 58.4)
    ('+2.83', '−8.40', '–')
    """
    if ours is None or paper is None:
        return MISSING
    return f"{_hundredths(100 * ours - Fraction(repr(paper))):+.2f}".replace("-", "−")


def shares(record: Record | None, *way: str) -> str:
    """Mean, and between which values the seeds lie; how many seeds where not all of them have it."""
    values = record.values(*way) if record is not None else []
    return spread(values, len(record.seeds) if record is not None else 0, share, percent)


def spread(
    values: Sequence[float],
    seeds: int,
    one: Callable[[float], str],
    of_mean: Callable[[Fraction], str],
) -> str:
    """`61.23 (61.10…61.40)`; `61.23` of one seed; `61.23 (1 of 3 seeds)` where others lack it."""
    average = mean(values)
    if average is None:
        return MISSING
    asides = [f"{one(min(values))}…{one(max(values))}"] if len(values) > 1 else []
    asides += [f"{len(values)} of {seeds} seeds"] if len(values) < seeds else []
    return of_mean(average) + (f" ({'; '.join(asides)})" if asides else "")


def seeds(number: int) -> str:
    return "1 seed" if number == 1 else f"{number} seeds"


def amount(value: float | None) -> str:
    """Seconds or megabytes, two or three digits.

    >>> [amount(v) for v in (0.00042, 0.1412, 6.9, 42.17, 5520.0, None)]
    ['0.00042', '0.141', '6.90', '42.2', '5,520', '–']
    """
    if value is None:
        return MISSING
    if 0 < value < 0.1:
        return f"{value:.2g}"
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:,.{digits}f}"


def ratio(ours: float | None, paper: float | None) -> str:
    """Ours ÷ the paper's.

    >>> ratio(0.141, 6.9), ratio(None, 6.9)
    ('0.02×', '–')
    """
    return MISSING if ours is None or not paper else f"{amount(ours / paper)}×"


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _hundredths(number: Fraction) -> float:
    """Halves go up, so that rounding before or after a subtraction of hundredths is the same."""
    return math.floor(100 * number + Fraction(1, 2)) / 100
