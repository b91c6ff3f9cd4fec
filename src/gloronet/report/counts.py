"""What the rows say: shares, curves, per-class figures. Plain NumPy, and the only place that counts.

Right means the answer is the true label; certified means radius > ε; VRA is the share of both; in a mean
radius a wrong answer counts 0. Printed numbers keep what they claim: a radius is rounded down, a bound up,
an estimate to the nearest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from rich.table import Table

from gloronet.errors import ConfigError
from gloronet.report.files import Array
from gloronet.report.rows import Attack, Run


def curve(radius: ArrayLike, right: ArrayLike) -> tuple[Array, Array]:
    """The step curve of accuracy against radius: share(r) = share of samples right AND radius > r.

    Returns (r, share) with r[0] = 0 and r rising; share[k] holds on [r[k], r[k+1]), the last one for ever
    (it is the share of right samples whose radius is infinite).

    >>> r, share = curve([0.5, 0.2, 0.9, 0.0], [True, True, False, True])
    >>> r.tolist(), share.tolist()
    ([0.0, 0.2, 0.5], [0.5, 0.25, 0.0])
    """
    radii, rights = np.asarray(radius, dtype=np.float64), np.asarray(right, dtype=bool)
    if radii.ndim != 1 or radii.shape != rights.shape or len(radii) == 0:
        raise ConfigError(
            "A curve needs one radius and one right-or-wrong a sample, and at least one sample."
        )
    alive = np.sort(radii[rights & (radii > 0)])
    r = np.concatenate([[0.0], np.unique(alive[np.isfinite(alive)])])
    return r, (len(alive) - np.searchsorted(alive, r, side="right")) / len(radii)


def summary_table(summary: dict[str, Any]) -> Table:
    """The terminal's line of results: clean / PGD / VRA at ε / mean radius / seconds."""
    seconds = summary.get("seconds")
    parts = seconds if isinstance(seconds, dict) else {}
    total = sum(parts.values()) if parts else seconds
    table = Table()
    for heading in ("clean", "PGD", f"VRA at ε = {summary.get('epsilon_text', summary.get('epsilon', '?'))}"):
        table.add_column(heading, justify="right")
    others = {k: v for k, v in summary.get("vra_by_semantics", {}).items() if k != "real"}
    for name in others:
        table.add_column(f"in {name}", justify="right")
    table.add_column("mean radius", justify="right")
    table.add_column("seconds", justify="right")
    table.add_row(
        *(percent(summary.get(key)) for key in ("clean", "pgd", "vra")),
        *(percent(value) for value in others.values()),
        down(summary.get("mean_radius")),
        "—" if total is None else f"{total:.1f}",
    )
    if parts:
        table.caption = ", ".join(f"{name} {value:.1f} s" for name, value in parts.items())
    return table


@dataclass(frozen=True)
class Count:
    """So many of so many."""

    hits: int
    total: int

    @property
    def share(self) -> float:
        return self.hits / self.total


@dataclass(frozen=True)
class ClassRow:
    name: str
    clean: Count
    vra: Count
    mean_radius: float


def outcomes(run: Run) -> dict[tuple[bool, bool], int]:
    """How many samples are (certified?, right?); the four numbers add up to all of them."""
    c = run.certificates
    cases = [(certified, right) for certified in (True, False) for right in (True, False)]
    return {case: int(((c.certified == case[0]) & (c.right == case[1])).sum()) for case in cases}


def clean(run: Run) -> Count:
    return Count(int(run.certificates.right.sum()), len(run.certificates))


def vra(run: Run) -> Count:
    c = run.certificates
    return Count(int((c.right & c.certified).sum()), len(c))


def worth(run: Run) -> Array:
    """Each sample's certified radius, 0 where the answer is wrong."""
    return np.where(run.certificates.right, run.certificates.radius, 0.0)


def withstood(run: Run, attack: Attack) -> Count:
    """Attacked samples that are right and stayed right."""
    return Count(int((run.certificates.right[attack.row] & ~attack.success).sum()), len(attack.row))


def attack_curve(run: Run, attack: Attack) -> tuple[Array, Array]:
    """Share of the attacked samples that are right and have no adversarial point found within r."""
    return curve(attack.distance, run.certificates.right[attack.row])


def refuted(run: Run) -> list[int]:
    """Samples whose right answer an attack changed inside the certified radius. Must be empty."""
    c, found = run.certificates, set()
    for attack in (run.attack, run.minimal):
        if attack is not None:
            inside = c.right[attack.row] & (attack.distance < c.radius[attack.row])
            found |= set(c.index[attack.row[inside]].tolist())
    return sorted(found)


def per_class(run: Run) -> list[ClassRow]:
    """One row per class that has samples, by true label."""
    c, rows = run.certificates, []
    for k in np.unique(c.label):
        of = c.label == k
        right, safe = c.right[of], c.certified[of]
        n = int(of.sum())
        counts = Count(int(right.sum()), n), Count(int((right & safe).sum()), n)
        rows.append(ClassRow(run.class_name(int(k)), *counts, float(worth(run)[of].mean())))
    return rows


def percent(share: float | None) -> str:
    return "—" if share is None or math.isnan(share) else f"{100 * share:.1f} %"


def down(value: float | None) -> str:
    """Four digits, rounded towards −∞: for radii.

    >>> down(0.29999), up(0.29991), nearest(0.29999)
    ('0.2999', '0.3000', '0.3000')
    """
    return _digits(value, ROUND_FLOOR)


def up(value: float | None) -> str:
    """Four digits, rounded towards +∞: for bounds."""
    return _digits(value, ROUND_CEILING)


def nearest(value: float | None) -> str:
    """Four digits, for everything that claims nothing."""
    return _digits(value, ROUND_HALF_EVEN)


def _digits(value: float | None, rounding: str) -> str:
    if value is None or math.isnan(value):
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    rounded = Context(prec=4, rounding=rounding).create_decimal(Decimal(value))
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return f"{rounded:.{max(0, 3 - rounded.adjusted())}f}"
    return f"{rounded:.3e}"
