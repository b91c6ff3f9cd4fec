"""The notebooks run from their first cell to their last, and print what they show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests import pages
from tests.notebooks import executed, printed

NOTEBOOKS = sorted((pages.ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_prints_what_it_shows(path: Path) -> None:
    shown = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for before, now in zip(shown, executed(path).cells, strict=True):
        pages.assert_close(printed(now), printed(_joined(before)), rel=0.25)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_those_of_one_run_in_order(path: Path) -> None:
    """Without running it: every cell of code was executed, one after the other, and none failed."""
    assert len(NOTEBOOKS) == 2
    code = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in code] == list(range(1, len(code) + 1))
    assert not [o for c in code for o in c["outputs"] if o["output_type"] == "error" or o.get("name") == "stderr"]
    assert path.stat().st_size < 250_000


def _joined(cell: dict) -> dict:
    """On disk texts are lists of lines."""
    return json.loads(json.dumps(cell), object_hook=_join)


def _join(value: dict) -> dict:
    joined = ("text", "text/plain", "image/png")
    return {k: "".join(v) if k in joined and isinstance(v, list) else v for k, v in value.items()}
