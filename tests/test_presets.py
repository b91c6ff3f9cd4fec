"""Presets: each can be used, each row of the paper is the paper's, and a training that has settled stops."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.test_ranks import InterruptAt, torchrun
from torch import Tensor

from gloronet import models, presets
from gloronet.config import Config, TrainConfig, from_dict, parse_epsilon, to_dict
from gloronet.data import Dataset
from gloronet.errors import ConfigError
from gloronet.net import GloRoNet
from gloronet.train import LineProgress, TrainingInterrupted, fit, loop

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

RESULTS = Path(__file__).parents[2] / "shared" / "paper" / "results.json"
ROWS = ("minmax", "relu-ce", "relu-trades")
SETS = {
    "mnist-0.3": ("mnist@0.3", "mnist", "0.3"),
    "mnist-1.58": ("mnist@1.58", "mnist", "1.58"),
    "cifar10": ("cifar10@36/255", "cifar10", "36/255"),
    "tiny-imagenet": ("tiny-imagenet@36/255", "tiny-imagenet", "36/255"),
}
"""How our file, the paper's JSON and `gloronet data list` call each data set, and its ε."""
SHAPES = {
    "digits": ((1, 8, 8), 10, torch.float32),
    "moons": ((2,), 2, torch.float32),
    "mnist": ((1, 28, 28), 10, torch.uint8),
    "cifar10": ((3, 32, 32), 10, torch.uint8),
    "tiny-imagenet": ((3, 64, 64), 200, torch.uint8),
}


def paper(key: str) -> dict[str, Any]:
    if not RESULTS.exists():
        pytest.skip(f"the paper's figures are not here ({RESULTS})")
    return json.loads(RESULTS.read_text())[key]


