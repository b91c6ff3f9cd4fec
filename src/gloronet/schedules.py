"""Schedules for ε, λ and the learning rate, in the paper's own notation.

Each function parses its string once and returns a plain function of the epoch t, which counts from 0 and
may be a fraction: t = 2.5 is half-way through the third epoch. A string that cannot be read is a
`ConfigError` that quotes the offending piece and shows what is accepted.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gloronet.errors import ConfigError

Schedule = Callable[[float], float]

EPSILON_NOTATION = (
    "'single', 'log', 'x,y,e' (linear from x to y over e epochs, then the training epsilon), or "
    "'ramp a,b' (from a to b times the certified epsilon over the first half of the epochs)"
)
LAMBDA_NOTATION = "'x', or 'x,y,e' (linear from x to y over e epochs, then y)"
LR_NOTATION = "'constant', 'decay_to_LB' such as 'decay_to_1e-6', 'cosine', or 'linear'"


def epsilon_schedule(spec: str, epsilon_train: float, epsilon: float, epochs: int) -> Schedule:
    """The ε to train with at epoch t, where D is half the epochs:

    - `"single"`: ε_train throughout.
    - `"log"`: ε_train·ln(e^.01 + (e − e^.01)·t/D) for t < D, then ε_train.
    - `"x,y,e"`: x + (y − x)·t/e for t ≤ e, then ε_train; x and y are values of ε, such as `36/255`.
    - `"ramp a,b"`: from a·ε to b·ε over the first D epochs, then b·ε (ε is the certified one).

    >>> epsilon_schedule("ramp 0.5,1.5", 0.3, 0.2, epochs=10)(5)
    0.30000000000000004
    """
    what, half = "epsilon_schedule", epochs / 2
    if spec == "single":
        return lambda t: epsilon_train
    if spec == "log":
        low = math.exp(0.01)
        return lambda t: epsilon_train * (math.log(low + (math.e - low) * t / half) if t < half else 1.0)
    if spec.startswith("ramp "):
        a, b = _numbers(what, spec, spec.removeprefix("ramp "), 2, EPSILON_NOTATION)
        return _linear(a * epsilon, b * epsilon, half, then=b * epsilon)
    x, y, e = _numbers(what, spec, spec, 3, EPSILON_NOTATION)
    return _linear(x, y, _duration(what, spec, e), then=epsilon_train)


def lambda_schedule(spec: str) -> Schedule:
    """The weight λ of TRADES at epoch t: `"x"` throughout, or `"x,y,e"`: x + (y − x)·t/e for t < e, then y.

    >>> lambda_schedule("0.1,2.1,500")(250)
    1.1
    """
    what = "lam"
    if "," not in spec:
        (x,) = _numbers(what, spec, spec, 1, LAMBDA_NOTATION)
        return lambda t: x
    x, y, e = _numbers(what, spec, spec, 3, LAMBDA_NOTATION)
    return _linear(x, y, _duration(what, spec, e), then=y)


def lr_schedule(spec: str, lr: float, epochs: int) -> Schedule:
    """The learning rate at epoch t of T epochs:

    - `"constant"`: lr.
    - `"decay_to_LB"`: lr until T/2, then lr·(LB/lr)^((t − T/2)/(T/2)), which is LB at the end.
    - `"cosine"`: lr·(1 + cos(πt/T))/2.
    - `"linear"`: lr·(1 − t/T).

    >>> lr_schedule("linear", 0.5, epochs=4)(3)
    0.125
    """
    if spec == "constant":
        return lambda t: lr
    if spec == "cosine":
        return lambda t: lr * (1 + math.cos(math.pi * _share(t, epochs))) / 2
    if spec == "linear":
        return lambda t: lr * (1 - _share(t, epochs))
    if spec.startswith("decay_to_"):
        (lowest,) = _numbers("lr_schedule", spec, spec.removeprefix("decay_to_"), 1, LR_NOTATION)
        if lowest == 0:
            raise _unreadable("lr_schedule", spec, "a decay never reaches 0", LR_NOTATION)
        half = epochs / 2
        return lambda t: lr * (lowest / lr) ** _share(t - half, half)
    raise _unreadable("lr_schedule", spec, f"{spec!r} is not a name", LR_NOTATION)


def _linear(x: float, y: float, duration: float, then: float) -> Schedule:
    return lambda t: x + (y - x) * t / duration if t <= duration else then


def _share(t: float, duration: float) -> float:
    return min(max(t / duration, 0.0), 1.0)


def _numbers(what: str, spec: str, text: str, count: int, notation: str) -> list[float]:
    """Exactly `count` finite numbers of at least 0, separated by commas; fractions such as 36/255 too."""
    numbers = []
    for piece in text.split(","):
        above, slash, below = piece.partition("/")
        try:
            number = float(above) / (float(below) if slash else 1.0)
        except (ValueError, ZeroDivisionError):
            number = math.nan
        if not 0 <= number < math.inf:
            why = f"{piece.strip()!r} is not a finite number of at least 0"
            raise _unreadable(what, spec, why, notation)
        numbers.append(number)
    if len(numbers) != count:
        plural = "" if count == 1 else "s"
        raise _unreadable(what, spec, f"{text!r} should be {count} number{plural}", notation)
    return numbers


def _duration(what: str, spec: str, epochs: float) -> float:
    if epochs == 0:
        raise _unreadable(what, spec, "the number of epochs must be above 0", "'x,y,e' with e > 0")
    return epochs


def _unreadable(what: str, spec: str, why: str, notation: str) -> ConfigError:
    return ConfigError(f"{what} {spec!r} cannot be read: {why}. Write {notation}.")
