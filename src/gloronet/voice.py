"""How the command line speaks: in text for people, or in one JSON document for scripts."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console

from gloronet import show
from gloronet.answers import Answer


class Text:
    """Answers as lines and tables on stdout, a failure as one line on stderr."""

    def answer(self, verb: str, answer: Answer) -> None:
        for part in getattr(show, verb)(answer):
            if isinstance(part, str):
                print(part, flush=True)
            else:
                Console().print(part)

    def failure(self, message: str, mark: str = "gloronet: ") -> None:
        print(f"{mark}{message}", file=sys.stderr)

    def at_work(self) -> AbstractContextManager[Any]:
        """Holds while a verb works, which may print what it likes."""
        return nullcontext()


class Document(Text):
    """One JSON document on stdout, whatever happens: the answer, or {"error": …}. All else goes to stderr."""

    def __init__(self) -> None:
        self._stdout, self._written = sys.stdout, False

    def answer(self, verb: str, answer: Answer) -> None:
        self._write(answer)

    def failure(self, message: str, mark: str = "gloronet: ") -> None:
        super().failure(message, mark)
        if not self._written:
            self._write({"error": message})

    def at_work(self) -> AbstractContextManager[Any]:
        return redirect_stdout(sys.stderr)

    def _write(self, answer: Answer) -> None:
        print(as_json(answer), file=self._stdout, flush=True)
        self._written = True


def as_json(answer: Answer) -> str:
    """JSON has no infinity, which is "inf" as in proof.json, and no NaN, which is null.

    >>> as_json({"radius": [0.5, math.inf, math.nan], "run": Path("runs/digits")})
    '{"radius": [0.5, "inf", null], "run": "runs/digits"}'
    """
    return json.dumps(_plain(answer), allow_nan=False)


def _plain(value: Any) -> Any:
    """Nothing but what JSON has a word for."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(vars(value))
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    if isinstance(value, Path):
        return str(value)
    return _plain(value.tolist()) if hasattr(value, "tolist") else value  # an array, a tensor
