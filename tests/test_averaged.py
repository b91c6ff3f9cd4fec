"""Averages of nets and of mirror images: their margins, their radii, and what must not be certified."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import check_disjoint, exact_logits, normal
from torch import Tensor, nn

import gloronet as gn
from gloronet import data
from gloronet.attacks import pgd
from gloronet.averaged import averaged_logits, averaged_margins, certify_averaged, certify_averaged_set
from gloronet.certify import certify_set, disjoint_balls
from gloronet.config import TrainConfig
from gloronet.net import BOTTOM, GloRoNet
from gloronet.program.error import LogitError
from gloronet.program.program import run

seeds = st.integers(0, 2**32 - 1)
forms = st.sampled_from(["margin", "simple", "lmt"])
SHAPE = (2, 5, 6)


def convolutional(seed: int, form: str = "margin", classes: int = 3, epsilon: float = 0.05) -> GloRoNet:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, 3, 1 + seed % 2, 1), gn.MinMax() if seed % 3 else nn.ReLU(), nn.Flatten()]
    layers.append(nn.Linear(4 * 30 if seed % 2 == 0 else 4 * 9, classes))
    return GloRoNet(nn.Sequential(*layers), epsilon, SHAPE, form).eval()


def linear(weight: list[list[float]], bias: list[float]) -> GloRoNet:
    module = nn.Linear(len(weight[0]), len(weight), dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(weight, dtype=torch.float64))
        module.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return GloRoNet(module, 0.1, (len(weight[0]),)).eval()


def in_float64(nets: list[GloRoNet], flip: bool):
    """F in float64, differentiable in x."""
    programs = [net.program().freeze() for net in nets]

    def logits(x: Tensor) -> Tensor:
        views = (x.double(), x.double().flip(-1)) if flip else (x.double(),)
        return torch.stack([run(p.ops, p.operators, view) for p in programs for view in views]).mean(0)

    return logits


def check_average(nets: list[GloRoNet], x: Tensor, flip: bool, steps: int = 20) -> gn.Certificates:
    """No sample of a certified ball and no attack inside it changes the label; balls of two labels never meet."""
    c = certify_averaged(nets, x, flip=flip)
    logits = in_float64(nets, flip)
    assert torch.equal(logits(x).argmax(1)[c.radius > 0], c.label[c.radius > 0])
    check_disjoint(x, c)
    use = (c.radius > 0) & torch.isfinite(c.radius)
    if not bool(use.any()):
        return c
    centre, label, radius = x[use].double(), c.label[use], c.radius[use] * (1.0 - 1e-9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        step = normal(*centre.shape, generator=generator).flatten(1)
        step = (step / step.norm(dim=1, keepdim=True) * radius[:, None]).reshape(centre.shape)
        assert torch.equal(logits(centre + step).argmax(1), label)
    attack = pgd(logits, centre, label, radius, clip=None, steps=steps, restarts=2, generator=generator)
    assert not attack.success.any()
    return c


# --- one net ---


@settings(max_examples=15)
@given(seeds, forms, st.sampled_from([1.0, 1e-8, 1e6, 1e-160, 1e150]))
def test_one_net_without_a_flip_is_certified_as_by_itself(seed, form, scale):
    net = convolutional(seed, form)
    if not 1e-30 < scale < 1e30:
        net = GloRoNet(net.module.double(), 0.05, SHAPE, form)
    with torch.no_grad():
        net.module[-1].weight *= scale
    x = torch.randn(12, *SHAPE)
    x[0], x[1], x[2, 0, 0, 0], x[3, 0, 0, 0] = 0.0, 1e30, math.nan, math.inf
    alone, one = net.certify(x, "1/7"), certify_averaged([net], x, "1/7")
    assert torch.equal(one.label, alone.label)
    assert torch.equal(one.radius, alone.radius)
    assert torch.equal(one.margin, alone.margin)
    assert (one.epsilon, one.semantics) == (alone.epsilon, "real")
    assert torch.equal(averaged_margins([net]), net.bound().margins)


def test_equal_nets_are_one_net_but_for_rounding():
    net = convolutional(7)
    x = torch.randn(20, *SHAPE)
    alone, many = net.certify(x), certify_averaged([net] * 5, x)
    assert torch.equal(many.label, alone.label)
    assert torch.allclose(many.radius, alone.radius, rtol=1e-9, atol=0)
    assert torch.allclose(many.margin, alone.margin, rtol=1e-9, atol=0)
    assert (many.radius[alone.radius > 0] <= alone.radius[alone.radius > 0]).all()


# --- the laws ---


@settings(max_examples=20)
@given(st.lists(seeds, min_size=1, max_size=4), forms, st.booleans())
def test_nothing_changes_the_label_inside_a_radius(chosen, form, flip):
    nets = [convolutional(seed, form) for seed in chosen]
    check_average(nets, torch.rand(16, *SHAPE), flip)


@settings(max_examples=20)
@given(st.lists(st.tuples(seeds, forms), min_size=1, max_size=4), st.booleans())
def test_averaged_margins_are_above_every_quotient_and_gradient(chosen, flip):
    nets = [convolutional(seed, form) for seed, form in chosen]
    margins, logits = averaged_margins(nets), in_float64(nets, flip)
    generator = torch.Generator().manual_seed(chosen[0][0])
    x, z = (normal(40, *SHAPE, generator=generator) for _ in range(2))
    for a, b in ((x, z), (x, x + 1e-3 * z), (x, -x)):
        moved = logits(a) - logits(b)
        moved = (moved[:, :, None] - moved[:, None, :]).abs()
        assert (moved <= margins * (a - b).flatten(1).norm(dim=1)[:, None, None] + 1e-13).all()
    x.requires_grad_()
    y = logits(x)
    rows = [torch.autograd.grad(y[:, c].sum(), x, retain_graph=True)[0].flatten(1) for c in range(3)]
    for i in range(3):
        for j in range(3):
            assert ((rows[i] - rows[j]).norm(dim=1) <= margins[i, j] * (1 + 1e-12)).all()


@settings(max_examples=60)
@given(
    seeds,
    st.integers(1, 5),
    st.sampled_from([0.0, 1.0, 1e9, 1e16]),
    st.sampled_from([1e-300, 1e-3, 1.0, 1e150]),
)
def test_margins_leads_and_radii_against_exact_fractions(seed, n, offset, scale):
    """Linear nets whose biases may cancel: K is Σ‖w_j − w_i‖/n, the lead exact, r no more than their quotient."""
    generator = torch.Generator().manual_seed(seed)
    nets = []
    for _ in range(n):
        w, b = normal(3, 2, generator=generator) * scale, normal(3, generator=generator) * scale
        shift = normal(1, generator=generator) * offset * scale  # as large for each class of this net
        nets.append(linear(w.tolist(), (b + shift).tolist()))
    x = normal(6, 2, generator=generator)
    c, margins = certify_averaged(nets, x), averaged_margins(nets)
    weights = [[[Fraction(v) for v in row] for row in net.module.weight.tolist()] for net in nets]

    for i in range(3):
        for j in range(3):
            exact = sum(distance_down(w, i, j) for w in weights) / n
            assert exact <= Fraction(float(margins[i, j])) <= exact * (1 + Fraction(1, 2**45))
    for k in range(6):
        point = [Fraction(v) for v in x[k].tolist()]
        ys = [exact_logits(net.program().freeze(), point) for net in nets]
        average = [sum(y[i] for y in ys) / n for i in range(3)]
        label, radius = int(c.label[k]), Fraction(float(c.radius[k]))
        for i in range(3):
            if i != label and radius > 0:
                lead = average[label] - average[i]
                assert Fraction(float(c.margin[k])) <= lead
                assert radius * sum(distance_down(w, i, label) for w in weights) / n <= lead


def distance_down(w: list[list[Fraction]], i: int, j: int) -> Fraction:
    """At most ‖w_j − w_i‖, and hardly less."""
    square = sum(((a - b) ** 2 for a, b in zip(w[i], w[j], strict=True)), Fraction(0))
    scale = 2**2400
    return Fraction(math.isqrt(square.numerator * scale // square.denominator), 2**1200)


def test_by_hand():
    """w differ by (3, 4) and (5, −12): K = (5 + 13)/2 = 9. At (2, 1) leads are 10 and −2: 4 on average."""
    nets = [linear([[3.0, 4.0], [0.0, 0.0]], [0.0, 0.0]), linear([[5.0, -12.0], [0.0, 0.0]], [0.0, 0.0])]
    x = torch.tensor([[2.0, 1.0]], dtype=torch.float64)
    c = certify_averaged(nets, x, epsilon="4/10")
    assert float(averaged_margins(nets)[0, 1]) == pytest.approx(9.0, rel=1e-12)
    assert float(averaged_margins(nets)[0, 1]) >= 9.0
    assert (float(c.margin), float(c.radius)) == (pytest.approx(4.0), pytest.approx(4 / 9))
    assert float(c.radius) < 4 / 9
    assert c.prediction.tolist() == [0]
    assert averaged_logits(nets, x).tolist() == [[4.0, 0.0]]


# --- mirror images ---


def test_the_mirror_image_has_the_same_certificate():
    nets = [convolutional(1), convolutional(4, "simple")]
    x = torch.rand(20, *SHAPE)
    here, there = certify_averaged(nets, x, flip=True), certify_averaged(nets, x.flip(-1), flip=True)
    assert torch.equal(here.label, there.label)
    assert torch.allclose(here.radius, there.radius, rtol=1e-9, atol=0)
    plain = certify_averaged(nets, x)
    assert not torch.allclose(here.radius, plain.radius, rtol=1e-3)


def test_flipping_a_symmetric_net_changes_nothing():
    net = convolutional(0)
    with torch.no_grad():
        kernel, head = net.module[0].weight, net.module[-1].weight.view(3, 4, 5, 6)
        kernel.copy_((kernel + kernel.flip(-1)) / 2)
        head.copy_((head + head.flip(-1)) / 2)
    x = torch.rand(20, *SHAPE)
    alone, both = net.certify(x), certify_averaged([net], x, flip=True)
    assert torch.equal(both.label, alone.label)
    assert torch.allclose(both.radius, alone.radius, rtol=1e-9, atol=0)
    assert int((alone.radius > 0).sum()) > 10


# --- what must not be certified ---


def test_ties_of_the_average_are_not_certified():
    nets = [linear([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0]), linear([[1.0, 0.0], [0.0, 1.0]], [0.0, 1.0])]
    x = torch.tensor([[0.5, 0.5], [0.25, 0.25]], dtype=torch.float64)
    assert (nets[0].certify(x).radius > 0).all()
    c = certify_averaged(nets, x)
    assert c.radius.tolist() == [0.0, 0.0]
    assert c.prediction.tolist() == [BOTTOM, BOTTOM]


def test_what_cancels_in_the_sum_is_not_certified(monkeypatch):
    """fl(1e16 + 1 − 1e16) = 0 < ½, so the sum has the wrong label: what it may have lost comes off, δ or not."""
    zero, x = [[0.0, 0.0], [0.0, 0.0]], torch.ones(1, 2).double()
    nets = [linear(zero, [1e16, 0.0]), linear(zero, [1.0, 0.5]), linear(zero, [-1e16, 0.0])]
    c = certify_averaged(nets, x)
    assert (c.label.tolist(), c.radius.tolist()) == ([1], [0.0])

    def nothing(self: LogitError, size: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        none = self.constant[label] * 0.0
        return none, none

    monkeypatch.setattr(LogitError, "rows", nothing)  # true of these nets: they only answer their biases
    assert certify_averaged(nets, x).radius.tolist() == [0.0]
    assert certify_averaged(nets[1:2], x).radius.tolist() == [math.inf]


def test_equal_rows_never_catch_up():
    same = [[1.0, 2.0], [1.0, 2.0]]
    x = torch.ones(1, 2).double()
    nets = [linear(same, [1.0, 0.0]), linear([[3.0, 0.0], [3.0, 0.0]], [0.0, 0.5])]
    assert certify_averaged(nets, x).radius.tolist() == [math.inf]
    assert not averaged_margins(nets).any()
    nets.append(linear([[0.0, 1e-300], [0.0, 0.0]], [0.0, 0.0]))
    assert 0.0 < float(averaged_margins(nets)[0, 1]) < 1e-299
    nets[1] = linear([[3.0, 0.0], [3.0, 0.0]], [0.0, 1.0])  # a tie, however equal the rows
    assert certify_averaged(nets[:2], x).radius.tolist() == [0.0]


def test_the_smallest_margin_does_not_vanish_when_divided():
    nets = [linear([[5e-324, 0.0], [0.0, 0.0]], [1.0, 0.0]), linear([[0.0, 0.0], [0.0, 0.0]], [1.0, 0.0])]
    assert float(averaged_margins([*nets, *nets[1:] * 100])[0, 1]) > 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("flip", [False, True])
def test_weights_and_inputs_that_are_no_numbers(bad, flip):
    nets = [convolutional(k) for k in range(3)]
    x = torch.rand(4, *SHAPE)
    x[2, 1, 0, 3] = bad
    c = certify_averaged(nets, x, flip=flip)
    assert float(c.radius[2]) == 0.0
    assert float(c.margin[2]) == -math.inf
    with torch.no_grad():
        nets[1].module[0].weight[0, 0, 0, 0] = bad
    assert certify_averaged(nets, x, epsilon=0.0, flip=flip).radius.tolist() == [0.0] * 4


def test_a_sum_that_overflows_is_not_certified():
    huge = [linear([[0.0], [0.0]], [1.5e308, 0.0]), linear([[0.0], [0.0]], [1.5e308, 0.0])]
    assert certify_averaged(huge, torch.ones(1, 1).double()).radius.tolist() == [0.0]


def test_an_infinity_that_one_nets_relu_hides_is_not_certified():
    first, last = nn.Linear(100, 1).double(), nn.Linear(1, 2).double()
    with torch.no_grad():
        first.weight.copy_(1.5e307 * torch.tensor([[-1.0] * 40 + [1.0] * 60], dtype=torch.float64))
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[0.0], [1e-304]]))
        last.bias.copy_(torch.tensor([100.0, 0.0]))
    hidden = GloRoNet(nn.Sequential(first, nn.ReLU(), last), 0.0, (100,))
    sound = GloRoNet(nn.Linear(100, 2).double(), 0.0, (100,))
    x = torch.ones(2, 100, dtype=torch.float64)
    assert certify_averaged([sound, hidden], x).radius.tolist() == [0.0, 0.0]


# --- what is refused ---


def test_what_cannot_be_averaged_is_refused():
    net, x = convolutional(0), torch.rand(2, *SHAPE)
    other = GloRoNet(nn.Sequential(nn.Flatten(), nn.Linear(75, 3)), 0.05, (3, 5, 5))
    flat = GloRoNet(nn.Linear(4, 3), 0.05, (4,))
    most = GloRoNet(nn.Sequential(nn.Flatten(), nn.Linear(60, 3)), 0.05, SHAPE, norm="linf")
    for nets, flip, said in (
        ([], False, "a list of one GloRoNet"),
        (net, False, "a list of one GloRoNet"),
        ([net.module], False, "a list of one GloRoNet"),
        ([net, convolutional(1, classes=4)], False, "not 3 and 4"),
        ([net, other], False, r"\(2, 5, 6\) and \(3, 5, 5\)"),
        ([net, most], False, 'for norm "l2"'),
        ([net, convolutional(1, epsilon=0.25)], False, "0.05 and 0.25"),
        ([flat], True, "for images"),
    ):
        with pytest.raises(gn.ConfigError, match=said) as caught:
            certify_averaged(nets, x, flip=flip)
        assert "\n" not in str(caught.value)
        with pytest.raises(gn.ConfigError, match=said):
            certify_averaged_set(nets, x, torch.zeros(2), flip=flip)
    assert certify_averaged([net, convolutional(1, epsilon=0.25)], x, 0.1).epsilon == 0.1
    with pytest.raises(gn.ConfigError, match="batches of shape"):
        certify_averaged([net], torch.rand(2, 3, 5, 5))
    with pytest.raises(gn.ConfigError, match="epsilon must be"):
        certify_averaged([net], x, "minus one")


# --- sets, and trained nets ---


def test_trained_nets_no_attack_succeeds_inside_a_radius():
    d, nets = data.load("digits"), []
    for seed in range(2):
        torch.manual_seed(seed)
        module = gn.models.build("c(8,3,1).c(16,3,2).d(32).d(10)", (1, 8, 8), 10)
        nets.append(GloRoNet(module, 0.3, (1, 8, 8)))
        gn.fit(nets[-1], d, TrainConfig(epochs=8, batch_size=128, lr=5e-3, power_iterations=2), device="cpu")
    x, done = d.test_x, []
    t = certify_averaged_set(nets, x, d.test_y, batch_size=100, progress=done.append)
    assert sum(done) == len(x)
    whole = certify_averaged(nets, data.to_unit(x))
    assert np.array_equal(t.answer, whole.label.numpy())
    assert np.allclose(t.radius, whole.radius.numpy(), rtol=1e-9)
    assert (t.epsilon, t.semantics) == (0.3, "real")
    assert t.clean > 0.9
    assert t.vra > min(certify_set(net, x, d.test_y).vra for net in nets) > 0.4
    assert disjoint_balls(t, x) >= 0
    assert (averaged_logits(nets, data.to_unit(x)).argmax(1) == whole.label).all()
    check_average(nets, data.to_unit(x)[:100], flip=False)
    both = check_average(nets, data.to_unit(x)[:100], flip=True)
    # The attack is a real one: not far outside the radii it does succeed.
    far = both.radius.clamp(min=0.05) * 8
    broken = pgd(
        in_float64(nets, True), data.to_unit(x)[:100].double(), both.label, far, steps=20, restarts=1
    )
    assert broken.success.float().mean() > 0.5
