"""Settings: frozen dataclasses, validated once, TOML in and out.

A recipe is a config, not a copy: everything that decides a run is here, in the words of the paper
(`"log"`, `"0.1,2.0,500"`, `"decay_to_1e-6"`), and `config.toml` of a run folder gives the run again.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from gloronet import schedules
from gloronet.errors import ConfigError

FORMS = ("margin", "simple", "lmt")
NORMS = ("l2", "linf")
LOSSES = ("plain", "ce", "trades-kl", "trades-kl-clipped", "trades-ce", "emma", "lmt")
AUGMENTATIONS = ("none", "default", "tfds", "authors", "crop-flip", "jitter")
ACTIVATIONS = ("minmax", "relu")
INITS = ("orthogonal", "glorot")
OPTIMIZERS = ("adam", "muon")
_ITERATIONS = (("power_iterations", 1), ("refresh_every", 1))


@dataclass(frozen=True)
class DataConfig:
    """Which data set, by its name in `gloronet data list`, or your own: `npz:FILE`, `imagefolder:PATH`."""

    name: str = "digits"


@dataclass(frozen=True)
class ModelConfig:
    """Which network: a name (`6C2F`) or the paper's notation (`c(16,4,2).c(32,4,2).d(100).d(10)`)."""

    architecture: str = "2C2F"
    activation: str = "minmax"
    init: str = "orthogonal"

    def __post_init__(self) -> None:
        _one_of("model.activation", self.activation, ACTIVATIONS)
        _one_of("model.init", self.init, INITS)


@dataclass(frozen=True)
class TrainConfig:
    """How to train. Schedules are written as the paper writes them; see `gloronet.schedules`."""

    epochs: int = 100
    batch_size: int = 512
    loss: str = "ce"
    lam: str = "1"
    epsilon_train: str | None = None
    """ε while training (`"0.45"`, `"36/255"`); the certified ε when not given."""
    epsilon_schedule: str = "single"
    optimizer: str = "adam"
    """The paper's Adam, or Muon, which wants a larger `lr` (0.02)."""
    lr: float = 1e-3
    lr_schedule: str = "decay_to_1e-6"
    warmup_epochs: int = 0
    patience: int = 0
    """Stops when the training loss has not fallen below its least for so many epochs; 0: never.

    Epochs of warm-up do not count: their loss is another one.
    """
    power_iterations: int = 5
    refresh_every: int = 1
    """Power iteration on every so many steps; the gradient of ‖Au‖ is taken at each, with u as it stands."""
    augmentation: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        _one_of("train.loss", self.loss, LOSSES)
        _one_of("train.optimizer", self.optimizer, OPTIMIZERS)
        _one_of("train.augmentation", split_noise(self.augmentation)[0], AUGMENTATIONS)
        epochs = (("epochs", 1), ("warmup_epochs", 0), ("patience", 0))
        for name, least in (*epochs, ("batch_size", 1), *_ITERATIONS):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(f"train.{name} must be a whole number of at least {least}, not {value!r}.")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**63:
            raise ConfigError(f"train.seed must be a whole number from 0 to 2**63 - 1, not {self.seed!r}.")
        real = isinstance(self.lr, int | float) and not isinstance(self.lr, bool)
        if not (real and math.isfinite(self.lr) and self.lr > 0):
            raise ConfigError(f"train.lr must be a positive number, not {self.lr!r}.")
        if self.epsilon_train is not None:
            parse_epsilon(self.epsilon_train, "train.epsilon_train")
        schedules.epsilon_schedule(self.epsilon_schedule, 1.0, 1.0, self.epochs)
        schedules.lambda_schedule(self.lam)
        schedules.lr_schedule(self.lr_schedule, self.lr, self.epochs)


@dataclass(frozen=True)
class Config:
    """A whole run: what `config.toml` and every preset hold."""

    epsilon: str = "0.3"
    form: str = "margin"
    norm: str = "l2"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        parse_epsilon(self.epsilon)
        _one_of("form", self.form, FORMS)
        _one_of("norm", self.norm, NORMS)


