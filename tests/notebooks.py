"""Runs a notebook as Jupyter does, in a kernel of its own: python -m tests.notebooks docs/notebooks/first_steps.ipynb

writes its outputs anew. `make test-all` runs them all and compares (tests/test_notebooks.py).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

PLAIN = {"MPLBACKEND": "module://matplotlib_inline.backend_inline", "OMP_NUM_THREADS": "1"}


def executed(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run from its first cell to its last; an error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    files = Config({"KernelManager": {"transport": "ipc"}})  # sockets are files, not ports
    client = NotebookClient(notebook, config=files, timeout=300, record_timing=False, coalesce_streams=True)
    with mock.patch.dict(os.environ, PLAIN):
        client.execute()
    return notebook


def printed(cell: Any) -> str:
    """All the text of a cell's outputs; a picture is [picture]."""
    parts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        parts.append("[picture]\n" if "image/png" in data else output.get("text", data.get("text/plain", "")))
    return "".join(parts)


def main(*paths: str) -> None:
    for path in map(Path, paths):
        notebook = executed(path)
        notebook.metadata = {
            "kernelspec": notebook.metadata["kernelspec"],
            "language_info": {"name": "python"},  # without the version of this machine
        }
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(*sys.argv[1:])
