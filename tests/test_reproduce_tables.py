"""Tables and figures of the paper say what the records say: nothing missing becomes a number, nothing is mixed."""

from __future__ import annotations

import csv
import doctest
import importlib
import json
import re
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path

import pytest
from benchmarks import tables as pages
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from tests import made_results as made

from gloronet import presets
from gloronet.errors import ConfigError
from gloronet.reproduce import figures, page, painters, paper, points, rows, tables, text
from gloronet.reproduce.records import read
from gloronet.reproduce.table import MISSING, Column, Row, Table, markdown

ROOT = Path(__file__).parent.parent
ALL = {**tables.TABLES, "summary": tables.summary}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return made.whole(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def partial(tmp_path_factory) -> Path:
    """Some groups of some seeds of some rows."""
    bare = {"seed": 0, "accuracy": {"clean": 0.7, "vra": {"real": 0.5}}, "attack": None}
    trained = {"seed": 1, "training": {"epochs": 7, "seconds": 70.0, "seconds_per_epoch": 10.0, "side_by_side": 4}}
    return made.put(
        tmp_path_factory.mktemp("partial"),
        made.record("minmax/cifar10", bare),
        made.record("tuned/cifar10", made.seed(0, 0.61, 0.77), made.seed(1, 0.62, 0.77, attack=None), trained),
        made.record("relu-ce/mnist-0.3", trained),
        made.record("tuned/tiny-imagenet"),
    )


@pytest.fixture(params=["whole", "partial", "empty"])
def folder(request, tmp_path) -> Path:
    return tmp_path if request.param == "empty" else request.getfixturevalue(request.param)


def cell(table: Table, row: str, heading: str) -> str:
    (line,) = [r for r in table.rows if r.cells[0] == row]
    (at,) = [k for k, column in enumerate(table.columns) if column.heading == heading]
    return line.cells[at]


def of(found: list[Table], title: str) -> Table:
    return next(table for table in found if table.title.startswith(title))


OURS, PAPERS = "GloRo (MinMax), our settings", "GloRo (MinMax), the paper's settings"
VRA, DIFFERENCE = "VRA: ours, bound, real", "VRA: ours − paper, points"


# --- the paper's figures ---


def test_every_row_of_the_paper_is_in_a_table(tmp_path):
    found = [*tables.main(tmp_path), *tables.relu(tmp_path)]
    for data in paper.DATA:
        here = [(table, row) for table in found if table.title == data.title for row in table.rows]
        headings = ("clean: paper", "PGD: paper", "VRA: paper")
        shown = {tuple(cell(table, row.cells[0], h) for h in headings) for table, row in here}
        for name, figures_ in paper.training(data.slug).items():
            assert tuple(map(text.printed, (figures_.clean, figures_.pgd, figures_.vra))) in shown, name


def test_our_relu_rows_are_measured_against_the_better_of_the_papers_two():
    for data in paper.DATA:
        printed = paper.training(data.slug)
        best = max(printed[f"GloRo (ReLU, {loss})"].vra for loss in ("CE", "TRADES"))
        assert printed[rows.FAMILIES["tuned-relu"].paper].vra == best


def test_families_and_data_sets_are_those_of_the_presets():
    known = {name.partition("/")[0] for name in presets.names() if "/" in name}
    assert known <= set(rows.FAMILIES)
    assert {name.partition("/")[2] for name in presets.names() if "/" in name} <= {data.slug for data in paper.DATA}
    for data in paper.DATA:
        config = presets.read(f"minmax/{data.slug}")
        assert (config.epsilon, config.model.architecture) == (data.epsilon, data.architecture)


def test_what_the_paper_does_not_have_is_empty():
    assert paper.training("digits") == paper.lipschitz("digits") == paper.certification("mnist-0.3") == {}
    assert paper.lipschitz("mnist-0.3") == {}
    assert paper.training("cifar10")["BCP"].seconds == 200 * 47.5
    assert paper.training("cifar10")["Cayley"].seconds is None


# --- laws of every table ---


@pytest.mark.parametrize("name", ALL)
def test_bounds_and_estimates_never_share_a_column(name, folder):
    for table in ALL[name](folder):
        headings = [column.heading for column in table.columns]
        assert len(set(headings)) == len(headings)
        for column in table.columns:
            assert not ("estimate" in column.heading and "estimate" not in column.kind)
            assert not ("estimate" in column.kind and "bound" in column.kind.split())
            if "estimate" in column.kind:
                assert "estimate" in column.heading
            if "bound" in column.kind.split():
                assert "bound" in column.heading
                assert "estimate" not in column.heading


@pytest.mark.parametrize("name", ALL)
def test_stochastic_and_literature_are_marked_wherever_they_stand(name, folder):
    for table in ALL[name](folder):
        for row in table.rows:
            first = row.cells[0]
            if re.search(r"\bRS\b|smoothing", first):
                assert "stochastic" in first
            if first in {"KW", "BCP", "MMR", "BCOP", "Cayley", "LMT", paper.STOCHASTIC} and row.kind:
                assert row.kind == "literature"
                assert row.cells[-1] in (rows.LITERATURE, rows.APART)
            if row.kind == "literature":
                ours = [c for c, k in zip(row.cells, table.columns, strict=True) if "ours" in k.heading]
                assert set(ours) == {MISSING}


class Cells(HTMLParser):
    def __init__(self, source: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = []
        self.text, self.inside = "", False
        self.feed(source)

    def handle_starttag(self, name, attributes):
        if name == "tr":
            self.lines.append([])
        if name in ("td", "th"):
            self.inside = True
            self.lines[-1].append("")

    def handle_endtag(self, name):
        self.inside = self.inside and name not in ("td", "th")

    def handle_data(self, data):
        self.text += data
        if self.inside:
            self.lines[-1][-1] += data


@pytest.mark.parametrize("name", ALL)
def test_markdown_and_html_say_the_same(name, folder):
    for table in ALL[name](folder):
        page_, plain = Cells(table.html()), re.sub(r"\\(.)", r"\1", table.markdown())
        lines = [line[2:-2].split(" | ") for line in plain.splitlines() if line.startswith("| ")]
        written = [lines[0], *lines[2:]] if lines else []
        shown = page_.lines[1:] if any(c.group for c in table.columns) and page_.lines else page_.lines
        assert written[1:] == shown[1:]
        for column, heading in zip(table.columns, shown[0] if shown else (), strict=bool(shown)):
            assert heading == column.name
        assert (written[0] if written else []) == ([c.heading for c in table.columns] if table.rows else [])
        for note in table.notes:
            assert note in page_.text
            assert note in plain


def test_nothing_measured_is_never_a_number(tmp_path):
    for make in ALL.values():
        for table in make(tmp_path):
            for row in table.rows:
                for column, shown in zip(table.columns, row.cells, strict=True):
                    if "ours" in column.heading or "here" in column.heading:
                        assert not re.search(r"\d", shown), (column.heading, shown)
    assert not any(drawing.rows for drawing in figures.drawings(tmp_path))
    assert "not measured" in markdown(tables.tightness(tmp_path))
    assert "yet" in markdown(tables.summary(tmp_path))


def test_a_measured_zero_is_a_zero_and_a_missing_number_is_not(whole, partial):
    table = of(tables.main(whole), "CIFAR-10")
    assert cell(table, "Standard", VRA) == "0.00"
    table = of(tables.main(partial), "CIFAR-10")
    assert cell(table, "Standard", VRA) == MISSING
    assert cell(table, "Standard", "run here") == "not measured"
    assert cell(table, PAPERS, VRA) == "50.00"
    assert cell(table, PAPERS, DIFFERENCE) == "−8.40"
    for heading in ("PGD: ours", "PGD: ours, by ART", "VRA: ours, bound, float32", "VRA: ours, bound, real, at 0.141"):
        assert cell(table, PAPERS, heading) == MISSING
    tiny = of(tables.main(partial), "Tiny")
    assert cell(tiny, OURS, VRA) == MISSING
    assert cell(tiny, OURS, "run here") == "not measured"


# --- numbers ---


def test_differences_are_exactly_ours_minus_the_papers(whole):
    counted = 0
    for table in [*tables.main(whole), *tables.relu(whole)]:
        if "smoothing" in table.title:
            continue
        for row in table.rows:
            ours, printed, shown = (cell(table, row.cells[0], h) for h in (VRA, "VRA: paper", DIFFERENCE))
            if MISSING in (ours, printed):
                assert shown == MISSING
                continue
            signed = Fraction(shown.replace("−", "-"))
            assert signed == Fraction(ours.split()[0]) - Fraction(printed)
            counted += 1
    assert counted == 4 * 3 + 4 * 3


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=5), st.integers(0, 1000))
def test_the_difference_shown_is_that_of_the_numbers_shown(hits, tenths):
    ours = sum(Fraction(n, 10_000) for n in hits) / len(hits)
    shown = Fraction(text.difference(ours, tenths / 10).replace("−", "-"))
    assert shown == Fraction(text.percent(ours)) - Fraction(tenths, 10)
    assert abs(Fraction(text.percent(ours)) - 100 * ours) <= Fraction(1, 200)