def parse_epsilon(value: str | float | Fraction, name: str = "epsilon") -> float:
    """The smallest float64 that is at least the number written: ε is never rounded down.

    >>> parse_epsilon("36/255") >= Fraction(36, 255)
    True
    >>> parse_epsilon(0.25)
    0.25
    """
    try:
        if isinstance(value, str) and not _of_sane_size(value):
            raise ValueError
        exact = Fraction(value.strip() if isinstance(value, str) else value)
        if exact < 0:
            raise ValueError
        nearest = float(exact)
        if Fraction(nearest) < exact:
            nearest = math.nextafter(nearest, math.inf)
        if math.isinf(nearest):
            raise ValueError
    except (ValueError, TypeError, OverflowError, ZeroDivisionError, AttributeError):
        raise ConfigError(
            f"{name} must be a finite number of at least 0, such as 0.3 or '36/255', not {value!r}."
        ) from None
    return nearest


def split_noise(augmentation: str) -> tuple[str, float]:
    """An augmentation's name and the σ of the Gaussian noise that comes after it, 0 without noise.

    >>> split_noise("crop-flip + noise 0.25"), split_noise("noise 0.25"), split_noise("jitter")
    (('crop-flip', 0.25), ('none', 0.25), ('jitter', 0.0))
    """
    name, _, noise = augmentation.rpartition(" + ")
    if not noise.startswith("noise "):
        return augmentation, 0.0
    return name or "none", parse_epsilon(noise.removeprefix("noise "), f"σ in augmentation {augmentation!r}")


def _of_sane_size(text: str) -> bool:
    """Whether an exact fraction of this text is of a sane size: `1e99999999` is not."""
    _, _, exponent = text.lower().partition("e")
    return len(text) <= 100 and (not exponent or abs(int(exponent)) <= 400)


def read_toml(path: Path) -> Config:
    """The config in a TOML file; an unknown key or a wrong type is an error that names it."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no config file {path}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not valid TOML: {e}") from None
    try:
        return from_dict(table)
    except ConfigError as e:
        raise ConfigError(f"{path}: {e}") from None


def write_toml(config: Config, path: Path) -> None:
    """Writes the config so that `read_toml` gives it back equal."""
    import tomli_w  # only writing needs it

    path.write_text(tomli_w.dumps(to_dict(config)), encoding="utf-8")


def to_dict(config: Config) -> dict[str, Any]:
    """Plain nested dictionaries; settings that are None are left out, as TOML has no null."""
    return _without_none(dataclasses.asdict(config))


def settings(config: Config) -> dict[str, Any]:
    """Every setting by the name that --set knows it by.

    >>> settings(Config())["train.epochs"]
    100
    """
    flat: dict[str, Any] = {}
    for key, value in to_dict(config).items():
        flat |= {f"{key}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def from_dict(table: dict[str, Any]) -> Config:
    """The inverse of `to_dict`."""
    return _build(Config, table, "")


def changed(config: Config, changes: Sequence[str]) -> Config:
    """The config with `section.key=value` applied; values are TOML, or plain text."""
    table = to_dict(config)
    for change in changes:
        key, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, such as train.epochs=50, not {change!r}.")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        *sections, name = key.strip().split(".")
        inner = table
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {change}: {section} is a value, not a section.")
        inner[name] = value
    return from_dict(table)


def _build(cls: type, table: dict[str, Any], prefix: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in fields:
            raise ConfigError(f"unknown setting {prefix}{key}; known here: {', '.join(fields)}.")
        values[key] = _convert(fields[key], value, prefix + key)
    return cls(**values)


def _convert(f: dataclasses.Field[Any], value: Any, name: str) -> Any:
    sections = {"DataConfig": DataConfig, "ModelConfig": ModelConfig, "TrainConfig": TrainConfig}
    kind = str(f.type)
    if kind in sections:
        if not isinstance(value, dict):
            raise ConfigError(f"{name} must be a table, not {value!r}.")
        return _build(sections[kind], value, name + ".")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind == "float" and number:
        return float(value)
    if kind == "int" and number and isinstance(value, int):
        return value
    if kind.startswith("str"):
        if isinstance(value, str):
            return value
        if number:  # epsilon = 0.3 is as good as epsilon = "0.3"
            return repr(value)
    raise ConfigError(f"{name} must be of type {kind}, not {value!r}.")


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} must be one of {', '.join(known)}, not {value!r}.")


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_none(v) if isinstance(v, dict) else v for k, v in table.items() if v is not None}
