"""docs/soundness.md holds every case once, in order, and nothing else; each case compares its own row."""

from __future__ import annotations

from pathlib import Path

from tests.soundness.cases import PAGE
from tests.soundness.page import BEGIN, CHAPTERS, END, cases, opening, summary

TEXT = PAGE.read_text(encoding="utf-8")
WRITTEN = TEXT.partition(BEGIN)[2].partition(END)[0]


def test_the_page_lists_every_case_once_in_order() -> None:
    rows = [
        line for line in WRITTEN.splitlines() if line.startswith("| ") and not line.startswith("| case |")
    ]
    names = [case.name for name in CHAPTERS for case in cases(name)]
    assert [line.split(" | ")[0].removeprefix("| ") for line in rows] == names
    assert len(set(names)) == len(names)
    assert summary() in WRITTEN


def test_the_page_has_a_heading_for_every_file_of_cases() -> None:
    assert all("\n".join(opening(name)) in WRITTEN for name in CHAPTERS)
    files = sorted(path.stem for path in Path(__file__).parent.glob("test_trap_*.py"))
    assert files == sorted(f"test_trap_{name}" for name in CHAPTERS)


def test_no_bar_breaks_the_table() -> None:
    """A cell with a | in it would be two."""
    rows = [line for line in WRITTEN.splitlines() if line.startswith("|")]
    assert all(line.count("|") == 5 for line in rows)
