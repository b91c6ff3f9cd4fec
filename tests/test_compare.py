"""`gloronet compare`: numbers are those of the rows, what is missing is a dash, and nothing of others' is overwritten.

Run folders are small and made by the very writers of runs; what each holds is known exactly.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from gloronet import attacks, cli, zoo
from gloronet.certify import Table
from gloronet.compare import Row, compare, sides, tables
from gloronet.config import Config, DataConfig, TrainConfig, parse_epsilon, write_toml
from gloronet.errors import ConfigError
from gloronet.reproduce import painters

CLASSES = 10
FILES = {"compare.html", "certified_accuracy.png", "certified_accuracy.csv"}


def trained(folder: Path, epsilon: str = "0.3", norm: str = "l2", data: str = "digits", **train: Any) -> Path:
    """A run before it is certified."""
    folder.mkdir(parents=True)
    config = Config(epsilon=epsilon, norm=norm, data=DataConfig(data), train=TrainConfig(**train))
    write_toml(config, folder / "config.toml")
    return folder


def certified(
    folder: Path, radius: np.ndarray | None = None, right: np.ndarray | None = None, epsilon: str = "0.3", **recipe: Any
) -> Path:
    """A run with certificates: of every radius, and whether the answer was right."""
    radius = np.linspace(0, 1, 41) if radius is None else radius
    right = np.ones(len(radius), bool) if right is None else right
    trained(folder, epsilon, **recipe)
    label = np.arange(len(radius)) % CLASSES
    answer = np.where(right, label, (label + 1) % CLASSES)
    Table(label, answer, radius, radius, parse_epsilon(epsilon), "real").write(folder / "certificates.csv")
    return folder


def summarised(folder: Path, **values: Any) -> Path:
    (folder / "summary.json").write_text(json.dumps(values))
    return folder


def attacked(folder: Path, success: list[bool], epsilon: float = 0.3) -> Path:
    rows = [
        {"index": k, "label": k % CLASSES, "success": int(hit), "distance": 0.1 if hit else math.inf, "margin": 0.0,
         "epsilon": epsilon}
        for k, hit in enumerate(success)
    ]  # fmt: skip
    attacks.write_csv(folder / "attacks.csv", rows)
    return folder


def cells(rows: tuple[Row, ...]) -> dict[str, dict[str, str]]:
    """The table by run and heading."""
    table = tables.table(rows)
    names = [column.heading for column in table.columns]
    return {line.cells[0]: dict(zip(names, line.cells, strict=True)) for line in table.rows}


class Page(HTMLParser):
    """The text of a page, its tables, and what a browser would fetch."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text, self.tags, self.links, self.open = "", [], [], []
        self.rows: list[list[str]] = []
        self.feed(source)
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.links += [value for key, value in attrs if key in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data


def read_page(out: Path) -> Page:
    return Page((out / "compare.html").read_text(encoding="utf-8"))


# What it says


RADII = st.lists(st.floats(0, 2) | st.just(math.inf), min_size=1, max_size=30)


@settings(max_examples=15)
@given(radii=RADII, data=st.data())
def test_every_number_is_counted_from_the_rows(tmp_path_factory: pytest.TempPathFactory, radii: Any, data: Any) -> None:
    there = tmp_path_factory.mktemp("counted")
    right = np.array(data.draw(st.lists(st.booleans(), min_size=len(radii), max_size=len(radii))))
    hits = data.draw(st.lists(st.booleans(), min_size=1, max_size=len(radii)))
    radius, n = np.array(radii), len(radii)
    run = attacked(certified(there / "run", radius, right), hits)
    (row,), (side,) = compare([str(run)], there / "out").runs, sides.read([str(run)])
    proved = right & (radius > parse_epsilon("0.3"))
    assert (row.samples, row.clean, row.vra) == (n, right.sum() / n, {"real": proved.sum() / n})
    assert row.mean_radius == np.where(right, radius, 0.0).mean()
    assert row.attacks["pgd"] == ((right[: len(hits)] & ~np.array(hits)).sum() / len(hits), len(hits))
    assert side.curve is not None
    for r, share in zip(*side.curve, strict=True):
        assert share == (right & (radius > r)).sum() / n
    with (there / "out" / "certified_accuracy.csv").open() as file:
        drawn = [(line["run"], float(line["radius"]), float(line["share"])) for line in csv.DictReader(file)]
    assert drawn == [("run", *step) for step in zip(*(column.tolist() for column in side.curve), strict=True)]


def test_rows_win_over_what_a_summary_remembers_and_float32_has_no_rows(tmp_path: Path) -> None:
    run = summarised(
        certified(tmp_path / "run", np.array([0.5, 0.1])),
        clean=0.1, vra_by_semantics={"real": 0.2, "float32": 0.25}, pgd=0.5, pgd_samples=2, pgd_art=1.0,
        pgd_art_samples=3, seconds={"train": 12.5}, trained={"hardware": "an abacus"},
    )  # fmt: skip
    (row,) = compare([str(run)], tmp_path / "out").runs
    assert (row.clean, row.vra) == (1.0, {"real": 0.5, "float32": 0.25})
    assert row.attacks == {"pgd": (0.5, 2), "pgd_art": (1.0, 3)}
    assert (row.seconds, row.hardware) == (12.5, "an abacus")


def test_what_was_not_measured_is_a_dash_and_zero_is_zero(tmp_path: Path) -> None:
    bare, useless = trained(tmp_path / "bare"), attacked(certified(tmp_path / "useless", np.zeros(4)), [True] * 4)
    (tmp_path / "useless" / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 2}\n')
    found = compare([str(bare), str(useless)], tmp_path / "out")
    shown = cells(found.runs)
    assert set(list(shown["bare"].values())[1:]) == {"–"}
    assert "0.00" not in json.dumps(shown["bare"])
    told = [shown["useless"][name] for name in ("clean", "PGD of 4", "VRA, real", "epochs", "K")]
    assert told == ["100.00", "0.00", "0.00", "2", "–"]
    assert any(f"gloronet certify {bare}" in note for note in found.notes)
    listed = read_page(tmp_path / "out").rows
    assert [row for row in listed if row[0] == "bare"] == [list(shown["bare"].values())]


def test_a_run_without_its_rows_keeps_the_numbers_and_loses_the_curve(tmp_path: Path) -> None:
    """As one that came from another machine without its large files."""
    run = summarised(trained(tmp_path / "run"), clean=0.99, vra_by_semantics={"real": 0.9}, samples=10, mean_radius=0.5)
    found = compare([str(run)], tmp_path / "out")
    assert (found.runs[0].clean, found.runs[0].vra, found.runs[0].mean_radius) == (0.99, {"real": 0.9}, 0.5)
    assert {path.name for path in found.page.parent.iterdir()} == {"compare.html"}
    assert "There is no curve" in read_page(tmp_path / "out").text


def test_bounds_are_rounded_up_and_radii_down(tmp_path: Path) -> None:
    run = certified(tmp_path / "run", np.array([0.99999]))
    bound = {"layers": [], "margins": [[0, 3.00001], [3.00001, 0]], "constant": 2.00001, "seconds": 1, "digest": ""}
    (run / "bound.json").write_text(json.dumps(bound))
    shown = cells(compare([str(run)], tmp_path / "out").runs)["run"]
    assert (shown["K"], shown["largest K_ij"], shown["mean radius"]) == ("2.001", "3.001", "0.9999")


def test_differences_are_those_of_the_settings(tmp_path: Path) -> None:
    runs = [
        certified(tmp_path / "a", seed=0),
        certified(tmp_path / "b", seed=1, epsilon_train="0.45"),
        certified(tmp_path / "c", seed=2, loss="emma"),
    ]
    found = compare([str(run) for run in runs], tmp_path / "out")
    assert found.differences == {
        "train.seed": [0, 1, 2], "train.epsilon_train": [None, "0.45", None], "train.loss": ["ce", "ce", "emma"],
    }  # fmt: skip
    assert found.notes == ()
    assert ["train.epsilon_train", "–", "0.45", "–"] in read_page(tmp_path / "out").rows
    assert tables.table(found.runs).title == "digits · 2C2F, minmax · ε = 0.3"


def test_a_net_of_the_zoo_stands_beside_a_run(tmp_path: Path) -> None:
    claims = zoo.claims("mnist-0.3")
    run = certified(tmp_path / "run", data="mnist")
    found = compare([str(run), "zoo:mnist-0.3"], tmp_path / "out")
    ours = found.runs[1]
    assert (ours.vra, ours.samples, ours.data, ours.epsilon) == (claims["vra"], 10_000, "mnist", "0.3")
    assert ours.clean == pytest.approx(claims["clean"])
    assert ours.seconds == claims["trained"]["seconds"]
    assert ours.attacks == {}
    radius, share = sides.read(["zoo:mnist-0.3"])[0].curve or ((), ())
    assert share[np.searchsorted(radius, parse_epsilon("0.3"), side="right") - 1] == claims["vra"]["real"]
    assert any("zoo:mnist-0.3: 2 at once" in note for note in found.notes)
    assert not list(zoo.folder("mnist-0.3").glob("*.part"))


# Runs that are not alike


def painted(runs: list[Path], monkeypatch: pytest.MonkeyPatch, out: Path) -> Figure:
    """The figure as it is just before it becomes a picture."""
    kept: list[Figure] = []
    real = painters.overlay

    def overlay(figure: Figure, *arguments: Any, **options: Any) -> None:
        real(figure, *arguments, **options)
        kept.append(figure)

    monkeypatch.setattr(painters, "overlay", overlay)
    compare([str(run) for run in runs], out)
    return kept[0]


def test_different_data_radii_and_norms_are_said_and_drawn_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        certified(tmp_path / "a"),
        certified(tmp_path / "b", epsilon="36/255"),
        certified(tmp_path / "c", np.linspace(0, 0.1, 7), epsilon="0.02", norm="linf"),
        certified(tmp_path / "d", data="moons"),
    ]
    figure = painted(runs, monkeypatch, tmp_path / "out")
    panels = [ax for ax in figure.axes if ax.get_title(loc="left")]
    assert [ax.get_title(loc="left") for ax in panels] == ["digits", "digits, ℓ∞", "moons"]
    assert [ax.get_xlabel() for ax in panels] == ["radius r (ℓ2)", "radius r (ℓ∞)", "radius r (ℓ2)"]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["a, ε = 0.3", "b, ε = 36/255", "c, ε = 0.02", "d, ε = 0.3"]
    found = compare([str(run) for run in runs], tmp_path / "out")
    for words in ("Different data sets", "different ε", "different norms"):
        assert any(words in note for note in found.notes)
        assert words in read_page(tmp_path / "out").text
    assert [row["ε"] for row in cells(found.runs).values()] == ["0.3", "36/255", "0.02 (ℓ∞)", "0.3"]


