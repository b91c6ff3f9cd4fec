"""What a certificate speaks about: the exact function ("real") and the float32 net as it runs ("float32")."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gloronet as gn
from gloronet.operators.rounding import U32, norms_up


def small_net(seed: int, bias: float = 1.0) -> gn.GloRoNet:
    torch.manual_seed(seed)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1), gn.MinMax(), gn.Residual(nn.Conv2d(4, 4, 3, padding=1)), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 12), nn.BatchNorm1d(12), gn.MinMax(), nn.Linear(12, 4),
    )  # fmt: skip
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() == 1:
                p.mul_(bias)
    norm = module[7]
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 2.0)
    return gn.GloRoNet(module, 0.01, (1, 8, 8)).eval()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    bias=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    scale=st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_no_float32_evaluation_is_further_off_than_delta(seed: int, bias: float, scale: float) -> None:
    net = small_net(seed, bias)
    x = torch.rand(16, 1, 8, 8) * scale
    proof = net._proof()
    exact = proof.program(x)  # float64: its own error is 2⁻²⁹ of what is measured here
    single = net.logits(x).detach().double()
    label = exact.argmax(1)
    lead, lead32 = (y.gather(1, label[:, None]) - y for y in (exact, single))
    affine, _ = proof.error(U32).rows(norms_up(x.flatten(1)), label)
    at_sample, _ = proof.float32(x, close=False).rows(label)
    close, _ = proof.float32(x, close=True).rows(label)
    off = (lead - lead32).abs()
    for bound in (affine, at_sample, close):
        assert (off <= bound).all()
    assert (close <= at_sample * (1 + 1e-6)).all()
    assert (at_sample <= affine * (1 + 1e-6)).all()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_each_semantics_claims_no_more_than_a_weaker_one(seed: int) -> None:
    net = small_net(seed)
    x = torch.rand(32, 1, 8, 8)
    real, plain, close = (
        net.certify(x, semantics=s, per_sample=p) for s, p in (("real", False), ("float32", False), ("float32", True))
    )
    assert (plain.radius <= real.radius).all()
    assert (close.radius <= real.radius).all()
    assert (close.radius >= plain.radius * (1 - 1e-6)).all()
    assert plain.semantics == "float32"


def test_the_float32_net_answers_the_label_everywhere_in_its_ball() -> None:
    """Random and worst-direction float32 points at the very edge of the float32 radius."""
    net = small_net(3)
    x = torch.rand(64, 1, 8, 8)
    c = net.certify(x, semantics="float32")
    inside = c.radius > 0
    x, label, radius = x[inside], c.label[inside], c.radius[inside]
    generator = torch.Generator().manual_seed(0)
    x.requires_grad_()
    y = net.logits(x)
    second = y.detach().scatter(1, label[:, None], -torch.inf).argmax(1)
    (y.gather(1, label[:, None]) - y.gather(1, second[:, None])).sum().backward()
    for direction in (-x.grad, *torch.randn(50, *x.shape, generator=generator)):
        unit = direction.double() / direction.double().flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        point = (x.detach().double() + unit * (radius * (1 - 1e-9)).reshape(-1, 1, 1, 1)).float()
        distance = (point.double() - x.detach().double()).flatten(1).norm(dim=1)
        use = distance < radius
        assert (net.logits(point).argmax(1)[use] == label[use]).all()


def test_where_float_argmax_flips_inside_the_real_radius_float32_abstains() -> None:
    """Adjacent weights under a bias of 2²⁴: exact margins survive, float32 sums swallow them."""
    head = nn.Linear(2, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
        head.bias.fill_(2.0**24)
    net = gn.GloRoNet(head, 1e-3, (2,)).eval()
    x = torch.tensor([[0.7, 0.2]])
    assert net.logits(x)[0, 0] == net.logits(x)[0, 1]  # float32 sees a tie
    assert net.certify(x).certified
    assert not net.certify(x, semantics="float32").certified
    assert net(x).argmax(1).item() == 2


def test_an_overflow_of_float32_is_not_certified() -> None:
    first, last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        first.weight.copy_(torch.eye(2) * 1e25)
        last.weight.copy_(torch.eye(2) * 1e20)
    net = gn.GloRoNet(nn.Sequential(first, nn.ReLU(), last), 1e-3, (2,)).eval()
    x = torch.tensor([[1.0, 0.0]])
    assert net.certify(x).certified
    assert not net.certify(x, semantics="float32").certified
    assert net(x).argmax(1).item() == 2


def test_unknown_semantics_and_elementary_functions_are_refused() -> None:
    net = small_net(0)
    with pytest.raises(gn.ConfigError, match="real, float32"):
        net.certify(torch.rand(1, 1, 8, 8), semantics="bfloat16")
    smooth = gn.GloRoNet(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)), 0.1, (2,)).eval()
    assert smooth.certify(torch.rand(3, 2)).radius.shape == (3,)
    assert smooth.speaks_of("real")
    assert not smooth.speaks_of("float32")
    with pytest.raises(gn.UnsupportedOperation, match="tanh at 1"):
        smooth.certify(torch.rand(3, 2), semantics="float32")
    linf = gn.GloRoNet(nn.Linear(2, 2), 0.1, (2,), norm="linf")
    with pytest.raises(gn.ConfigError, match="real"):
        linf.certify(torch.rand(3, 2), semantics="float32")


def test_bfloat16_logits_are_always_bottom() -> None:
    """No bound on bf16's rounding is below a margin here: the honest answer is ⊥."""
    net = gn.GloRoNet(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).bfloat16(), 0.0, (64,)).eval()
    assert (net(torch.rand(8, 64).bfloat16()).argmax(1) == 3).all()


def test_certifying_is_not_touched_by_autocast() -> None:
    net = small_net(1)
    x = torch.rand(8, 1, 8, 8)
    plain = net.certify(x), net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = net.certify(x), net(x)
    assert torch.equal(plain[0].radius, cast[0].radius)
    assert np.array_equal(plain[1].detach().numpy(), cast[1].detach().numpy())


def test_whole_numbers_are_not_taken_for_pixels() -> None:
    """Radii of a uint8 image would be in units of 1/255 without a word."""
    net = small_net(0)
    for ask in (net.certify, net.logits, net):
        with pytest.raises(gn.ConfigError, match="to_unit"):
            ask(torch.zeros(2, 1, 8, 8, dtype=torch.uint8))