def test_means_and_ranges_are_those_of_the_seeds(partial):
    table = of(tables.main(partial), "CIFAR-10")
    assert cell(table, OURS, VRA) == "61.50 (61.00…62.00; 2 of 3 seeds)"
    assert cell(table, OURS, "PGD: ours") == "70.60 (1 of 3 seeds)"
    assert cell(table, OURS, "clean: ours") == "77.00 (77.00…77.00; 2 of 3 seeds)"
    assert cell(table, OURS, "run here") == "3 seeds"
    assert cell(table, OURS, DIFFERENCE) == "+3.10"


def test_flip_averaged_and_unknown_rows_are_rows_of_their_own(whole, tmp_path):
    table = of(tables.main(whole), "CIFAR-10")
    for row in (f"{OURS}, flip-averaged logits", "seed-averaged logits"):
        assert cell(table, row, VRA) != MISSING
        assert cell(table, row, DIFFERENCE) == MISSING
    made.put(tmp_path, made.record("wide/cifar10", made.seed(0, 0.65, 0.8)))
    made.put(tmp_path, made.record("wide/digits", made.seed(0, 0.9, 1.0)))
    made.put(tmp_path, made.record("speedrun", made.seed(0, 0.588, 0.742), config=made.config("x/cifar10")))
    found = tables.main(tmp_path)
    assert cell(of(found, "CIFAR-10"), "wide, 6C2F", VRA) == "65.00"
    assert cell(of(found, "CIFAR-10"), "speedrun, 6C2F", VRA) == "58.80"
    assert cell(of(found, "digits"), "wide, 3C1F", VRA) == "90.00"
    assert not any("digits" in table.title for table in tables.relu(tmp_path))


