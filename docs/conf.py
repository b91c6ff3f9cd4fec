"""How the documentation site is built: `make docs` writes it into build/site. Offline, each warning an error.

Pages are Markdown, read by MyST; the reference is made of docstrings; notebooks are shown as they were run. All that
a page loads comes with it: no CDN, no web font.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import gloronet

sys.path.insert(0, str(Path(__file__).parent))  # notebook_page.py, beside this file

project = "gloronet"
release = gloronet.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "notebook_page"]
myst_heading_anchors = 3  # performance.md#how-many-power-iterations, as on GitHub
smartquotes = False
highlight_language = "none"  # a block that names no language is what something prints
default_role = "code"  # docstrings write `name`, as Markdown does

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"gloronet {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_logo = html_favicon = "_static/mark.svg"
html_show_sphinx = html_show_copyright = html_copy_source = False
_SYSTEM = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'
_CODE = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace'
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#0072B2",  # the report's blue: proved
        "color-brand-content": "#0072B2",
        "font-stack": _SYSTEM,
        "font-stack--monospace": _CODE,
    },
    "dark_css_variables": {"color-brand-primary": "#56B4E9", "color-brand-content": "#56B4E9"},
}

TOKEN = re.compile(r"`[^`]*`|(?<!\w)\*\w[^*]*\w\*|[|*]")
"""Code and *emphasis*, which mean the same in reStructuredText, and the two characters that do not."""


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", _as_restructured_text)


def _as_restructured_text(
    app: Sphinx, what: str, name: str, of: object, options: Any, lines: list[str]
) -> None:
    """Our docstrings are plain text: |x| is an absolute value, *shape is Python, an indent of four is code."""
    out: list[str] = []
    code = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not code and out and not out[-1].strip():
            out += ["::", ""]
            code = True
        elif line.strip() and not indented:
            code = False
        out.append(line if code or line.lstrip().startswith(">>>") else TOKEN.sub(_escaped, line))
    lines[:] = out


def _escaped(token: re.Match[str]) -> str:
    return f"\\{token[0]}" if len(token[0]) == 1 else token[0]
