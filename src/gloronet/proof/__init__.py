"""Proofs that others can check: `write` makes `proof.json`, and `checker.py` needs none of us to verify it."""

from gloronet.proof.writer import Written, write

__all__ = ["Written", "write"]
