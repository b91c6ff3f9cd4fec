"""The command line as a user meets it: real processes, real folders, one clear line for a mistake."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gloronet as gn
from gloronet import cli, verbs

QUICK = ("--set", "train.epochs=4", "--attack", "20")


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "gloronet", *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120, check=False)


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as f:
        return list(csv.DictReader(f))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short digits run, made by the real command."""
    there = tmp_path_factory.mktemp("cli")
    done = run("train", "--out", "digits", *QUICK, cwd=there)
    assert done.returncode == 0, done.stderr
    return there


def test_train_leaves_a_whole_run_folder(folder: Path) -> None:
    names = {path.name for path in (folder / "digits").iterdir()}
    assert names == {
        "config.toml", "model.safetensors", "checkpoint", "metrics.jsonl", "bound.json", "certificates.csv",
        "attacks.csv", "attacks_minimal.csv", "gallery.npz", "summary.json", "figures", "report.html",
    }  # fmt: skip
    rows = table(folder / "digits" / "certificates.csv")
    summary = json.loads((folder / "digits" / "summary.json").read_text())
    assert len(rows) == 360 == summary["samples"]
    vra = sum(r["label"] == r["prediction"] and r["certified"] == "1" for r in rows) / 360
    assert summary["vra"] == pytest.approx(vra)
    assert all((float(r["radius"]) > 0.3) == (r["certified"] == "1") for r in rows)
    assert all((r["prediction"] == "-1") == (r["certified"] == "0") for r in rows)


def test_certify_prints_the_table_and_another_epsilon_certifies_more(folder: Path) -> None:
    before = json.loads((folder / "digits" / "summary.json").read_text())
    assert run("certify", "digits", "--epsilon", "1/1000", cwd=folder).returncode == 0
    after = json.loads((folder / "digits" / "summary.json").read_text())
    assert after["vra"] >= before["vra"]
    assert after["epsilon"] >= 0.001
    assert after["clean"] == before["clean"]
    done = run("certify", "digits", cwd=folder)
    assert "VRA at ε = 0.3" in done.stdout
    assert "report: digits/report.html" in done.stdout
    assert json.loads((folder / "digits" / "summary.json").read_text())["vra"] == before["vra"]