def test_twelve_curves_can_be_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [certified(tmp_path / f"_run-{k}", np.linspace(0, 1 + k / 10, 21), seed=k) for k in range(12)]
    figure = painted(runs, monkeypatch, tmp_path / "out")
    (panel,) = figure.axes
    curves = [line for line in panel.lines if len(line.get_xdata()) > 2]
    looks = {(line.get_color(), str(line._dash_pattern)) for line in curves}
    assert len(curves) == len(looks) == 12
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [run.name for run in runs]
    assert [line.get_drawstyle() for line in curves] == ["steps-post"] * 12
    for side, line in zip(sides.read([str(run) for run in runs]), curves, strict=True):
        assert side.curve is not None
        assert np.array_equal(line.get_xdata()[:-1], side.curve[0])
        assert np.array_equal(line.get_ydata(), [*side.curve[1], side.curve[1][-1]])


def test_dots_are_the_vra_at_each_ones_epsilon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    radius = np.array([0.1, 0.3, 0.30000000000000004, 0.31, 0.9])  # ε = 0.3 rounded up is the third: not certified
    runs = [certified(tmp_path / "a", radius), certified(tmp_path / "b", radius, epsilon="0.05")]
    (panel,) = painted(runs, monkeypatch, tmp_path / "out").axes
    marks = [line for line in panel.lines if line.get_marker() == "o"]
    dots = [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in marks]
    assert dots == [(parse_epsilon("0.3"), 0.4), (parse_epsilon("0.05"), 1.0)]
    assert [row.vra["real"] for row in compare([str(run) for run in runs], tmp_path / "out").runs] == [0.4, 1.0]


