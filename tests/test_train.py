"""The loop: what it computes, that a seed decides it, and how it stops."""

from __future__ import annotations

import io
import json
import math
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

from gloronet import data, losses, models, schedules
from gloronet.config import TrainConfig
from gloronet.data import Dataset
from gloronet.errors import ConfigError, TrainingError
from gloronet.net import GloRoNet
from gloronet.train import LineProgress, LiveProgress, Progress, TrainingInterrupted, fit, progress_on
from gloronet.train.checkpoint import read_checkpoint

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

QUICK = TrainConfig(epochs=3, batch_size=256, lr=5e-3, epsilon_train="0.45")


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


def fresh(digits: Dataset, seed: int = 0, epsilon: float = 0.3) -> GloRoNet:
    torch.manual_seed(seed)
    return GloRoNet(models.build("d(32).d(10)", digits.input_shape, 10), epsilon, digits.input_shape)


def weights(net: GloRoNet) -> list[Tensor]:
    return [tensor.clone() for tensor in net.state_dict().values()]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def without_seconds(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in metrics.items() if name != "seconds"} for metrics in history]


def test_it_learns_and_says_so(digits: Dataset) -> None:
    net = fresh(digits)
    history = fit(net, digits, TrainConfig(epochs=20, batch_size=128, lr=5e-3), device="cpu")
    assert [metrics["epoch"] for metrics in history] == list(range(1, 21))
    assert history[-1]["loss"] < history[0]["loss"] / 2
    assert 0.5 < history[-1]["vra_estimate"] < history[-1]["accuracy"] <= 1
    with torch.no_grad():
        right = net.logits(data.to_unit(digits.test_x)).argmax(1) == digits.test_y
    assert right.double().mean() > 0.9


def test_the_net_is_left_ready_for_use(digits: Dataset) -> None:
    net = fresh(digits)
    fit(net, digits, TrainConfig(epochs=1, power_iterations=3), device="cpu")
    assert not net.training
    assert not net.module.training
    assert net.power_iterations == 3
    assert {tensor.device.type for tensor in net.state_dict().values()} == {"cpu"}


def test_the_first_step_is_adam_on_the_loss_of_the_shuffled_batch(digits: Dataset) -> None:
    """Batch, schedules, loss and optimiser against a hand-written step."""
    config = TrainConfig(epochs=1, batch_size=1437, loss="trades-kl", lam="0.7", lr=3e-3, seed=5)
    net, twin = fresh(digits), fresh(digits)
    history = fit(net, digits, config, device="cpu")
    order = torch.randperm(1437, generator=torch.Generator().manual_seed(5))
    twin.train()
    twin.power_iterations = config.power_iterations
    optimizer = torch.optim.Adam(twin.parameters(), lr=3e-3, eps=1e-7)
    logits = twin.logits(data.to_unit(digits.train_x[order]))
    loss = losses.LOSSES["trades-kl"](logits, twin.lipschitz_estimate(), digits.train_y[order], 0.3, 0.7)
    loss.backward()
    optimizer.step()
    assert history[0]["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert history[0]["accuracy"] == pytest.approx(
        (logits.argmax(1) == digits.train_y[order]).double().mean()
    )
    for mine, his in zip(twin.state_dict().values(), net.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, his, rtol=1e-5, atol=1e-6)


def test_schedules_are_functions_of_the_fraction_of_the_epochs(digits: Dataset) -> None:
    config = TrainConfig(
        epochs=4,
        batch_size=512,
        epsilon_train="0.45",
        epsilon_schedule="log",
        lam="0.5,1.5,3",
        lr_schedule="cosine",
    )
    history = fit(fresh(digits), digits, config, device="cpu")
    for epoch, metrics in enumerate(history):
        t = epoch + 2 / 3  # the last of three steps
        assert metrics["epsilon"] == schedules.epsilon_schedule("log", 0.45, 0.3, 4)(t)
        assert metrics["lam"] == schedules.lambda_schedule("0.5,1.5,3")(t)
        assert metrics["lr"] == schedules.lr_schedule("cosine", config.lr, 4)(t)