def test_attack_needs_certificates_and_never_beats_them(folder: Path) -> None:
    done = run(
        "attack", "digits", "--samples", "30", "--restarts", "2", "--steps", "10", "--no-clip", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    certificates = table(folder / "digits" / "certificates.csv")
    proved = {r["index"] for r in certificates if r["certified"] == "1" and r["label"] == r["answer"]}
    rows = table(folder / "digits" / "attacks.csv")
    assert len(rows) == 30
    assert not [r for r in rows if r["success"] == "1" and r["index"] in proved]


@pytest.mark.skipif(importlib.util.find_spec("art") is None, reason="the extra [attack] is not installed")
def test_arts_attack_has_a_file_and_a_number_of_its_own(folder: Path) -> None:
    summary = folder / "digits" / "summary.json"
    ours, attacked = json.loads(summary.read_text())["pgd"], (folder / "digits" / "attacks.csv").read_bytes()
    options = ("--samples", "30", "--restarts", "1", "--steps", "5")
    done = run("attack", "digits", "--with", "art", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "ART's PGD left" in done.stdout
    assert (folder / "digits" / "attacks.csv").read_bytes() == attacked
    certificates = table(folder / "digits" / "certificates.csv")
    proved = {r["index"] for r in certificates if r["certified"] == "1" and r["label"] == r["answer"]}
    rows = table(folder / "digits" / "attacks_art.csv")
    assert len(rows) == 30
    assert not [r for r in rows if r["success"] == "1" and r["index"] in proved]
    found = json.loads(summary.read_text())
    assert found["pgd"] == ours
    assert found["pgd_art"] == pytest.approx(1 - sum(r["success"] == "1" for r in rows) / 30)
    keys = ("pgd_art_samples", "pgd_art_steps", "pgd_art_restarts", "pgd_art_clip")
    assert [found[key] for key in keys] == [30, 5, 1, True]
    assert found["seconds"]["attack_art"] > 0


def test_certifying_again_keeps_what_is_still_true(folder: Path) -> None:
    assert (
        run("attack", "digits", "--samples", "10", "--restarts", "1", "--steps", "5", cwd=folder).returncode
        == 0
    )
    attacked = (folder / "digits" / "attacks.csv").read_bytes()
    done = run("certify", "digits", "--proof", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "digits" / "attacks.csv").read_bytes() == attacked
    assert "pgd" in json.loads((folder / "digits" / "summary.json").read_text())
    files = [f"digits/{name}" for name in ("proof.json", "model.safetensors", "inputs.npz")]
    assert run("check", *files, cwd=folder).returncode == 0
    weights = bytearray((folder / files[1]).read_bytes())
    weights[-1] ^= 1
    (folder / "bent.safetensors").write_bytes(weights)
    bent = run("check", files[0], "bent.safetensors", files[2], cwd=folder)
    assert bent.returncode == 1
    assert "REJECTED" in bent.stdout
    assert run("certify", "digits", "--epsilon", "0.2", cwd=folder).returncode == 0
    assert not list((folder / "digits").glob("attacks*.csv"))
    assert not (folder / "digits" / "proof.json").exists()
    assert not [k for k in json.loads((folder / "digits" / "summary.json").read_text()) if k.startswith("pgd")]
    assert run("certify", "digits", cwd=folder).returncode == 0


def test_relaxed_certificates_stand_beside_the_plain_ones(folder: Path) -> None:
    there = folder / "digits"
    # bound.json has estimates too, whose last digits depend on the threads.
    kept = [path for path in there.rglob("*") if path.is_file() and path.name != "bound.json"]
    before = {path: path.read_bytes() for path in kept}
    done = run("certify", "digits", "--top", "3", "--affinity", "3,5; 4,9", cwd=folder)
    assert done.returncode == 0, done.stderr
    names = ("certificates-top3.csv", "certificates-affinity.csv")
    assert {path for path in there.rglob("*") if path.is_file()} - before.keys() - {there / "bound.json"} == {
        there / name for name in names
    }
    assert all(path.read_bytes() == content for path, content in before.items())
    plain = table(there / "certificates.csv")
    vra = {"plain": json.loads((there / "summary.json").read_text())["vra"]}
    for name in names:
        rows = table(there / name)
        hits = [r["label"] in r["prediction"].split() for r in rows]
        vra[name.removeprefix("certificates-").removesuffix(".csv")] = sum(hits) / 360
        for r, p in zip(rows, plain, strict=True):
            assert p["certified"] == "0" or r["prediction"] == p["prediction"]
            assert float(r["radius"]) >= float(p["radius"])
        assert {r["epsilon"] for r in rows} == {"0.30000000000000004"}
    assert vra["top3"] >= vra["plain"] <= vra["affinity"]
    assert all(re.search(rf"{name}\W+{share:.2%}", done.stdout) for name, share in vra.items())
    assert run("certify", "digits", "--epsilon", "0.2", cwd=folder).returncode == 0
    assert not list(there.glob("certificates-*.csv"))  # of another ε
    assert run("certify", "digits", cwd=folder).returncode == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--top", "10"), "below the number of classes, 10, not 10"),
        (("--top", "0"), "at least 1, not '0'"),
        (("--affinity", "3,cat"), "no class 'cat'; its classes are 0, 1, 2"),
        (("--affinity", "3,;4"), "such as 3,5;4,9, not '3,;4'"),
        (("--top", "2", "--proof"), "leave out --proof"),
        (("--top", "2", "--epsilon", "-1"), "epsilon must be"),
    ],
)
def test_mistakes_about_relaxed_certificates(
    folder: Path, options: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted((folder / "digits").iterdir())
    try:
        code = cli.main(["certify", str(folder / "digits"), *options])
    except SystemExit as e:
        code = e.code
    error = capsys.readouterr().err
    assert code == 2
    assert said in error
    assert error.count("\n") == 1
    assert sorted((folder / "digits").iterdir()) == before


def test_a_damaged_gallery_is_one_clear_line_and_certifying_mends_it(folder: Path) -> None:
    there = folder / "digits" / "gallery.npz"
    there.write_bytes(there.read_bytes()[:100])
    done = run("attack", "digits", "--samples", "5", "--restarts", "1", "--steps", "2", cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "gallery.npz is missing or damaged" in done.stderr
    there.unlink()
    assert run("certify", "digits", cwd=folder).returncode == 0
    assert there.exists()


def test_lipschitz_shows_every_layer(folder: Path) -> None:
    done = run("lipschitz", "digits", cwd=folder)
    assert done.returncode == 0
    assert "costs the most" in done.stdout
    assert done.stdout.count("dense") == 3


def test_lipschitz_lower_puts_every_constant_in_its_place(folder: Path) -> None:
    there = folder / "digits"
    done = run("lipschitz", "digits", "--lower", "--steps", "20", "--local-steps", "10", cwd=folder)
    assert done.returncode == 0, done.stderr
    names = ("global upper bound", "global lower bound", "local lower bound", "as the paper counts")
    assert all(name in done.stdout for name in names)
    found = verbs.tightness(there, global_steps=20, local_steps=10)
    assert 0 < found.lower <= found.upper
    assert 0 < found.local <= found.upper
    assert f"{found.lower:.4f}" in done.stdout
    assert f"{found.local:.4f}" in done.stdout
    bound, paper, converged, lower = verbs.headroom(there, steps=20)
    assert lower[1] <= converged[1] <= bound[1] == found.upper
    assert paper[1] <= bound[1] * (1 + 1e-6)
    assert lower[2] >= converged[2] >= bound[2]
    assert paper[2] >= bound[2] - 1e-9


def test_a_run_folder_is_never_overwritten(folder: Path) -> None:
    before = (folder / "digits" / "model.safetensors").read_bytes()
    done = run("train", "--out", "digits", *QUICK, cwd=folder)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "--resume" in done.stderr
    assert (folder / "digits" / "model.safetensors").read_bytes() == before


def test_without_out_each_run_gets_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = {"changes": ("train.epochs=1",), "attacked": 0}
    first, second = verbs.train(**quick), verbs.train(**quick)
    assert (str(first), str(second)) == ("runs/digits", "runs/digits-2")


def test_ctrl_c_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gloronet", "train", "--out", "r", "--set", "train.epochs=5000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        metrics = tmp_path / "r" / "metrics.jsonl"
        deadline = time.monotonic() + 60
        while not (metrics.exists() and metrics.read_text().count("\n") > 3) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "go on with: gloronet train --resume r" in errors
    done = run("certify", "r", cwd=tmp_path)
    assert done.returncode == 2
    assert "gloronet train --resume r" in done.stderr


BAD = {
    "no verb": ((), "required"),
    "unknown verb": (("frobnicate",), "invalid choice"),
    "unknown preset": (("train", "digit"), "did you mean digits?"),
    "unknown setting": (("train", "--set", "train.epoch=3"), "unknown setting train.epoch"),
    "no value": (("train", "--set", "train.epochs"), "KEY=VALUE"),
    "wrong type": (("train", "--set", "train.epochs=many"), "train.epochs must be"),
    "negative epsilon": (("train", "--set", "epsilon=-1"), "epsilon must be a finite number"),
    "huge epsilon": (("train", "--set", "epsilon=1e99999999"), "epsilon must be a finite number"),
    "bad architecture": (("train", "--set", "model.architecture=d(64).q(3).d(10)"), "q(3)"),
    "missing config": (("train", "nowhere.toml"), "no config file nowhere.toml"),
    "missing run": (("certify", "nowhere"), "nowhere holds no model.safetensors"),
    "bad device": (("train", "--device", "abacus"), "abacus"),
    "bad count": (("train", "--attack", "-3"), "whole number"),
    "zero restarts": (("attack", "r", "--restarts", "0"), "whole number of at least 1"),
    "unknown attacker": (("attack", "r", "--with", "luck"), "invalid choice"),
    "unknown data": (("train", "--set", "data.name=minst"), "mnist"),
    "no such download": (("data", "fetch", "digits"), "digits"),
    "resume and recipe": (("train", "moons", "--resume", "r"), "--resume"),
    "no proof": (("check", "nope.json", "nope.safetensors"), "nope.json: No such file"),
    "a data set for a recipe": (("train", "npz:own.npz"), "--set data.name=npz:own.npz"),
    "resume nowhere": (("train", "--resume", "nowhere"), "nowhere"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_argument_gets_one_clear_line_and_exit_code_2(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments, expected = BAD[case]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLORONET_DATA", str(tmp_path / "data"))
    try:
        code = cli.main(arguments)
    except SystemExit as stop:
        code = stop.code
    lines = capsys.readouterr().err.strip().split("\n")
    assert code == 2
    assert len(lines) == 1, lines
    assert expected in lines[0]
    assert not list(tmp_path.rglob("*.toml"))


def test_a_run_that_cannot_be_written_to_is_exported_all_the_same(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "digits"
    shutil.copytree(folder / "digits", there)
    (there / "bound.json.part").mkdir()  # what it would write; a read-only disk needs rights that tests may not have
    before = (there / "bound.json").stat().st_mtime_ns
    assert run("export", "digits", "a.onnx", cwd=tmp_path).stderr.count("cannot be written") == 0
    assert (there / "bound.json").stat().st_mtime_ns == before
    (there / "bound.json").unlink()
    done = run("export", "digits", "b.onnx", cwd=tmp_path)
    assert done.returncode == 0
    assert "bound.json cannot be written" in done.stderr
    assert (tmp_path / "b.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()


def test_missing_data_says_how_to_get_it(tmp_path: Path) -> None:
    done = run("train", "mnist", cwd=tmp_path, GLORONET_DATA=str(tmp_path))
    assert done.returncode == 2
    assert "gloronet data fetch mnist" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_data_list_names_every_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(row.name in shown for row in gn.data.names())


def test_moons_draws_its_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = verbs.train("moons", changes=("train.epochs=3",), attacked=10)
    assert (out / "figures" / "regions.png").stat().st_size > 10_000
    assert (
        "Decision regions" in (out / "report.html").read_text()
        or "regions" in (out / "report.html").read_text()
    )


def test_a_linf_run_is_certified_and_not_attacked_in_the_wrong_norm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = ("norm=linf", "epsilon=0.01", "train.epochs=3")
    out = verbs.train("digits", changes=changes)
    assert (out / "certificates.csv").exists()
    assert not (out / "attacks.csv").exists()
    assert cli.main(["attack", str(out)]) == 2
    assert "l2" in capsys.readouterr().err
