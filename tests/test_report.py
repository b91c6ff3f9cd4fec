"""The report says what the rows say, leaves nothing out silently, and fetches nothing.

The run folders are small but honest: a least-squares classifier of digits, whose distance to the decision
boundary is known exactly, and on two moons the 1-nearest-neighbour rule, whose margin is 1-Lipschitz.
"""

from __future__ import annotations

import ast
import base64
import csv
import doctest
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits, make_moons

from gloronet import report
from gloronet.config import Config, DataConfig, write_toml
from gloronet.errors import ConfigError
from gloronet.report import counts, html, style

EPSILON = 0.3


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


def write_certificates(run: Path, label, answer, radius, epsilon=EPSILON, semantics="real") -> None:
    write_rows(
        run / "certificates.csv",
        [
            {
                "index": k,
                "label": int(label[k]),
                "prediction": int(answer[k]) if radius[k] > epsilon else -1,
                "radius": repr(float(radius[k])),
                "certified": int(radius[k] > epsilon),
                "margin": repr(float(radius[k])),
                "semantics": semantics,
                "answer": int(answer[k]),
            }
            for k in range(len(label))
        ],
    )


def write_attack(path: Path, label, distance, epsilon=EPSILON) -> None:
    write_rows(
        path,
        [
            {
                "index": k,
                "label": int(label[k]),
                "success": int(np.isfinite(distance[k])),
                "distance": repr(float(distance[k])),
                "margin": 0.0,
                "epsilon": epsilon,
            }
            for k in range(len(label))
        ],
    )


def bare_run(run: Path, label, answer, radius, epsilon=EPSILON, **config) -> Path:
    """The least a report can be made of."""
    run.mkdir(parents=True, exist_ok=True)
    write_toml(Config(epsilon=str(epsilon), **config), run / "config.toml")
    write_certificates(run, label, answer, radius, epsilon)
    return run


