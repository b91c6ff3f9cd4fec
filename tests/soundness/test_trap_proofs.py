"""Proofs that were tampered with"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tests.soundness import naive
from tests.soundness.cases import Answers, case
from torch import nn

import gloronet as gn
from gloronet.proof import checker, write


@case("Forged proofs")
def test_forged_proofs() -> Answers:
    """A proof with a digest over its content cannot be changed unnoticed, unless one also recomputes the
    digest. A checker must redo the mathematics: a bound that is too small by 1e-6, a wrong label, verdict,
    ε or radius."""
    with proof() as (files, accepted):
        honest = json.loads(files[0].read_bytes())
        assert accepted()
        forged = list(forgeries(honest["content"]))
        fooled = 0
        for content in forged:
            document = checker.canonical({"content": content, "sha256": digest(content)})
            files[0].write_bytes(document + b"\n")
            fooled += naive.accepts(document)
            assert not accepted()
    assert fooled == len(forged)
    return Answers(f"{fooled} of {len(forged)} forgeries accepted", "all rejected, each with its reason")


@case("Flipped bits")
def test_flipped_bits() -> Answers:
    """A bit that flipped on a disk, in the proof, the weights or the inputs. Most flips in a number leave a
    number, and whoever reads the files without hashing them certifies another network."""
    rng, flips, unnoticed = random.Random(0), 0, 0
    with proof() as (files, accepted):
        for path in files:
            whole = path.read_bytes()
            for _ in range(40):
                place = rng.randrange(8 * len(whole))
                bad = bytearray(whole)
                bad[place // 8] ^= 1 << place % 8
                path.write_bytes(bad)
                assert not accepted()
                flips, unnoticed = flips + 1, unnoticed + naive.reads(*files)
            path.write_bytes(whole)
        assert accepted()
    assert unnoticed >= flips // 4, unnoticed
    return Answers(f"more than a quarter of {flips} flips go unnoticed", f"{flips} of {flips} rejected")


@contextlib.contextmanager
def proof() -> Iterator[tuple[tuple[Path, Path, Path], Any]]:
    """The three files of a small proof, and whether the checker accepts them as they are now."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), gn.MinMax(), nn.Linear(6, 3))
    net = gn.GloRoNet(module, "1/100", (4,)).eval()
    x = torch.rand(8, 4)
    assert bool(net.certify(x).certified.any())
    with tempfile.TemporaryDirectory() as folder:
        written = write(net, x, None, folder)
        files = (written.proof, written.model, written.inputs)

        def accepted() -> bool:
            with contextlib.redirect_stdout(io.StringIO()):
                return checker.main([str(path) for path in files]) == 0

        yield files, accepted


def forgeries(content: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """False claims, each in an otherwise honest proof."""
    for factor in (1 - 1e-6, 0.5):
        forged = copy.deepcopy(content)
        forged["bounds"]["operations"][0]["value"] *= factor
        forged["bounds"]["margins"] = [[k * factor for k in row] for row in forged["bounds"]["margins"]]
        yield forged
    table = content["certificates"]
    sure = table["certified"].index(True)
    for field, value in (
        ("label", (table["label"][sure] + 1) % 3),
        ("radius", table["radius"][sure] * 1.001),
        ("margin", table["margin"][sure] * 1.001),
        ("certified", False),
    ):
        forged = copy.deepcopy(content)
        forged["certificates"][field][sure] = value
        yield forged
    forged = copy.deepcopy(content)
    forged["epsilon"]["value"] *= 0.5
    yield forged


def digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(checker.canonical(content)).hexdigest()
