"""`gloronet reproduce` runs what is missing and nothing else: rows trained, resumed, measured, kept; real folders.

The data are made: forty test images in MNIST's own files, on which a small net is neither perfect nor hopeless.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.data_files import write_idx
from tests.test_ranks import InterruptAt

import gloronet as gn
from gloronet import attacks, cli, folder, presets, verbs, zoo
from gloronet.certify import certify_set
from gloronet.config import changed, to_dict
from gloronet.errors import ConfigError, GloroError
from gloronet.reproduce import PLANS, TABLES, TIGHTNESS_ROW, Effort, columns, paper, reproduce, runner
from gloronet.reproduce.columns import GROUPS, Opened, evenly
from gloronet.reproduce.records import TIGHTNESS
from gloronet.reproduce.runner import Bench

torch.set_num_threads(1)  # as the process that makes the first record; and threads of other workers wait for each other

ROW, RUN, RECORD = "tuned/mnist-0.3", "tuned-mnist-0.3-seed0", "tuned-mnist-0.3.json"
EPOCHS = 10
CHANGES = ("model.architecture=c(4,4,2).d(16).d(10)", f"train.epochs={EPOCHS}", "train.batch_size=20")
EFFORT = Effort(attacked=20, steps=4, restarts=1, global_steps=6, local_steps=5, smoothed=8, noisy=200)


def write_easy_mnist(there: Path, train: int = 120, test: int = 40) -> None:
    """A class is the place of a patch; how bright that is differs, and so does how sure one can be of it."""
    random = np.random.default_rng(0)
    for part, n in (("train", train), ("t10k", test)):
        labels = (np.arange(n) % 10).astype(np.uint8)
        images = random.integers(0, 40, (n, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            top, left = 4 + 12 * (label // 5), 2 + 5 * (label % 5)
            image[top : top + 8, left : left + 4] += random.integers(1, 160, dtype=np.uint8)
        write_idx(there / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(there / f"{part}-labels-idx1-ubyte.gz", labels)


def arguments(place: Path, what: str, *more: str, row: str = ROW, changes: tuple[str, ...] = CHANGES) -> list[str]:
    """Of a quick try within the place."""
    return [
        "reproduce", what, "--rows", row, *(f"--set={change}" for change in changes), "--device", "cpu",
        *(f"--{name}={place / name}" for name in ("results", "runs", "data")),
        *(f"--{name.replace('_', '-')}={value}" for name, value in EFFORT._asdict().items()), *more,
    ]  # fmt: skip


def again(place: Path, what: str = "main", *more: str, **changed_: Any) -> int:
    """One seed of one row, in this process."""
    return cli.main(arguments(place, what, "--seeds", "0", *more, **changed_))


def record(place: Path, name: str = RECORD) -> dict[str, Any]:
    return json.loads((place / "results" / name).read_text())


def rewrite(place: Path, without: str | None = None, **groups: dict[str, Any]) -> None:
    """The record with some values of its seed changed, and a group less."""
    table = record(place)
    for name, values in groups.items():
        table["seeds"][0][name].update(values)
    if without:
        del table["seeds"][0][without]
    (place / "results" / RECORD).write_text(json.dumps(table))


def lasting(table: Any) -> Any:
    """Without times: what two trainings with the same settings must agree on."""
    if isinstance(table, dict):
        return {name: lasting(value) for name, value in table.items() if "seconds" not in name}
    return [lasting(value) for value in table] if isinstance(table, list) else table


def files(*folders: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file, with when it was written."""
    paths = [path for there in folders for path in there.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in paths}