def test_smoothing_stands_apart_and_its_literature_row_stays(whole):
    found = tables.main(whole)
    (smoothing,) = [table for table in found if "smoothing" in table.title]
    (row,) = smoothing.rows
    assert "63.90" in row.cells
    assert "−0.30" in row.cells
    assert cell(of(found, "CIFAR-10"), paper.STOCHASTIC, "run here") == rows.APART
    assert cell(of(found, "CIFAR-10"), paper.STOCHASTIC, VRA) == MISSING
    assert cell(of(found, "Tiny"), paper.STOCHASTIC, "run here") == rows.LITERATURE


def test_cost_has_ratios_only_of_trainings_alone_on_the_machine(whole, partial, tmp_path):
    epoch, over = "seconds an epoch: ours", "seconds an epoch: ours ÷ paper"
    table = of(tables.cost(whole), "CIFAR-10")
    assert cell(table, OURS, epoch) == "0.147"
    assert cell(table, OURS, over) == "0.021×"
    assert cell(table, OURS, "memory an instance, MB: ours") == "0.551"
    assert "RTX 3080" in table.notes[0]
    assert "H200" in table.notes[0]
    crowded = of(tables.cost(partial), "MNIST, ε = 0.3")
    row = "GloRo (ReLU, CE), the paper's settings"
    assert cell(crowded, row, epoch) == "10.0 (4 at once)"
    assert cell(crowded, row, over) == MISSING
    assert cell(crowded, row, "epochs: ours") == "7"
    timed = made.seed(0, 0.6, 0.77)
    timed["training"]["side_by_side"] = 6
    timed["cost"]["seconds_per_epoch"] = 0.138
    made.put(tmp_path, made.record("tuned/cifar10", timed))
    table = of(tables.cost(tmp_path), "CIFAR-10")
    assert cell(table, OURS, epoch) == "0.138"
    assert cell(table, OURS, over) == "0.02×"
    assert cell(table, OURS, "training, seconds: ours") == "42.1 (6 at once)"
    certifying = of(tables.cost(whole), "Certifying")
    assert cell(certifying, f"CIFAR-10, ε = 36/255, 6C2F: {OURS}", "all test images, seconds: ours ÷ paper") == "0.211×"


