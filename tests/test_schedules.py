"""Schedules: hand-computed values, end points, monotony, and errors that quote the offending piece."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gloronet.errors import ConfigError
from gloronet.schedules import epsilon_schedule, lambda_schedule, lr_schedule


def test_single_is_the_training_epsilon_throughout():
    schedule = epsilon_schedule("single", 0.45, 0.3, 10)
    assert [schedule(t) for t in (0, 2.5, 10, 100)] == [0.45] * 4


def test_log_starts_at_a_hundredth_and_arrives_at_half_time():
    schedule = epsilon_schedule("log", 2.0, 0.3, 200)
    assert schedule(0) == pytest.approx(0.02)  # ln(e^.01) = .01
    # t = 50 is half of D = 100: ln((e^.01 + e)/2) = ln(1.8641661...) = 0.6228136
    assert schedule(50) == pytest.approx(2 * 0.6228136, rel=1e-6)
    assert schedule(math.nextafter(100, 0)) == pytest.approx(2.0)
    assert schedule(100) == schedule(150) == schedule(200) == 2.0


def test_linear_epsilon_takes_fractions_and_then_jumps_to_the_training_epsilon():
    schedule = epsilon_schedule("36/255,72/255,4", 0.5, 0.1, 10)
    assert schedule(0) == 36 / 255
    assert schedule(1) == pytest.approx(45 / 255)
    assert schedule(4) == pytest.approx(72 / 255)
    assert schedule(4.001) == schedule(10) == 0.5


def test_ramp_is_in_multiples_of_the_certified_epsilon():
    schedule = epsilon_schedule("ramp 0.1,1.5", epsilon_train=7.0, epsilon=0.2, epochs=300)
    assert schedule(0) == pytest.approx(0.02)
    assert schedule(75) == pytest.approx(0.16)
    assert schedule(150) == pytest.approx(0.3)
    assert schedule(299.5) == pytest.approx(0.3)


def test_lambda_is_constant_or_linear_and_then_stays():
    assert lambda_schedule("1.5")(0) == lambda_schedule("1.5")(1000) == 1.5
    schedule = lambda_schedule("0.1,2.0,500")
    assert schedule(0) == 0.1
    assert schedule(250) == pytest.approx(1.05)
    assert schedule(500) == schedule(800) == pytest.approx(2.0)


def test_decay_is_constant_to_half_time_and_then_exponential():
    schedule = lr_schedule("decay_to_1e-6", 1e-3, 100)
    assert schedule(0) == schedule(25.5) == schedule(50) == 1e-3
    assert schedule(75) == pytest.approx(math.sqrt(1e-3 * 1e-6))  # the geometric mean half-way
    assert schedule(100) == pytest.approx(1e-6)


def test_cosine_and_linear_fall_from_lr_to_zero():
    cosine, linear = lr_schedule("cosine", 0.4, 8), lr_schedule("linear", 0.4, 8)
    assert (cosine(0), linear(0)) == (0.4, 0.4)
    assert cosine(2) == pytest.approx(0.4 * (1 + math.sqrt(0.5)) / 2)
    assert linear(2) == pytest.approx(0.3)
    assert (cosine(8), linear(8)) == (0, 0)
    assert lr_schedule("constant", 0.4, 8)(7) == 0.4


@settings(deadline=None)
@given(st.sampled_from(["single", "log", "0.1,0.3,9", "ramp 0.1,1"]), st.integers(1, 50), st.data())
def test_epsilon_grows_from_above_zero_to_the_end(spec, epochs, data):
    schedule = epsilon_schedule(spec, 0.3, 0.3, epochs)
    t, u = sorted(data.draw(st.tuples(*[st.floats(0, epochs)] * 2)))
    assert 0 < schedule(t) <= schedule(u) * (1 + 1e-12) <= 0.3 * (1 + 1e-9)


@settings(deadline=None)
@given(st.sampled_from(["constant", "decay_to_1e-6", "cosine", "linear"]), st.integers(1, 50), st.data())
def test_learning_rates_never_grow_and_never_turn_negative(spec, epochs, data):
    schedule = lr_schedule(spec, 1e-3, epochs)
    t, u = sorted(data.draw(st.tuples(*[st.floats(0, epochs)] * 2)))
    assert 1e-3 >= schedule(t) >= schedule(u) >= 0


@pytest.mark.parametrize(
    ("spec", "piece"),
    [
        ("logarithmic", "'logarithmic'"),
        ("", "''"),
        ("0.1,x,5", "'x'"),
        ("0.1,0.2", "3 numbers"),
        ("0.1,0.2,5,6", "3 numbers"),
        ("0.1,1/0,5", "'1/0'"),
        ("0.1,nan,5", "'nan'"),
        ("1e999,0.2,5", "'1e999'"),
        ("-0.1,0.2,5", "'-0.1'"),
        ("0.1,0.2,0", "epochs"),
        ("ramp 0.1", "2 numbers"),
        ("ramp a,1", "'a'"),
    ],
)
def test_malformed_epsilon_schedules_name_the_piece_and_the_notation(spec, piece):
    with pytest.raises(ConfigError) as e:
        epsilon_schedule(spec, 0.3, 0.3, 10)
    assert piece in str(e.value)
    assert "x,y,e" in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("spec", ["", "a", "1,2", "1,2,b", "1,2,0", "-1"])
def test_malformed_lambda_schedules(spec):
    with pytest.raises(ConfigError, match=r"lam .* cannot be read.*x,y,e"):
        lambda_schedule(spec)


@pytest.mark.parametrize("spec", ["", "step", "decay_to_", "decay_to_0", "decay_to_-1", "decay_to_lb", "0.1"])
def test_malformed_learning_rate_schedules(spec):
    with pytest.raises(ConfigError, match=r"lr_schedule .* cannot be read"):
        lr_schedule(spec, 1e-3, 10)
