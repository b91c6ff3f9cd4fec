"""The pages of documentation as tests read them: their fenced blocks in order, and what these say they print.

A fence without a language right after a block of Python or shell is its output. Other fences without one, fences
marked `sh` and indented blocks hold commands.
"""

from __future__ import annotations

import io
import re
import shlex
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, chdir, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from markdown_it import MarkdownIt
from tests.serving import service

from gloronet import cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = ("python", "sh")
ADDRESS = "http://127.0.0.1:8000/"
WALKED = [ROOT / "docs" / "tutorial.md"]
"""Pages whose commands are run as well, all in order; of others the parser must take them."""
FIRST = {"docs/onnx.md": "gloronet export zoo:mnist-0.3 mnist.onnx --epsilon 0.25"}
"""A command of the page that its Python needs."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
TIME = re.compile(r"\d+(?:\.\d+)?(?= s\b| │\n└)")
"""Seconds: written so, or in the last cell of a run's summary."""
RULES = re.compile(r"[\s━─┃│┏┓┗┛┡┩┳╇└┘┴]+")

COMPILING = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning",
    "ignore:.*_prims_common:FutureWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning",
)
"""What torch's compiler makes torch say of torch."""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    """Where it begins on the page, counted from 1."""
    shown: str | None = None
    """What the page says it prints."""
    shown_at: tuple[int, int] = (0, 0)
    """Its lines on the page, from 0, the last one not included."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Every block of code on a page, in order, each with its output."""
    found: list[Block] = []
    before = ""
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language = token.info.split()[0] if token.info.strip() else ""
            if token.type == "fence" and not language and before in CODE:
                first, last = token.map
                found.append(replace(found.pop(), shown=token.content, shown_at=(first + 1, last - 1)))
            else:
                found.append(Block(language, token.content, token.map[0] + 1))
            before = language
        elif token.type != "html_block":  # a comment may stand between code and output
            before = ""
    return found


def commands(block: Block) -> list[str]:
    """The commands of a block of shell, one line each, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def gloronet_arguments(command: str) -> list[str] | None:
    """What a `gloronet …` (or `torchrun … -m gloronet …`) hands to the parser; None for another command."""
    match = re.match(r"(?:torchrun .*-m )?gloronet (.*?)(?: &)?$", command)
    return shlex.split(match[1]) if match else None


def walk(page: Path, more: Sequence[str] = ()) -> Iterator[tuple[Block, str]]:
    """Does what a page says, in the current folder, and yields what each block printed: Python, and on WALKED shell.

    `more` is added to every `gloronet train`. A service listens at a free port, and is asked there, instead of 8000.
    """
    if name(page) in FIRST:
        assert cli.main(gloronet_arguments(FIRST[name(page)]) or []) == 0
    names: dict[str, Any] = {"__name__": page.stem}
    with ExitStack() as stack:
        url = ADDRESS
        for block in blocks(page):
            with redirect_stdout(io.StringIO()) as printed:
                if block.language == "python":
                    code = block.text.replace(ADDRESS, url)
                    exec(compile("\n" * block.line + code, str(page), "exec"), names)  # tracebacks name the page's line
                for command in commands(block) if block.language == "sh" and page in WALKED else ():
                    arguments = gloronet_arguments(command) or [""]
                    if arguments[0] == "serve":
                        url = stack.enter_context(service(*arguments[1:])).url
                    elif arguments[0]:
                        extra = more if arguments[0] == "train" else ()
                        assert cli.main([*arguments, *extra]) == 0, command
                    else:
                        assert command.startswith("pip install "), f"who runs this? {command}"
            if block.language in CODE:
                yield block, printed.getvalue()


def curl(command: str, url: str) -> str:
    """What the service at `url` answers to a block of a page; anything but success is an error."""
    command = command.replace(ADDRESS, url).replace("curl ", "curl --fail --silent --noproxy '*' ")
    line = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, command + done.stderr
    return done.stdout


def assert_same_words(real: str, shown: str) -> None:
    """The same text, whatever its numbers and digests, and however wide a table is drawn."""
    assert _words(real) == _words(shown)


def assert_close(real: str, shown: str, rel: float) -> None:
    """The same text, and all numbers close but for times: training rounds differently on another machine."""
    assert_same_words(real, shown)
    numbers = (NUMBER.findall(_plain(TIME.sub("", text))) for text in (real, shown))
    for a, b in zip(*numbers, strict=True):
        assert float(a) == pytest.approx(float(b), rel=rel), f"{real}\nbut the page shows\n{shown}"


def _words(text: str) -> str:
    return RULES.sub(" ", NUMBER.sub("#", _plain(text))).strip()


def _plain(text: str) -> str:
    return re.sub(r"\b[0-9a-f]{16,}\b", "digest", text)


def png_size(path: Path) -> tuple[int, int]:
    """Width and height of a picture."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def main(path: str) -> None:
    """Writes a page's outputs anew, by doing what it says: python -m tests.pages docs/tutorial.md"""
    page = Path(path).resolve()
    text = page.read_text(encoding="utf-8").splitlines(keepends=True)
    with TemporaryDirectory() as folder, chdir(folder):
        done = [(block, output) for block, output in walk(page) if block.shown is not None]
    for block, output in reversed(done):
        first, last = block.shown_at
        text[first:last] = [line.rstrip() + "\n" for line in output.splitlines()]
    page.write_text("".join(text), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
