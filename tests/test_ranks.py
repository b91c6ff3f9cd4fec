"""Several processes train as one would: the same steps, one writer, one voice. Real processes, over gloo.

pytest starts this very file through torchrun; `work` is what each of the processes then does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gloronet import data, models
from gloronet.config import TrainConfig
from gloronet.data import Dataset
from gloronet.data.augment import Shard
from gloronet.errors import ConfigError, GloroError, RankLost
from gloronet.net import GloRoNet
from gloronet.train import Progress, Ranks, TrainingInterrupted, fit, joined, loop
from gloronet.train import ranks as ranks_room
from gloronet.train.checkpoint import read_checkpoint, read_tensors, tensors_to_bytes
from gloronet.train.fast import Fast
from gloronet.train.recorder import State

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

CONV = TrainConfig(
    epochs=3, batch_size=301, augmentation="jitter", loss="trades-kl", lam="0.5,1.5,2", epsilon_schedule="log",
    lr_schedule="cosine", warmup_epochs=1,
)  # fmt: skip
DENSE = TrainConfig(epochs=2, batch_size=256, augmentation="crop-flip", loss="emma", refresh_every=2, lr=5e-3)
TRAININGS = {
    "conv": ("c(4,4,2).d(16).d(10)", CONV, Fast()),
    "dense": ("d(32).d(10)", DENSE, Fast()),
    "split": ("d(32).d(10)", DENSE, Fast(overlap=True)),
}
"""Digits are 1437: batches of 301 do not divide by two, and the last ones, of 233 and 157, are short and odd."""


def fresh(architecture: str, seed: int = 0) -> GloRoNet:
    torch.manual_seed(seed)
    return GloRoNet(models.build(architecture, (1, 8, 8), 10), 0.3, (1, 8, 8))


class InterruptAt(Progress):
    """Presses Ctrl-C at the given time."""

    def __init__(self, t: float) -> None:
        self._t = t

    def step(self, t: float) -> None:
        if t >= self._t:
            raise KeyboardInterrupt


class Witness(State):
    """Remembers the last state made: weights, iterates, moments and generators of this process."""

    last: State

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        Witness.last = self


def work(there: Path) -> None:
    """Each process: the trainings, one that a single process began, and one that is interrupted; then two
    failures of one process each. What became of it all goes to `there`."""
    loop.State = Witness  # type: ignore[misc]
    digits = data.load("digits")
    told: dict[str, str] = {}

    def trained(ranks: Ranks, name: str, out: Path, **options: Any) -> None:
        architecture, config, fast = TRAININGS[name]
        net = fresh(architecture, seed=ranks.rank)  # rank 0's weights are the ones that count
        history = fit(net, digits, config, out=out, device="cpu", fast=fast, **options)
        (there / f"{out.name}.{ranks.rank}.json").write_text(json.dumps(history))
        tensors = Witness.last.tensors()
        del tensors["rng.cpu"]  # the caller's own again
        (there / f"{out.name}.{ranks.rank}.state").write_bytes(tensors_to_bytes(tensors))

    @contextlib.contextmanager
    def telling(what: str) -> Any:
        try:
            yield
        except (GloroError, KeyboardInterrupt) as e:
            told[what] = f"{type(e).__name__}: {e}"

    with telling("interrupted"), joined() as ranks:
        folder = there / f"folder of {ranks.rank}"
        for name in TRAININGS:
            trained(ranks, name, folder / name)
        trained(ranks, "conv", there / "begun by one", resume=True)
        trained(ranks, "conv", there / "begun by two", progress=InterruptAt(1.5))
    with telling("other data"), joined() as ranks:
        mine = digits.holdout(100) if ranks.rank == 1 else digits
        fit(fresh("d(10)"), mine, DENSE, device="cpu")
    with telling("one cannot read"), joined() as ranks:
        if ranks.rank == 1:
            raise ConfigError("It is not on this machine.")
        ranks.meet()
    (there / f"told.{ranks.rank}.json").write_text(json.dumps(told))


def torchrun(*arguments: str, cwd: Path, processes: int = 2, **environment: str) -> subprocess.CompletedProcess[str]:
    """Processes on the CPU, of one thread each; whatever hangs is ended with all its children."""
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes))
    command = [sys.executable, *launcher, *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **environment}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=cwd, env=env, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=100)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


@pytest.fixture(scope="module")
def whole(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trainings by one process, uninterrupted."""
    there = tmp_path_factory.mktemp("one")
    for name, (architecture, config, fast) in TRAININGS.items():
        fit(fresh(architecture), digits, config, out=there / name, device="cpu", fast=fast)
    return there