def test_constants_are_rounded_to_the_side_of_their_claim(tmp_path):
    seeds = made.seed(0, 0.6, 0.7), made.seed(1, 0.6, 0.7)
    seeds[0]["lipschitz"] = {"upper": 15.20001, "lower_global": 11.00009, "lower_local": 3.70009}
    seeds[1]["lipschitz"] = None
    standard = made.seed(0, 0.0, 0.8)
    standard["lipschitz"] = {"upper": float("inf"), "lower_global": 100.0}
    made.put(tmp_path, made.record("tuned/cifar10", *seeds), made.record("standard/cifar10", standard))
    table = of(tables.lipschitz(tmp_path), "CIFAR-10")
    assert cell(table, OURS, "ours: global, upper bound") == "15.21 (1 of 2 seeds)"
    assert cell(table, OURS, "ours: global, lower bound") == "11.00 (1 of 2 seeds)"
    assert cell(table, OURS, "ours: mean local, lower bound") == "3.700 (1 of 2 seeds)"
    assert cell(table, OURS, "ours: upper ÷ lower") == "1.382×"
    assert cell(table, "Standard", "ours: global, upper bound") == "∞"
    assert cell(table, "Standard", "ours: upper ÷ lower") == MISSING
    assert cell(table, "Standard", "paper: global, estimate of the upper bound") == "12,000,000"


def test_tightness_groups_seeds(whole):
    (table,) = tables.tightness(whole)
    assert [row.cells[:2] for row in table.rows] == [("1", "2"), ("2", "2"), ("5", "2"), ("10", "2")]
    assert cell(table, "1", "VRA: bound, real") == "58.00 (58.00…58.00)"
    assert cell(table, "1", "global constant: upper bound") == "20.50 (20.00…21.00)"


def test_the_summary_names_what_is_not_measured(whole, partial):
    (table,) = tables.summary(partial)
    (row,) = table.rows
    assert row.cells == (
        "CIFAR-10, ε = 36/255, 6C2F, MinMax", "58.4", "61.50 (61.00…62.00; 2 of 3 seeds)", "+3.10",
        "77.00 (77.00…77.00; 2 of 3 seeds)", "70.60 (1 of 3 seeds)",
    )  # fmt: skip
    assert "Tiny-ImageNet, ε = 36/255, 8C2F, MinMax" in " ".join(table.notes)
    (table,) = tables.summary(whole)
    assert len(table.rows) == 8
    assert not any("Not measured" in note for note in table.notes)
    assert all(row.cells[2].endswith("; 3 seeds)") for row in table.rows)


@pytest.mark.parametrize(
    ("group", "changes", "said"),
    [
        ("accuracy", {"disjoint_ball_gap": -0.1}, "overlap by 0.1"),
        ("accuracy", {"vra": {"real": 0.6, "float32": 0.61}}, "float32 above"),
        ("attack", {"pgd": 0.59, "pgd_art": 0.59, "samples": 10000}, "broke what is certified"),
    ],
)
def test_contradictions_are_said_loudly(tmp_path, group, changes, said):
    seed = made.seed(0, 0.6, 0.77)
    seed[group].update(changes)
    made.put(tmp_path, made.record("tuned/cifar10", seed))
    notes = " ".join(of(tables.main(tmp_path), "CIFAR-10").notes)
    assert "Contradiction: tuned/cifar10, seed 0" in notes
    assert said in notes
    assert 'class="alarm"' in page.write(tmp_path).read_text(encoding="utf-8")


@pytest.mark.parametrize(("art", "said"), [(0.706, True), (0.694, True), (0.705, False), (0.695, False)])
def test_attacks_more_than_half_a_point_apart_are_said_and_contradict_nothing(tmp_path, art, said):
    seed = made.seed(0, 0.6, 0.77)
    seed["attack"].update({"pgd": 0.70, "pgd_art": art, "samples": 1000})
    made.put(tmp_path, made.record("tuned/cifar10", seed))
    notes = " ".join(of(tables.main(tmp_path), "CIFAR-10").notes)
    assert ("our PGD and ART's differ by 0.60 points on 1,000 images" in notes) == said
    assert "Contradiction" not in notes


