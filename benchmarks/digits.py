"""The embedded default with three seeds: does `gloronet train` keep what the README says of it?

    python -m benchmarks.digits

Each seed is a real `gloronet train` in a process of its own, timed from outside: start-up, training,
certifying, attacking and reporting included.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import record


def main() -> None:
    runs = [_run(seed) for seed in (0, 1, 2)]
    shown = Table("seed", "clean", "PGD", "VRA at 0.3", "mean radius", "wall seconds", title="gloronet train")
    for run in runs:
        shares = (f"{run[k]:.2%}" for k in ("clean", "pgd", "vra"))
        shown.add_row(str(run["seed"]), *shares, f"{run['mean_radius']:.4f}", f"{run['wall_seconds']:.1f}")
    Console().print(shown)
    median = {k: statistics.median(run[k] for run in runs) for k in ("clean", "pgd", "vra", "wall_seconds")}
    print(f"record: {record.append('digits-cpu', {'runs': runs, 'median': median})}")


def _run(seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "gloronet",
            "train",
            "--out",
            str(out),
            "--set",
            f"train.seed={seed}",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall = time.perf_counter() - began
        summary = json.loads((out / "summary.json").read_text())
    kept = ("clean", "pgd", "vra", "mean_radius", "epsilon", "semantics", "seconds")
    return {"seed": seed, "wall_seconds": wall, **{k: summary[k] for k in kept}}


if __name__ == "__main__":
    main()