def test_warm_up_epochs_do_not_see_bottom(digits: Dataset) -> None:
    def trained(loss: str, warmup: int) -> list[Tensor]:
        net = fresh(digits)
        fit(net, digits, TrainConfig(epochs=2, loss=loss, warmup_epochs=warmup), device="cpu")
        return weights(net)

    assert same(trained("ce", 2), trained("emma", 2))
    assert not same(trained("ce", 1), trained("emma", 1))
    assert not same(trained("ce", 1), trained("ce", 2))


def test_the_seed_decides_everything_and_the_callers_random_numbers_stay(digits: Dataset) -> None:
    def trained(seed: int) -> tuple[list[Tensor], list[dict[str, Any]]]:
        net = fresh(digits)
        torch.manual_seed(torch.seed())  # whatever the caller's generator is at
        config = TrainConfig(epochs=2, augmentation="crop-flip", seed=seed)
        before = torch.get_rng_state()
        history = fit(net, digits, config, device="cpu")
        assert torch.equal(torch.get_rng_state(), before)
        return weights(net), without_seconds(history)

    (first, metrics), (again, metrics_again), (other, _) = trained(1), trained(1), trained(2)
    assert same(first, again)
    assert metrics == metrics_again
    assert not same(first, other)


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_loss_that_is_not_finite_stops_with_advice_and_leaves_the_last_good_checkpoint(
    digits: Dataset, tmp_path: Path, epochs: int
) -> None:
    config = TrainConfig(epochs=epochs, batch_size=256, lr=1e30)
    net = fresh(digits)
    start = weights(net)
    with pytest.raises(TrainingError, match=r"epoch 1, step \d+, at learning rate 1e\+30.*Lower lr"):
        fit(net, digits, config, out=tmp_path / "run", device="cpu")
    kept = read_checkpoint(tmp_path / "run" / "checkpoint")
    assert kept.history == []
    assert same([kept.tensors[f"net.{name}"] for name in net.state_dict()], start)


def test_weights_that_overflow_in_the_last_step_are_an_error_too(digits: Dataset) -> None:
    """The loss of the only step is finite; only what it left behind is not."""
    net = fresh(digits)
    with torch.no_grad():
        next(p for p in net.module.parameters() if p.dim() == 1).fill_(3.4e38)
    config = TrainConfig(epochs=1, batch_size=1437, lr=3e38)
    with pytest.raises(TrainingError, match="no longer finite in epoch 1, step 1"):
        fit(net, digits, config, device="cpu")


class _InterruptAt(Progress):
    """Presses Ctrl-C at the given time."""

    def __init__(self, t: float) -> None:
        self._t = t

    def step(self, t: float) -> None:
        if t >= self._t:
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("t", [0.1, 1.0, 1.5, 2.9, 3.0])
def test_ctrl_c_saves_the_last_epoch_and_resuming_gives_the_same_bits(
    digits: Dataset, tmp_path: Path, t: float
) -> None:
    run = tmp_path / "run"
    whole = fresh(digits)
    history = fit(whole, digits, QUICK, device="cpu")
    with pytest.raises(TrainingInterrupted) as caught:
        fit(fresh(digits), digits, QUICK, out=run, device="cpu", progress=_InterruptAt(t))
    done = math.ceil(t) - 1
    assert f"{done} of 3 epochs are saved" in str(caught.value)
    assert f"gloronet train --resume {run}" in str(caught.value)
    assert len(read_checkpoint(run / "checkpoint").history) == done
    resumed = fresh(digits, seed=99)
    again = fit(resumed, digits, QUICK, out=run, resume=True, device="cpu")
    assert same(weights(whole), weights(resumed))
    assert without_seconds(again) == without_seconds(history)


