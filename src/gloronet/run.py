"""The run folder: `config.toml` says how the net was made, `model.safetensors` holds what it became.

    save(net, "run/", config)     # never replaces other settings or another model
    net = load("run/")            # rebuilt from config.toml; needs no data set
    net = load("zoo:mnist-0.3")   # one that ships with the package

A net of your own has no architecture in `config.toml`: `load("run/", model=YourNet())`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from torch import nn

from gloronet import models, zoo
from gloronet.config import Config, parse_epsilon, read_toml, write_toml
from gloronet.errors import ConfigError
from gloronet.net import GloRoNet
from gloronet.train.checkpoint import load_tensors, read_tensors, tensors_to_bytes, write_atomically
from gloronet.train.recorder import require_new

FORMAT = 1
SETTINGS = ("epsilon", "form", "norm", "input_shape", "classes", "power_iterations")
"""What `load` must know besides the weights and the module; metadata of `model.safetensors`."""


def create(path: str | Path, config: Config) -> Path:
    """A new run folder that holds just its `config.toml`; a folder with anything else in it is refused."""
    run = Path(path)
    require_new(run)
    _write_config(run / "config.toml", config)
    return run


def save(net: GloRoNet, path: str | Path, config: Config | None = None) -> None:
    """Writes `model.safetensors`, and `config.toml` when given; each appears whole or not at all.

    Saving the same again changes nothing. Another model or other settings in the folder are never replaced.
    """
    if not isinstance(net, GloRoNet):
        raise ConfigError(f"save takes the GloRoNet itself, not {type(net).__name__}.")
    run, described = Path(path), _describe(net)
    content = tensors_to_bytes(net.state_dict(), {"gloronet": json.dumps(described)})
    model = run / "model.safetensors"
    if model.exists() and model.read_bytes() != content:
        raise ConfigError(f"{model} holds another model; save into another folder, or delete it first.")
    if config is not None:
        _require_agreement(config, described, "The config to save")
        _write_config(run / "config.toml", config)
    write_atomically(model, content)


def load(path: str | Path, model: nn.Module | None = None) -> GloRoNet:
    """The net saved in the folder, or `zoo:NAME`, on the CPU and in `eval()` mode, with bit-identical weights.

    `model` is the network to fill when `config.toml` cannot say what it was.
    """
    run = zoo.folder(str(path)) if str(path).startswith(zoo.PREFIX) else Path(path)
    file = run / "model.safetensors"
    if not file.exists():
        hint = "it is not a run folder"
        if (run / "checkpoint").is_dir():
            hint = f"its training can go on: gloronet train --resume {run}"
        raise ConfigError(f"{run} holds no model.safetensors; {hint}.")
    tensors, metadata = read_tensors(file)
    described = _read_description(metadata, file)
    net = GloRoNet(
        model if model is not None else _rebuild(run, described),
        epsilon=described["epsilon"],
        input_shape=tuple(described["input_shape"]),
        form=described["form"],
        norm=described["norm"],
        power_iterations=described["power_iterations"],
    )
    load_tensors(net, tensors, file)
    return net.eval()


def _describe(net: GloRoNet) -> dict[str, Any]:
    return {"format": FORMAT, **{name: getattr(net, name) for name in SETTINGS}}


def _read_description(metadata: dict[str, str], file: Path) -> dict[str, Any]:
    try:
        described = json.loads(metadata["gloronet"])
        version, missing = described["format"], sorted(set(SETTINGS) - described.keys())
    except (KeyError, ValueError, TypeError, AttributeError):
        raise ConfigError(f"{file} was not written by gloronet.save.") from None
    if version != FORMAT:
        raise ConfigError(f"{file} has format {version}, this gloronet reads {FORMAT}.")
    if missing:
        raise ConfigError(f"{file} does not say its {', '.join(missing)}.")
    return described


def _rebuild(run: Path, described: dict[str, Any]) -> nn.Module:
    file = run / "config.toml"
    if not file.exists():
        raise ConfigError(f"{run} has no config.toml to rebuild the network from; pass it as model=.")
    config = read_toml(file)
    _require_agreement(config, described, str(file))
    return models.build(
        config.model.architecture,
        input_shape=tuple(described["input_shape"]),
        classes=described["classes"],
        activation=config.model.activation,
        init=config.model.init,
    )


def _require_agreement(config: Config, described: dict[str, Any], source: str) -> None:
    says = {"epsilon": parse_epsilon(config.epsilon), "form": config.form, "norm": config.norm}
    for name, value in says.items():
        if value != described[name]:
            raise ConfigError(f"{source} says {name} = {value!r}, but the model has {described[name]!r}.")


def _write_config(path: Path, config: Config) -> None:
    if path.exists():
        if read_toml(path) != config:
            raise ConfigError(f"{path} holds other settings; choose another folder.")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name("config.toml.partial")
    write_toml(config, partial)
    os.replace(partial, path)