def made(name: str, images: int = 4) -> Dataset:
    """Random inputs of the shape and type of that data set: what is in them does not matter here."""
    shape, classes, dtype = SHAPES[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def part() -> tuple[Tensor, Tensor]:
        x = torch.randint(0, 256, (images, *shape), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, classes, (images,), generator=generator)
        return x if dtype == torch.uint8 else x / 255, labels

    return Dataset(name, *part(), *part(), tuple(map(str, range(classes))))


def built(config: Config) -> GloRoNet:
    shape, classes, _ = SHAPES[config.data.name]
    model = config.model
    torch.manual_seed(0)
    module = models.build(model.architecture, shape, classes, model.activation, model.init)
    return GloRoNet(module, config.epsilon, shape, form=config.form, norm=config.norm)


@pytest.mark.parametrize("row", [*ROWS, "standard"])
@pytest.mark.parametrize("data", SETS)
def test_every_row_of_the_paper_has_a_preset(row: str, data: str) -> None:
    name = f"{row}/{data}"
    assert name in presets.names()
    config = presets.read(name)
    assert (config.form, config.norm, config.train.optimizer) == ("margin", "l2", "adam")
    assert (config.data.name, config.epsilon) == SETS[data][1:]
    assert config.model.activation == ("minmax" if row == "minmax" else "relu")
    assert from_dict(to_dict(config)) == config


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("data", SETS)
def test_a_preset_is_its_row_of_the_paper(row: str, data: str) -> None:
    key, _, epsilon = SETS[data]
    his, config = paper("hyperparameters")[f"{row}/{key}"], presets.read(f"{row}/{data}")
    train = config.train
    assert config.model.architecture == his["arch"]
    assert config.model.init == {"default": "glorot", "orthogonal": "orthogonal"}[his["init"]]
    assert train.augmentation == his["augmentation"]
    assert (train.warmup_epochs, train.batch_size) == (his["warmup"], his["batch"])
    assert (train.power_iterations, train.refresh_every) == (his["power_iter"], 1)
    assert (train.lr, train.epsilon_schedule) == (his["lr"], his["eps_schedule"])
    assert float(train.lr_schedule.removeprefix("decay_to_")) == his["lr_end"]
    assert his["loss"] == ("ce" if row == "relu-ce" else f"trades {train.lam}")
    assert train.loss == ("ce" if row == "relu-ce" else "trades-kl")
    assert parse_epsilon(epsilon) == pytest.approx(his["eps_test"], abs=5e-4)
    assert train.epsilon_train == ("36/255" if his["eps_train"] == 0.141 else str(his["eps_train"]))
    assert train.patience == 0
    method = {"minmax": "MinMax", "relu-ce": "ReLU, CE", "relu-trades": "ReLU, TRADES"}[row]
    results = paper("training")[key]
    assert train.epochs == results[f"GloRo ({method})"][4]
    assert train.epochs == his["epochs"] or (row, data) == ("minmax", "mnist-1.58")
    assert config.model.architecture == results["architecture"]


AUTHORS = {
    "authors-minmax/mnist-0.3": {"loss"},
    "authors-minmax/mnist-1.58": {"loss", "epsilon_train"},
    "authors-relu-ce/cifar10": {"augmentation", "epochs"},
    "authors-relu-trades/mnist-0.3": {"loss"},
    "authors-relu-trades/mnist-1.58": {"loss"},
    "authors-relu-trades/cifar10": {"loss", "augmentation", "epochs"},
    "authors-relu-trades/tiny-imagenet": {"loss", "lam"},
}
"""Where the authors' code differs from what they print, and in what."""


@pytest.mark.parametrize("name", [name for name in presets.names() if name.startswith("authors-")])
def test_a_row_of_the_authors_code_is_the_printed_one_but_for_what_is_named(name: str) -> None:
    code, printed = (to_dict(presets.read(n)) for n in (name, name.removeprefix("authors-")))
    trained, told = code.pop("train"), printed.pop("train")
    assert code == printed
    assert {key for key in trained | told if trained.get(key) != told.get(key)} == AUTHORS[name]


@pytest.mark.parametrize("data", SETS)
def test_the_standard_rows_are_plain_and_stop_early_where_the_paper_says_so(data: str) -> None:
    config, key = presets.read(f"standard/{data}"), SETS[data][0]
    results = paper("training")[key]
    assert config.model.architecture == results["architecture"]
    assert config.model.init == "glorot"
    early = data != "mnist-0.3"  # the rows with a dagger
    assert config.train == TrainConfig(
        epochs=200 if early else 100,
        patience=10 if early else 0,
        batch_size=256,
        loss="plain",
        lr=1e-3,
        lr_schedule="constant",
        augmentation=paper("hyperparameters")[f"relu-ce/{key}"]["augmentation"],
    )
    epochs = results["Standard"][4]
    assert epochs < config.train.epochs if early else epochs == config.train.epochs


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_trains(name: str) -> None:
    """One step of its own network, loss and augmentation; without warm-up, or the loss would not be its own."""
    config = presets.read(name)
    tiny = dataclasses.replace(config.train, epochs=1, batch_size=4, power_iterations=1, warmup_epochs=0)
    (metrics,) = fit(built(config), made(config.data.name), tiny, device="cpu")
    assert math.isfinite(metrics["loss"])
    assert metrics["loss"] > 0


QUIET = TrainConfig(epochs=9, batch_size=4, lr=1e-30, lr_schedule="constant", loss="plain", patience=3)
"""Steps too small to change a logit: the loss of every epoch is that of the first."""


def still() -> Dataset:
    """One point four times: no order of it, nor a share of it, has another loss in its last bits."""
    x, y = torch.tensor([[0.2, 0.7]] * 4), torch.ones(4, dtype=torch.int64)
    return Dataset("still", x, y, x, y, ("0", "1"))


def net() -> GloRoNet:
    torch.manual_seed(0)
    return GloRoNet(models.build("d(8).d(2)", (2,), 2), 0.05, (2,))


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_training_that_has_settled_stops_and_resuming_adds_nothing(tmp_path: Path) -> None:
    points, run, text = still(), tmp_path / "run", io.StringIO()
    progress = LineProgress(Console(file=text, width=40))
    history = fit(net(), points, QUIET, out=run, device="cpu", progress=progress)
    epochs = [metrics["epoch"] for metrics in history]
    assert epochs == [1, 2, 3, 4]  # the least, and three that are not below it
    assert lines(run) == history
    assert text.getvalue().splitlines()[-1] == "Settled after 4 of 9 epochs: the loss has not fallen for 3."
    before = {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    again = net()
    assert fit(again, points, QUIET, out=run, resume=True, device="cpu") == history
    assert {path.name: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    assert not again.training


def test_without_patience_and_while_the_loss_falls_all_epochs_are_trained() -> None:
    points = still()
    for config in (
        dataclasses.replace(QUIET, patience=0),
        dataclasses.replace(QUIET, patience=9),
        dataclasses.replace(QUIET, lr=1e-3, patience=1),
    ):
        history = fit(net(), points, config, device="cpu")
        assert len(history) == 9
    losses = [metrics["loss"] for metrics in history]
    assert losses == sorted(losses, reverse=True)


def test_a_resumed_training_remembers_how_long_it_has_waited(tmp_path: Path) -> None:
    points, run = still(), tmp_path / "run"
    with pytest.raises(TrainingInterrupted, match="2 of 9 epochs are saved"):
        fit(net(), points, QUIET, out=run, device="cpu", progress=InterruptAt(3.0))
    assert len(fit(net(), points, QUIET, out=run, resume=True, device="cpu")) == 4
    assert len(lines(run)) == 4


def test_warm_up_is_not_waited_for() -> None:
    """Its loss is another one, and less: with it, the certified loss would seem never to fall."""
    config = dataclasses.replace(QUIET, loss="ce", warmup_epochs=4, patience=2)
    history = fit(net(), still(), config, device="cpu")
    assert history[3]["loss"] < history[4]["loss"]
    assert len(history) == 4 + 3


def test_a_run_from_before_there_was_patience_resumes(tmp_path: Path) -> None:
    points, run = still(), tmp_path / "run"
    config = dataclasses.replace(QUIET, epochs=3, patience=0)
    with pytest.raises(TrainingInterrupted):
        fit(net(), points, config, out=run, device="cpu", progress=InterruptAt(2.0))
    state = json.loads((run / "checkpoint" / "state.json").read_text())
    del state["settings"]["patience"]
    (run / "checkpoint" / "state.json").write_text(json.dumps(state))
    with pytest.raises(ConfigError, match=r"was started with patience = 0 and .* with patience = 3;"):
        fit(net(), points, dataclasses.replace(config, patience=3), out=run, resume=True, device="cpu")
    assert len(fit(net(), points, config, out=run, resume=True, device="cpu")) == 3


@pytest.mark.parametrize("bad", [-1, True, 1.5, "3"])
def test_patience_is_a_whole_number(bad: Any) -> None:
    with pytest.raises(ConfigError, match=r"train\.patience must be a whole number of at least 0"):
        TrainConfig(patience=bad)
    with pytest.raises(ConfigError, match=r"train\.patience must be"):
        from_dict({"train": {"patience": bad}})


@given(st.lists(st.integers(0, 5), max_size=12), st.integers(0, 6))
def test_settled_means_epochs_since_the_first_least_loss(losses: list[int], patience: int) -> None:
    since = len(losses) - 1 - losses.index(min(losses)) if losses else 0
    assert loop._settled([{"loss": loss} for loss in losses], patience) == (0 < patience <= since)


WORK = """
import json, pathlib
from gloronet.train import fit, joined
from tests import test_presets as t
with joined() as ranks:
    out = pathlib.Path("run")
    for resume in (False, True):
        history = fit(t.net(), t.still(), t.QUIET, out=out, resume=resume, device="cpu")
        told = [metrics["loss"] for metrics in history]
        pathlib.Path(f"{ranks.rank}.{resume}.json").write_text(json.dumps(told))
"""


def test_several_processes_stop_together(tmp_path: Path) -> None:
    """One that stopped while another went on would leave it waiting for gradients."""
    (tmp_path / "work.py").write_text(WORK)
    done = torchrun("work.py", cwd=tmp_path, PYTHONPATH=str(Path(__file__).parents[1]))
    assert done.returncode == 0, done.stderr
    told = [json.loads(path.read_text()) for path in tmp_path.glob("*.*.json")]
    assert len(told[0]) == 4
    assert told == [told[0]] * 4  # two processes, twice
    assert len(lines(tmp_path / "run")) == 4