ODD = {
    "nothing proved": {"radius": np.zeros(3)},
    "all infinite": {"radius": np.full(3, math.inf)},
    "one sample": {"radius": np.array([0.4])},
    "ε of 0": {"radius": np.array([0.0, 0.4]), "epsilon": "0"},
    "ε of 0, nothing proved": {"radius": np.zeros(2), "epsilon": "0"},
    "huge": {"radius": np.array([1e300, 1.0])},
    "tiny": {"radius": np.array([1e-300, 5e-324])},
    "all wrong": {"radius": np.array([0.5]), "right": np.array([False])},
}


@pytest.mark.parametrize("case", ODD)
def test_odd_radii_are_drawn(case: str, tmp_path: Path) -> None:
    run = certified(tmp_path / "odd", **ODD[case])
    compare([str(run), str(certified(tmp_path / "plain"))], tmp_path / "out")
    assert (tmp_path / "out" / "certified_accuracy.png").read_bytes()[:4] == b"\x89PNG"


# Names


NAMES = (
    "<script>alert(1)<!--",
    "<b>bold<b>",
    "_hidden",
    "[red]bold[",
    "$x^2$",
    "a & b",
    "überlauf 數據 😀",
    "line\nbreak\x1b[31m",
    "n" * 200,
    "n" * 199 + "m",
    "..dots",
    "'quoted\"",
    os.fsdecode(b"caf\xe9"),
)


