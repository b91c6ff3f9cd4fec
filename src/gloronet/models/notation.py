"""The paper's notation for networks: `c(16,4,2).c(32,4,2).d(100).d(10)`.

`c(C,K,S)` is a convolution with C output channels, a K×K kernel and stride S; `d(D)` a dense layer with D
outputs. Ours, not the paper's: `r(K)` is x + W∗x, a convolution with a K×K kernel added to its own input
(LiResNet's block). Convolutions come first, and the last piece is dense. The parser is strict, and its errors
point at the piece that cannot be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gloronet.errors import ConfigError


@dataclass(frozen=True)
class Conv:
    """c(channels,kernel,stride), padded so that a stride of 1 keeps the image's size."""

    channels: int
    kernel: int
    stride: int


@dataclass(frozen=True)
class Dense:
    """d(size)."""

    size: int


@dataclass(frozen=True)
class Skip:
    """r(kernel): x + W∗x, with as many channels out as in; the kernel is odd, so that it has a centre."""

    kernel: int


Piece = Conv | Skip | Dense


def parse(spec: str) -> list[Piece]:
    """The pieces of a network, in order.

    >>> parse("c(16,4,2).d(10)")
    [Conv(channels=16, kernel=4, stride=2), Dense(size=10)]
    """
    texts = spec.split(".")
    pieces: list[Piece] = []
    for i, text in enumerate(texts):
        piece = _parse_piece(spec, i, text)
        if isinstance(piece, Conv | Skip) and pieces and isinstance(pieces[-1], Dense):
            raise bad_piece(spec, i, "is a convolution after a dense layer; put all convolutions first")
        pieces.append(piece)
    if not isinstance(pieces[-1], Dense):
        raise bad_piece(spec, len(pieces) - 1, "ends the network; end it with a dense layer d(classes)")
    return pieces


def bad_piece(spec: str, i: int, problem: str) -> ConfigError:
    """The error that says what is wrong with piece i (from 0) of a spec."""
    return ConfigError(f"architecture {spec!r}: piece {i + 1}, {spec.split('.')[i]!r}, {problem}.")


def _parse_piece(spec: str, i: int, text: str) -> Piece:
    match = re.fullmatch(r"c\(([0-9]+),([0-9]+),([0-9]+)\)|[rd]\(([0-9]+)\)", text)
    if match is None:
        raise bad_piece(spec, i, "is neither c(channels,kernel,stride) nor r(kernel) nor d(size)")
    sizes = [int(group) for group in match.groups() if group is not None]
    if min(sizes) == 0:
        raise bad_piece(spec, i, "has a zero; every number must be at least 1")
    if text.startswith("r") and sizes[0] % 2 == 0:
        raise bad_piece(spec, i, "has an even kernel, which has no centre; choose an odd one")
    return {"c": Conv, "r": Skip, "d": Dense}[text[0]](*sizes)
