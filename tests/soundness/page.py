"""Writes the tables of docs/soundness.md by running every case, so that no number on it is typed.

python -m tests.soundness.page
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from tests.soundness.cases import PAGE, Case

BEGIN, END = "<!-- cases: written by python -m tests.soundness.page -->", "<!-- end of cases -->"
CHAPTERS = ("norms", "scales", "ties", "rounding", "convolutions", "graphs", "caches", "proofs")


def main() -> None:
    torch.set_num_threads(1)
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def rendered(page: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    tables = ["\n".join([*opening(name), *(case.row() for case in cases(name))]) for name in CHAPTERS]
    return "\n\n".join([f"{before}{BEGIN}", summary(), *tables, f"{END}{after}"])


def summary() -> str:
    return f"There are {sum(len(cases(name)) for name in CHAPTERS)} cases."


def opening(name: str) -> list[str]:
    """A chapter's heading, its file, and the head of its table."""
    link = f"[tests/soundness/test_trap_{name}.py](../tests/soundness/test_trap_{name}.py)"
    columns = "| case | story | naive code answers | gloronet answers |"
    return [f"### {(chapter(name).__doc__ or '').strip()}", "", link, "", columns, "|---|---|---|---|"]


def cases(name: str) -> list[Case]:
    return [test.case for test in vars(chapter(name)).values() if hasattr(test, "case")]


def chapter(name: str) -> ModuleType:
    return importlib.import_module(f"tests.soundness.test_trap_{name}")


if __name__ == "__main__":
    main()
