"""What the pages say is run: their code, in order, with what it prints; their commands, at least by the parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests import pages
from tests.pages import WALKED, Block

from gloronet import cli
from gloronet.operators.rules import MODULE_RULES

CLOSE = {
    **dict.fromkeys(("README.md", "CONTRIBUTING.md", "docs/relaxed.md", "docs/your-own-model.md"), 0.1),
    "docs/faq.md": 0.25,
}
"""Pages that train, and how close another machine comes to their numbers. All others are compared to the letter."""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Rules that a page registers, and its seed, are gone with it."""
    rules, state = dict(MODULE_RULES), torch.get_rng_state()
    yield
    MODULE_RULES.clear()
    MODULE_RULES.update(rules)
    torch.set_rng_state(state)


def python(page: Path) -> list[Block]:
    return [block for block in pages.blocks(page) if block.language == "python"]


@pages.COMPILING
@pytest.mark.parametrize("page", [p for p in pages.PAGES if python(p) and p not in WALKED], ids=pages.name)
def test_the_code_of_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for block, real in pages.walk(page):
        if block.shown is not None and pages.name(page) in CLOSE:
            pages.assert_close(real, block.shown, CLOSE[pages.name(page)])
        elif block.shown is not None:
            assert real == block.shown


SHORT = ("--set", "train.epochs=20", "--attack", "20")


@pytest.mark.parametrize("short", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("page", WALKED, ids=pages.name)
def test_a_page_can_be_followed_from_its_first_command_to_its_last(
    page: Path, short: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a reader does, in an empty folder; for `make test` with a shorter training, and so with other numbers."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for block, real in pages.walk(page, SHORT if short else ()):
        if block.shown is not None and short:
            pages.assert_same_words(real, block.shown)
        elif block.shown is not None:
            pages.assert_close(real, block.shown, rel=0.25)


COMMANDS = [
    pytest.param(arguments, id=f"{pages.name(page)}:{command}")
    for page in pages.PAGES
    for block in pages.blocks(page)
    if block.language in ("", "sh")
    for command in pages.commands(block)
    if (arguments := pages.gloronet_arguments(command)) is not None
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_every_command_is_one_the_parser_takes(arguments: list[str]) -> None:
    cli._parser().parse_args(arguments)


def test_there_are_commands_and_outputs_to_check() -> None:
    """The tests above would pass if nothing were found."""
    assert len(COMMANDS) >= 30
    shown = [b for page in pages.PAGES for b in python(page) if b.shown is not None]
    assert len(shown) >= 10


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_linked_files_exist(page: Path) -> None:
    """For readers of the files themselves; `make docs` checks the links of the site, and their anchors."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)|src=\"([^\":]+)\"", prose)
    assert [link for pair in links if (link := "".join(pair)) and not (page.parent / link).exists()] == []
