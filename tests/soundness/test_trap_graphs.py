"""What a network really computes"""

from __future__ import annotations

import math

import pytest
import torch
import torch.fx
from tests.soundness import naive
from tests.soundness.cases import (
    ACROSS,
    Answers,
    X,
    at,
    case,
    certified,
    claimed_radius,
    disproof,
    linear,
    number,
)
from torch import Tensor, nn

import gloronet as gn


class Block(nn.Module):
    """f·x, then ReLU: written by hand, so no list of layers describes it."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.layer = linear(torch.eye(2) * factor)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.layer(x))


def head() -> nn.Linear:
    return linear(torch.eye(2))


def proved(module: nn.Module, truth: float, k: float, x: Tensor = X) -> str:
    """Our words for K and the radius, both checked against what they must be."""
    net = certified(module, tuple(x.shape[1:]))
    ours, radius = net.bound().constant, float(net.certify(x).radius)
    assert k * (1 - 1e-12) <= ours <= k * (1 + 1e-6)
    assert truth * (1 - 1e-6) <= radius <= truth * (1 + 1e-9)
    return f"K = {number(ours)}, radius {number(radius)}"


@case("Hooks")
def test_hooks() -> Answers:
    """A forward hook is part of the function; preprocessing is often put into one.
    `torch.fx.symbolic_trace` calls the network's `forward` past it, and a list of layers knows nothing of
    hooks at all."""
    module = nn.Sequential(Block(), head())
    module.register_forward_pre_hook(lambda module, inputs: 3.0 * inputs[0])
    wrong = naive.constant([module[0].layer])
    assert torch.equal(torch.fx.symbolic_trace(module)(X), X)
    assert torch.equal(module(X), 3.0 * X)
    claimed = claimed_radius(module, wrong)
    broken = disproof(module, X, ACROSS, claimed)
    return Answers(
        f"K = {number(wrong)}, radius {number(claimed)}, {broken}", proved(module, 0.8 / 2**0.5, 3.0)
    )


@case("Subclasses and patched methods")
def test_subclasses_and_patched_methods() -> Answers:
    """`isinstance(layer, nn.Linear)` is true for a subclass that computes something else, and for a layer
    whose `forward` was replaced. The class name is not the function."""

    class Loud(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 5.0 * super().forward(x)

    loud, patched = Loud(2, 2, bias=False).double(), linear(torch.eye(2))
    with torch.no_grad():
        loud.weight.copy_(torch.eye(2))
    plain = patched.forward
    patched.forward = lambda x: 5.0 * plain(x)  # type: ignore[method-assign]
    words = []
    for layer in (loud, patched):
        module = nn.Sequential(layer, nn.ReLU(), head())
        claimed = claimed_radius(module, naive.constant([layer]))
        broken = disproof(module, X, ACROSS, claimed)
        words.append(proved(module, 0.8 / 2**0.5, 5.0))
    return Answers(f"K = 1, radius {number(claimed)}, {broken}", words[0])


class Gain(nn.Module):
    def forward(self, x: Tensor, gain: float = 1.0) -> Tensor:
        return gain * x


@gn.rule(Gain)
def _(module: nn.Module, input_shape: tuple[int, ...], norm: str) -> float:
    return 1.0


class Louder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain, self.head = Gain(), head()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gain(x, 5.0))


@case("A call with another argument")
def test_a_call_with_another_argument() -> Answers:
    """A table of constants by type knows a layer as it is called by default. A forward may hand it something else
    besides its input, a gain, a temperature, a limit, and the table still says 1."""
    module = Louder()
    claimed = claimed_radius(module, 1.0)
    broken = disproof(module, X, ACROSS, claimed)
    return Answers(f"K = 1, radius {number(claimed)}, {broken}", proved(module, 0.8 / 2**0.5, 5.0))


@case("A layer used twice")
def test_a_layer_used_twice() -> Answers:
    """`for m in model.modules()` lists a shared layer once, however often it is called. Weight sharing
    makes the constant of a loop that of its body."""
    layer = linear(3.0 * torch.eye(2))
    module = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), head())
    wrong = naive.constant(list(module.modules())[1:3])
    assert [m for m in module.modules() if m is layer] == [layer]
    claimed = claimed_radius(module, wrong)
    broken = disproof(module, X, ACROSS, claimed)
    return Answers(
        f"K = {number(wrong)}, radius {number(claimed)}, {broken}", proved(module, 0.8 / 2**0.5, 9.0)
    )


@case("An unknown layer")
def test_an_unknown_layer() -> Answers:
    """ "Unknown layer, assuming 1", says a warning that nobody reads. Squares have no Lipschitz constant at
    all; GELU, SiLU and Mish, the usual unknowns, have one above 1."""

    class Square(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * x

    module = nn.Sequential(Square(), linear([[1.0, 0.0], [0.0, 0.0]], [0.0, 49.0]))
    x, point = at(10.0, 0.0), at(6.9, 0.0)
    claimed = naive.radius(module(x).detach()[0], torch.full((2, 2), naive.constant([module[0]])))
    broken = disproof(module, x, point, claimed)
    with pytest.raises(gn.UnsupportedOperation, match="No bound for Square at 0") as refusal:
        certified(module, (2,))
    with pytest.raises(gn.UnsupportedOperation, match="SiLU at 0"):
        certified(nn.Sequential(nn.SiLU(), head()), (2,))
    return Answers(f"K = 1, radius {number(claimed)}, {broken}", f"refused: “{refusal.value}”")


@case("GELU counted as 1")
def test_gelu_counted_as_one() -> Answers:
    """GELU looks like ReLU and is drawn below it, but it dips before it rises: its slope at √2 is 1.129.
    Ten of them in a row are worth a factor of 3.4."""
    module = nn.Sequential(*[nn.GELU() for _ in range(10)])
    a, b = at(1.41, 1.42)[0]
    slope = float((nn.GELU()(b) - nn.GELU()(a)) / (b - a))
    ours = certified(nn.Sequential(*module, head()), (2,)).bound()
    each = ours.layers[0].value
    assert 1.0 < slope <= each <= 1.1290
    return Answers(
        f"K = {number(naive.constant(module))}; the slope between 1.41 and 1.42 is {number(slope)}",
        f"K = {number(each)} each, {number(ours.constant)} for ten",
    )


@case("Branches that meet")
def test_branches_that_meet() -> Answers:
    """Branches from the same input, added or put side by side: a certifier that takes the larger constant
    forgets that both move at once. Sums add constants, concatenation their squares."""

    class Joined(nn.Module):
        def __init__(self, concatenate: bool) -> None:
            super().__init__()
            self.a, self.b, self.concatenate = Block(), Block(), concatenate
            self.head = linear(
                [[1.0, 0.0, 1.0, 0.0], [0.0] * 4] if concatenate else [[1.0, 0.0], [0.0, 0.0]], [-0.8, 0.0]
            )

        def forward(self, x: Tensor) -> Tensor:
            a, b = self.a(x), self.b(x)
            return self.head(torch.cat([a, b], 1) if self.concatenate else a + b)

    point, words = at(0.39, 0.1), []
    for concatenate, k in ((False, 2.0), (True, 2**0.5)):
        module = Joined(concatenate)
        wrong = max(naive.constant([module.a.layer]), naive.constant([module.b.layer]))
        rows = module.head.weight.detach()
        claimed = float(module(X).detach()[0, 0]) / (wrong * float((rows[0] - rows[1]).norm()))
        broken = disproof(module, X, point, claimed)
        net = certified(module, (2,))
        c, ours = net.certify(X), net.bound().constant
        assert k * (1 - 1e-12) <= ours <= k * (1 + 1e-6)
        assert 0.5 * (1 - 1e-6) <= float(c.radius) <= 0.5
        words.append((f"K = {number(wrong)}, radius {number(claimed)}, {broken}", f"K = {number(ours)}"))
    return Answers(
        f"sum: {words[0][0]}; concatenation: {words[1][0]}",
        f"sum: {words[0][1]}; concatenation: {words[1][1]}; radius {number(c.radius)} for both",
    )


@case("The margin over one row")
def test_the_margin_over_one_row() -> Answers:
    """ "The logit moves by at most ε·K, and the margin is m, so the radius is m/K." The other logit moves,
    too, and may move the other way."""
    module = linear([[1.0, 0.0], [-1.0, 0.0]])
    claimed = float(module(X).detach().diff().abs()) / row_norm(module)
    broken = disproof(module, X, at(-0.01, 0.1), claimed)
    c = certified(module, (2,)).certify(X)
    assert 0.9 * (1 - 1e-6) <= float(c.radius) <= 0.9
    return Answers(f"radius {number(claimed)}, {broken}", f"radius {number(c.radius)}, with K‖w₁ − w₀‖")


def row_norm(layer: nn.Linear) -> float:
    return float(layer.weight.detach()[0].norm())


@case("ℓ2 constants for ℓ∞")
def test_l2_constants_for_linf() -> Answers:
    """An ℓ2 constant says nothing about ℓ∞: moving all n pixels by r moves the input by √n·r in ℓ2. The
    dual norm of a row is ℓ1, not ℓ2."""
    n = 100
    module = linear(torch.stack([torch.ones(n), torch.zeros(n)]))
    x = torch.full((1, n), 0.5).double()
    claimed = float(module(x).detach()[0, 0]) / row_norm(module)
    point = torch.full((1, n), -0.01).double()
    largest = float((point - x).abs().max())
    assert largest < claimed
    assert int(module(point).argmax(1)) != int(module(x).argmax(1))
    c = certified(module, (n,), norm="linf").certify(x)
    assert 0.5 * (1 - 1e-6) <= float(c.radius) <= 0.5
    return Answers(
        f"ℓ∞ radius {number(claimed)}, with another label at {number(largest)}",
        f"ℓ∞ radius {number(c.radius)}",
    )


@case("Standardisation outside the network")
def test_standardisation_outside_the_network() -> Answers:
    """Inputs are divided by their standard deviation in the data loader, and the radius that comes out is
    in those units. In pixels it is smaller by that factor."""
    std = 0.25
    inner = nn.Sequential(Block(), head())
    module = nn.Sequential(gn.Standardize(0.0, std), inner)
    claimed = claimed_radius(inner, naive.constant([inner[0].layer]), X / std)
    broken = disproof(module, X, ACROSS, claimed)
    return Answers(
        f"radius {number(claimed)}, {broken}", proved(module, 0.8 / 2**0.5, 1 / std) + ", in raw units"
    )


@case("BatchNorm counted as 1")
def test_batchnorm_counted_as_one() -> Answers:
    """ "It normalises, so it is 1-Lipschitz." In eval mode BatchNorm multiplies by γ/√(var + eps), and the
    variance of a quiet channel is small."""
    module, _ = with_batchnorm(variance=0.0004 - 1e-5, gain=1.0)
    claimed = claimed_radius(module, naive.constant(module[:1]))
    broken = disproof(module, X, ACROSS, claimed)
    return Answers(
        f"K = 1, radius {number(claimed)}, {broken}", proved(module, 0.8 / 2**0.5, 1 / 0.0004**0.5)
    )


@case("BatchNorm with a negative gain")
def test_batchnorm_with_a_negative_gain() -> Answers:
    """γ may be negative, and training makes it so. The largest gain is then not the largest size of a
    gain."""
    module, norm = with_batchnorm(variance=1.0 - 1e-5, gain=-5.0)
    with torch.no_grad():
        norm.weight[1] = 0.5
        norm.bias.fill_(6.0)
    wrong = float((norm.weight / (norm.running_var + norm.eps).sqrt()).detach().max())
    point = at(-0.05, 0.1)
    claimed = claimed_radius(module, wrong)
    broken = disproof(module, X, point, claimed)
    net = certified(module, (2,))
    ours, c = net.bound().constant, net.certify(X)
    assert 5.0 * (1 - 1e-12) <= ours <= 5.0 * (1 + 1e-6)
    assert 0.0 < float(c.radius) <= 4.55 / 25.25**0.5
    return Answers(
        f"K = {number(wrong)}, radius {number(claimed)}, {broken}",
        f"K = {number(ours)}, radius {number(c.radius)}",
    )


@case("BatchNorm without its eps")
def test_batchnorm_without_its_eps() -> Answers:
    """Folded as γ/√var, without eps, a channel that was constant in training has an infinite gain, and one
    with a variance of 1e-10 a gain of 1e5: another function than the one that runs."""
    module, norm = with_batchnorm(variance=1e-10, gain=1.0)
    ours = certified(module, (2,)).bound().constant
    wrong, truth = 1.0 / float(norm.running_var[0]) ** 0.5, 1.0 / (1e-10 + 1e-5) ** 0.5
    assert truth * (1 - 1e-12) <= ours <= truth * (1 + 1e-6)
    with torch.no_grad():
        norm.running_var.zero_()
    assert math.isinf(float(1.0 / norm.running_var[0].sqrt()))
    assert certified(module, (2,)).bound().constant <= 1e5**0.5 * (1 + 1e-6)
    return Answers(f"K = {number(wrong)}; the network multiplies by {number(truth)}", f"K = {number(ours)}")


def with_batchnorm(variance: float, gain: float) -> tuple[nn.Sequential, nn.BatchNorm1d]:
    norm = nn.BatchNorm1d(2).double()
    norm.running_var.fill_(variance)
    nn.init.constant_(norm.weight, gain)
    return nn.Sequential(linear(torch.eye(2)), norm, nn.ReLU(), head()).eval(), norm
