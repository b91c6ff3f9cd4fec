"""ε, and what rounding does to a radius"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import torch
from tests.soundness import naive
from tests.soundness.cases import Answers, at, case, certified, disproof, linear, number
from torch import nn

from gloronet.config import parse_epsilon


@case("ε = 0")
def test_epsilon_zero() -> Answers:
    """At ε = 0 every test "margin ≥ ε·K" is true, ties included. Certified should mean that something around
    the point is safe, however little."""
    module = linear([[1.0], [-1.0]])
    x, point = torch.zeros(1, 1).double(), at(-1e-100)
    assert naive.is_certified(margin=0.0, k=2.0, epsilon=0.0)
    broken = disproof(module, x, point, 1e-99)
    net = certified(module, (1,), 0)
    assert net.certify(torch.tensor([[0.0], [1e-12]], dtype=torch.float64)).certified.tolist() == [
        False,
        True,
    ]
    return Answers(
        f"certified at ε = 0 on the boundary itself, {broken}",
        "certified means radius > ε: ⊥ on the boundary, certified at 1e-12 from it",
    )


@case("Decimal ε rounded down")
def test_decimal_epsilon_rounded_down() -> Answers:
    """The nearest float64 to 0.3 is smaller than 0.3. A point whose label changes between the two is
    certified "at 0.3" by every program that reads ε with `float`."""
    wrong, ours = float("0.3"), parse_epsilon("0.3")
    module = linear([[1.0], [0.0]], [0.0, 0.0])
    x, point = at(wrong), at(-1e-300)
    assert Fraction(wrong) < Fraction(3, 10)
    assert naive.is_certified(float(x), 1.0, wrong)
    broken = disproof(module, x, point, ours)
    assert not certified(module, (1,), "0.3").certify(x).certified
    for text in ("0.1", "0.2", "0.3", "0.7", "36/255", "108/255", "1e-3", "1.58"):
        exact, read = Fraction(text), parse_epsilon(text)
        assert Fraction(math.nextafter(read, 0.0)) < exact <= Fraction(read)
    return Answers(
        f"ε = 0.3 − {number(Fraction(3, 10) - Fraction(wrong))}, {broken}",
        f"ε = 0.3 + {number(Fraction(ours) - Fraction(3, 10))}: never below what was written",
    )


@case("ε with three digits")
def test_epsilon_written_with_three_digits() -> Answers:
    """Papers write 0.141 for 36/255 = 0.14117…, and their code reads the paper. A table "at 36/255" then
    counts points that are only safe up to 0.141."""
    module = linear([[1.0], [0.0]])
    x = at(0.1411)
    assert naive.is_certified(float(x), 1.0, float("0.141"))
    broken = disproof(module, x, at(-1e-9), 36 / 255)
    assert not certified(module, (1,), "36/255").certify(x).certified
    return Answers(f"certified, {broken}", 'ε = "36/255" is a fraction: ⊥')


@case("Adjacent weights")
def test_adjacent_weights() -> Answers:
    """Two rows that differ in the last bit of one weight: K₀₁ is 2⁻²³, so tiny margins make large radii,
    truly. But the float32 sum cannot hold that last bit, and the network as it runs answers otherwise
    inside the radius."""
    module = linear([[1.0, 1.0], [1.0 + 2.0**-23, 1.0]], dtype=torch.float32)
    x, point = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.3125, 0.6875]])
    y = module(x).detach()[0]
    claimed = naive.radius(y, torch.full((2, 2), 2.0**-23))
    broken = disproof(module, x, point, claimed)
    net = certified(module, (2,))
    c, single = net.certify(x), net.certify(x, semantics="float32")
    assert 1.0 - 1e-6 <= float(c.radius) <= 1.0
    assert int(c.label) == int(net.certify(point).label) == 1
    assert float(single.radius) == 0.0
    return Answers(
        f"radius {number(claimed)}, {broken}, in float32",
        f"radius {number(c.radius)} for the exact function, {number(single.radius)} for the float32 network",
    )


@case("Biases of 1e6")
def test_a_bias_of_a_million() -> Answers:
    """The bias sits inside the accumulation: near 1e6 float32 numbers are 1/16 apart, and the margin is
    read off that grid. Here it comes out half as large again as it is."""
    module = nn.Sequential(
        linear([[1.0, 0.0], [0.0, 1.0]], [1e6, 1e6], torch.float32), nn.ReLU(),
        linear([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float32),
    )  # fmt: skip
    x, point = torch.tensor([[0.54, 0.46]]), at(0.498, 0.502)
    claimed = naive.radius(module(x).detach()[0], torch.full((2, 2), 8**0.5))
    net = certified(module, (2,))
    c, single = net.certify(x), net.certify(x, semantics="float32")
    truth = 0.08 / 2**0.5
    assert float(single.radius) == 0.0
    assert truth * (1 - 1e-5) <= float(c.radius) <= truth * (1 + 1e-6)
    broken = disproof(module.double(), x.double(), point, claimed)
    return Answers(
        f"radius {number(claimed)}, {broken}",
        f"radius {number(c.radius)} for the exact function, {number(single.radius)} for the float32 network",
    )


@case("Logits under autocast")
def test_logits_under_autocast() -> Answers:
    """Certifying "in mixed precision, for speed": bf16 has eight bits, so logits of 100 come in steps of
    0.5 and a margin of 0.3 becomes one of 0.5, or none."""
    module = linear([[1.0, 0.0], [0.0, 1.0]], [100.0, 100.0], torch.float32)
    x, point = torch.tensor([[0.3, 0.0]]), torch.tensor([[0.14, 0.16]])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        claimed = naive.radius(module(x).detach()[0].float(), torch.full((2, 2), 2**0.5))
        c = certified(module, (2,)).certify(x)
    broken = disproof(module, x, point, claimed)
    assert 0.3 / 2**0.5 * (1 - 1e-6) <= float(c.radius) <= 0.3 / 2**0.5 * (1 + 1e-6)
    return Answers(
        f"radius {number(claimed)}, {broken}",
        f"radius {number(c.radius)}: bounds and certificates leave autocast",
    )


@case("Rounding search on linear models")
def test_rounding_search_on_linear_models() -> Answers:
    """For a linear model the radius is a formula, and nobody expects it to be wrong. Rational arithmetic
    finds points that are nearer than the radius, exactly, and have another label, exactly: of 100 random
    models, in float32 and in float64 without outward rounding."""
    rng = random.Random(0)
    module = linear(torch.zeros(3, 3), torch.zeros(3), torch.float32)
    net = certified(module, (3,))
    broken, tried = {"float32": 0, "float64": 0}, 0
    for k in range(100):
        size = 10.0 ** (k % 6)
        weight = [[np.float32(rng.uniform(-1, 1)) for _ in range(3)] for _ in range(3)]
        bias = [np.float32(rng.uniform(-1, 1) + size) for _ in range(3)]
        x = [np.float32(rng.uniform(-1, 1)) for _ in range(3)]
        with torch.no_grad():
            module.weight.copy_(torch.tensor(np.array(weight)))
            module.bias.copy_(torch.tensor(np.array(bias)))
        model = Exact(weight, bias, x)
        points = model.near_the_boundary(rng)
        tried += len(points)
        for name, kind in (("float32", np.float32), ("float64", np.float64)):
            label, claimed = float_radius(weight, bias, x, kind)
            broken[name] += label != model.label or model.breaks(claimed, points)
        c = net.certify(torch.tensor(np.array(x))[None])
        if float(c.radius) > 0.0:
            assert int(c.label) == model.label
            assert not model.breaks(float(c.radius), points)
            assert Fraction(float(c.radius)) ** 2 <= model.least_square
        if size <= 1000:
            assert float(c.radius) >= float(model.least_square) ** 0.5 * (1 - 1e-9)
    assert tried >= 5000
    assert broken["float32"] >= 40
    assert broken["float64"] >= 20
    return Answers(
        f"{broken['float32']} radii of 100 disproved in float32, {broken['float64']} in float64",
        f"none of 100, by {tried} points",
    )


class Exact:
    """A linear model and an input, in fractions: labels, distances, and points just across a boundary."""

    def __init__(self, weight: list[list[np.float32]], bias: list[np.float32], x: list[np.float32]) -> None:
        self.rows = [[Fraction(float(w)) for w in row] for row in weight]
        self.bias = [Fraction(float(b)) for b in bias]
        self.x = [Fraction(float(v)) for v in x]
        y = self.logits(self.x)
        self.label = y.index(max(y))
        self.walls = []  # (Δw, how far along Δw the label's lead over a rival is gone)
        for i, row in enumerate(self.rows):
            if i != self.label:
                away = [a - b for a, b in zip(self.rows[self.label], row, strict=True)]
                self.walls.append((away, (y[self.label] - y[i]) / sum(d * d for d in away)))
        self.least_square = min(step**2 * sum(d * d for d in away) for away, step in self.walls)

    def logits(self, x: list[Fraction]) -> list[Fraction]:
        return [
            sum((w * v for w, v in zip(row, x, strict=True)), b)
            for row, b in zip(self.rows, self.bias, strict=True)
        ]

    def near_the_boundary(self, rng: random.Random) -> list[tuple[Fraction, list[Fraction]]]:
        """(‖x′ − x‖², x′) of float32 and float64 points x′ that have another label, and many that just fail
        to."""
        found = []
        for away, step in self.walls:
            for kind in (np.float32, np.float64):
                for past in (0, 2**-50, 2**-44, 2**-38, 2**-32, 2**-26, 2**-22, 2**-18):
                    for _ in range(2):
                        wall = [
                            v - step * d * (1 + Fraction(past)) for v, d in zip(self.x, away, strict=True)
                        ]
                        point = [Fraction(float(_nudged(kind(float(v)), rng))) for v in wall]
                        found.append((sum((a - b) ** 2 for a, b in zip(point, self.x, strict=True)), point))
        return found

    def breaks(self, radius: float, points: list[tuple[Fraction, list[Fraction]]]) -> bool:
        if not math.isfinite(radius) or radius <= 0:
            return False
        for square, point in points:
            if square < Fraction(radius) ** 2:
                y = self.logits(point)
                if y.index(max(y)) != self.label:
                    return True
        return False


def _nudged(value: np.floating, rng: random.Random) -> np.floating:
    """The float, or a neighbour."""
    toward = rng.choice((None, -math.inf, math.inf))
    return value if toward is None else np.nextafter(value, type(value)(toward))


def float_radius(
    weight: list[list[np.float32]], bias: list[np.float32], x: list[np.float32], kind: type[np.floating]
) -> tuple[int, float]:
    """The textbook formula, every operation in one arithmetic, in the order in which it is written."""
    rows = [[kind(w) for w in row] for row in weight]
    y = []
    for row, b in zip(rows, bias, strict=True):
        total = kind(b)
        for w, v in zip(row, x, strict=True):
            total = total + w * kind(v)
        y.append(total)
    j = max(range(len(y)), key=lambda c: (y[c], -c))
    radii = []
    for i in range(len(y)):
        if i != j:
            square = kind(0)
            for a, b in zip(rows[j], rows[i], strict=True):
                square = square + (a - b) * (a - b)
            radii.append(float((y[j] - y[i]) / np.sqrt(square)))
    return j, min(radii)
