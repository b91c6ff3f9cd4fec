"""Ties, equal rows and what is not a number"""

from __future__ import annotations

import itertools
import math

import torch
from tests.soundness import naive
from tests.soundness.cases import Answers, at, case, certified, disproof, linear, number
from torch import nn


@case("Two-way tie")
def test_two_way_tie() -> Answers:
    """To find the runner-up, mask the maximum: `y[y == y.max()] = -inf`. With a tie that masks both, and the
    margin is measured to the third class."""
    module = linear([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [0.0, 0.0, 0.0])
    x, point = at(1.0, 1.0), at(1.0, 1.0 + 1e-9)
    claimed = naive.radius_masked_by_value(module(x).detach()[0], 2**0.5)
    assert claimed > 0.7
    broken = disproof(module, x, point, claimed)
    net = certified(module, (2,), 0.0)
    c = net.certify(x)
    assert float(c.radius) == 0.0
    assert not c.certified
    assert int(net(x).argmax()) == 3
    return Answers(f"radius {number(claimed)}, {broken}", f"radius {number(c.radius)}, ⊥")


@case("All-way tie")
def test_all_way_tie() -> Answers:
    """The same code on a network that answers every class alike, such as one whose ReLUs are all dead: no
    class is left over, the runner-up is −∞, and the most undecided network there is gets an infinite
    radius."""
    module = nn.Sequential(linear([[1.0, 1.0]], [-1.0]), nn.ReLU(), linear([[0.0], [1.0], [2.0]]))
    x, point = at(0.2, 0.2), at(0.6, 0.6)
    claimed = naive.radius_masked_by_value(module(x).detach()[0], 1.0)
    assert math.isinf(claimed)
    broken = disproof(module, x, point, claimed)
    c = certified(module, (2,), 0.0).certify(x)
    assert float(c.radius) == 0.0
    assert not c.certified
    return Answers(f"radius {number(claimed)}, {broken}", f"radius {number(c.radius)}, ⊥")


@case("Equal rows, equal biases")
def test_equal_rows_and_equal_biases() -> Answers:
    """Two classes with the same row and the same bias have K₀₁ = 0, and "two logits that cannot move apart
    need no check". But they are tied, and which one is answered is for the library to choose."""
    module = linear([[1.0, 2.0], [1.0, 2.0]], [0.5, 0.5])
    x = at(0.3, 0.4)
    y = module(x).detach()[0]
    claimed = naive.radius_without_constant_pairs(y, naive.gram_distances(module.weight.detach()))
    assert math.isinf(claimed)
    other = 1 - int(y.flip(0).argmax())  # listed the other way round: the other class
    assert other != int(y.argmax())
    c = certified(module, (2,), 0.0).certify(x)
    assert float(c.radius) == 0.0
    return Answers(
        f"class {int(y.argmax())}, radius {number(claimed)}; class {other} when listed the other way",
        f"radius {number(c.radius)}, ⊥",
    )


@case("Equal rows, unequal biases")
def test_equal_rows_and_unequal_biases() -> Answers:
    """The same rows, and a bias that decides: the answer is certain for all x. In float32 the logits of a
    large input swallow the bias, see a tie and take the first class, which is never right."""
    module = linear([[1.0, 2.0], [1.0, 2.0]], [0.0, 0.01], torch.float32)
    x = torch.tensor([[3e6, 1e6]])
    wrong = int(module(x).detach()[0].argmax())
    net = certified(module, (2,))
    c, single = net.certify(x), net.certify(x, semantics="float32")
    assert wrong == 0
    assert int(c.label) == 1
    assert math.isinf(float(c.radius))
    assert float(single.radius) == 0.0
    return Answers(
        f"class {wrong}, radius inf; exactly, class 1 leads by 0.01 everywhere",
        f"class {int(c.label)}, radius {number(c.radius)} for the exact function; "
        f"radius {number(single.radius)} for the float32 network",
    )


@case("Almost equal rows")
def test_almost_equal_rows() -> Answers:
    """‖w_j − w_i‖² = ‖w_j‖² + ‖w_i‖² − 2w_j·w_i costs one matrix product. Where the rows are close all
    digits cancel: the distance is 0, and the margin needs no check any more."""
    rows = [[1.0, 3.0], [1.0, 3.0 + 2.0**-12]]
    module = linear(rows, [2.0**-13, 0.0], torch.float32)
    distances = naive.gram_distances(module.weight.detach())
    x, point = torch.tensor([[1.0, 0.25]]), torch.tensor([[1.0, 0.75]])
    claimed = naive.radius_without_constant_pairs(module(x).detach()[0], distances)
    broken = disproof(module.double(), x.double(), point.double(), claimed)
    net = certified(module, (2,))
    ours, c = float(net.bound().margins[0, 1]), net.certify(x)
    assert 2.0**-12 <= ours <= 2.0**-12 * (1 + 1e-6)
    assert 0.25 * (1 - 1e-6) <= float(c.radius) <= 0.25
    return Answers(
        f"K₀₁ = {number(distances[0, 1])}, radius {number(claimed)}, {broken}",
        f"K₀₁ = {number(ours)}, radius {number(c.radius)}",
    )


@case("NaN and infinity")
def test_what_is_not_a_number() -> Answers:
    """NaN compares false with everything, so "certified unless the margin is below ε·K" certifies it. One bad
    weight, one bad bias, one bad pixel is enough; infinity minus infinity is one, too."""
    kinds, fooled = list(itertools.product(("weight", "bias", "input"), (math.nan, math.inf, -math.inf))), 0
    for where, bad in kinds:
        first = linear([[1.0, 2.0], [3.0, 4.0]], [0.1, 0.2], torch.float32)
        module = nn.Sequential(first, nn.ReLU(), linear([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float32))
        x = torch.tensor([[0.3, 0.4]])
        with torch.no_grad():
            if where == "input":
                x[0, 0] = bad
            else:
                getattr(first, where).view(-1)[0] = bad
            y = module(x)[0]
            margin = float(y.max() - y.min())
        fooled += naive.is_certified(
            margin, naive.through_the_gram_matrix(first.weight.detach()), epsilon=0.1
        )
        net = certified(module, (2,))
        c = net.certify(x)
        assert float(c.radius) == 0.0
        assert not c.certified
        assert int(net(x).argmax()) == 2
        assert not net.certify(x, semantics="float32").certified
    assert fooled == 7
    return Answers(f"certified in {fooled} of {len(kinds)} ways to spoil a network", "⊥ in all of them")


@case("An infinite logit")
def test_an_infinite_logit() -> Answers:
    """A hidden unit of the float32 network overflows, and its class leads by infinity: no ε·K is larger, so
    the radius is infinite. Exactly, the other class leads."""
    wide, head = [[1e30], [1.0]], [[1e-30, 0.0], [-1e-31, 2.0]]  # y = (x, 1.9x)
    module = nn.Sequential(linear(wide, dtype=torch.float32), nn.ReLU(), linear(head, dtype=torch.float32))
    x = torch.tensor([[1e10]])
    y = module(x).detach()[0]
    claimed = naive.radius(y, torch.full((2, 2), 3.0))
    net = certified(module, (1,))
    c, single = net.certify(x), net.certify(x, semantics="float32")
    assert math.isinf(claimed)
    assert int(y.argmax()) == 0
    assert int(c.label) == 1
    assert float(c.radius) <= 0.9e10 / 2e30 * 1.1
    assert float(single.radius) == 0.0
    assert int(net(x).argmax()) == 2
    return Answers(
        f"class {int(y.argmax())}, radius {number(claimed)}; exactly, class 1",
        f"class {int(c.label)} for the exact function, radius {number(c.radius)}; ⊥ for the float32 network",
    )