def test_ctrl_c_without_a_folder_says_that_nothing_was_saved(digits: Dataset) -> None:
    net = fresh(digits)
    with pytest.raises(KeyboardInterrupt, match="Nothing was saved"):
        fit(net, digits, QUICK, device="cpu", progress=_InterruptAt(0.5))
    assert not net.training


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_cuda_it_trains_is_interrupted_and_resumes(digits: Dataset, tmp_path: Path) -> None:
    config = TrainConfig(epochs=3, batch_size=256, lr=5e-3, augmentation="crop-flip")
    whole, resumed = fresh(digits), fresh(digits)
    before = torch.cuda.get_rng_state()
    history = fit(whole, digits, config)
    assert {tensor.device.type for tensor in whole.state_dict().values()} == {"cuda"}
    with pytest.raises(TrainingInterrupted, match="2 of 3 epochs are saved"):
        fit(fresh(digits), digits, config, out=tmp_path / "run", progress=_InterruptAt(2.5))
    with pytest.raises(ConfigError, match="started with device = 'cuda'"):
        fit(fresh(digits), digits, config, out=tmp_path / "run", resume=True, device="cpu")
    again = fit(resumed, digits, config, out=tmp_path / "run", resume=True, device="cuda:0")
    assert [metrics["loss"] for metrics in again] == pytest.approx([m["loss"] for m in history], rel=1e-3)
    for mine, his in zip(weights(whole), weights(resumed), strict=True):
        torch.testing.assert_close(mine, his, rtol=1e-3, atol=1e-4)
    assert torch.equal(torch.cuda.get_rng_state(), before)


def test_data_and_devices_that_do_not_fit_are_refused(digits: Dataset) -> None:
    with pytest.raises(ConfigError, match=r"input shape \(2,\).* expects \(1, 8, 8\)"):
        fit(fresh(digits), data.load("moons"), QUICK)
    moons = data.load("moons")
    wide = GloRoNet(models.build("d(8).d(3)", (2,), 3), 0.1, (2,))
    with pytest.raises(ConfigError, match=r"2 classes.* has 3"):
        fit(wide, moons, QUICK)
    with pytest.raises(ConfigError, match="no kind of device 'abacus'"):
        fit(fresh(digits), digits, QUICK, device="abacus")
    with pytest.raises(ConfigError, match="device cuda:99 is not there"):
        fit(fresh(digits), digits, QUICK, device="cuda:99")
    with pytest.raises(ConfigError, match="resume needs out"):
        fit(fresh(digits), digits, QUICK, resume=True)


def test_metrics_lines_are_the_history(digits: Dataset, tmp_path: Path) -> None:
    history = fit(fresh(digits), digits, QUICK, out=str(tmp_path / "run"), device="cpu")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == history


def metrics_of(epoch: int) -> Mapping[str, Any]:
    return {"epoch": epoch, "loss": 0.5, "accuracy": 0.9, "vra_estimate": 0.8}


def test_plain_lines_are_few_when_epochs_are_short() -> None:
    text = io.StringIO()
    progress = progress_on(Console(file=text, width=40))
    assert isinstance(progress, LineProgress)
    progress.start(500, 0)
    for epoch in range(1, 501):
        progress.step(epoch)
        progress.epoch(metrics_of(epoch))
    progress.stop()
    lines = text.getvalue().splitlines()
    assert lines[0].startswith("epoch   1/500  loss 0.5000  clean 90.00%  VRA (estimate) 80.00%")
    assert lines[-1].startswith("epoch 500/500")
    assert len(lines) == 2


def test_a_terminal_gets_a_live_bar(digits: Dataset) -> None:
    text = io.StringIO()
    progress = progress_on(Console(file=text, force_terminal=True, width=120))
    assert isinstance(progress, LiveProgress)
    fit(fresh(digits), digits, QUICK, device="cpu", progress=progress)
    assert "epoch 3/3" in text.getvalue()
    assert "VRA (estimate)" in text.getvalue()
    assert "0:00:00 left" in text.getvalue()


def test_time_left_counts_only_the_epochs_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("gloronet.train.progress.time.monotonic", lambda: now)
    text = io.StringIO()
    progress = LineProgress(Console(file=text, width=200))
    progress.start(100, 90)
    now += 600
    progress.epoch(metrics_of(92))
    assert text.getvalue().endswith("0:40:00 left\n")
