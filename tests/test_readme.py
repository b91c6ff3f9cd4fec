"""What the README says of the repository: its commands' targets, its measured numbers. Its code: tests/test_docs.py."""

from __future__ import annotations

import re

from benchmarks import tables
from tests.pages import ROOT

README = (ROOT / "README.md").read_text()


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^make (\S+)", README, re.M))
    assert targets >= {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


def test_ci_runs_the_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_measured_table_is_the_records() -> None:
    assert tables.rendered(README) == README