def digits_run(run: Path) -> Path:
    """Every file an image run can have."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order] / 16, y[order]
    train = np.c_[x[:1437], np.ones(1437)]
    fit = np.linalg.solve(train.T @ train + 3 * np.eye(65), train.T @ np.eye(10)[y[:1437]])
    test, label, w = x[1437:], y[1437:], fit[:64].T
    logits = test @ w.T + fit[64]
    answer = logits.argmax(1)
    # Distance to each boundary (y_j − y_i)/‖w_j − w_i‖; a bound 1.4 times too large shrinks the radius.
    spread = np.linalg.norm(w[answer][:, None] - w[None], axis=2)
    spread[np.arange(len(test)), answer] = 1
    gaps = (logits.max(1, keepdims=True) - logits) / spread
    gaps[np.arange(len(test)), answer] = np.inf
    rival, exact = gaps.argmin(1), gaps.min(1)
    bare_run(run, label, answer, exact / 1.4, data=DataConfig("digits"))

    minimal = np.where(answer == label, exact * 1.001, 0.0)
    write_attack(run / "attacks_minimal.csv", label, np.where(minimal < 1.2, minimal, np.inf), 1.2)
    write_attack(run / "attacks.csv", label, np.where(minimal < EPSILON, minimal, np.inf))

    step = w[rival] - w[answer]
    adversarial = test + (exact * 1.001)[:, None] * step / np.linalg.norm(step, axis=1, keepdims=True)
    np.savez(
        run / "gallery.npz",
        index=np.arange(0, 360, 2),
        images=np.round(255 * test[::2]).astype(np.uint8).reshape(-1, 1, 8, 8),
        adversarial=adversarial[::2].astype(np.float32).reshape(-1, 1, 8, 8),
        adversarial_distance=np.where(exact < 1.2, exact * 1.001, np.inf)[::2],
    )
    epochs = np.arange(1, 61)
    write_lines(run / "metrics.jsonl", [
        {"epoch": int(k), "loss": 0.12 + 2.2 * np.exp(-k / 9), "accuracy": 0.985 - 0.8 * np.exp(-k / 5),
         "vra_estimate": 0.93 - 0.9 * np.exp(-k / 11), "epsilon": 0.3, "lr": 1e-3, "seconds": 0.4}
        for k in epochs
    ])  # fmt: skip
    margins = 3.3 * np.linalg.norm(w[:, None] - w[None], axis=2)
    layers = [
        ("0", "conv2d", "checked block Cholesky", 1.8302, 1.83071),
        ("1", "minmax", "exact", None, 1.0),
        ("2", "conv2d", "symbols", 1.3111, 1.31842),
        ("3", "minmax", "exact", None, 1.0),
        ("4", "flatten", "exact", None, 1.0),
        ("5", "linear", "checked Cholesky", 1.3634, 1.36340001),
    ]
    keys = ("name", "rule", "method", "estimate", "bound")
    (run / "bound.json").write_text(json.dumps({
        "digest": "9f2c" * 16, "norm": "l2", "form": "margin", "constant": 3.2907, "seconds": 1.74,
        "layers": [dict(zip(keys, layer, strict=True)) for layer in layers],
        "margins": margins.tolist(),
    }))  # fmt: skip
    (run / "summary.json").write_text(json.dumps({
        "epsilon": EPSILON, "epsilon_text": "0.3", "semantics": "real", "classes": list("0123456789"),
        "seconds": {"train": 24.0987, "certify": 1.9, "attack": 8.0}, "data": "digits", "samples": 360,
        "version": "0.1.0", "commit": "641c529", "hardware": "2 CPU cores, torch 2.13.0",
    }))  # fmt: skip
    return run


def moons_run(run: Path) -> Path:
    """Every file a 2-D run can have, for the 1-nearest-neighbour rule of the training points."""
    x, y = make_moons(400, noise=0.06, random_state=0)
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    train, test, label, epsilon = x[:200], x[200:], y[200:], 0.03

    def signed(at: np.ndarray) -> np.ndarray:
        to = np.linalg.norm(at[:, None] - train[None], axis=2)
        return (to[:, y[:200] == 0].min(1) - to[:, y[:200] == 1].min(1)) / 2

    margin = signed(test)
    bare_run(run, label, (margin > 0).astype(int), np.abs(margin), epsilon, data=DataConfig("moons"))
    xs, ys = np.linspace(-0.15, 1.15, 260), np.linspace(-0.15, 1.15, 240)
    grid = signed(np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)).reshape(240, 260)
    prediction = np.where(np.abs(grid) > epsilon, grid > 0, -1).astype(np.int64)
    np.savez(
        run / "regions.npz", xs=xs, ys=ys, prediction=prediction, points=test, labels=label, epsilon=epsilon
    )
    (run / "summary.json").write_text(json.dumps({"classes": ["upper moon", "lower moon"]}))
    return run


def write_lines(path: Path, entries: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    run = digits_run(tmp_path_factory.mktemp("digits"))
    assert report.write(run) == run / "report.html"
    return run


@pytest.fixture(scope="module")
def moons(tmp_path_factory) -> Path:
    run = moons_run(tmp_path_factory.mktemp("moons"))
    report.write(run)
    return run


class Page(HTMLParser):
    """The text of a report, its tables cell by cell, and everything a browser might fetch."""

    def __init__(self, run: Path) -> None:
        super().__init__()
        self.source = (run / "report.html").read_text(encoding="utf-8")
        self.text, self.tags, self.links, self.open = "", [], [], []
        self.rows: list[list[str]] = []
        self.feed(self.source)
        self.text = " ".join(self.text.split())
        assert self.open == [], "every element is closed"

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        if name not in ("meta", "link", "img"):
            self.open.append(name)
        if name == "tr":
            self.rows.append([])
        if name in ("td", "th"):
            self.rows[-1].append("")
        self.links += [v for k, v in attributes if k in ("src", "href", "srcset", "data", "action", "poster")]

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data if self.open and self.open[-1] in ("b", "span", "code", "sub") else f" {data}"
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


def read_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def certificates(run: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows = read_rows(run / "certificates.csv")
    right = np.array([row["answer"] == row["label"] for row in rows])
    radius = np.array([float(row["radius"]) for row in rows])
    return right, radius, np.array([row["certified"] == "1" for row in rows])


# --- what the page says -------------------------------------------------------------------------------------


def test_headline_numbers_are_those_of_the_rows(digits):
    page, (right, radius, certified) = Page(digits), certificates(digits)
    success = np.array([row["success"] == "1" for row in read_rows(digits / "attacks.csv")])
    assert f"Clean {100 * right.mean():.1f} % {right.sum()} of 360 right" in page.text
    held = right & ~success
    assert f"PGD at ε = 0.3 {100 * held.mean():.1f} % {held.sum()} of 360 right under attack" in page.text
    vra = right & certified
    assert f"VRA at ε = 0.3 {100 * vra.mean():.1f} % {vra.sum()} of 360 right and certified" in page.text
    mean = np.where(right, radius, 0).mean()
    shown = float(re.search(r"Mean radius ([\d.]+)", page.text).group(1))
    assert mean - 1e-4 < shown <= mean  # rounded down
    for count, name in (
        (vra.sum(), "certified and right"),
        ((certified & ~right).sum(), "certified and wrong"),
        ((~certified & right).sum(), "⊥, answer right"),
        ((~certified & ~right).sum(), "⊥, answer wrong"),
    ):
        assert f"{count} {name}" in page.text


def test_the_guarantee_is_stated_with_its_semantics(digits):
    text = Page(digits).text
    assert (
        "no change of the input with ℓ2 norm smaller than its radius alters the label of the exact function "
        "of the stored weights (semantics “real”)"
    ) in text
    assert "The bound is proved from above in float64" in text
    assert "The training curves’ VRA is an estimate and certifies nothing" in text


def test_the_float32_semantics_is_not_sold_as_the_real_one(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    write_certificates(run, [0, 1], [0, 1], [0.5, 0.1], semantics="float32")
    report.write(run)
    text = Page(run).text
    assert "the float32 network as deployed on a CPU (semantics “float32”)" in text
    assert "exact function" not in text


def test_curve_rows_beside_the_figure_are_the_curves(digits):
    right, radius, _ = certificates(digits)
    distance = np.array([float(row["distance"]) for row in read_rows(digits / "attacks_minimal.csv")])
    rows = read_rows(digits / "figures" / "certified_accuracy.csv")
    assert {row["curve"] for row in rows} == {"certified", "attack"}
    for row in rows:
        reach = radius if row["curve"] == "certified" else distance
        assert float(row["share"]) == (right & (reach > float(row["radius"]))).mean()


def test_table_at_a_few_radii(digits):
    page, (right, radius, _) = Page(digits), certificates(digits)
    distance = np.array([float(row["distance"]) for row in read_rows(digits / "attacks_minimal.csv")])
    for name, r in (("0", 0.0), ("ε/2 = 0.15", 0.15), ("ε = 0.3", 0.3), ("2ε = 0.6", 0.6)):
        proved, unbroken = (right & (radius > r)).mean(), (right & (distance > r)).mean()
        assert page.row(name) == [name, f"{100 * proved:.1f} %", f"{100 * unbroken:.1f} %"]


def test_attack_is_not_quoted_beyond_where_it_looked(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    write_attack(run / "attacks_minimal.csv", [0, 1], [np.inf, 0.2], 0.4)
    report.write(run)
    page = Page(run)
    assert page.row("ε = 0.3") == ["ε = 0.3", "50.0 %", "50.0 %"]
    assert page.row("2ε = 0.6")[2] == "—"


def test_per_class_table(digits):
    page, (right, radius, certified) = Page(digits), certificates(digits)
    label = np.array([int(row["label"]) for row in read_rows(digits / "certificates.csv")])
    for k in range(10):
        of = label == k
        row = next(row for row in page.rows if row[0] == str(k) and len(row) == 5 and row[1].isdigit())
        assert int(row[1]) == of.sum()
        assert row[2:4] == [
            f"{100 * right[of].mean():.1f} %",
            f"{100 * (right & certified)[of].mean():.1f} %",
        ]
        assert float(row[4]) == pytest.approx(np.where(right, radius, 0)[of].mean(), abs=1e-4)


def test_bounds_are_printed_from_above_and_apart_from_estimates(digits):
    page, bound = Page(digits), json.loads((digits / "bound.json").read_text())
    head = next(row for row in page.rows if row[0] == "layer")
    assert head[3:] == ["estimate, from below", "bound, proved from above"]
    at = page.rows.index(head) + 1
    for row, layer in zip(page.rows[at : at + 6], bound["layers"], strict=True):
        assert layer["bound"] <= float(row[4]) < layer["bound"] * 1.001
        assert (
            row[3] == "—"
            if layer["estimate"] is None
            else float(row[3]) == pytest.approx(layer["estimate"], rel=1e-3)
        )
    marked = [row[0] for row in page.rows if row and row[0].endswith("largest") and len(row) == 5]
    assert marked == ["0largest"]
    margins = np.array(bound["margins"])
    off = margins[~np.eye(10, dtype=bool)]
    assert float(page.row("largest")[2]) >= off.max()
    assert float(page.row("smallest")[2]) == pytest.approx(off.min(), rel=1e-3)
    i, j = np.argwhere(margins == off.max())[0]
    assert page.row("largest")[1] == f"{i} against {j}"


def test_radii_of_the_gallery_are_those_of_the_rows(digits):
    page, (_, radius, _) = Page(digits), certificates(digits)
    stored = np.arange(0, 360, 2)
    text = page.text[page.text.index("Largest radii") :]
    shown = [float(r) for r in re.findall(r"r = ([\d.]+)", text)]
    largest = np.sort(radius[stored])[::-1][:6]
    np.testing.assert_allclose(shown[:6], largest, atol=1e-4)
    for heading in ("Radii around ε = 0.3", "Smallest radii", "⊥ although the answer was right"):
        assert heading in text
    smallest = text[text.index("Smallest radii") : text.index("⊥ although")]
    assert f"{np.sort(radius[stored])[0]:.3f}"[:5] in smallest
    assert "The nearest adversarial images found" in text


def test_config_and_provenance(digits):
    page = Page(digits)
    assert page.row("train.lr_schedule") == ["train.lr_schedule", "decay_to_1e-6"]
    assert page.row("model.architecture") == ["model.architecture", "2C2F"]
    for fact in ("gloronet 0.1.0", "commit 641c529", "2 CPU cores", "train 24.1 s", "9f2c" * 16):
        assert fact in page.text


def test_a_refuted_certificate_is_shouted(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    write_attack(run / "attacks.csv", [0, 1], [0.25, np.inf])
    report.write(run)
    assert "1 certificates are contradicted" in Page(run).text
    write_attack(run / "attacks.csv", [0, 1], [np.inf, 0.25])  # outside its radius: no contradiction
    report.write(run)
    assert "contradicted" not in Page(run).text
    assert "No attack changed a right answer inside its certified radius" in Page(run).text


# --- what is and is not there -------------------------------------------------------------------------------


def test_figures_are_png_files(digits, moons):
    names = {"certified_accuracy.png", "radii.png", "training.png", "gallery.png", "certified_accuracy.csv"}
    assert {p.name for p in (digits / "figures").iterdir()} == names
    assert {p.name for p in (moons / "figures").iterdir()} == {
        "certified_accuracy.png", "radii.png", "regions.png", "certified_accuracy.csv",
    }  # fmt: skip
    for path in [*(digits / "figures").glob("*.png"), *(moons / "figures").glob("*.png")]:
        pixels = imread(path)
        assert pixels.shape[0] > 300
        assert pixels.shape[1] > 1000
        assert pixels[..., :3].std() > 0.01, "not an empty canvas"


def test_figures_lie_in_the_page_as_they_lie_in_the_folder(digits):
    page = Page(digits)
    for name in ("certified_accuracy.png", "radii.png", "training.png"):
        assert base64.b64encode((digits / "figures" / name).read_bytes()).decode() in page.source


@pytest.mark.parametrize("which", ["digits", "moons"])
def test_page_is_self_contained(which, request):
    page = Page(request.getfixturevalue(which))
    assert not re.search(r"https?://|url\(|@import", page.source)
    assert not {"script", "iframe", "object", "embed"} & set(page.tags)
    assert page.links
    assert all(link.startswith("data:") for link in page.links)


def test_regions_show_every_class_and_the_band(moons):
    text = Page(moons).text
    assert "Decision regions" in text
    assert "Largest radii" not in text
    pixels = imread(moons / "figures" / "regions.png")[..., :3]
    share = np.mean(np.abs(pixels - np.array(to_rgb(style.BOTTOM))).max(-1) < 0.01)
    prediction = np.load(moons / "regions.npz")["prediction"]
    assert share == pytest.approx((prediction == -1).mean(), rel=0.25)
    assert "upper moon" in text


def test_missing_files_leave_one_sentence_with_the_command(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    report.write(run)
    text = Page(run).text
    for name, command in (
        ("attacks.csv", "gloronet attack RUN"),
        ("metrics.jsonl", "gloronet train … --out RUN"),
        ("bound.json", "gloronet lipschitz RUN"),
        ("regions.npz (2-D data)", "gloronet certify RUN"),
        ("summary.json", "gloronet certify RUN"),
    ):
        assert f"{name} is not here. {command} writes it." in text
    assert "PGD — not measured" in text
    assert {p.name for p in (run / "figures").iterdir()} == {
        "certified_accuracy.png", "radii.png", "certified_accuracy.csv",
    }  # fmt: skip


def test_complete_run_misses_nothing(digits):
    assert "is not here" not in Page(digits).text


def test_a_single_pgd_point_stands_in_for_the_curve(tmp_path):
    run = bare_run(tmp_path, [0, 1, 1, 0], [0, 1, 0, 0], [0.5, 0.1, 0.2, 0.4])
    write_attack(run / "attacks.csv", [0, 1, 1, 0], [np.inf, 0.2, 0.0, np.inf])
    report.write(run)
    rows = read_rows(run / "figures" / "certified_accuracy.csv")
    assert [row for row in rows if row["curve"] == "pgd"] == [
        {"curve": "pgd", "radius": "0.3", "share": "0.5"}
    ]
    assert "this run has no attacks_minimal.csv" in Page(run).text


def test_attack_on_part_of_the_samples_counts_only_those(tmp_path):
    run = bare_run(tmp_path, [0, 1, 1, 0], [0, 1, 0, 0], [0.5, 0.1, 0.2, 0.4])
    write_attack(run / "attacks.csv", [0, 1], [np.inf, 0.2])
    report.write(run)
    assert "50.0 % 1 of 2 right under attack" in Page(run).text


def test_writing_again_gives_the_same_bytes_and_leaves_no_scraps(digits):
    before = {p: p.read_bytes() for p in digits.rglob("*") if p.is_file()}
    report.write(digits)
    assert {p: p.read_bytes() for p in digits.rglob("*") if p.is_file()} == before


# --- strange but legal runs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "answer", "radius", "epsilon"),
    [
        pytest.param([0, 1, 1], [0, 1, 0], [np.inf, 0.5, np.inf], 0.3, id="some infinite"),
        pytest.param([0, 1], [0, 1], [np.inf, np.inf], 0.3, id="all infinite"),
        pytest.param([0, 1], [0, 1], [0.1, 0.2], 0.3, id="all abstain"),
        pytest.param([0, 1], [0, 1], [0.0, 0.0], 0.3, id="all radii zero"),
        pytest.param([0, 1], [1, 0], [0.5, 0.4], 0.3, id="all wrong"),
        pytest.param([3, 3, 3], [3, 3, 3], [0.5, 0.4, 0.1], 0.3, id="one class"),
        pytest.param([0], [0], [0.5], 0.3, id="one sample"),
        pytest.param([0, 1], [0, 1], [0.5, 0.0], 0.0, id="epsilon zero"),
        pytest.param([0, 1], [0, 1], [0.0, 0.0], 0.0, id="everything zero"),
        pytest.param([0, 1], [0, 1], [1e9, 0.4], 1e-12, id="far apart"),
    ],
)
def test_strange_rows(tmp_path, label, answer, radius, epsilon):
    run = bare_run(tmp_path, label, answer, radius, epsilon)
    n = len(label)
    np.savez(run / "gallery.npz", index=np.arange(n), images=np.zeros((n, 1, 4, 4), np.uint8))
    write_attack(run / "attacks.csv", label, [np.inf] * n, epsilon)
    write_attack(run / "attacks_minimal.csv", label, [np.inf] * n, epsilon)
    report.write(run)
    right, r = np.array(label) == np.array(answer), np.array(radius)
    vra = right & (r > epsilon)
    assert f"{vra.sum()} of {n} right and certified" in Page(run).text
    assert ("infinite" in Page(run).text) == bool(np.isinf(r).any())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_gallery_shows_the_pixels_it_was_given(tmp_path, channels, dtype):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    images = np.random.default_rng(0).integers(0, 256, (2, channels, 5, 7), dtype=np.uint8)
    stored = images if dtype == np.uint8 else (images / np.float32(255)).astype(np.float32)
    np.savez(run / "gallery.npz", index=[1, 0], images=stored)
    report.write(run)
    shown = [pixels for pixels in embedded(Page(run)) if pixels.shape[:2] == (5, 7)]
    assert len(shown) == 2  # largest radius first: sample 0, stored second
    for pixels, image in zip(shown, images[::-1], strict=True):
        np.testing.assert_array_equal(
            np.round(255 * pixels[..., :3]), np.broadcast_to(image.transpose(1, 2, 0), (5, 7, 3))
        )


def test_other_than_images_are_not_drawn(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    np.savez(run / "gallery.npz", index=[0, 1], images=np.zeros((2, 4, 5, 7), np.float32))
    report.write(run)
    assert "only images of one or three channels can be shown" in Page(run).text
    assert not (run / "figures" / "gallery.png").exists()


def test_metrics_with_missing_keys_and_a_repeated_epoch(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    entries = [
        {"epoch": 1, "loss": 2.0},
        {"epoch": 2, "accuracy": 0.5, "loss": None},
        {"epoch": 2},
        {"epoch": 3},
    ]
    write_lines(run / "metrics.jsonl", entries)
    report.write(run)
    assert "Training curves" in Page(run).source
    write_lines(run / "metrics.jsonl", [{"epoch": 1, "loss": float("nan"), "vra_estimate": 0.1}])
    report.write(run)


def test_everything_from_files_is_escaped(tmp_path):
    evil = "<script>alert('$1$')</script>\"&"
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1], data=DataConfig(evil))
    write_certificates(run, [0, 1], [0, 1], [0.5, 0.1], semantics="<b>real</b>")
    layer = {"name": evil, "rule": evil, "method": evil, "estimate": None, "bound": 2.0}
    bound = {"digest": evil, "constant": 2.0, "layers": [layer], "margins": [[0, 1], [1, 0]]}
    (run / "bound.json").write_text(json.dumps(bound))
    summary = {"classes": [evil, "$\\frac"], "version": evil, "commit": evil, "hardware": evil, "data": evil}
    summary |= {"seconds": {evil: evil}, "epsilon_text": evil, "epsilon": EPSILON}
    (run / "summary.json").write_text(json.dumps(summary))
    np.savez(run / "gallery.npz", index=[0, 1], images=np.zeros((2, 1, 4, 4), np.uint8))
    xs = np.linspace(0, 1, 5)
    np.savez(
        run / "regions.npz", xs=xs, ys=xs, prediction=np.zeros((5, 5), int), points=[[0.5, 0.5]], labels=[0]
    )
    report.write(run)
    page = Page(run)
    assert "script" not in page.tags
    assert "<script" not in page.source
    assert "<b>real" not in page.source
    assert page.text.count("<script>alert('$1$')</script>\"&") >= 12


def test_a_linf_run_says_so(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1], norm="linf")
    xs = np.linspace(0, 4, 5)
    np.savez(
        run / "regions.npz", xs=xs, ys=xs, prediction=np.zeros((5, 5), int), points=[[0.5, 0.5]], labels=[0]
    )
    report.write(run)
    assert "with ℓ∞ norm smaller" in Page(run).text
    assert "ℓ2" not in Page(run).text


def test_epsilon_of_the_certificates_comes_from_the_summary(tmp_path):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    write_certificates(run, [0, 1], [0, 1], [0.5, 0.2], epsilon=36 / 255)
    with pytest.raises(ConfigError, match=r"certificates\.csv was not made for ε = 0\.3"):
        report.write(run)
    (run / "summary.json").write_text(json.dumps({"epsilon": 36 / 255, "epsilon_text": "36/255"}))
    report.write(run)
    assert "VRA at ε = 36/255" in Page(run).text


# --- malformed files ----------------------------------------------------------------------------------------


HEADER = "index,label,prediction,radius,certified,margin,semantics,answer\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", "epsilon = ["),
        ("config.toml", "nonsense = 1"),
        ("certificates.csv", ""),
        ("certificates.csv", HEADER),
        ("certificates.csv", "index,label\n0,0\n"),
        ("certificates.csv", HEADER + "0,0,0,0.5,1,0.5,real\n"),
        ("certificates.csv", HEADER + "0,zero,0,0.5,1,0.5,real,0\n"),
        ("certificates.csv", HEADER + "0,0,0,nan,1,0.5,real,0\n"),
        ("certificates.csv", HEADER + "0,0,-1,-0.5,0,0.5,real,0\n"),
        ("certificates.csv", HEADER + "0,0,1,0.5,1,0.5,real,0\n"),
        ("certificates.csv", HEADER + "0,0,0,0.5,2,0.5,real,0\n"),
        ("certificates.csv", HEADER + 2 * "0,0,0,0.5,1,0.5,real,0\n"),
        ("certificates.csv", HEADER + "0,0,0,0.2,1,0.5,real,0\n"),
        ("attacks.csv", "index,label\n"),
        ("attacks.csv", "index,label,success,distance,margin,epsilon\n"),
        ("attacks.csv", "index,label,success,distance,margin,epsilon\n7,0,0,inf,0,0.3\n"),
        ("attacks.csv", "index,label,success,distance,margin,epsilon\n0,1,0,inf,0,0.3\n"),
        ("attacks.csv", "index,label,success,distance,margin,epsilon\n0,0,1,inf,0,0.3\n"),
        ("attacks_minimal.csv", "index,label,success,distance,margin,epsilon\n0,0,1,x,0,0.3\n"),
        ("metrics.jsonl", '{"epoch": 1}\n{"epo'),
        ("metrics.jsonl", '{"loss": 1}\n'),
        ("metrics.jsonl", '{"epoch": 1, "loss": "low"}\n'),
        ("bound.json", "{"),
        ("bound.json", "[]"),
        ("bound.json", '{"layers": [{"name": "0"}], "margins": [], "constant": 1}'),
        ("bound.json", '{"layers": [], "margins": [[0, 1]], "constant": 1}'),
        ("summary.json", "nope"),
        ("summary.json", "[1]"),
        ("summary.json", '{"classes": "cat"}'),
        ("summary.json", '{"epsilon": NaN}'),
        ("gallery.npz", "not a zip"),
        ("regions.npz", "PK\x03\x04 torn"),
    ],
)
def test_malformed_files_are_named_and_earlier_results_stay(tmp_path, name, content):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    (run / "report.html").write_text("earlier")
    (run / name).write_text(content, encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(name)) as caught:
        report.write(run)
    assert "\n" not in str(caught.value)
    assert (run / "report.html").read_text() == "earlier"
    assert not (run / "figures").exists()


@pytest.mark.parametrize(
    ("name", "arrays"),
    [
        ("gallery.npz", {"index": [0]}),
        ("gallery.npz", {"index": [5], "images": np.zeros((1, 1, 2, 2))}),
        ("gallery.npz", {"index": [0, 1], "images": np.zeros((1, 1, 2, 2))}),
        ("gallery.npz", {"index": [0], "images": np.zeros((1, 1, 2, 2)), "adversarial": np.zeros((1, 1))}),
        ("gallery.npz", {"index": np.array([{}], dtype=object), "images": np.zeros((1, 1, 2, 2))}),
        ("regions.npz", {"xs": [0.0, 1.0], "ys": [0.0, 1.0]}),
        ("regions.npz", {"xs": [0.0, 1.0], "ys": [0.0, 1.0], "prediction": np.zeros((3, 2)),
                         "points": np.zeros((1, 2)), "labels": [0]}),
    ],
)  # fmt: skip
def test_malformed_arrays_are_named(tmp_path, name, arrays):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    np.savez(run / name, **arrays)
    with pytest.raises(ConfigError, match=re.escape(name)):
        report.write(run)


@pytest.mark.parametrize(
    ("name", "remedy"), [("config.toml", "not a run folder"), ("certificates.csv", "gloronet certify")]
)
def test_required_files(tmp_path, name, remedy):
    run = bare_run(tmp_path, [0, 1], [0, 1], [0.5, 0.1])
    (run / name).unlink()
    with pytest.raises(ConfigError, match=remedy):
        report.write(run)


# --- the small public pieces --------------------------------------------------------------------------------


RADII = st.one_of(st.just(0.0), st.just(float("inf")), st.sampled_from([0.1, 0.3, 0.5]), st.floats(0, 5))


@given(st.lists(st.tuples(RADII, st.booleans()), min_size=1, max_size=40))
def test_curve_against_brute_force(samples):
    radius, right = np.array([s[0] for s in samples]), np.array([s[1] for s in samples])
    r, share = report.curve(radius, right)
    assert r[0] == 0
    assert np.isfinite(r).all()
    assert (np.diff(r) > 0).all()
    assert (np.diff(share) < 0).all()
    for at in [0.0, 0.1, 0.2, 0.3, 0.5, 6.0, *radius[np.isfinite(radius)]]:
        k = np.searchsorted(r, at, side="right") - 1
        assert share[k] == (right & (radius > at)).mean()


@pytest.mark.parametrize(("radius", "right"), [([], []), ([0.1], [True, False]), ([[0.1]], [[True]])])
def test_curve_refuses_what_is_not_rows(radius, right):
    with pytest.raises(ConfigError, match="one radius"):
        report.curve(radius, right)


@given(st.floats(0, 1e12))
def test_printed_numbers_keep_their_side(value):
    assert float(counts.down(value)) <= value <= float(counts.up(value))
    assert float(counts.nearest(value)) == pytest.approx(value, rel=6e-4)


def test_summary_table_for_the_terminal():
    summary = {"clean": 0.981, "pgd": 0.95, "vra": 0.8972, "mean_radius": 0.45678, "epsilon_text": "36/255",
               "seconds": {"train": 20.0, "certify": 1.5}}  # fmt: skip
    shown = render_table(report.summary_table(summary))
    for text in ("clean", "PGD", "VRA at ε = 36/255", "mean radius", "seconds", "98.1 %", "95.0 %", "89.7 %",
                 "0.4567", "21.5", "train 20.0 s"):  # fmt: skip
        assert text in shown
    assert render_table(report.summary_table({})).count("—") >= 5


def test_report_imports_no_torch():
    for path in Path(report.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for module in modules:
                assert module.split(".")[0] not in ("torch", "sklearn", "PIL"), path
                assert "pyplot" not in module, path


@pytest.mark.parametrize("module", [counts, html])
def test_doctests(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def embedded(page: Page) -> list[np.ndarray]:
    """The images of a page, decoded."""
    prefix = "data:image/png;base64,"
    return [
        imread(io.BytesIO(base64.b64decode(s[len(prefix) :]))) for s in page.links if s.startswith(prefix)
    ]


def render_table(table: Table) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()
