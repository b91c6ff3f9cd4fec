"""What the README and CONTRIBUTING say is run: their code, their commands, their numbers."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from benchmarks import tables

from gloronet import cli
from gloronet.operators.rules import MODULE_RULES

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NUMBER = re.compile(r"-?\d+\.\d+")


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of that language; "" are those without one."""
    fences = re.split(r"^```(\w*)\n", text, flags=re.M)
    # Outside, opening mark, inside, closing mark (with no language), outside, …
    return [fences[k + 1] for k in range(1, len(fences) - 1, 4) if fences[k] == language]


def test_the_first_code_prints_what_the_readme_shows() -> None:
    (code,) = blocks(README, "python")
    shown = README.partition("<!-- output -->\n```\n")[2].partition("```")[0]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code, "README.md", "exec"), {})
    # Training rounds differently on another machine: the text must be the same, numbers close.
    real = output.getvalue()
    assert NUMBER.sub("#", real) == NUMBER.sub("#", shown)
    numbers = zip(NUMBER.findall(real), NUMBER.findall(shown), strict=True)
    assert all(float(a) == pytest.approx(float(b), rel=0.1) for a, b in numbers)


def test_the_worked_example_of_contributing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    before = dict(MODULE_RULES)
    try:
        exec(compile(code, "CONTRIBUTING.md", "exec"), {})
    finally:
        MODULE_RULES.clear()
        MODULE_RULES.update(before)
    assert "user rule" in capsys.readouterr().out


def commands() -> list[str]:
    lines = [line.partition("#")[0] for block in blocks(README, "") for line in block.splitlines()]
    found = [re.match(r"(?:torchrun .*-m )?(gloronet .*)", line) for line in lines]
    return [match[1].strip() for match in found if match]


def test_every_command_of_the_readme_is_one_the_parser_takes() -> None:
    found = commands()
    assert len(found) >= 8
    for command in found:
        cli._parser().parse_args(shlex.split(command)[1:])


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^make (\S+)", README, re.M))
    assert targets == {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)


def test_ci_runs_the_test_command() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text()


def test_the_measured_table_is_the_records() -> None:
    assert tables.rendered(README) == README


def test_linked_files_exist() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links)
