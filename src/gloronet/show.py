"""An answer of `answers` as text: for each verb a function of its name that yields lines and tables.

They are made of nothing but what the answer says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table

from gloronet.answers import Answer
from gloronet.compare import tables as comparisons
from gloronet.net import explained
from gloronet.report import summary_table
from gloronet.reproduce.table import Table as Written

Shown = Iterable[RenderableType]


def train(answer: Answer) -> Shown:
    yield summary_table(answer["summary"])
    yield f"report: {answer['report']}"


report = train


def certify(answer: Answer) -> Shown:
    if "relaxed" not in answer:
        yield from train(answer)
        return
    at = f"{answer['run']} at ε = {answer['epsilon']:.6g}"
    plain = answer["plain"]
    table = Table("answer", *(f"VRA, {semantics}" for semantics in plain), "classes in a certified set", title=at)
    table.add_row("plain", *(f"{vra:.2%}" for vra in plain.values()), "1.00")
    for row in answer["relaxed"]:
        size = "–" if math.isnan(row["mean_size"]) else f"{row['mean_size']:.2f}"
        table.add_row(row["name"], *(f"{vra:.2%}" for vra in row["vra"].values()), size)
    yield table
    yield f"rows: {', '.join(str(row['file']) for row in answer['relaxed'])}"


def attack(answer: Answer) -> Shown:
    name, share = next(iter(answer["attack"].items()))
    tool = "ART's PGD" if name == "pgd_art" else "PGD"
    yield f"{tool} left {share:.2%} of {answer['attack'][f'{name}_samples']} samples right"
    yield from train(answer)


def compare(answer: Answer) -> Shown:
    found = comparisons.table(answer["runs"])
    yield " · ".join(filter(None, (found.title, "shares in per cent")))
    yield from _aligned(found)
    differing = [f"{key}: {' | '.join(comparisons.written(values))}" for key, values in answer["differences"].items()]
    for block in (differing, answer["notes"], [f"page: {answer['page']}"]):
        yield from ("", *block) if block else ()


def check(_: Answer) -> Shown:
    """The checker has spoken while it worked."""
    return ()


def lipschitz(answer: Answer) -> Shown:
    least, largest = answer["least_margin"], answer["largest_margin"]
    about = (answer[key] for key in ("layers", "chains", "constant", "largest_margin", "form", "norm"))
    yield explained(*about)
    yield (
        f"margin constants K_ij from {least:.6f} to {largest:.6f}; "
        f"proved in {answer['seconds']:.2f} s; digest {answer['digest'][:16]}"
    )
    if "headroom" in answer:
        table = Table("constants", "largest K_ij", "VRA", title="what tighter constants could buy")
        for row in answer["headroom"]:
            table.add_row(row.constants, f"{row.largest:.4f}", f"{row.vra:.2%}")
        yield table
    if "tightness" in answer:
        found = answer["tightness"]
        table = Table("constant", "largest K_ij", title="how tight the bound is, as the paper measures it")
        table.add_row("global upper bound, proved", f"{found.upper:.4f}")
        table.add_row("global lower bound, found by search", f"{found.lower:.4f}")
        table.add_row("local lower bound, mean over test points", f"{found.local:.4f}")
        yield table


def smooth(answer: Answer) -> Shown:
    told = ", ".join(f"{name} = {answer[name]:g}" for name in ("sigma", "n0", "n", "alpha", "samples", "seed"))
    yield (
        f"clean {answer['clean']:.2%}, VRA {answer['vra']:.2%} at ε = {answer['epsilon']:g}, stochastic ({told})"
    )
    yield f"rows: {answer['file']}"


def export(answer: Answer) -> Shown:
    x, optional = answer["inputs"]
    yield (
        f"{answer['file']}: {answer['bytes'] / 1e6:.1f} MB; inputs {x} and, if you like, {optional}; "
        f"outputs {', '.join(answer['outputs'])}"
    )


def serve(answer: Answer) -> Shown:
    about = ", ".join(answer[key] for key in ("semantics", "norm", "engine"))
    yield f"{answer['name']} ({about}) at {answer['url']} — Ctrl-C stops"


def data_list(answer: Answer) -> Shown:
    table = Table(box=None, header_style="bold")
    for column in ("name", "what", "shape", "classes", "on this machine"):
        table.add_column(column, no_wrap=column == "name")
    for row in answer["sets"]:
        shape = "×".join(map(str, row.shape)) if row.shape else "yours"
        present = "yes" if row.present else f"gloronet data fetch {row.name}" if row.download else "–"
        table.add_row(row.name, row.about, shape, str(row.classes or "yours"), "–" if row.shape is None else present)
    yield table


def data_fetch(answer: Answer) -> Shown:
    yield f"{answer['name']} is in {answer['folder']}"


def reproduce(answer: Answer) -> Shown:
    yield "\n\n".join(table.markdown() for table in answer["tables"])
    yield f"\npage: {answer['page']}"


def zoo_list(answer: Answer) -> Shown:
    table = Table("name", "data", "network", "ε", "clean", "VRA", "seeds' VRA", box=None, header_style="bold")
    for net in answer["nets"]:
        seeds = ", ".join(f"{vra:.2%}" for vra in net["seeds_vra"])
        about = (net[key] for key in ("name", "data", "network", "epsilon"))
        table.add_row(*about, f"{net['clean']:.2%}", f"{net['vra']['real']:.2%}", seeds)
    yield table


def zoo_check(answer: Answer) -> Shown:
    for semantics, vra in answer["found"].items():
        claimed = answer["claimed"][semantics]
        yield f"{answer['name']}: VRA {vra:.2%} ({semantics}), certified here by bounds; claimed {claimed:.2%}"


def _aligned(table: Written) -> Iterator[str]:
    """Lines as long as they need to be: a narrow terminal breaks them, and no number is cut."""
    words = [column.heading.rpartition(" ") for column in table.columns]  # a heading of two words has two lines
    lines = [tuple(above for above, _, _ in words), tuple(below for _, _, below in words)]
    lines += [row.cells for row in table.rows]
    widths = [max(map(cell_len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        padded = []
        for k, (cell, width) in enumerate(zip(line, widths, strict=True)):
            room = " " * (width - cell_len(cell))
            padded.append(cell + room if k == 0 or table.columns[k].kind == "text" else room + cell)
        yield "  ".join(padded).rstrip()
