"""The run folder: what is saved is loaded bit for bit, and what cannot be loaded is one clear line."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from gloronet import data, models, run
from gloronet.config import Config, ModelConfig, TrainConfig, parse_epsilon
from gloronet.errors import ConfigError
from gloronet.net import GloRoNet
from gloronet.train import fit

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

CONFIG = Config(
    epsilon="36/255",
    model=ModelConfig(architecture="c(4,4,2).d(16).d(10)", activation="relu"),
    train=TrainConfig(epochs=1, power_iterations=2),
)


def fresh(seed: int = 0, form: str = "margin", norm: str = "l2") -> GloRoNet:
    torch.manual_seed(seed)
    module = models.build(CONFIG.model.architecture, (1, 8, 8), 10, activation="relu")
    return GloRoNet(module, parse_epsilon(CONFIG.epsilon), (1, 8, 8), form=form, norm=norm)


def test_a_trained_net_comes_back_bit_for_bit_without_its_data(tmp_path: Path) -> None:
    digits, net = data.load("digits"), fresh()
    folder = run.create(tmp_path / "run", CONFIG)
    fit(net, digits, CONFIG.train, out=folder, device="cpu")
    run.save(net, folder, CONFIG)
    loaded = run.load(str(folder))
    x = data.to_unit(digits.test_x)
    assert torch.equal(loaded.logits(x), net.logits(x))
    assert torch.equal(loaded.lipschitz_estimate(), net.lipschitz_estimate())
    assert loaded.epsilon == net.epsilon >= 36 / 255
    assert (loaded.form, loaded.norm, loaded.input_shape) == (net.form, net.norm, net.input_shape)
    assert loaded.power_iterations == 2
    assert not loaded.training
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "model.safetensors", "checkpoint", "metrics.jsonl",
    }  # fmt: skip


@pytest.mark.parametrize(("form", "norm"), [("simple", "l2"), ("margin", "linf")])
def test_a_net_of_your_own_needs_its_module_and_keeps_form_and_norm(
    tmp_path: Path, form: str, norm: str
) -> None:
    net = fresh(form=form, norm=norm)
    run.save(net, tmp_path)
    with pytest.raises(ConfigError, match=r"no config.toml to rebuild the network from; pass it as model="):
        run.load(tmp_path)
    loaded = run.load(tmp_path, model=fresh(seed=1).module)
    assert (loaded.form, loaded.norm) == (form, norm)
    assert torch.equal(loaded.logits(torch.ones(2, 1, 8, 8)), net.logits(torch.ones(2, 1, 8, 8)))


def test_saving_the_same_again_changes_nothing_and_another_model_is_refused(tmp_path: Path) -> None:
    run.save(fresh(), tmp_path, CONFIG)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    run.save(fresh(), tmp_path, CONFIG)
    with pytest.raises(ConfigError, match=r"model.safetensors holds another model"):
        run.save(fresh(seed=1), tmp_path, CONFIG)
    with pytest.raises(ConfigError, match=r"config.toml holds other settings"):
        run.save(fresh(), tmp_path, dataclasses.replace(CONFIG, train=TrainConfig(epochs=7)))
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_new_run_does_not_go_into_an_old_folder(tmp_path: Path) -> None:
    run.create(tmp_path / "run", CONFIG)
    run.create(tmp_path / "run", CONFIG)  # nothing has happened in it yet
    with pytest.raises(ConfigError, match="holds other settings"):
        run.create(tmp_path / "run", Config())
    run.save(fresh(), tmp_path / "run")
    with pytest.raises(ConfigError, match="is not empty"):
        run.create(tmp_path / "run", CONFIG)


def test_a_config_that_does_not_describe_the_net_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"says epsilon = 0.5, but the model has 0.1411"):
        run.save(fresh(), tmp_path / "a", dataclasses.replace(CONFIG, epsilon="0.5"))
    assert not (tmp_path / "a").exists()
    run.save(fresh(), tmp_path / "b", CONFIG)
    text = (tmp_path / "b" / "config.toml").read_text()
    (tmp_path / "b" / "config.toml").write_text(text.replace('form = "margin"', 'form = "simple"'))
    with pytest.raises(ConfigError, match=r"config.toml says form = 'simple', but the model has 'margin'"):
        run.load(tmp_path / "b")


def test_the_wrong_network_is_named_by_its_tensor(tmp_path: Path) -> None:
    run.save(fresh(), tmp_path, CONFIG)
    wider = models.build("c(4,4,2).d(18).d(10)", (1, 8, 8), 10, activation="relu")
    with pytest.raises(ConfigError, match=r"belongs to another network: .*float32\["):
        run.load(tmp_path, model=wider)
    with pytest.raises(ConfigError, match="belongs to another network: "):
        run.load(tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


def damage(folder: Path, how: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    header = path.read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    name = next(name for name in sorted(tensors) if name.endswith("bias"))
    if how == "truncated":
        path.write_bytes(header[:-9])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "text":
        path.write_text("these are not the weights you are looking for")
    elif how == "foreign":
        save_file(tensors, path)
    elif how == "garbled":
        save_file(tensors, path, {"gloronet": '{"format": 1}'})
    elif how == "later":
        save_file(tensors, path, {"gloronet": metadata["gloronet"].replace('"format": 1', '"format": 2')})
    elif how == "missing":
        save_file({k: v for k, v in tensors.items() if k != name}, path, metadata)
    elif how == "unknown":
        save_file({**tensors, "surprise": torch.ones(1)}, path, metadata)
    elif how == "gone":
        path.unlink()
    elif how == "unfinished":
        path.unlink()
        (folder / "checkpoint").mkdir()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("truncated", "is not a whole safetensors file"),
        ("empty", "is not a whole safetensors file"),
        ("text", "is not a whole safetensors file"),
        ("foreign", "was not written by gloronet.save"),
        ("garbled", "does not say its classes, epsilon, form, input_shape, norm, power_iterations"),
        ("later", "has format 2, this gloronet reads 1"),
        ("missing", r"it has no tensor .*bias"),
        ("unknown", "the network has no tensor surprise"),
        ("gone", "holds no model.safetensors; it is not a run folder"),
        ("unfinished", "its training can go on: gloronet train --resume"),
    ],
)
def test_what_cannot_be_loaded_is_one_clear_line(tmp_path: Path, how: str, message: str) -> None:
    run.save(fresh(), tmp_path, CONFIG)
    damage(tmp_path, how)
    with pytest.raises(ConfigError, match=message) as caught:
        run.load(tmp_path)
    assert "\n" not in str(caught.value)
