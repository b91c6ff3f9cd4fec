"""Weights of extreme size"""

from __future__ import annotations

import math

import pytest
import torch
from tests.soundness import naive
from tests.soundness.cases import ACROSS, Answers, X, at, case, certified, disproof, linear, number
from torch import nn

import gloronet as gn
from gloronet.operators.norms import dense_bound


def scaled(*factors: float, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """Layers f·I with ReLU between: on positive inputs the label says which entry is larger."""
    layers = [linear(torch.eye(2, dtype=torch.float64) * f, dtype=dtype) for f in factors]
    found: list[nn.Module] = [layers[0]]
    for layer in layers[1:]:
        found += [nn.ReLU(), layer]
    return nn.Sequential(*found)


def check_radius(module: nn.Module, x: torch.Tensor = X) -> float:
    """Ours is below the true radius 0.8/√2, and hardly."""
    radius = float(certified(module, (2,)).certify(x).radius)
    assert 0.8 / 2**0.5 * (1 - 1e-5) <= radius <= 0.8 / 2**0.5 * (1 + 1e-7)
    return radius


@case("Weights of 1e-12")
def test_weights_of_1e_12() -> Answers:
    """`F.normalize` divides by max(‖v‖, 1e-12), so that zero stays zero. WᵀWv for weights of 1e-12 has norm
    1e-24: the iterate is not normalised, it dies away, and the norm with it."""
    module = scaled(1e-12, 1e12)
    wrong, truth = naive.power_iteration_with_eps(module[0].weight.detach()), 1e-12
    ours = certified(module, (2,)).bound().constant
    claimed = naive.radius(module(X).detach()[0], wrong * 2**0.5 * torch.full((2, 2), 1e12))
    assert wrong == 0.0
    broken = disproof(module, X, ACROSS, claimed)
    assert truth <= ours <= truth * (1 + 1e-6)
    return Answers(
        f"K = {number(wrong)}, radius {claimed}, {broken}",
        f"K = {number(ours)}, radius {number(check_radius(module))}",
    )


@case("Weights of 1e-23")
def test_weights_of_1e_23() -> Answers:
    """The square of 1e-23 is below the smallest float32: the norm of the layer underflows to K = 0, the
    quotient becomes infinite, and everything is certified for ever."""
    module = scaled(1e-23, 1e23)
    wrong = naive.float32_constant(m.weight.detach() for m in module[:1])
    claimed = naive.radius(module(X).detach()[0], wrong * 2**0.5 * torch.full((2, 2), 1e23))
    assert wrong == 0.0
    assert math.isinf(claimed)
    broken = disproof(module, X, ACROSS, claimed)
    ours = certified(module, (2,)).bound().constant
    assert 1e-23 * (1 - 1e-6) <= ours <= 1e-23 * (1 + 1e-6)
    return Answers(
        f"K = {number(wrong)}, radius {claimed}, {broken}",
        f"K = {number(ours)}, radius {number(check_radius(module))}",
    )


@case("Subnormal weights")
def test_subnormal_weights() -> Answers:
    """Float64 does not help when the weights are 1e-310: WᵀW is 0, eigenvalues and singular values of it
    are 0. They are numbers like any other, though, and the next layer may be large."""
    module = scaled(1e-310, 1e155, 1e155)
    wrong = naive.through_the_gram_matrix(module[0].weight.detach())
    ours = dense_bound(module[0].weight.detach())
    c = certified(module, (2,)).certify(X)
    assert wrong == 0.0
    broken = disproof(module, X, ACROSS, math.inf)
    assert 1e-310 <= ours <= 1e-310 * (1 + 1e-6)
    assert float(c.radius) <= 0.8 / 2**0.5
    return Answers(
        f"K = {number(wrong)}, radius inf, {broken}",
        f"K = {number(ours)}; radius {number(c.radius)}, as an evaluation in float64 loses too much there",
    )


@case("Weights of 1e-200 and 1e200")
def test_weights_of_1e_200_and_1e200() -> Answers:
    """Squares of 1e-200 are 0 and squares of 1e200 are infinite, in float64. One answer makes every radius
    infinite, the other none; their product is not a number."""
    module = scaled(1e-200, 1e200)
    weights = [module[k].weight.detach() for k in (0, 2)]
    (small, large), ours = map(naive.through_the_gram_matrix, weights), [dense_bound(w) for w in weights]
    assert small == 0.0
    assert not math.isfinite(large)
    broken = disproof(module, X, ACROSS, math.inf)
    assert all(w <= b <= w * (1 + 1e-6) for w, b in zip((1e-200, 1e200), ours, strict=True))
    return Answers(
        f"K = {number(small)} and {number(large)}; K = 0 means radius inf, {broken}",
        f"K = {number(ours[0])} and {number(ours[1])}, radius {number(check_radius(module))}",
    )


@case("Weights of 1e20")
def test_weights_of_1e20() -> Answers:
    """The squares of 1e20 overflow float32, and a normalised iterate is inf/inf. Nothing is smaller than
    something that is not a number, so a check written as "margin below ε·K" finds nothing wrong."""
    module = scaled(1e20, 1e-20)
    wrong = naive.power_iteration_with_eps(module[0].weight.detach().float(), eps=0.0)
    margin = float(module(X).detach().diff().abs())
    assert math.isnan(wrong)
    assert naive.is_certified(margin, wrong * 1e-20 * 2**0.5, epsilon=0.6)
    broken = disproof(module, X, at(0.49, 0.51), 0.6)
    ours = certified(module, (2,))
    assert not ours.certify(X, 0.6).certified
    return Answers(
        f"K = {wrong}, certified at 0.6, {broken}",
        f"K = {number(ours.bound().constant)}, radius {number(check_radius(module))}",
    )


@case("Layers rescaled by 2^±k")
def test_layers_rescaled_by_powers_of_two() -> Answers:
    """Half the first layer, double the last: the same function, with ReLU between. The running product of
    the norms in float32 underflows on the way and comes back as 0, though the product is 1."""
    module, plain = scaled(*[2.0**-60] * 3, *[2.0**60] * 3), scaled(*[1.0] * 6)
    weights = [m.weight.detach() for m in module if isinstance(m, nn.Linear)]
    wrong = naive.float32_constant(weights)
    assert wrong == 0.0
    broken = disproof(module, X, ACROSS, math.inf)
    ours, same = (certified(m, (2,)).bound().margins for m in (module, plain))
    assert torch.equal(ours, same)
    for factor in (2.0**-500, 2.0**-3, 2.0**7, 2.0**400):
        moved = scaled(factor, 1.0, 1.0, 1.0, 1 / factor, 1.0)
        assert torch.equal(certified(moved, (2,)).bound().margins, same)
    return Answers(
        f"K = {number(wrong)}, radius inf, {broken}", f"the same K₀₁ = {number(ours[0, 1])} to the last bit"
    )


@case("Subnormals flushed to zero")
def test_subnormals_flushed_to_zero() -> Answers:
    """`torch.set_flush_denormal(True)` makes inference faster: the processor takes subnormal numbers for
    zero, in float64, too. A bound computed meanwhile is 0 where the network's weights are not."""
    module = linear([[0.0], [1e-310]], [1e-306, 0.0])
    net = certified(module, (1,))
    x, point = torch.zeros(1, 1).double(), at(2e4)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot be told to flush subnormals to zero")
    try:
        weight = module.weight.detach()
        wrong = float((weight[1] - weight[0]).norm())
        with pytest.raises(gn.ConfigError, match="subnormal") as refusal:
            net.certify(x)
    finally:
        torch.set_flush_denormal(False)
    broken = disproof(module, x, point, math.inf)
    c = net.certify(x)
    assert wrong == 0.0
    assert 0.0 < float(c.radius) <= 1e4
    return Answers(
        f"K₀₁ = {number(wrong)}, radius inf, {broken}",
        f"refused: “{refusal.value}” Without flushing, radius {number(c.radius)}",
    )
