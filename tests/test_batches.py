"""Where batches come from changes nothing: streamed from memory or disk, training takes the very same steps."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gloronet import data, models
from gloronet.config import TrainConfig
from gloronet.data import Dataset
from gloronet.net import GloRoNet
from gloronet.train import Progress, TrainingInterrupted, batches, fit, loop
from gloronet.train.batches import AHEAD, Batches, Resident, Streamed, batches_of
from gloronet.train.ranks import Ranks

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

CPU = torch.device("cpu")
CONFIG = TrainConfig(epochs=2, batch_size=200, augmentation="jitter", lr=5e-3)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


@pytest.fixture(scope="module")
def on_disk(digits: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """The same digits; the training inputs stay in their file."""
    path = tmp_path_factory.mktemp("disk") / "train_x.npy"
    np.save(path, digits.train_x.numpy())
    mapped = np.load(path, mmap_mode="c")  # copy on write: a tensor cannot promise not to write
    return dataclasses.replace(digits, train_x=torch.from_numpy(mapped))


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("batches")]


def shares(source: Batches, order: Tensor, size: int, ranks: Ranks) -> list[tuple[Any, ...]]:
    return [(*source.fetch(*inputs), shard) for inputs, shard in source.epoch(order, size, ranks)]


@given(st.integers(1, 400), st.integers(1, 130), st.integers(1, 3), st.integers(0, 2**32))
def test_streamed_batches_are_the_resident_ones_and_make_up_the_epoch(
    digits: Dataset, on_disk: Dataset, length: int, size: int, world: int, seed: int
) -> None:
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(seed))[:length]
    parts: list[Tensor] = [torch.empty(0)] * (-(-length // size) * world)
    for rank in range(world):
        resident = shares(Resident(digits, CPU), order, size, Ranks(rank, world))
        for source in (Streamed(digits, CPU), Streamed(on_disk, CPU), Resident(on_disk, CPU)):
            for (x, y, shard), (its_x, its_y, its_shard) in zip(
                resident, shares(source, order, size, Ranks(rank, world)), strict=True
            ):
                assert torch.equal(x, its_x)
                assert torch.equal(y, its_y)
                assert shard == its_shard
        parts[rank::world] = [x for x, _, _ in resident]
    assert torch.equal(torch.cat(parts), digits.train_x[order])


def trained(source: Dataset, **options: Any) -> dict[str, Tensor]:
    torch.manual_seed(0)
    net = GloRoNet(models.build("d(32).d(10)", (1, 8, 8), 10), 0.3, (1, 8, 8))
    fit(net, source, CONFIG, device="cpu", **options)
    return net.state_dict()


def test_training_from_a_stream_gives_the_same_bits(
    digits: Dataset, on_disk: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained(digits)
    monkeypatch.setattr(loop, "batches_of", lambda data, place, note: Streamed(data, place))
    for source in (digits, on_disk):
        streamed = trained(source)
        assert all(torch.equal(tensor, streamed[name]) for name, tensor in whole.items())
    assert not readers()


def test_the_reader_stays_a_few_batches_ahead_and_ends_when_nobody_listens(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Tensor] = []
    send = Streamed._send
    monkeypatch.setattr(Streamed, "_send", lambda self, index: sent.append(index) or send(self, index))
    epoch = Streamed(digits, CPU).epoch(torch.arange(1437), 10, Ranks())
    for taken in range(1, 20):
        next(epoch)
        assert taken <= len(sent) <= taken + AHEAD
    assert len(readers()) == 1
    epoch.close()
    assert not readers()
    assert len(sent) <= taken + AHEAD


def test_ctrl_c_in_training_ends_the_reader_too(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stop(Progress):
        def step(self, t: float) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "batches_of", lambda data, place, note: Streamed(data, place))
    with pytest.raises(TrainingInterrupted):
        trained(digits, progress=Stop())
    assert not readers()


def test_what_goes_wrong_while_reading_is_raised_when_the_batch_is_due(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = Streamed._send

    def failing(self: Streamed, index: Tensor) -> Any:
        if 70 in index:
            raise OSError(5, "Input/output error")
        return send(self, index)

    monkeypatch.setattr(Streamed, "_send", failing)
    epoch = Streamed(digits, CPU).epoch(torch.arange(1437), 20, Ranks())
    for k in range(3):
        (_, labels), _ = next(epoch)
        assert torch.equal(labels, digits.train_y[20 * k : 20 * k + 20])
    with pytest.raises(OSError, match="Input/output error"):
        next(epoch)
    assert not readers()


@pytest.mark.parametrize("free", [0, 1, 2])
def test_what_takes_more_than_half_of_the_free_memory_is_streamed_and_said(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    size, said = digits.train_x.nbytes, []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (free * size, 99 * size))
    monkeypatch.setattr(batches, "Streamed", lambda data, place: "streamed")
    monkeypatch.setattr(batches, "Resident", lambda data, place: "resident")
    fits = free >= 2
    assert batches_of(digits, torch.device("cuda"), said.append) == ("resident" if fits else "streamed")
    assert said == ([] if fits else ["The training set does not fit on the GPU and is streamed."])
    assert batches_of(digits, CPU, said.append) == "resident"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_cuda_a_stream_from_disk_trains_alike(
    digits: Dataset, on_disk: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Notes(Progress):
        def note(self, text: str) -> None:
            said.append(text)

    def losses(source: Dataset) -> list[float]:
        torch.manual_seed(0)
        net = GloRoNet(models.build("c(16,4,2).d(32).d(10)", (1, 8, 8), 10), 0.3, (1, 8, 8))
        return [m["loss"] for m in fit(net, source, CONFIG, device="cuda", progress=Notes())]

    said: list[str] = []
    whole = losses(digits)
    assert "The training set does not fit on the GPU and is streamed." not in said
    monkeypatch.setattr(batches, "ROOM", 0.0)
    assert losses(on_disk) == pytest.approx(whole, rel=2e-3)
    assert said.count("The training set does not fit on the GPU and is streamed.") == 1
    assert not readers()


def test_a_data_set_on_disk_is_a_data_set(tmp_path: Path, digits: Dataset) -> None:
    """Floats too: they are read once, to see that they are in [0,1]."""
    np.save(tmp_path / "x.npy", data.to_unit(digits.train_x).numpy())
    mapped = torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))
    floats = dataclasses.replace(digits, train_x=mapped, test_x=data.to_unit(digits.test_x))
    inputs, _ = next(iter(Streamed(floats, CPU).epoch(torch.arange(5), 5, Ranks())))
    assert torch.equal(inputs[0], data.to_unit(digits.train_x[:5]))