@pytest.fixture(scope="module")
def there(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes left behind."""
    there = tmp_path_factory.mktemp("two")
    architecture, config, _ = TRAININGS["conv"]
    out = there / "begun by one"
    with pytest.raises(TrainingInterrupted):
        fit(fresh(architecture), digits, config, out=out, device="cpu", progress=InterruptAt(1.5))
    done = torchrun(__file__, str(there), cwd=there)
    assert done.returncode == 0, done.stderr
    return there


def history(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def require_close(run: Path, whole: Path) -> None:
    """The same epochs, weights, iterates, moments and random numbers, up to rounding."""
    one_sample = 1.01 / 1437
    assert len(history(run)) == len(history(whole))
    for mine, his in zip(history(run), history(whole), strict=True):
        for name, value in his.items():
            if name in ("accuracy", "vra_estimate"):
                assert mine[name] == pytest.approx(value, abs=one_sample), name
            elif name != "seconds":
                assert mine[name] == pytest.approx(value, rel=1e-4), name
    ours, theirs = (read_checkpoint(folder / "checkpoint") for folder in (run, whole))
    assert ours.settings == theirs.settings
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in ours.tensors.items():
        torch.testing.assert_close(tensor, theirs.tensors[name], rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("name", TRAININGS)
def test_two_processes_take_the_steps_of_one(there: Path, whole: Path, name: str) -> None:
    require_close(there / "folder of 0" / name, whole / name)


@pytest.mark.parametrize("name", [*TRAININGS, "begun by one"])
def test_both_hold_the_same_bits_and_return_the_same_history(there: Path, name: str) -> None:
    first, second = ((there / f"{name}.{rank}.state") for rank in (0, 1))
    assert first.read_bytes() == second.read_bytes()
    assert {key.partition(".")[0] for key in read_tensors(first)[0]} == {"net", "optimizer", "rng"}
    ours, theirs = (json.loads((there / f"{name}.{rank}.json").read_text()) for rank in (0, 1))
    assert [row | {"seconds": 0} for row in ours] == [row | {"seconds": 0} for row in theirs]


def test_one_writes(there: Path) -> None:
    assert not (there / "folder of 1").exists()
    for name in TRAININGS:
        run = there / "folder of 0" / name
        assert sorted(path.name for path in run.iterdir()) == ["checkpoint", "metrics.jsonl"]
        assert history(run) == json.loads((there / f"{name}.0.json").read_text())


def test_one_begins_and_two_go_on(there: Path, whole: Path) -> None:
    require_close(there / "begun by one", whole / "conv")


def test_two_begin_and_one_goes_on(digits: Dataset, there: Path, whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(there / "begun by two", tmp_path / "run"))
    architecture, config, _ = TRAININGS["conv"]
    assert len(read_checkpoint(run / "checkpoint").history) == 1
    fit(fresh(architecture, seed=99), digits, config, out=run, resume=True, device="cpu")
    require_close(run, whole / "conv")


def test_of_two_that_fail_one_says_why(there: Path) -> None:
    first, second = (json.loads((there / f"told.{rank}.json").read_text()) for rank in (0, 1))
    silent = "ElsewhereError: Another process failed; what it says tells why."
    assert first == {
        "interrupted": f"TrainingInterrupted: Stopped. 1 of 3 epochs are saved; go on with: "
        f"gloronet train --resume {there / 'begun by two'}",
        "other data": silent,
        "one cannot read": silent,
    }
    assert second == {
        "interrupted": silent,
        "other data": "ConfigError: Rank 1 has data.examples = 1337 where rank 0 has data.examples = 1437; "
        "give all the same.",
        "one cannot read": "ConfigError: It is not on this machine.",
    }


def test_the_command_line_leaves_one_whole_folder_and_speaks_once(tmp_path: Path) -> None:
    arguments = ("--set", "train.epochs=3", "--attack", "5", "--device", "cpu")
    done = torchrun("-m", "gloronet", "train", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits"]
    assert {path.name for path in (tmp_path / "runs" / "digits").iterdir()} == {
        "config.toml", "model.safetensors", "checkpoint", "metrics.jsonl", "bound.json", "certificates.csv",
        "attacks.csv", "attacks_minimal.csv", "gallery.npz", "summary.json", "figures", "report.html",
    }  # fmt: skip
    assert done.stdout.count("report: runs/digits/report.html") == 1
    assert done.stderr.count("epoch 3/3") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--out", "photos"), "photos is not empty"),
        (("--set", "train.batch_size=1436"), "holds 1 samples, too few for 2 processes"),
    ],
)
def test_a_mistake_is_one_clear_line_and_all_leave(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_text("meow")
    done = torchrun("-m", "gloronet", "train", "--device", "cpu", *arguments, cwd=tmp_path)
    assert done.returncode != 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("gloronet: ")]
    assert says in line
    assert [path.name for path in tmp_path.rglob("*")] == ["photos", "cat.png"]


GPU = TrainConfig(epochs=4, batch_size=200, augmentation="jitter", lr=5e-3)


class Imagined(Ranks):
    """One of two that has all the work: what it says to the other, it says to itself."""

    def shard(self, total: int) -> Shard:
        return Shard(0, total, total)


def work_on_gpu(there: Path) -> None:
    """NCCL inside captured steps, as far as one GPU goes; an end and an interruption, both with their graphs."""
    ranks_room._started_by_torchrun = lambda: True
    Ranks.current = staticmethod(lambda: Imagined(0, 2))  # type: ignore[method-assign]
    notes = Notes()
    with joined():
        history = fit(fresh("c(8,4,2).d(16).d(10)"), data.load("digits"), GPU, device="cuda", progress=notes)
    with contextlib.suppress(TrainingInterrupted), joined():
        fit(fresh("c(8,4,2).d(16).d(10)"), data.load("digits"), GPU, device="cuda", progress=InterruptAt(3.5))
    (there / "told.json").write_text(json.dumps([[row["loss"] for row in history], notes.said]))


class Notes(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_cuda_ranks_speak_inside_captured_steps(digits: Dataset, tmp_path: Path) -> None:
    gpu = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "0")}
    done = torchrun(__file__, str(tmp_path), "gpu", cwd=tmp_path, processes=1, **gpu)
    assert done.returncode == 0, done.stderr
    alone = fit(fresh("c(8,4,2).d(16).d(10)"), digits, GPU, device="cuda")
    losses, said = json.loads((tmp_path / "told.json").read_text())
    assert losses == pytest.approx([row["loss"] for row in alone], rel=5e-3)
    assert said == []  # nothing that could not be captured


@given(st.integers(0, 3000), st.integers(1, 70))
def test_shares_part_a_batch_among_the_ranks(total: int, world: int) -> None:
    shards = [Ranks(rank, world).shard(total) for rank in range(world)]
    covered = [sample for start, stop, _ in shards for sample in range(start, stop)]
    assert covered == list(range(total))
    assert {shard.total for shard in shards} == {total}
    sizes = {stop - start for start, stop, _ in shards}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 9))
def test_batches_are_refused_exactly_when_some_rank_would_have_none(examples: int, batch: int, world: int) -> None:
    batches = torch.arange(examples).split(batch)
    last = [Ranks(world - 1, world).shard(len(part)) for part in batches]
    if all(stop > start for start, stop, _ in last):
        Ranks(0, world).require_shares(examples, batch)
    else:
        with pytest.raises(ConfigError, match=f"too few for {world} processes; choose another train.batch_size"):
            Ranks(0, world).require_shares(examples, batch)


def test_each_process_takes_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert (Ranks().gpu(None), Ranks().gpu(2)) == (0, 2)
    assert Ranks(7, 8).gpu(None) == 3
    with pytest.raises(ConfigError, match="cuda:1 is one GPU for 4 processes; write cuda"):
        Ranks(7, 8).gpu(1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert Ranks(1, 2).gpu(1) == 1  # one process a machine may choose
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    with pytest.raises(ConfigError, match=r"5 processes need a GPU each, 4 are .*--nproc-per-node"):
        Ranks(1, 5).gpu(None)


def test_alone_there_is_nothing_to_join() -> None:
    with joined() as ranks:
        assert ranks == Ranks() == Ranks.current()
        assert ranks.bytes_from_first(b"mine") == b"mine"
        ranks.meet()
    assert issubclass(RankLost, GloroError)


if __name__ == "__main__":
    (work_on_gpu if sys.argv[2:] == ["gpu"] else work)(Path(sys.argv[1]))