def test_odd_names_are_names_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [certified(tmp_path / "runs" / name, np.array([0.2, 0.5]), seed=k) for k, name in enumerate(NAMES)]
    assert cli.main(["compare", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    found = compare([str(run) for run in runs], tmp_path / "out")
    names = [row.name for row in found.runs]
    assert len(set(names)) == len(NAMES)
    assert all(name.isprintable() and len(name) < 50 for name in names)
    assert [row.run for row in found.runs] == [str(run) for run in runs]
    table = read_page(tmp_path / "out")
    assert [row[0] for row in table.rows if row[0] in names] == names
    assert "script" not in table.tags
    assert all(f"\n{name}" in shown for name in names)
    assert "\x1b" not in shown.partition("gloronet certify")[0]
    with (tmp_path / "out" / "certified_accuracy.csv").open(encoding="utf-8", newline="") as file:
        assert {row["run"] for row in csv.DictReader(file)} == set(names)
    assert cli.main(["compare", *map(str, runs), "--out", str(tmp_path / "out"), "--json"]) == 0
    assert [row["run"] for row in json.loads(capsys.readouterr().out)["runs"]] == [str(run) for run in runs]


def test_runs_of_the_same_name_are_told_apart_by_their_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for parent in ("one", "two"):
        certified(Path(parent, "digits"))
    certified(Path("other"))
    found = compare(["one/digits", "two/digits", "./other/"], Path("out"))
    assert [row.name for row in found.runs] == ["one/digits", "two/digits", "other"]


@pytest.mark.parametrize("again", ["run", "./run/", "other/../run", "link"])
def test_the_same_run_twice_is_refused(again: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    certified(Path("run"))
    Path("other").mkdir()
    Path("link").symlink_to("run")
    with pytest.raises(ConfigError, match="is named twice"):
        compare(["run", again], Path("out"))
    with pytest.raises(ConfigError, match="is named twice"):
        compare(["zoo:mnist-0.3", "zoo:mnist-0.3"], Path("out"))
    assert not Path("out").exists()


# What cannot be read


HEADER = b"index,label,prediction,answer,radius,certified,semantics\n"
DAMAGED = {
    "summary.json": (
        *(b"nope", b"[1]", b"\xff\xfe", b'{"clean": 2}', b'{"clean": "much"}', b'{"seconds": 3}', b'{"pgd": NaN}'),
        *(b'{"vra_by_semantics": [1]}', b'{"vra_by_semantics": {"real": -1}}', b'{"epsilon_text": "wide"}'),
    ),
    "certificates.csv": (
        *(b"", b"index,label\n", b"\xff", HEADER),
        *(HEADER + b"0,1,1,1,-1,1,real\n", HEADER + b"0,1,-1,1,0.4,0,real\n"),
    ),
    "config.toml": (b"epsilon = ", b"colour = 'red'\n", b"\xff", b"epsilon = 'wide'\n"),
    "bound.json": (b"{", b"[]"),
    "metrics.jsonl": (b'{"epoch": 1}\n{"ep',),
    "attacks.csv": (b"index\n",),
}


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, contents in DAMAGED.items() for k in range(len(contents))])
def test_a_damaged_file_is_named_in_one_line(
    name: str, k: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = certified(tmp_path / "run"), tmp_path / "out"
    fine = compare([str(run)], out).page.read_bytes()
    (run / name).write_bytes(DAMAGED[name][k])
    assert cli.main(["compare", str(certified(tmp_path / "fine")), str(run), "--out", str(out)]) == 2
    said = capsys.readouterr()
    assert said.err.count("\n") == 1
    assert str(run / name) in said.err
    assert (out / "compare.html").read_bytes() == fine
    assert {path.name for path in out.iterdir()} == FILES


@pytest.mark.parametrize("what", ["nowhere", "file", "folder", "zoo:imagenet", ""])
def test_what_is_no_run_is_refused(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    Path("folder").mkdir()
    certified(Path("run"))
    assert cli.main(["compare", "run", what]) == 2
    assert re.search("not a run folder|no net 'imagenet' in the zoo", capsys.readouterr().err)
    assert not Path("compare").exists()


# Where it goes


def test_an_earlier_comparison_is_replaced_and_notes_beside_it_stay(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    run, bare = certified(tmp_path / "run"), trained(tmp_path / "bare")
    assert compare([str(run)], out).page == out / "compare.html"
    assert {path.name for path in out.iterdir()} == FILES
    (out / "notes.txt").write_text("mine")
    compare([str(bare)], out)  # which has no curve
    assert {path.name for path in out.iterdir()} == {"compare.html", "notes.txt"}
    assert "bare" in read_page(out).text
    assert "run.png" not in read_page(out).text


@pytest.mark.parametrize("foreign", ["notes.txt", "compare.html", "certified_accuracy.png"])
def test_what_is_not_ours_is_left_alone(foreign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = certified(tmp_path / "run"), tmp_path / "out"
    out.mkdir()
    (out / foreign).write_text("mine")
    for place in (out, out / foreign, run):
        before = sorted(path.name for path in tmp_path.rglob("*"))
        assert cli.main(["compare", str(run), "--out", str(place)]) == 2
        assert "choose another folder with --out" in capsys.readouterr().err
        assert sorted(path.name for path in tmp_path.rglob("*")) == before
    assert (out / foreign).read_text() == "mine"


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = certified(tmp_path / "run")
    places = ["/proc/gloronet/out", str(run / "config.toml" / "out")]
    if os.geteuid():  # root may write anywhere
        shut = tmp_path / "shut"
        shut.mkdir(mode=0o500)
        places.append(str(shut))
    for place in places:
        assert cli.main(["compare", str(run), "--out", place]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert place.removesuffix("/out") in said


def test_the_page_fetches_nothing_and_says_what_it_shows(tmp_path: Path) -> None:
    runs = [certified(tmp_path / name, np.linspace(0, top, 11)) for name, top in (("a", 1.0), ("b", 2.0))]
    compare([str(run) for run in runs], tmp_path / "out")
    found = read_page(tmp_path / "out")
    assert "a and b" in found.text
    assert "digits · 2C2F, minmax · ε = 0.3" in found.text
    assert "Nothing: their settings are the same." in found.text
    assert all(link.startswith("data:") for link in found.links)
    assert sum(link.startswith("data:image/png;base64,") for link in found.links) == 1


def test_the_text_is_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [certified(tmp_path / name, seed=k) for k, name in enumerate("ab")]
    assert cli.main(["compare", *map(str, runs), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    for row in cells(compare([str(run) for run in runs], tmp_path / "out").runs).values():
        assert list(row.values()) in lines
    assert shown.startswith("digits · 2C2F, minmax · ε = 0.3 · shares in per cent\n")
    assert "\ntrain.seed: 0 | 1\n" in shown
    assert shown.endswith(f"page: {tmp_path / 'out' / 'compare.html'}\n")


# gloronet report


def test_a_report_is_drawn_anew_without_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = certified(tmp_path / "run")
    (run / "model.safetensors").write_bytes(b"no model at all")
    assert cli.main(["report", str(run)]) == 0
    files = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert {"report.html", "radii.png", "certified_accuracy.csv"} <= {path.name for path in files}
    for path in (run / "report.html", run / "figures" / "radii.png"):
        path.unlink()
    assert cli.main(["report", str(run)]) == 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == files
    assert f"report: {run / 'report.html'}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("what", "words"),
    [("nowhere", "not a run folder"), ("bare", "gloronet certify bare"), ("zoo:cifar10", "gloronet zoo check cifar10")],
)
def test_a_report_of_what_has_no_rows_is_refused(
    what: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    trained(Path("bare"))
    assert cli.main(["report", what]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["bare", "config.toml"]
