"""A service as a user runs it: a process of its own, on a free port of this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gloronet import verbs


def small_run(there: Path) -> Path:
    """Digits, trained for a second or two."""
    run = verbs.train("digits", there / "digits", changes=["train.epochs=40"], attacked=0, device="cpu")
    assert run is not None
    return run


@dataclass
class Service:
    process: subprocess.Popen[str]
    url: str
    said: dict[str, Any]
    """Its first line, where that is JSON."""

    @property
    def port(self) -> int:
        return int(self.url.rstrip("/").rpartition(":")[2])


@contextmanager
def service(what: str | Path, *options: str) -> Iterator[Service]:
    command = [sys.executable, "-m", "gloronet", "serve", str(what), "--port", "0", *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found, line + process.stdout.read()
            yield Service(process, found[0], json.loads(line) if line.startswith("{") else {})
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
