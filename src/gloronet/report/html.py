"""Pieces of one self-contained HTML page: everything inline, nothing fetched, escaped by default.

Every function escapes what it is given, except what is already `Markup`, that is, made here. So a string
from a file cannot become markup unless somebody writes `Markup(...)` around it.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

from gloronet.report.css import CSS


class Markup(str):
    """A string that is HTML already."""


def esc(text: object) -> Markup:
    """
    >>> esc('<b a="1">')
    '&lt;b a=&quot;1&quot;&gt;'
    >>> esc(Markup("<b>"))
    '<b>'
    """
    return text if isinstance(text, Markup) else Markup(html.escape(str(text), quote=True))


def join(pieces: Iterable[object], between: str = "\n") -> Markup:
    return Markup(between.join(esc(piece) for piece in pieces))


def tag(name: str, *inner: object, kind: str = "") -> Markup:
    """<name class=kind>inner…</name>

    >>> tag("p", "a < b", tag("b", "!"), kind="note")
    '<p class="note">a &lt; b<b>!</b></p>'
    """
    attribute = f' class="{esc(kind)}"' if kind else ""
    return Markup(f"<{name}{attribute}>{join(inner, '')}</{name}>")


def document(title: str, inner: Markup, css: str = "") -> str:
    """The page; `css` adds to the look all pages share.

    Its content policy forbids scripts and fetches, so that even a mistake cannot add one.
    """
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<link rel="icon" href="data:,">\n<title>{esc(title)}</title>\n'
        f"<style>{CSS}{css}</style>\n</head>\n<body>\n<main>\n{inner}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *inner: object) -> Markup:
    return Markup(f"<section>\n<h2>{esc(title)}</h2>\n{join(inner)}\n</section>")


def missing(text: str, command: str) -> Markup:
    """The one sentence that stands where a file is not there."""
    return tag("p", text, " ", tag("code", command), " writes it.", kind="missing")


def card(label: str, value: str, note: str, kind: str = "") -> Markup:
    inner = (tag("div", label, kind="label"), tag("div", value, kind="value"), tag("div", note, kind="note"))
    return tag("div", *inner, kind=f"card {kind}".strip())


def picture(png: bytes, alt: str) -> Markup:
    data = base64.b64encode(png).decode("ascii")
    return Markup(f'<img src="data:image/png;base64,{data}" alt="{esc(alt)}">')


def figure(png: bytes, alt: str, *caption: object) -> Markup:
    return tag("figure", picture(png, alt), tag("figcaption", *caption))


def bar(text: str, share: float, colour: str) -> Markup:
    """A number with a bar as long as its share of the cell."""
    width = f"{100 * min(max(share, 0.0), 1.0):.1f}%"
    drawn = f'<span class="bar"><span style="width:{width};background:{colour}"></span></span>'
    return Markup(f'<span class="barred">{esc(text)}{drawn}</span>')


def table(head: Sequence[object], rows: Iterable[Sequence[object]], kind: str = "") -> Markup:
    """A table whose first column holds the row headings; scrolls by itself where the screen is narrow."""
    top = join((Markup(f'<th scope="col">{esc(cell)}</th>') for cell in head), "")
    body = join(
        tag("tr", Markup(f'<th scope="row">{esc(first)}</th>'), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    )
    lines = tag("table", tag("thead", tag("tr", top)), tag("tbody", body), kind=kind)
    return tag("div", lines, kind="wide")
