"""Proofs that others can check: `write` makes `proof.json`; `checker.py` verifies it without any of us."""

from gloronet.proof import checker
from gloronet.proof.writer import Written, write

__all__ = ["Written", "checker", "write"]