def test_an_attack_on_few_images_contradicts_nothing(tmp_path):
    seed = made.seed(0, 0.6, 0.77)
    seed["attack"] = {"pgd": 0.59, "samples": 100}
    made.put(tmp_path, made.record("tuned/cifar10", seed))
    assert "Contradiction" not in markdown(tables.main(tmp_path))
    seed["attack"]["vra_of_these"] = 0.595
    made.put(tmp_path, made.record("tuned/cifar10", seed))
    assert "pgd broke what is certified (59.00 % < 59.50 %)" in markdown(tables.main(tmp_path)).replace("\\<", "<")


# --- files that are not records ---


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ("[]", "names no row"),
        ('{"row": "a/b", "seeds": {}}', "seeds is not a list"),
        ('{"row": "a/b", "config": []}', "config is not an object"),
        ('{"row": "a/b", "config": {"model": 3}}', "config is not an object"),
        ('{"row": "a/b", "seeds": [3]}', "seeds is not a list"),
        ('{"row": "a/cifar10", "seeds": [{"accuracy": 3}]}', "accuracy is not an object"),
        ('{"row": "a/cifar10", "seeds": [{"accuracy": {"vra": {"real": 61.2}}}]}', "between 0 and 1"),
        ('{"row": "a/cifar10", "seeds": [{"accuracy": {"clean": "0.7"}}]}', "not a number"),
        ('{"row": "a/cifar10", "seeds": [{"accuracy": {"clean": NaN}}]}', "not a number"),
        ('{"row": "a/cifar10", "seeds": [{"accuracy": {"vra": 0.6}}]}', "not an object"),
    ],
)
def test_a_bad_record_stops_with_its_name_and_leaves_the_page_alone(tmp_path, content, said):
    before = page.write(tmp_path).read_text(encoding="utf-8")
    (tmp_path / "bad.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=said) as error:
        page.write(tmp_path)
    assert "bad.json" in str(error.value)
    assert (tmp_path / "index.html").read_text(encoding="utf-8") == before


def test_two_files_for_one_row_are_refused(tmp_path):
    made.put(tmp_path, made.record("tuned/cifar10"))
    (tmp_path / "copy.json").write_text(json.dumps(made.record("tuned/cifar10")), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"copy\.json"):
        tables.main(tmp_path)


@pytest.mark.parametrize("curve", [{"radius": [0, 1]}, {"radius": [1, 0], "certified": [1, 0]}, [], {"radius": "a"}])
def test_a_bad_curve_is_refused(tmp_path, curve):
    seed = made.seed(0, 0.6, 0.77)
    seed["accuracy"]["curve"] = curve
    made.put(tmp_path, made.record("tuned/cifar10", seed))
    with pytest.raises(ConfigError, match="curve"):
        figures.drawings(tmp_path)


@pytest.mark.parametrize("content", ["[]", '{"rows": 3}', '{"rows": [{"upper": 1}]}'])
def test_a_bad_record_of_tightness_is_refused(tmp_path, content):
    (tmp_path / "tightness-vs-iterations.json").write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match="tightness"):
        tables.tightness(tmp_path)


# --- text that means something to Markdown or HTML ---


def test_html_and_markdown_escape(tmp_path):
    name = "<script>alert(1)</script>|*x*"
    record = made.record(f"{name}/cifar10", made.seed(0, 0.6, 0.77), chosen="<img src=x onerror=y>")
    made.put(tmp_path)
    (tmp_path / "odd.json").write_text(json.dumps(record), encoding="utf-8")
    source = page.write(tmp_path).read_text(encoding="utf-8")
    assert "<script" not in source
    assert "<img src=x" not in source
    assert "&lt;script&gt;alert(1)" in source
    plain = (tmp_path / "tables.md").read_text(encoding="utf-8")
    assert r"\<script>alert(1)\</script>\|\*x\*, 6C2F" in plain
    assert "<script" not in plain.replace(r"\<", "")


def test_a_table_checks_its_width():
    with pytest.raises(AssertionError):
        Table("t", (Column("a"), Column("b")), (Row(("1",)),))


# --- figures and the page ---