def only_line(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert line.startswith("gloronet: ")
    return line


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a row of the main table, made by the real command; not to be changed."""
    place = tmp_path_factory.mktemp("done")
    write_easy_mnist(place / "data" / "mnist")
    command = [sys.executable, "-m", "gloronet", *arguments(place, "main", "--seeds", "0")]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run(command, cwd=place, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert said.returncode == 0, said.stderr
    (place / "stdout").write_text(said.stdout)
    return place


@pytest.fixture
def mine(done: Path, tmp_path: Path) -> Path:
    """A copy to do with as one likes."""
    return Path(shutil.copytree(done, tmp_path / "mine"))


@pytest.fixture
def bare(done: Path, tmp_path: Path) -> Path:
    """Just the data."""
    shutil.copytree(done / "data", tmp_path / "bare" / "data")
    return tmp_path / "bare"


@pytest.fixture
def opened(mine: Path) -> Opened:
    run = mine / "runs" / RUN
    config, net, data = folder.open_run(run, mine / "data", "cpu")
    return Opened(run, config, net, data, mine / "data", "cpu", EFFORT)


# --- a row is completed ---


def test_a_row_is_trained_measured_recorded_and_shown(done: Path) -> None:
    table, config = record(done), to_dict(changed(presets.read(ROW), CHANGES))
    assert config["train"].pop("seed") == 0
    assert (table["row"], table["config"]) == (ROW, config)
    assert "held out" in table["chosen"]
    (seed,) = table["seeds"]
    assert set(seed) == {"seed", *PLANS["main"].groups}
    assert all({"version", "commit", "hardware"} <= set(seed[group]) for group in PLANS["main"].groups)
    assert seed["training"]["epochs"] == EPOCHS
    assert seed["training"]["seconds"] > EPOCHS * 0.5 * seed["training"]["seconds_per_epoch"] > 0
    assert (done / "runs" / RUN / "model.safetensors").exists()
    said = (done / "stdout").read_text()
    assert f"| {100 * seed['accuracy']['vra']['real']:.2f} |" in said
    assert f"page: {done / 'results' / 'index.html'}" in said
    assert "1 seed" in (done / "results" / "tables.md").read_text()


def test_what_is_there_is_neither_trained_nor_measured_again(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(mine / "data")  # it needs no data either
    before = files(mine / "runs")
    made = (mine / "results" / RECORD).stat().st_mtime_ns
    page = (mine / "results" / "index.html").stat().st_mtime_ns
    assert again(mine) == 0
    assert capsys.readouterr().err == f"{ROW}, seed 0: there already\n"
    assert files(mine / "runs") == before
    assert (mine / "results" / RECORD).stat().st_mtime_ns == made
    assert (mine / "results" / "index.html").stat().st_mtime_ns > page
    shutil.rmtree(mine / "runs")
    assert again(mine) == 0
    assert not (mine / "runs").exists()


def test_a_stopped_training_goes_on_to_the_weights_of_one_that_never_stopped(
    done: Path, bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, metrics = Path("runs") / RUN / "model.safetensors", bare / "runs" / RUN / "metrics.jsonl"
    with monkeypatch.context() as patch:
        patch.setattr(verbs, "progress_on", lambda _: InterruptAt(4.5))
        assert again(bare) == 130
    assert f"4 of {EPOCHS} epochs are saved" in capsys.readouterr().err
    assert not (bare / model).exists()
    assert not (bare / "results").exists()
    begun = metrics.read_text()
    assert begun.count("\n") == 4
    assert again(bare) == 0
    assert metrics.read_text().startswith(begun)  # their seconds too: these epochs were not trained again
    said = capsys.readouterr().err
    assert f"{RUN}: resuming" in said
    assert f"{RUN}: training" not in said
    assert (bare / model).read_bytes() == (done / model).read_bytes()
    assert lasting(record(bare)) == lasting(record(done))


def test_a_finished_run_without_a_record_is_measured_and_not_trained(done: Path, mine: Path) -> None:
    shutil.rmtree(mine / "results")
    weights = files(mine / "runs")[mine / "runs" / RUN / "model.safetensors"]
    assert again(mine) == 0
    assert record(mine) == record(done)  # its seconds too: they are the run's own
    assert files(mine / "runs")[mine / "runs" / RUN / "model.safetensors"] == weights


def test_a_missing_group_is_all_that_is_measured(done: Path, mine: Path) -> None:
    rewrite(mine, without="attack", accuracy={"clean": 0.123})
    assert again(mine) == 0
    (seed,), (whole,) = record(mine)["seeds"], record(done)["seeds"]
    assert seed["accuracy"] == {**whole["accuracy"], "clean": 0.123}
    assert {**seed, "accuracy": None} == {**whole, "accuracy": None}


def test_what_was_measured_on_a_run_that_is_gone_is_measured_anew(done: Path, mine: Path) -> None:
    shutil.rmtree(mine / "runs")
    rewrite(mine, without="attack", accuracy={"clean": 0.123})
    assert again(mine) == 0
    assert lasting(record(mine)) == lasting(record(done))
    trained = [record(place)["seeds"][0]["training"]["seconds"] for place in (mine, done)]
    assert trained[0] != trained[1]


def test_a_record_of_another_training_never_mixes_with_this_one(
    done: Path, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the run was trained anew and its measuring was stopped: the run is there, but not the one recorded."""
    rewrite(mine, without="attack", training={"seconds": 1.5}, accuracy={"clean": 0.123})

    def stop(_: Opened) -> dict[str, Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(GROUPS, "accuracy", stop)
        assert again(mine) == 130
    (seed,) = record(mine)["seeds"]
    assert "accuracy" not in seed
    assert seed["training"] == record(done)["seeds"][0]["training"]
    assert again(mine) == 0
    assert record(mine) == record(done)


def test_a_net_of_the_zoo_is_measured_and_not_trained(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(bare, "main", "--seeds", "2", changes=())) == 0
    said = capsys.readouterr().err
    run = bare / "runs" / RUN.replace("seed0", "seed2")
    assert f"{run.name}: from the zoo" in said
    assert "training" not in said.replace("seed 2: training", "")
    (seed,) = record(bare)["seeds"]
    claimed = zoo.claims("mnist-0.3")
    assert {**seed["training"], "hardware": None} == {**claimed["trained"], "hardware": None}
    assert seed["accuracy"]["digest"] == gn.load("zoo:mnist-0.3").bound().digest
    assert cli.main(arguments(bare, "cost", "--seeds", "2", changes=())) == 0
    again_ = record(bare)["seeds"][0]
    assert {name: again_[name] for name in seed} == seed
    assert again_["cost"]["certify_seconds"] > 0


def test_tables_that_share_a_run_add_to_one_record(done: Path, mine: Path) -> None:
    weights = files(mine / "runs")[mine / "runs" / RUN / "model.safetensors"]
    assert again(mine, "cost") == 0
    assert again(mine, "lipschitz") == 0
    (seed,), (before,) = record(mine)["seeds"], record(done)["seeds"]
    assert {name: seed[name] for name in before} == before
    assert set(seed) - set(before) == {"cost", "lipschitz"}
    assert files(mine / "runs")[mine / "runs" / RUN / "model.safetensors"] == weights
    bound = json.loads((mine / "runs" / RUN / "bound.json").read_text())
    found = seed["lipschitz"]
    assert found["upper"] == max(map(max, bound["margins"]))
    assert 0 < found["lower_local"] <= found["upper"]
    assert 0 < found["lower_global"] <= found["upper"]
    assert (found["global_steps"], found["local_steps"]) == (EFFORT.global_steps, EFFORT.local_steps)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_epochs_are_timed_though_the_last_batch_is_short(opened: Opened) -> None:
    """A batch size is captured when it has come a few times: the short one comes once an epoch."""
    train = dataclasses.replace(opened.config.train, batch_size=50)
    assert len(opened.data.train_x) % 50
    found = columns.cost(opened._replace(
        net=opened.net.to("cuda"), device="cuda", config=dataclasses.replace(opened.config, train=train)
    ))  # fmt: skip
    assert found["seconds_per_epoch"] > 0
    assert found["memory_per_instance"] > 0


def test_each_seed_has_a_run_and_a_place_of_its_own(done: Path, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(mine, "main", "--seeds", "1", "0")) == 0
    assert f"{ROW}, seed 0: there already" in capsys.readouterr().err
    first, second = record(mine)["seeds"]
    assert first == record(done)["seeds"][0]
    assert second["seed"] == 1
    assert first["accuracy"]["digest"] != second["accuracy"]["digest"]
    assert {path.name for path in (mine / "runs").iterdir()} == {RUN, RUN.replace("seed0", "seed1")}
    (average,) = record(mine, "averaged-mnist-0.3.json")["seeds"]
    assert average["accuracy"]["of"]["seeds"] == [0, 1]
    assert 0 < average["accuracy"]["vra"]["real"] < average["accuracy"]["clean"] <= 1
    before = files(mine / "runs"), files(mine / "results")[mine / "results" / "averaged-mnist-0.3.json"]
    assert cli.main(arguments(mine, "main", "--seeds", "0", "1")) == 0
    assert (files(mine / "runs"), files(mine / "results")[mine / "results" / "averaged-mnist-0.3.json"]) == before


def test_the_row_of_randomized_smoothing(bare: Path) -> None:
    row, changes = "smoothing/mnist-0.3", (*CHANGES, "train.lr=0.02")
    assert again(bare, row=row, changes=changes) == 0
    (seed,) = record(bare, "smoothing-mnist-0.3.json")["seeds"]
    assert set(seed) == {"seed", *PLANS["main"].groups, "smoothing"}
    found = seed["smoothing"]
    assert found["stochastic"] is True
    assert (found["samples"], found["n"], found["sigma"]) == (EFFORT.smoothed, EFFORT.noisy, 0.25)
    assert 0 < found["vra"] <= found["clean"] <= 1
    assert "rows" not in found
    assert again(bare, "cost", row="standard/mnist-0.3", changes=("train.epochs=1",)) == 0
    assert set(record(bare, "standard-mnist-0.3.json")["seeds"][0]) == {"seed", "training", "cost"}


KEEPER = """
import pathlib, sys, time
from gloronet import presets
from gloronet.config import changed
from gloronet.reproduce import runner
path, seed = pathlib.Path(sys.argv[1]), sys.argv[2]
config = changed(presets.read("tuned/mnist-0.3"), [f"train.seed={seed}"])
(path.parent / f"ready{seed}").touch()
while len(list(path.parent.glob("ready*"))) < 2:
    time.sleep(0.001)
for k in range(100):
    runner.keep(path, "tuned/mnist-0.3", config, {f"group{k}": {"number": k}})
"""


def test_two_processes_that_keep_their_seeds_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / RECORD
    work = [subprocess.Popen([sys.executable, "-c", KEEPER, str(path), seed]) for seed in "01"]
    try:
        assert [process.wait(timeout=60) for process in work] == [0, 0]
    finally:
        for process in work:
            process.kill()
            process.wait()
    groups = {f"group{k}": {"number": k} for k in range(100)}
    assert json.loads(path.read_text())["seeds"] == [{"seed": seed, **groups} for seed in (0, 1)]


# --- what is refused, in one line, with everything left as it was ---


def test_a_record_of_other_settings_is_refused(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(mine)
    for change in ("train.lr=0.5", "epsilon=0.25", "model.init=glorot"):
        assert again(mine, changes=(*CHANGES, change)) == 2
        assert f"{RECORD} is about other settings" in only_line(capsys)
    assert files(mine) == before


DAMAGED = {
    "empty": "",
    "truncated": '{"row": "tuned/mnist-0.3", "config": {"eps',
    "not text": "\udcff\udcfe",
    "a list": "[]",
    "a number": "3",
    "no seeds": '{"config": {}}',
    "no config": '{"seeds": []}',
    "seeds a number": '{"config": {}, "seeds": 3}',
    "seeds an empty object": '{"config": {}, "seeds": {}}',
    "seeds an object": '{"config": {}, "seeds": {"seed": 0}}',
    "a seed that is a word": '{"config": {}, "seeds": ["seed"]}',
    "a seed that is null": '{"config": {}, "seeds": [null]}',
    "a seed without its number": '{"config": {}, "seeds": [{"accuracy": {}}]}',
    "a seed that is not a number": '{"config": {}, "seeds": [{"seed": "zero"}]}',
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_record_is_refused(case: str, mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (mine / "results" / RECORD).write_bytes(DAMAGED[case].encode("utf-8", "surrogateescape"))
    before = files(mine)
    assert again(mine) == 2
    assert f"{RECORD} is not a record; move it away" in only_line(capsys)
    assert files(mine) == before


@pytest.mark.parametrize("state", ["finished", "stopped", "begun"])
def test_a_run_with_other_settings_is_neither_used_nor_resumed(
    state: str, mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = mine / "runs" / RUN
    shutil.rmtree(mine / "results")
    if state != "finished":
        (run / "model.safetensors").unlink()
    if state == "begun":
        shutil.rmtree(run / "checkpoint")
    before = files(mine)
    assert again(mine, changes=(*CHANGES, f"train.epochs={EPOCHS + 2}")) == 2
    assert f"{RUN} holds a run with other settings" in only_line(capsys)
    assert files(mine) == before


REFUSED = {
    "unknown row": (("main",), {"row": "tuned/minst"}, "No row of this table is called 'tuned/minst'"),
    "row of another table": (("relu",), {}, f"No row of this table is called '{ROW}'"),
    "unknown table": (("maine",), {}, "invalid choice"),
    "negative seed": (("main", "--seeds", "-1"), {}, "whole number of at least 0"),
    "no attack": (("main", "--steps", "0"), {}, "whole number of at least 1"),
    "seed among the settings": (("main",), {"changes": ("train.seed=1",)}, "--seeds"),
    "unknown setting": (("main",), {"changes": ("train.epoch=1",)}, "unknown setting train.epoch"),
    "two presets": ((TIGHTNESS, "--rows", "mnist", "digits"), {}, "takes one preset"),
    "seeds of a preset": ((TIGHTNESS, "--seeds", "1"), {"row": "mnist"}, "takes one preset"),
    "unknown preset": ((TIGHTNESS,), {"row": "minst"}, "did you mean mnist?"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_argument_is_one_clear_line(case: str, bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (what, *more), options, expected = REFUSED[case]
    before = files(bare)
    try:
        code = cli.main(arguments(bare, what, *more, **options))
    except SystemExit as stop:
        code = stop.code  # type: ignore[assignment]
    (line,) = capsys.readouterr().err.strip().split("\n")
    assert code == 2
    assert expected in line
    assert files(bare) == before


def test_an_unknown_table_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"There is no table 'mane'; there are main, relu, "):
        reproduce("mane", results=tmp_path / "results", runs=tmp_path / "runs")
    assert not list(tmp_path.iterdir())


def test_rows_without_their_data_are_left_out_and_that_is_said(
    mine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(mine / "runs")
    assert again(mine, "main", "--rows", "tuned/mnist-0.3", "tuned/cifar10", "tuned/tiny-imagenet") == 0
    announced, here, *lines = capsys.readouterr().err.strip().split("\n")
    assert announced.startswith("2 are not in ")
    assert announced.endswith(": tuned/cifar10 (seed 0), tuned/tiny-imagenet (seed 0)")
    assert here == f"{ROW}, seed 0: there already"
    left_out = [line for line in lines if "left out" in line]
    for line, name in zip(left_out, ("cifar10", "tiny-imagenet"), strict=True):
        assert line.startswith(f"tuned/{name} is left out: {name} is not here")
        assert f"gloronet data fetch {name}" in line
    assert files(mine / "runs") == before
    assert [path.name for path in (mine / "results").glob("*.json")] == [RECORD]


# --- the columns ---


def test_accuracy_is_what_the_run_was_certified_to(done: Path) -> None:
    found = record(done)["seeds"][0]["accuracy"]
    summary = json.loads((done / "runs" / RUN / "summary.json").read_text())  # as verbs.certify wrote it
    assert 0 < summary["vra"] < summary["clean"] < 1  # or the laws below would say little
    assert found["vra"] == summary["vra_by_semantics"]
    assert found["vra"]["real"] == summary["vra"]
    assert {name: found[name] for name in ("clean", "mean_radius", "digest")} == {
        name: summary[name] for name in ("clean", "mean_radius", "digest")
    }
    assert found["vra"]["float32"] <= found["vra"]["real"] <= found["vra_paper_protocol"]
    assert set(found["vra"]) == {"real", "float32"}  # an estimate is not among the bounds
    assert found["disjoint_ball_gap"] >= 0


def test_the_curve_falls_from_clean_accuracy_through_the_vra(done: Path) -> None:
    found = record(done)["seeds"][0]["accuracy"]
    radius, certified = found["curve"]["radius"], found["curve"]["certified"]
    assert len(radius) == len(certified)
    assert all(a < b for a, b in pairwise(radius))
    assert all(a >= b for a, b in pairwise(certified))
    assert (radius[0], certified[0]) == (0, found["clean"])
    (at,) = [k for k, r in enumerate(radius) if r == pytest.approx(0.3)]
    assert certified[at] == found["vra"]["real"]
    assert certified[-1] < found["vra"]["real"]
    area = np.trapezoid(certified, radius)  # of the whole curve it is the mean radius
    assert 0 < area <= found["mean_radius"] * 1.05


def test_at_radius_0_the_curve_counts_what_is_right_without_any_radius(opened: Opened) -> None:
    """All logits are 0: the first class is answered, right for a tenth, and proved for none."""
    with torch.no_grad():
        for parameter in list(opened.net.parameters())[-2:]:
            parameter.zero_()
    found = columns.accuracy(opened)
    assert found["curve"]["certified"][0] == found["clean"] == pytest.approx(0.1)
    assert found["curve"]["certified"][1] == found["vra"]["real"] == found["mean_radius"] == 0


def test_an_epsilon_the_paper_rounds_has_the_rounded_one_as_well(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {data.epsilon: data.printed for data in paper.DATA if data.printed} == columns.WRITTEN
    assert columns.accuracy(opened)["vra_at"] == {}
    monkeypatch.setattr(columns, "WRITTEN", {"0.3": "0.1"})
    found = columns.accuracy(opened)
    there = certify_set(opened.net, opened.data.test_x, opened.data.test_y, "0.1").vra
    assert found["vra_at"] == {"0.1": there}
    assert there > found["vra"]["real"]


def test_attacks_leave_right_what_is_certified(done: Path) -> None:
    found = record(done)["seeds"][0]["attack"]
    clean = record(done)["seeds"][0]["accuracy"]["clean"]
    assert (found["samples"], found["steps"], found["restarts"]) == (EFFORT.attacked, EFFORT.steps, EFFORT.restarts)
    assert 0 < found["vra_of_these"] <= found["pgd"] < min(1.0, clean + 0.2)
    if attacks.art_is_here():
        assert found["vra_of_these"] <= found["pgd_art"] < 1
    else:
        assert found["pgd_art"] is None


def test_evenly_spaced_samples_are_attacked(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, pgd = [], attacks.pgd

    def watched(logits: Any, x: torch.Tensor, *rest: Any, **options: Any) -> attacks.Attack:
        seen.append(x)
        return pgd(logits, x, *rest, **options)

    monkeypatch.setattr(attacks, "pgd", watched)
    columns.attack(opened)
    assert torch.equal(torch.cat(seen), opened.data.test_x[::2] / 255)  # 20 of 40


@given(st.integers(1, 500), st.integers(0, 600))
def test_evenly_means_evenly(total: int, count: int) -> None:
    index = evenly(total, count).tolist()
    assert len(index) == (min(count, total) or total)
    assert index[0] == 0
    gaps = {b - a for a, b in pairwise([*index, total])}
    assert max(gaps) - min(gaps) <= 1
    assert min(gaps) >= 1


@pytest.mark.parametrize("by", ["pgd", "pgd_art"])
def test_one_broken_certificate_is_enough_to_stop(by: str, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though far more withstand the attack than are certified."""
    if by == "pgd_art" and not attacks.art_is_here():
        pytest.skip("the extra [attack] is not installed")
    net, (x, y) = opened.net, (opened.data.test_x[::2], opened.data.test_y[::2])
    table = certify_set(net, x, y)
    proved = torch.from_numpy(table.right & table.certified).nonzero()
    honest = getattr(attacks, by)

    def claims(*arguments: Any, **options: Any) -> attacks.Attack:
        found = honest(*arguments, **options)
        success = torch.zeros_like(found.success)
        success[proved[0]] = True
        return dataclasses.replace(found, success=success)

    monkeypatch.setattr(attacks, by, claims)
    with pytest.raises(GloroError, match=rf"{by} broke what is certified, test sample {2 * int(proved[0])}\b"):
        columns.attack(opened)


def test_without_art_its_column_is_empty(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attacks, "art_is_here", lambda: False)
    found = columns.attack(opened)
    assert found["pgd_art"] is None
    assert found["pgd"] >= found["vra_of_these"]


def test_what_a_cpu_cannot_measure_is_none_and_the_run_stays_as_it_was(opened: Opened) -> None:
    before = files(opened.run)
    found = columns.cost(opened)
    assert found["memory_per_instance"] is None
    assert found["certify_memory_per_instance"] is None
    assert found["certify_seconds"] > 0
    assert found["seconds_per_epoch"] > 0
    assert files(opened.run) == before
    weights = load_file(opened.run / "model.safetensors")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in opened.net.state_dict().items())


# --- bounds against power iterations ---


def test_tightness_is_measured_once_for_each_number_of_iterations(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes: list[str] = []
    bench = Bench(bare / "results", bare / "runs", notes.append, EFFORT, "cpu", bare / "data", CHANGES)
    path = bare / "results" / f"{TIGHTNESS}.json"
    bench.tightness("mnist", (5,))
    (five,) = json.loads(path.read_text())["rows"]
    with monkeypatch.context() as patch:
        patch.setattr(verbs, "progress_on", lambda _: InterruptAt(2.5))
        with pytest.raises(KeyboardInterrupt):
            bench.tightness("mnist", (1, 5))
    assert json.loads(path.read_text())["rows"] == [five]
    notes.clear()
    bench.tightness("mnist", (1, 5))
    assert notes == [
        "mnist-iterations1: resuming",
        "mnist, 1 iterations: measuring",
        "mnist, 5 iterations: there already",
    ]
    one, same = json.loads(path.read_text())["rows"]
    assert same == five
    assert (one["power_iterations"], five["power_iterations"]) == (1, 5)
    for row, iterations in ((one, 1), (five, 5)):
        assert 0 < row["lower_global"] <= row["upper"]
        assert 0 <= row["vra"] <= row["vra_estimate"] <= 1
        assert row["seconds_per_epoch"] > 0
        config = (bare / "runs" / f"mnist-iterations{iterations}" / "config.toml").read_text()
        assert f"power_iterations = {iterations}\n" in config
    capsys.readouterr()
    before = files(bare)
    for options in ({"row": "mnist", "changes": (*CHANGES, "train.lr=0.5")}, {"row": ROW}):
        assert cli.main(arguments(bare, TIGHTNESS, **options)) == 2
        assert f"{TIGHTNESS}.json is about other settings" in only_line(capsys)
    assert files(bare) == before
    table = json.loads(path.read_text())
    table["rows"] = [{**five, "power_iterations": count} for count in (1, 2, 5, 10)]
    path.write_text(json.dumps(table))
    assert cli.main(arguments(bare, TIGHTNESS, row="mnist")) == 0
    said = capsys.readouterr()
    assert said.err.count("there already") == 4
    assert f"{five['upper']:.2f}" in said.out


# --- which rows there are ---

NOT_RUN = {"smoothing/tiny-imagenet", "lmt/mnist-0.3", "lmt/tiny-imagenet"}
NOT_RUN |= {f"authors-relu-ce/{data}" for data in ("mnist-0.3", "mnist-1.58", "tiny-imagenet")}
NOT_RUN |= {f"authors-minmax/{data}" for data in ("cifar10", "tiny-imagenet")}
"""Rows that a plan could have and that have no preset, on purpose: the paper has no LMT there, and the authors' code
does what they print, or is not known."""


@pytest.mark.parametrize("what", PLANS)
def test_every_row_of_a_plan_is_a_preset(what: str) -> None:
    plan = PLANS[what]
    rows = runner.rows_of(plan, ())
    every = {f"{family}/{data.slug}" for family in plan.families for data in paper.DATA}
    assert len(set(rows)) == len(rows)
    assert every - set(rows) == every & NOT_RUN
    assert set(rows) <= set(presets.names())
    assert plan.groups[0] == "training"  # by which a record is known to be about the run
    assert set(plan.groups) <= set(GROUPS)


def test_every_family_of_presets_is_in_a_table() -> None:
    planned = {family for plan in PLANS.values() for family in plan.families}
    known = {name.partition("/")[0] for name in presets.names() if "/" in name}
    assert known <= planned
    assert set(runner.SEEDS) | set(runner.CHOSEN) <= planned | {"averaged"}
    assert TIGHTNESS_ROW in presets.names()


@given(st.sampled_from(sorted(PLANS)), st.lists(st.sampled_from(["standard/*", "*/cifar10", "*mnist*", "*"])))
def test_patterns_choose_rows_and_keep_their_order(what: str, patterns: list[str]) -> None:
    plan = PLANS[what]
    if what == "relu":
        patterns = [pattern for pattern in patterns if pattern != "standard/*"]
    every, chosen = runner.rows_of(plan, ()), runner.rows_of(plan, patterns)
    alone = [set(runner.rows_of(plan, [pattern])) for pattern in patterns] or [set(every)]
    assert chosen == [row for row in every if row in set.union(*alone)]
    order = [data.slug for data in paper.DATA]
    places = [order.index(row.partition("/")[2]) for row in every]
    assert places == sorted(places)


def test_the_command_line_offers_every_table_and_the_papers_effort() -> None:
    assert {*PLANS, TIGHTNESS} == set(TABLES)
    for what in TABLES:
        values = vars(cli._parser().parse_args(["reproduce", what]))
        assert Effort(**{name: values[name] for name in Effort._fields}) == Effort()
        assert (values["rows"], values["seeds"], values["changes"]) == ([], None, [])


def test_help_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main(["reproduce", "--help"])
    assert stop.value.code == 0
    assert "example:\n  gloronet reproduce main" in capsys.readouterr().out
