"""Checkpoints survive any kill whole, resume bit for bit, and are refused when damaged or of another run."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gloronet import data, models
from gloronet.config import TrainConfig
from gloronet.data import Dataset
from gloronet.errors import ConfigError
from gloronet.net import GloRoNet
from gloronet.train import fit
from gloronet.train.checkpoint import (
    Checkpoint,
    load_tensors,
    read_checkpoint,
    write_atomically,
    write_checkpoint,
)

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

CONFIG = TrainConfig(epochs=2, batch_size=512, augmentation="crop-flip")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


def fresh(digits: Dataset) -> GloRoNet:
    torch.manual_seed(0)
    return GloRoNet(models.build("d(32).d(10)", digits.input_shape, 10), 0.3, digits.input_shape)


@pytest.fixture(scope="module")
def finished(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    fit(fresh(digits), digits, CONFIG, out=out, device="cpu")
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A finished run of two epochs, to be done with as one likes."""
    return Path(shutil.copytree(finished, tmp_path / "run"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def at(epoch: int) -> Checkpoint:
    tensors = {"net.w": torch.full((5, 3), epoch + 0.25), "rng.cpu": torch.arange(8, dtype=torch.uint8)}
    return Checkpoint(
        {"epochs": 9, "lr": 0.1}, [{"epoch": k + 1, "loss": 1 / 3} for k in range(epoch)], tensors
    )


def equal(a: Checkpoint, b: Checkpoint) -> bool:
    same_tensors = a.tensors.keys() == b.tensors.keys() and all(
        torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors
    )
    return same_tensors and (a.settings, a.history) == (b.settings, b.history)


def test_what_is_written_is_read_and_only_the_newest_stays(tmp_path: Path) -> None:
    for epoch in range(3):
        write_checkpoint(tmp_path, at(epoch))
        assert equal(read_checkpoint(tmp_path), at(epoch))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["epoch-000002.safetensors", "state.json"]


class _Killed(BaseException):
    pass


def test_a_kill_at_any_system_call_leaves_the_old_or_the_new_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that touches the disk is in turn the one before which the kill falls."""
    seen_old = seen_new = 0
    for fatal in range(100):
        folder = tmp_path / str(fatal)
        write_checkpoint(folder, at(1))
        countdown = fatal

        def dying(call: Callable[..., Any]) -> Callable[..., Any]:
            def wrapped(*args: Any, **kwargs: Any) -> Any:
                nonlocal countdown
                countdown -= 1
                if countdown == -1:
                    raise _Killed
                return call(*args, **kwargs)

            return wrapped

        with monkeypatch.context() as patch:
            for name in ("fsync", "replace", "open"):
                patch.setattr(os, name, dying(getattr(os, name)))
            for name in ("open", "unlink", "mkdir"):
                patch.setattr(Path, name, dying(getattr(Path, name)))
            try:
                write_checkpoint(folder, at(2))
                finished = True
            except _Killed:
                finished = False
        found = read_checkpoint(folder)
        assert equal(found, at(1)) or equal(found, at(2))
        seen_old, seen_new = seen_old + equal(found, at(1)), seen_new + equal(found, at(2))
        write_checkpoint(folder, at(3))  # and the debris does not stand in the way
        assert equal(read_checkpoint(folder), at(3))
        assert len(list(folder.iterdir())) == 2
        if finished:
            break
    assert finished
    assert seen_old >= 5
    assert seen_new >= 2


_KILLER = """
import os, sys, time
import torch
torch.set_num_threads(1)
from gloronet import data, models
from gloronet.config import TrainConfig
from gloronet.net import GloRoNet
from gloronet.train import fit, recorder

recorder.SECONDS_BETWEEN = 0.0  # a checkpoint each epoch: many kills fall while one is being written
digits = data.load("digits")
config = TrainConfig(epochs=40, batch_size=400, loss="trades-kl", lam="0.5,1.5,5", epsilon_schedule="log",
                     lr_schedule="cosine", augmentation="crop-flip", warmup_epochs=1)
torch.manual_seed(0)
net = GloRoNet(models.build("c(4,4,2).d(16).d(10)", digits.input_shape, 10), 0.3, digits.input_shape)

def train(out, kill_after=None):
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.makedirs(out, exist_ok=True)
        fit(net, digits, config, out=out, resume=True, device="cpu")
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, 9)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code, flush=True)
    return time.monotonic() - began

seconds = train(sys.argv[1])
for k in range(12):
    train(sys.argv[2], kill_after=seconds * (0.02 + 0.2 * (k * 0.6180339887 % 1)))
