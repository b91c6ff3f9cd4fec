"""A Sphinx extension: notebooks as pages. Cells become Markdown, outputs are shown as they were when it was run.

Nothing is executed here: `make test-all` runs the notebooks and compares (tests/test_notebooks.py).
"""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx

FENCE = "`" * 4


class NotebookParser(MystParser):
    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(markdown(json.loads(inputstring)), document)


def markdown(notebook: dict[str, Any]) -> str:
    """The whole notebook as one Markdown text."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source:
            parts.append(f"{FENCE}python\n{source}\n{FENCE}")
            parts += [_shown(output) for output in cell["outputs"]]
    return "\n\n".join(parts) + "\n"


def _shown(output: dict[str, Any]) -> str:
    """One output: its picture where it has one, else its text."""
    data = output.get("data", {})
    if "image/png" in data:
        return f"![]({'data:image/png;base64,' + ''.join(data['image/png']).replace(chr(10), '')})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"{FENCE}{{code-block}} none\n:class: output\n\n{text.rstrip()}\n{FENCE}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
