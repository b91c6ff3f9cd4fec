"""ℓ2 attacks on the m logits: what an adversary really achieves, the upper side of every certified curve.

An attack returns points, and everything it says about them is recomputed from these very points: the
distance ‖x′ − x‖ in float64, never above ε, and the margin in the network's own arithmetic. `pgd` and
`minimal` are ours; `pgd_art` is the door to the library the paper used.
"""

from gloronet.attacks.art import art_is_here, pgd_art
from gloronet.attacks.attack import COLUMNS, Attack, Logits, Progress, rows, write_csv
from gloronet.attacks.ball import Interval
from gloronet.attacks.descent import minimal, pgd

__all__ = [
    "COLUMNS",
    "Attack",
    "Interval",
    "Logits",
    "Progress",
    "art_is_here",
    "minimal",
    "pgd",
    "pgd_art",
    "rows",
    "write_csv",
]
