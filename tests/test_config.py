"""Settings: what is written is read back, what cannot be used is named, and ε is never rounded down."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gloronet.config import (
    ACTIVATIONS,
    AUGMENTATIONS,
    FORMS,
    INITS,
    LOSSES,
    NORMS,
    Config,
    DataConfig,
    ModelConfig,
    TrainConfig,
    from_dict,
    parse_epsilon,
    read_toml,
    to_dict,
    write_toml,
)
from gloronet.errors import ConfigError

positive = st.floats(min_value=1e-12, max_value=1e12)
text = st.text(st.characters(blacklist_categories=("Cs",)), max_size=20)
configs = st.builds(
    Config,
    epsilon=st.sampled_from(["0", "0.3", "36/255", " 1.58 ", "1e-3"]),
    form=st.sampled_from(FORMS),
    norm=st.sampled_from(NORMS),
    data=st.builds(DataConfig, name=text),
    model=st.builds(
        ModelConfig, architecture=text, activation=st.sampled_from(ACTIVATIONS), init=st.sampled_from(INITS)
    ),
    train=st.builds(
        TrainConfig,
        epochs=st.integers(1, 10**6),
        batch_size=st.integers(1, 10**6),
        loss=st.sampled_from(LOSSES),
        lam=st.sampled_from(["1", "0.1,2.0,500"]),
        epsilon_train=st.sampled_from([None, "0.45", "36/255"]),
        epsilon_schedule=st.sampled_from(["single", "log", "0.1,0.2,3", "ramp 0.1,1.5"]),
        lr=positive,
        lr_schedule=st.sampled_from(["constant", "cosine", "linear", "decay_to_1e-6"]),
        warmup_epochs=st.integers(0, 100),
        patience=st.integers(0, 100),
        power_iterations=st.integers(1, 100),
        augmentation=st.sampled_from([*AUGMENTATIONS, "noise 0.25", "crop-flip + noise 1/8"]),
        seed=st.integers(0, 2**63 - 2),
    ),
)


@given(configs)
def test_every_config_survives_its_dictionary_and_toml(
    tmp_path_factory: pytest.TempPathFactory, config: Config
) -> None:
    assert from_dict(to_dict(config)) == config
    path = tmp_path_factory.mktemp("config") / "config.toml"
    write_toml(config, path)
    assert read_toml(path) == config


def test_an_empty_file_is_the_default_and_numbers_serve_as_strings(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text("")
    assert read_toml(path) == Config()
    path.write_text("epsilon = 0.5\n[train]\nlam = 2\nepsilon_train = 0.75\nlr = 1\n")
    config = read_toml(path)
    assert (config.epsilon, config.train.lam, config.train.epsilon_train) == ("0.5", "2", "0.75")
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("epsilom = 0.3", "unknown setting epsilom"),
        ("[train]\nlearning_rate = 1", "unknown setting train.learning_rate"),
        ("[model.deep]\nx = 1", "unknown setting model.deep"),
        ("train = 3", "train must be a table"),
        ("[train]\nepochs = 1.5", "train.epochs must be of type int"),
        ("[train]\nepochs = true", "train.epochs must be of type int"),
        ("[train]\nepochs = '10'", "train.epochs must be of type int"),
        ("[train]\nlr = 'fast'", "train.lr must be of type float"),
        ("[train]\nlr = true", "train.lr must be of type float"),
        ("[data]\nname = ['digits']", "data.name must be of type str"),
        ("epsilon = true", "epsilon must be of type str"),
        ("epsilon = -0.1", "epsilon must be a finite number of at least 0"),
        ("epsilon = nan", "epsilon must be a finite number"),
        ("epsilon = inf", "epsilon must be a finite number"),
        ("epsilon = '1/0'", "epsilon must be a finite number"),
        ("form = 'margins'", "form must be one of margin, simple, lmt"),
        ("norm = 'l1'", "norm must be one of l2, linf"),
        ("[model]\nactivation = 'gelu'", "model.activation must be one of"),
        ("[model]\ninit = 'he'", "model.init must be one of"),
        ("[train]\nloss = 'mse'", "train.loss must be one of"),
        ("[train]\naugmentation = 'mixup'", "train.augmentation must be one of"),
        ("[train]\nepochs = 0", "train.epochs must be a whole number of at least 1"),
        ("[train]\nbatch_size = 0", "train.batch_size must be a whole number of at least 1"),
        ("[train]\nwarmup_epochs = -1", "train.warmup_epochs must be a whole number of at least 0"),
        ("[train]\npower_iterations = 0", "train.power_iterations must be a whole number of at least 1"),
        ("[train]\nlr = 0", "train.lr must be a positive number"),
        ("[train]\nlr = nan", "train.lr must be a positive number"),
        ("[train]\nlr = inf", "train.lr must be a positive number"),
        ("[train]\nepsilon_train = '-1'", "train.epsilon_train must be a finite number"),
        ("[train]\nepsilon_schedule = 'log2'", "epsilon_schedule 'log2' cannot be read"),
        ("[train]\nlam = 'x,1,2'", "lam 'x,1,2' cannot be read"),
        ("[train]\nlr_schedule = 'decay'", "lr_schedule 'decay' cannot be read"),
        ("epsilon = ", "is not valid TOML"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_file(tmp_path: Path, toml: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(toml)
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_file_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="There is no config file"):
        read_toml(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not valid TOML"):
        read_toml(tmp_path / "binary.toml")


def test_settings_cannot_be_changed_after_they_were_checked() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainConfig().epochs = -1  # type: ignore[misc]


@given(st.fractions(min_value=0, max_value=10**30, max_denominator=10**40))
def test_epsilon_is_the_smallest_float_that_is_at_least_the_number_written(exact: Fraction) -> None:
    for written in (exact, str(exact), f"  {exact} "):
        value = parse_epsilon(written)
        assert Fraction(value) >= exact
        assert value == 0 or Fraction(math.nextafter(value, -math.inf)) < exact


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False))
def test_a_float_is_its_own_epsilon(value: float) -> None:
    assert parse_epsilon(value) == value
    assert parse_epsilon(repr(value)) in (value, math.nextafter(value, math.inf))


def test_epsilon_too_small_for_a_float_is_not_zero() -> None:
    assert parse_epsilon("1e-400") == math.nextafter(0.0, 1.0)


@pytest.mark.parametrize(
    "bad", ["", "abc", "-1", "1/0", "nan", "inf", "1e400", "0.1.2", None, math.nan, -0.5, []]
)
def test_epsilon_that_is_no_finite_number_of_at_least_0_is_refused(bad: object) -> None:
    with pytest.raises(ConfigError, match="some_name must be a finite number of at least 0"):
        parse_epsilon(bad, "some_name")  # type: ignore[arg-type]
