"""Records: every number a table shows comes from a line of JSON with its hardware, versions and commit.

`records/NAME.jsonl` grows by a line with every run of a benchmark; tables show the last one.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

RECORDS = Path(__file__).parent / "records"


def append(name: str, result: dict[str, Any]) -> Path:
    """Adds a line to records/NAME.jsonl: the result with where and on what it was measured."""
    RECORDS.mkdir(exist_ok=True)
    path = RECORDS / f"{name}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps({"benchmark": name, **result, **_circumstances()}) + "\n")
    return path


def latest(name: str) -> dict[str, Any]:
    """The last record of that name."""
    return every(name)[-1]


def every(name: str) -> list[dict[str, Any]]:
    """All records of that name, the oldest first."""
    return [json.loads(line) for line in (RECORDS / f"{name}.jsonl").read_text().splitlines()]


def _circumstances() -> dict[str, Any]:
    # A copy of the tree on another machine has no history: who sends it says which commit it is.
    told = os.environ.get("GLORONET_COMMIT")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "cpu": _cpu(),
        "gpu": gpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": told or _git("rev-parse", "--short", "HEAD"),
        "uncommitted": not told and bool(_git("status", "--porcelain", "--untracked-files=no", "src")),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(Path(__file__).parent.parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
