"""A table of texts, written as Markdown or as HTML: the same words in both."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gloronet.report.html import Markup, esc, join, tag
from gloronet.report.style import ESTIMATED, PROVED

MISSING = "–"


@dataclass(frozen=True)
class Column:
    name: str
    group: str = ""
    """Stands above the neighbours of one group in HTML, before the name in Markdown."""
    kind: str = ""
    """Its class in HTML: `bound`, `estimate`, `text`."""

    @property
    def heading(self) -> str:
        return f"{self.group}: {self.name}" if self.group else self.name


@dataclass(frozen=True)
class Row:
    cells: tuple[str, ...]
    kind: str = ""
    """Its class in HTML: `literature`, `ours`."""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    """Sentences below it."""

    def __post_init__(self) -> None:
        assert all(len(row.cells) == len(self.columns) for row in self.rows), self.title

    def markdown(self, level: int = 3) -> str:
        """Title, table and notes; a table without rows is its notes alone.

        >>> print(Table("", (Column("row"), Column("VRA", "paper")), (Row(("a|b", "58.4")),)).markdown())
        | row | paper: VRA |
        | --- | ---: |
        | a\\|b | 58.4 |
        """
        parts = [f"{'#' * level} {_plain(self.title)}"] if self.title else []
        if self.rows:
            rules = ["---" if k == 0 or column.kind == "text" else "---:" for k, column in enumerate(self.columns)]
            lines = [[_plain(column.heading) for column in self.columns], rules]
            lines += [[_plain(cell) for cell in row.cells] for row in self.rows]
            parts.append("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return "\n\n".join([*parts, *(_plain(note) for note in self.notes)])

    def html(self) -> Markup:
        parts = [tag("h3", self.title)] if self.title else []
        if self.rows:
            body = join(_line(row, self.columns) for row in self.rows)
            inner = tag("table", tag("thead", *self._heads()), tag("tbody", body), kind="results")
            parts.append(tag("div", inner, kind="wide"))
        return join([*parts, *(tag("p", note, kind="note-line") for note in self.notes)])

    def _heads(self) -> Iterable[Markup]:
        if any(column.group for column in self.columns):
            yield tag("tr", *_groups(self.columns), kind="groups")
        kinds = _kinds(self.columns)
        yield tag("tr", *(_cell("th", c.name, kind, "col") for c, kind in zip(self.columns, kinds, strict=True)))


def markdown(tables: Iterable[Table], level: int = 3) -> str:
    return "\n\n".join(table.markdown(level) for table in tables)


def _groups(columns: tuple[Column, ...]) -> Iterable[Markup]:
    start = 0
    while start < len(columns):
        end = start + 1
        while end < len(columns) and columns[end].group == columns[start].group:
            end += 1
        yield Markup(f'<th scope="colgroup" colspan="{end - start}">{esc(columns[start].group)}</th>')
        start = end


def _kinds(columns: tuple[Column, ...]) -> list[str]:
    """Each column's class, and `first` where a group begins."""
    before = [None, *(column.group for column in columns)]
    return [f"{c.kind} first".strip() if c.group != g else c.kind for c, g in zip(columns, before, strict=False)]


def _line(row: Row, columns: tuple[Column, ...]) -> Markup:
    first, *rest = row.cells
    cells = (_cell("td", cell, kind) for cell, kind in zip(rest, _kinds(columns)[1:], strict=True))
    return tag("tr", _cell("th", first, scope="row"), *cells, kind=row.kind)


def _cell(name: str, text: str, kind: str = "", scope: str = "") -> Markup:
    attributes = f' scope="{scope}"' if scope else ""
    attributes += f' class="{esc(kind)}"' if kind else ""
    return Markup(f"<{name}{attributes}>{_spread(text)}</{name}>")


def _spread(text: str) -> Markup:
    """What stands in brackets behind a number is smaller; an absent number paler."""
    if text == MISSING:
        return tag("span", text, kind="none")
    found = re.fullmatch(r"([\d.,]+) (\(.+\))", text)
    if found is None:
        return esc(text)
    parts = join((tag("span", part) for part in found[2].split("; ")), "; ")  # may break between, not within
    return join((found[1], " ", tag("small", parts)), "")


def _plain(text: str) -> str:
    """Text that Markdown takes as it stands, on one line."""
    return re.sub(r"([\\`*_|<\[])", r"\\\1", " ".join(text.split()))


CSS = f"""
table.results {{ font-size: .82rem; }}
table.results th, table.results td {{ padding: 6px 10px 6px 0; }}
table.results thead th {{ line-height: 1.3; }}
table.results tr.groups th {{ text-align: center; color: var(--ink); font-weight: 600; padding: 4px 12px 4px 0;
  border-bottom: 0; }}
table.results tr.groups th:not(:empty) {{ border-bottom: 2px solid var(--line); }}
table.results tbody th {{ text-align: left; min-width: 11em; }}
table.results .first:not(:first-child) {{ padding-left: 20px; }}
table.results th.text, table.results td.text {{ text-align: left; padding-left: 20px; }}
table.results td.text {{ color: var(--muted); min-width: 12em; }}
table.results td.bound {{ color: {PROVED}; }}
table.results td.main {{ font-weight: 650; }}
table.results th.estimate {{ color: {ESTIMATED}; }}
table.results td.estimate {{ color: {ESTIMATED}; font-style: italic; }}
table.results tr.ours {{ background: #f1f7fb; }}
table.results tr.ours th {{ font-weight: 650; }}
table.results tr.literature, table.results tr.literature td, table.results tr.literature th {{ color: var(--muted); }}
table.results tr.literature th {{ font-style: italic; }}
table.results small {{ color: var(--muted); font-weight: 400; font-size: .86em; display: block; }}
table.results small span {{ white-space: nowrap; }}
table.results .none {{ color: #a9b2bc; }}
"""
"""What `Table.html` adds to the look all pages share."""