train(sys.argv[2])
"""


def test_a_run_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    script = [sys.executable, "-c", _KILLER, str(tmp_path / "whole"), str(tmp_path / "killed")]
    without_cuda = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}  # which does not survive a fork
    done = subprocess.run(script, capture_output=True, text=True, timeout=100, env=without_cuda)
    assert done.returncode == 0, done.stderr
    first, *codes, last = done.stdout.split()
    assert (first, last) == ("0", "0"), done.stderr
    assert codes.count("-9") >= 5
    assert set(codes) <= {"0", "-9"}, done.stderr

    found = []
    for out in (tmp_path / "whole", tmp_path / "killed"):
        assert sorted(path.name for path in out.rglob("*")) == [
            "checkpoint", "epoch-000040.safetensors", "metrics.jsonl", "state.json",
        ]  # fmt: skip
        history = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        assert [metrics.pop("epoch") for metrics in history] == list(range(1, 41))
        assert all(metrics.pop("seconds") > 0 for metrics in history)
        found.append(((out / "checkpoint" / "epoch-000040.safetensors").read_bytes(), history))
    assert found[0] == found[1]


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def other_json(path: Path) -> None:
    path.write_text("[1, 2]")


def later_format(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 2}))


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("epoch-000002.safetensors", truncate, "does not have the SHA-256"),
        ("epoch-000002.safetensors", flip, "does not have the SHA-256"),
        ("epoch-000002.safetensors", empty, "does not have the SHA-256"),
        ("epoch-000002.safetensors", Path.unlink, "epoch-000002.safetensors is missing"),
        ("state.json", truncate, "state.json is not as it was written"),
        ("state.json", empty, "state.json is not as it was written"),
        ("state.json", other_json, "state.json is not as it was written"),
        ("state.json", later_format, "has format 2, this gloronet reads 1"),
        ("state.json", Path.unlink, "There is no checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_nothing_is_touched(
    digits: Dataset, run: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    damage(run / "checkpoint" / name)
    before = contents(run)
    net = fresh(digits)
    with pytest.raises(ConfigError, match=message) as caught:
        fit(net, digits, CONFIG, out=run, resume=True, device="cpu")
    assert "\n" not in str(caught.value)
    assert contents(run) == before


def test_a_run_is_never_overwritten(digits: Dataset, run: Path, tmp_path: Path) -> None:
    before = contents(run)
    with pytest.raises(ConfigError, match=f"{run} is not empty: .*--resume {run}, or choose another folder"):
        fit(fresh(digits), digits, CONFIG, out=run, device="cpu")
    assert contents(run) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        fit(fresh(digits), digits, CONFIG, out=tmp_path / "file", device="cpu")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("meow")
    for resume in (False, True):
        with pytest.raises(ConfigError):
            fit(fresh(digits), digits, CONFIG, out=tmp_path / "photos", resume=resume, device="cpu")
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
    with pytest.raises(ConfigError, match=r"no run folder .* to resume"):
        fit(fresh(digits), digits, CONFIG, out=tmp_path / "typo", resume=True, device="cpu")
    assert not (tmp_path / "typo").exists()


def test_a_finished_run_resumes_to_itself(digits: Dataset, run: Path) -> None:
    before, net = contents(run), fresh(digits)
    history = fit(net, digits, CONFIG, out=run, resume=True, device="cpu")
    assert [metrics["epoch"] for metrics in history] == [1, 2]
    assert contents(run) == before
    kept = read_checkpoint(run / "checkpoint").tensors
    assert all(torch.equal(kept[f"net.{name}"], tensor) for name, tensor in net.state_dict().items())


def test_metrics_after_the_checkpoint_are_dropped(digits: Dataset, run: Path) -> None:
    path = run / "metrics.jsonl"
    good = path.read_text()
    path.write_text(good + '{"epoch": 3, "loss": 9}\n{"epoch": 4, "lo')
    fit(fresh(digits), digits, CONFIG, out=run, resume=True, device="cpu")
    assert path.read_text() == good


def test_resuming_with_other_settings_names_them(digits: Dataset, run: Path) -> None:
    other = dataclasses.replace(CONFIG, epochs=3, lr=0.5)
    with pytest.raises(
        ConfigError, match=r"started with epochs = 2, lr = 0.001 and .* epochs = 3, lr = 0.5;"
    ):
        fit(fresh(digits), digits, other, out=run, resume=True, device="cpu")
    net = GloRoNet(fresh(digits).module, 0.4, digits.input_shape)
    with pytest.raises(ConfigError, match=r"started with net.epsilon = 0.3 "):
        fit(net, digits, CONFIG, out=run, resume=True, device="cpu")
    with pytest.raises(ConfigError, match=r"started with data.examples = 1437 "):
        fit(fresh(digits), digits.holdout(100), CONFIG, out=run, resume=True, device="cpu")


def test_resuming_with_another_network_names_the_tensor(digits: Dataset, run: Path) -> None:
    wider = GloRoNet(models.build("d(64).d(10)", digits.input_shape, 10), 0.3, digits.input_shape)
    with pytest.raises(ConfigError, match="belongs to another network: "):
        fit(wider, digits, CONFIG, out=run, resume=True, device="cpu")


def test_tensors_must_match_the_module_exactly() -> None:
    module, source = nn.Linear(3, 2), Path("somewhere")
    good = {name: tensor + 1 for name, tensor in module.state_dict().items()}
    for bad, message in (
        ({"weight": good["weight"]}, "it has no tensor bias"),
        ({**good, "extra": good["bias"]}, "the network has no tensor extra"),
        ({**good, "bias": torch.zeros(4)}, r"bias is float32\[4\] in it but float32\[2\] in the network"),
        ({**good, "bias": good["bias"].double()}, r"bias is float64\[2\] in it but float32\[2\]"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_tensors(module, bad, source)
    load_tensors(module, good, source)
    assert torch.equal(module.weight, good["weight"])


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Cannot write "):
        write_atomically(tmp_path / "file" / "below", b"content")
