"""What the records must not say. Whatever of it they do say stands below the table, in words.

Proved never exceeds attacked, float32 never exceeds real, a lower bound never exceeds the upper one, and certified
balls around points with different labels never meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gloronet.reproduce.records import Record, exact, value

ALARM = "Contradiction: "
ALL_IMAGES = 10_000
"""Every test set of the paper. On fewer, attacked and proved are compared only where both are of the same images."""


def notes(records: Iterable[Record]) -> list[str]:
    """Contradictions first; then attacks that do not agree, and what was checked and holds."""
    records = list(records)
    wrong = [f"{ALARM}{text}" for record in records for text in _contradictions(record)]
    gaps = [gap for record in records for gap in record.values("accuracy", "disjoint_ball_gap")]
    apart = sum(gap >= 0 for gap in gaps)
    audit = "certified balls around points with different labels do not meet, as they must not"
    attacks = [text for record in records for text in _apart(record)]
    return wrong + attacks + ([f"Audited: in {apart} of {len(gaps)} trainings {audit}."] if gaps else [])


def _apart(record: Record) -> Iterator[str]:
    """Two attacks are two lower bounds of one thing: they need not agree, but a reader wants to know."""
    for seed in record.seeds:
        ours, art, images = (value(seed, record.path, "attack", key) for key in ("pgd", "pgd_art", "samples"))
        if ours is not None and art is not None and abs(exact(ours) - exact(art)) > exact(0.005):
            gap, on = float(100 * abs(exact(ours) - exact(art))), f" on {images:,.0f} images" if images else ""
            yield f"{record.row}, seed {seed.get('seed', '?')}: our PGD and ART's differ by {gap:.2f} points{on}."


def _contradictions(record: Record) -> Iterator[str]:
    for seed in record.seeds:
        name = f"{record.row}, seed {seed.get('seed', '?')}"

        def at(*way: str, of: dict[str, object] = seed) -> float | None:
            return value(of, record.path, *way)

        vra, rounded, gap = (at("accuracy", *w) for w in (("vra", "real"), ("vra", "float32"), ("disjoint_ball_gap",)))
        if gap is not None and gap < 0:
            yield f"{name}: certified balls of different labels overlap by {-gap:.3g}."
        if vra is not None and rounded is not None and rounded > vra:
            yield f"{name}: VRA in float32 above VRA in real arithmetic."
        proved = at("attack", "vra_of_these")
        if proved is None and (at("attack", "samples") or 0) >= ALL_IMAGES:
            proved = vra
        for attack in ("pgd", "pgd_art"):
            held = at("attack", attack)
            if proved is not None and held is not None and held < proved:
                yield f"{name}: {attack} broke what is certified ({100 * held:.2f} % < {100 * proved:.2f} %)."
        upper, *lower = (at("lipschitz", key) for key in ("upper", "lower_global", "lower_local"))
        if upper is not None and any(low is not None and low > upper for low in lower):
            yield f"{name}: a lower bound above the upper bound."