def test_figures_come_with_their_rows(whole, tmp_path):
    made.whole(tmp_path)
    page.write(tmp_path)
    for drawing in figures.drawings(tmp_path):
        assert (tmp_path / "figures" / f"{drawing.name}.png").read_bytes().startswith(b"\x89PNG")
        with (tmp_path / "figures" / f"{drawing.name}.csv").open(encoding="utf-8", newline="") as file:
            assert len(list(csv.DictReader(file))) == len(drawing.rows)
    curves, speeds, constants = figures.drawings(whole)
    assert {row.data for row in curves.rows} == {data.title for data in paper.DATA}
    theirs = next(r for r in speeds.rows if r.source == "paper" and r.row == PAPERS and r.data.startswith("CIFAR"))
    assert (theirs.seconds, theirs.vra) == (800 * 6.9, 0.584)
    assert {row.source for row in speeds.rows} == {"ours", "paper", "literature"}
    assert "Standard" not in {row.row for row in speeds.rows if row.data.startswith("CIFAR")}
    assert all(row.lower_global <= row.upper for row in constants.rows)


def test_the_curve_is_that_of_the_median_seed(tmp_path):
    seeds = [made.seed(n, vra, 0.77) for n, vra in enumerate((0.60, 0.63, 0.61, 0.62))]
    made.put(tmp_path, made.record("tuned/cifar10", *seeds))
    curves = figures.drawings(tmp_path)[0]
    assert {(row.seed, row.vra) for row in curves.rows} == {(2, 0.61)}


def test_a_figure_with_nothing_measured_is_not_drawn_and_that_is_said(tmp_path):
    made.put(tmp_path, made.record("tuned/cifar10", {"seed": 0, "accuracy": {"vra": {"real": 0.6}}}))
    source = page.write(tmp_path).read_text(encoding="utf-8")
    assert source.count("Not drawn: ") == 3
    assert "<img" not in source
    assert not (tmp_path / "figures").exists()
    assert all(drawing.png is None and drawing.csv is None for drawing in figures.drawings(tmp_path))


def test_the_page_holds_every_table_and_fetches_nothing(folder, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    for path in folder.glob("*.json"):
        (copy / path.name).write_bytes(path.read_bytes())
    source = page.write(copy).read_text(encoding="utf-8")
    for make in tables.TABLES.values():
        for table in make(copy):
            assert table.html() in source
    assert not re.findall(r'(?:src|href)="(?!data:)', source)
    assert "url(" not in source
    assert not list(copy.glob("*.part"))


# --- pages of the project ---


@pytest.mark.parametrize("path", pages.PAGES, ids=lambda path: path.name)
def test_pages_show_what_the_records_say(path):
    source = path.read_text(encoding="utf-8")
    assert "<!-- measured " in source
    assert pages.rendered(source) == source


def test_every_table_has_its_block():
    source = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    blocks = set(re.findall(r"<!-- measured (results-[a-z]+)", source))
    assert blocks == {name for name in pages.TABLES if name.startswith("results-")} - {"results-summary"}


@pytest.mark.parametrize("name", ["paper", "records", "table", "text"])
def test_doctests(name):
    found = doctest.testmod(importlib.import_module(f"gloronet.reproduce.{name}"))
    assert found.attempted > 0
    assert found.failed == 0


def test_a_net_of_one_answer_has_no_place_among_the_constants(tmp_path):
    """Its lower bounds are 0, which no logarithmic axis has."""
    seed, other = made.seed(0, 0.1, 0.1), made.seed(0, 0.6, 0.7)
    seed["lipschitz"] = {"upper": 1.6e-9, "lower_global": 0.0, "lower_local": 0.0}
    other["lipschitz"] = {"upper": 15.2, "lower_global": 11.0, "lower_local": 3.7}
    made.put(tmp_path, made.record("relu-trades/cifar10", seed), made.record("tuned/cifar10", other))
    assert {row.row for row in points.constants(read(tmp_path))} == {OURS}


@pytest.mark.parametrize(
    ("ends", "labels"),
    [
        ((3, 25), ["5", "10", "20"]),
        ((12_000, 90_000), ["2·10⁴", "5·10⁴"]),
        ((1, 1e5), ["1", "10", "100", "1,000", "10⁴", "10⁵"]),
    ],
)
def test_an_axis_says_more_than_one_number(ends, labels):
    ax = Figure().subplots()
    ax.set_xscale("log")
    ax.set_xlim(*ends)
    painters._plain_ticks(ax)
    low, high = ends
    ticks = zip(ax.get_xticklabels(), ax.get_xticks(), strict=True)
    assert [label.get_text() for label, at in ticks if low <= at <= high] == labels
