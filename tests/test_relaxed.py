"""Relaxed guarantees: the sets that are certified, against exact arithmetic, attacks, and plain certificates."""

from __future__ import annotations

import csv
import doctest
import math
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.laws import exact_logits, normal
from torch import Tensor, nn

import gloronet as gn
from gloronet import data, losses, margins
from gloronet.attacks.ball import distance, like, norm, project
from gloronet.certify import certify_set
from gloronet.config import TrainConfig
from gloronet.net import BOTTOM, GloRoNet
from gloronet.program.program import run
from gloronet.relaxed import (
    COLUMNS,
    Affinity,
    RelaxedCertificates,
    Top,
    certify_relaxed,
    certify_relaxed_set,
    sets,
)

DOCS = Path(__file__).parent.parent / "docs"
SHAPE = (2, 5, 6)
CLASSES = 6
seeds = st.integers(0, 2**32 - 1)
nets = st.integers(0, 5)
forms = st.sampled_from(["margin", "simple", "lmt"])
some_sets = st.lists(st.sets(st.integers(0, CLASSES - 1), min_size=1), max_size=4)


@cache  # tracing is what takes time
def convolutional(seed: int, form: str = "margin", norm: str = "l2") -> GloRoNet:
    return fresh(seed, form, norm)


def fresh(seed: int, form: str = "margin", norm: str = "l2") -> GloRoNet:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, 3, 1 + seed % 2, 1), gn.MinMax() if seed % 3 else nn.ReLU(), nn.Flatten()]
    layers.append(nn.Linear(4 * 30 if seed % 2 == 0 else 4 * 9, CLASSES))
    return GloRoNet(nn.Sequential(*layers), 0.02, SHAPE, form, norm).eval()


@cache
def linear_layer(inputs: int, classes: int) -> GloRoNet:
    return GloRoNet(nn.Linear(inputs, classes, dtype=torch.float64), 0.1, (inputs,)).eval()


def linear(weight: Tensor, bias: Tensor) -> GloRoNet:
    net = linear_layer(weight.shape[1], len(weight))
    with torch.no_grad():
        net.module.weight.copy_(weight), net.module.bias.copy_(bias)
    return net


def constant(*logits: float) -> GloRoNet:
    """Answers these logits everywhere: every K_ji is 0."""
    return linear(torch.zeros(len(logits), 2), torch.tensor(logits, dtype=torch.float64))


def in_float64(net: GloRoNet):
    program = net.program().freeze()
    return lambda x: run(program.ops, program.operators, x.double())


def members(order: Tensor, k: int) -> Tensor:
    """(B, m) bool: T_k."""
    return torch.zeros_like(order, dtype=torch.bool).scatter(1, order[:, :k], True)


def ahead(y: Tensor, inside: Tensor) -> Tensor:
    """The least lead of a class inside over one outside: positive while the set is that of the largest logits."""
    return y.masked_fill(~inside, math.inf).amin(1) - y.masked_fill(inside, -math.inf).amax(1)


# --- one class: plain certificates ---


@pytest.mark.parametrize("form", ["margin", "simple", "lmt"])
@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e6, 1e30])
def test_one_class_is_certified_as_by_itself_bit_for_bit(form, scale):
    net = fresh(int(math.log10(scale)) + 8, form)
    with torch.no_grad():
        net.module[-1].weight *= scale
    for how in ({}, {"semantics": "float32"}, {"semantics": "float32", "per_sample": True}):
        check_one_class(net, how)


def check_one_class(net: GloRoNet, how: dict[str, object]) -> None:
    x = torch.randn(12, *SHAPE)
    x[0], x[1], x[2, 0, 0, 0], x[3, 0, 0, 0] = 0.0, 1e30, math.nan, math.inf
    alone = net.certify(x, "1/7", **how)
    for relaxation in (Top(1), Affinity([]), Affinity([{2}, {0}])):
        one = certify_relaxed(net, x, relaxation, "1/7", **how)
        assert torch.equal(one.radius, alone.radius)
        assert torch.equal(one.order[:, 0], alone.label)
        assert torch.equal(one.prediction[:, 0], alone.prediction)
        assert torch.equal(one.certified, alone.certified)
        assert (one.epsilon, one.semantics) == (alone.epsilon, alone.semantics)
        assert one.k.eq(1).all()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_the_first_of_many_radii_is_the_plain_one_in_either_norm(norm):
    net, x = convolutional(5, norm=norm), torch.rand(20, *SHAPE)
    many = certify_relaxed(net, x, Top(4))
    assert many.radii.shape == (20, 4)
    assert torch.equal(many.radii[:, 0], net.certify(x).radius)


# --- the laws ---


def certificates(seed: int, relaxation: sets.Relaxation, epsilon: float = 0.02) -> RelaxedCertificates:
    x = torch.rand(24, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return certify_relaxed(convolutional(seed % 6), x, relaxation, epsilon)


def check_no_weaker(more: RelaxedCertificates, less: RelaxedCertificates) -> None:
    """Whatever the second certifies the first does, by the same set; elsewhere its radius is no smaller."""
    assert (more.radius >= less.radius).all()
    assert more.certified[less.certified].all()
    assert torch.equal(more.members[less.certified], less.members[less.certified])


@settings(max_examples=15)
@given(seeds, st.sampled_from([0.0, 0.01, 0.03, 0.1]))
def test_a_larger_k_never_certifies_less(seed, epsilon):
    chain = [certificates(seed, Top(k), epsilon) for k in range(1, CLASSES)]
    for less, more in pairwise(chain):
        check_no_weaker(more, less)
        assert torch.equal(more.radii[:, : less.radii.shape[1]], less.radii)


@settings(max_examples=15)
@given(seeds, some_sets, some_sets, st.sampled_from([0.0, 0.01, 0.03, 0.1]))
def test_more_and_larger_affinity_sets_never_certify_less(seed, some, others, epsilon):
    plain, few = (certificates(seed, Affinity(these), epsilon) for these in ([], some))
    check_no_weaker(few, plain)
    check_no_weaker(certificates(seed, Affinity(some + others), epsilon), few)
    check_no_weaker(certificates(seed, Affinity([s | {0} for s in some]), epsilon), few)
    everything = certificates(seed, Affinity([set(range(CLASSES))]), epsilon)
    assert torch.equal(everything.radii, certificates(seed, Top(CLASSES - 1), epsilon).radii)
    check_no_weaker(everything, few)


@settings(max_examples=25)
@given(seeds, some_sets)
def test_affinity_counts_what_lies_within_a_set_and_nothing_else(seed, some):
    free, bound = certificates(seed, Top(CLASSES - 1)), certificates(seed, Affinity(some))
    for order, radii, allowed in zip(free.order.tolist(), free.radii.tolist(), bound.radii.tolist(), strict=True):
        for k, radius in enumerate(allowed, 1):
            within = k == 1 or any(set(order[:k]) <= members for members in some)
            assert radius == (radii[k - 1] if within else 0.0)
        assert not any(set(order[:k]) <= members for members in some for k in range(len(allowed) + 1, CLASSES))


@settings(max_examples=15)
@given(nets, st.permutations(range(CLASSES)), some_sets)
def test_renaming_the_classes_renames_the_answers(seed, order, some):
    net, other, x = convolutional(seed), convolutional(seed + 6), torch.rand(16, *SHAPE)
    with torch.no_grad():
        for p, q in zip(net.parameters(), other.parameters(), strict=True):
            q.copy_(p[order] if len(p) == CLASSES else p)
    renamed = [{order.index(c) for c in members} for members in some]
    for one, two in ((Top(3), Top(3)), (Affinity(some), Affinity(renamed))):
        mine, its = certify_relaxed(net, x, one), certify_relaxed(other, x, two)
        assert torch.allclose(mine.radii, its.radii, rtol=1e-9, atol=0)
        assert torch.equal(mine.members[:, order], its.members)
        assert torch.equal(mine.certified, its.certified)


@settings(max_examples=15)
@given(seeds)
def test_the_answer_is_the_smallest_certified_set_and_grows_with_epsilon(seed):
    found = [certificates(seed, Top(5), epsilon) for epsilon in (0.0, 0.005, 0.01, 0.02, 0.04, 0.08, 10.0)]
    for c in found:
        for k, radii, told, certified in zip(c.k.tolist(), c.radii, c.prediction.tolist(), c.certified, strict=True):
            sizes = [j for j, r in enumerate(radii.tolist(), 1) if r > c.epsilon]
            assert bool(certified) == bool(sizes)
            assert k == (sizes[0] if sizes else 1 + radii.tolist().index(max(radii.tolist())))
            assert [t for t in told if t != BOTTOM] == told[: k if sizes else 0]
    for less, more in pairwise(found):
        both = more.certified
        assert less.certified[both].all()
        assert (less.k <= more.k)[both].all()
        assert (less.members <= more.members)[both].all()
    assert not found[-1].certified.any()
    assert (found[-1].prediction == BOTTOM).all()


@settings(max_examples=10)
@given(nets)
def test_each_semantics_claims_no_more_than_a_weaker_one(seed):
    net, x = convolutional(seed), torch.rand(16, *SHAPE)
    real, affine, close = (
        certify_relaxed(net, x, Top(5), semantics=s, per_sample=p).radii
        for s, p in (("real", False), ("float32", False), ("float32", True))
    )
    assert (affine <= real).all()
    assert (close <= real).all()
    assert (close >= affine * (1 - 1e-6)).all()
    assert (affine[real > 0.01] > 0).all()


# --- exact arithmetic ---


@settings(max_examples=60)
@given(seeds, st.integers(3, 5), st.sampled_from([0.0, 1.0, 1e9]), st.sampled_from([1e-150, 1e-3, 1.0, 1e150]))
def test_radii_against_exact_fractions(seed, m, offset, scale):
    """Linear nets: r_k is the exact distance to the nearest change of T_k, hardly less and never more."""
    generator = torch.Generator().manual_seed(seed)
    weight, bias = normal(m, 2, generator=generator) * scale, normal(m, generator=generator) * scale
    net = linear(weight, bias + offset * scale * normal(1, generator=generator))
    x = normal(4, 2, generator=generator)
    c = certify_relaxed(net, x, Top(m - 1))
    w = [[Fraction(v) for v in row] for row in net.module.weight.tolist()]
    for k, sample in product(range(1, m), range(4)):
        point = [Fraction(v) for v in x[sample].tolist()]
        y = exact_logits(net.program().freeze(), point)
        inside = c.order[sample, :k].tolist()
        radius = Fraction(float(c.radii[sample, k - 1]))
        if radius == 0:
            continue
        assert set(inside) == set(sorted(range(m), key=lambda i: -y[i])[:k])
        pairs = [(j, i) for j in inside for i in range(m) if i not in inside]
        square = {(j, i): sum((a - b) ** 2 for a, b in zip(w[j], w[i], strict=True)) for j, i in pairs}
        exact = min((y[j] - y[i]) ** 2 / square[j, i] for j, i in pairs)
        assert radius**2 <= exact
        if offset <= 1:
            assert radius**2 >= exact * (1 - Fraction(1, 10**6))
        # The worst direction of each pair, all the way: every member stays ahead, exactly.
        for j, i in pairs:
            step = [b - a for a, b in zip(w[j], w[i], strict=True)]
            share = radius * Fraction(1, math.isqrt(int(square[j, i] * 4**600)) + 1) * 2**600
            there = exact_logits(net.program().freeze(), [p + share * s for p, s in zip(point, step, strict=True)])
            assert min(there[a] for a in inside) > max(there[b] for b in range(m) if b not in inside)


def test_by_hand():
    """Leads over class 2 are 3 and 2.5; class 0 and 1 are ½ apart, K is √2 throughout."""
    net = linear(torch.eye(3), torch.zeros(3))
    x = torch.tensor([[3.0, 2.5, 0.0]], dtype=torch.float64)
    c = certify_relaxed(net, x, Top(2), epsilon=1)
    assert c.radii[0].tolist() == pytest.approx([0.5 / math.sqrt(2), 2.5 / math.sqrt(2)])
    assert (c.prediction.tolist(), c.k.tolist()) == ([[0, 1]], [2])
    assert c.members.tolist() == [[True, True, False]]
    assert certify_relaxed(net, x, Top(2), "1/3").prediction.tolist() == [[0, BOTTOM]]
    assert certify_relaxed(net, x, Top(2), 2).prediction.tolist() == [[BOTTOM, BOTTOM]]
    assert certify_relaxed(net, x, Affinity([{0, 1}]), 1).prediction.tolist() == [[0, 1]]
    assert certify_relaxed(net, x, Affinity([{1, 2}, {0, 2}]), 1).prediction.tolist() == [[BOTTOM, BOTTOM]]


# --- what must not be certified, and what must ---


def test_a_tie_is_not_parted_but_may_be_held_together():
    x = torch.zeros(1, 2).double()
    assert certify_relaxed(constant(1, 1, 0, 0), x, Top(3)).radii.tolist() == [[0.0, math.inf, 0.0]]
    assert certify_relaxed(constant(1, 1, 1, 1), x, Top(3)).radii.tolist() == [[0.0, 0.0, 0.0]]
    assert certify_relaxed(constant(0, 2, 1, 2), x, Top(3)).prediction.tolist() == [[1, 3, BOTTOM]]
    apart = linear(torch.eye(4), torch.zeros(4))
    radii = certify_relaxed(apart, torch.tensor([[5.0, 5.0, 1.0, 1.0]]).double(), Top(3)).radii
    assert radii[0].tolist() == [0.0, pytest.approx(4 / math.sqrt(2)), 0.0]


def test_equal_rows_never_change_sides():
    rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [5.0, 0.0]])
    net = linear(rows, torch.tensor([1.0, 0.5, 0.0]))
    radii = certify_relaxed(net, torch.tensor([[0.0, 9.0]]).double(), Top(2)).radii[0]
    lead, k = 19 - 0.0, math.sqrt(4**2 + 2**2)
    assert radii.tolist() == [pytest.approx(lead / k), pytest.approx((lead - 0.5) / k)]  # K_01 = 0: no limit
    assert certify_relaxed(constant(3, 2, 1), torch.ones(1, 2).double(), Top(2)).radii.tolist() == [[math.inf] * 2]


def test_in_float32_even_equal_rows_part_somewhere_far_away():
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight.fill_(0.7), head.bias.copy_(torch.tensor([2.0, 1.0, 0.0]))
    net, x = GloRoNet(head, 0.1, (2,)).eval(), torch.tensor([[0.3, 0.1]])
    assert certify_relaxed(net, x, Top(2)).radii.tolist() == [[math.inf] * 2]
    far = certify_relaxed(net, x, Top(2), semantics="float32").radii
    assert ((far > 1e5) & (far < 1e8)).all()
    assert net.logits(torch.full((1, 2), 1e9)).unique().numel() == 1  # as they do


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_weights_and_inputs_that_are_no_numbers(bad, semantics):
    net, x = fresh(3), torch.rand(4, *SHAPE)
    x[2, 1, 0, 3] = bad
    for relaxation in (Top(5), Affinity([set(range(6))])):
        c = certify_relaxed(net, x, relaxation, 0.0, semantics)
        assert c.radii[2].tolist() == [0.0] * 5
        assert (c.prediction[2] == BOTTOM).all()
        assert (c.radii[[0, 1, 3]] > 0).any(1).all()
    for layer in (-1, 0):
        with torch.no_grad():
            net.module[layer].weight.view(-1)[0] = bad
        assert not certify_relaxed(net, x, Top(5), 0.0, semantics).radii.any()


def test_one_infinite_logit_spoils_every_set():
    net = linear(torch.zeros(3, 2), torch.tensor([1.7e308, -1.7e308, 0.0]))
    assert not certify_relaxed(net, torch.ones(1, 2).double(), Top(2)).radii.any()
    net = linear(torch.tensor([[1e308, 1e308], [0.0, 0.0], [0.0, 0.0]]), torch.tensor([0.0, 1.0, 0.0]))
    assert not certify_relaxed(net, torch.tensor([[1.0, 1.0], [-1.0, -1.0]]).double(), Top(2)).radii.any()


def test_an_order_that_float64_cannot_tell_is_not_certified():
    """Exactly y_1 > y_0, but 2⁶⁰ + 1 is 2⁶⁰: the set that float64 sees may be the wrong one."""
    net = linear(torch.tensor([[0.0], [1.0], [0.0]]), torch.tensor([2.0**60, 2.0**60, 0.0]))
    c = certify_relaxed(net, torch.ones(1, 1).double(), Top(2))
    assert c.radii[0, 0] == 0.0
    assert c.radii[0, 1] > 1e17


def test_where_float32_sees_another_order_it_is_not_certified():
    head = nn.Linear(3, 3)
    with torch.no_grad():
        head.weight.copy_(torch.eye(3)), head.bias.copy_(torch.tensor([2.0**24, 2.0**24, 2.0**25]))
    net, x = GloRoNet(head, 1e-3, (3,)).eval(), torch.tensor([[0.7, 0.2, 0.0]])
    assert net.logits(x)[0, 0] == net.logits(x)[0, 1]
    assert certify_relaxed(net, x, Top(2)).k.tolist() == [1]
    assert certify_relaxed(net, x, Top(2)).radii[0, 1] > 0.3
    single = certify_relaxed(net, x, Top(2), semantics="float32")
    assert single.radii[0, 0] > 1e6
    assert single.radii[0, 1] == 0.0


def test_too_many_classes_and_other_mistakes_are_one_clear_line():
    net, x = convolutional(0), torch.rand(2, *SHAPE)
    for make, said in (
        (lambda: Top(0), "at least 1, not 0"),
        (lambda: Top(True), "not True"),
        (lambda: Top(6), "below the number of classes, 6, not 6"),
        (lambda: Top(99), "not 99"),
        (lambda: Affinity([{1, 6}]), "class 6; the 6 classes are 0 to 5"),
        (lambda: Affinity([{-1}]), "not -1"),
        (lambda: Affinity([{1}, set()]), "without a class"),
        (lambda: Affinity([3, 5]), r"such as \[\{3, 5\}, \{4, 9\}\], not \[3, 5\]"),
        (lambda: Affinity("3,5"), "not '3'"),
        (lambda: Affinity([{1.0}]), "not 1.0"),
    ):
        with pytest.raises(gn.ConfigError, match=said) as caught:
            certify_relaxed(net, x, make())
        assert "\n" not in str(caught.value)
    assert Affinity(iter([[5, 3], (3, 5, 5)])) == Affinity([{3, 5}, {3, 5}])
    two, none = GloRoNet(nn.Linear(2, 2), 0.1, (2,)), certify_relaxed(net, x[:0], Top(2))
    assert certify_relaxed(two, torch.rand(3, 2), Affinity([{0, 1}])).radii.shape == (3, 1)
    assert (none.radii.shape, none.prediction.shape, none.members.shape) == ((0, 2), (0, 2), (0, 6))
    with pytest.raises(gn.ConfigError, match="real, float32"):
        certify_relaxed(net, x, Top(2), semantics="bfloat16")
    with pytest.raises(gn.ConfigError, match="to_unit"):
        certify_relaxed(net, torch.zeros(2, *SHAPE, dtype=torch.uint8), Top(2))
    with pytest.raises(gn.ConfigError, match=r"not \(2, 3, 3\)"):
        certify_relaxed(net, torch.rand(2, 3, 3), Top(2))


# --- attacks ---


def attack(logits, x: Tensor, inside: Tensor, radius: Tensor, pairs: list[tuple[int, int]], steps: int = 15) -> Tensor:
    """Which samples lose their set to an ascent of y_i − y_j within the radius: i outside and j inside, by rank.

    The pair (a, b) takes the member of rank k − 1 − a and the b-th class outside.
    """
    with torch.no_grad():
        order = logits(x).argsort(dim=1, descending=True)
    assert torch.equal(inside.gather(1, order).long().argmin(1), inside.sum(1))
    k, broken = inside.sum(1, keepdim=True), torch.zeros(len(x), dtype=torch.bool)
    for a, b in pairs:
        j, i = order.gather(1, (k - 1 - a).clamp(min=0)), order.gather(1, (k + b).clamp(max=order.shape[1] - 1))
        point = x
        for step in range(steps + 1):
            with torch.enable_grad():
                point = point.detach().requires_grad_()
                y = logits(point)
                (gradient,) = torch.autograd.grad((y.gather(1, i) - y.gather(1, j)).sum(), point)
            broken |= ahead(y.detach(), inside) <= 0
            uphill = torch.nan_to_num(gradient.double() / like(norm(gradient.double()), x))
            stride = like(radius * (4 * (1 - step / steps) / 3), x)
            point = project((point.detach() + stride * uphill).to(x.dtype), x, radius, (-math.inf, math.inf))
    return broken


PAIRS = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]


@settings(max_examples=10)
@given(seeds, forms)
def test_nothing_changes_a_set_inside_its_radius(seed, form):
    net = convolutional(seed % 3, form)
    generator = torch.Generator().manual_seed(seed)
    x, logits = torch.rand(12, *SHAPE, generator=generator).double(), in_float64(net)
    c = certify_relaxed(net, x, Top(CLASSES - 1))
    for k in range(1, CLASSES):
        inside, radius = members(c.order, k), c.radii[:, k - 1] * (1 - 1e-9)
        held = radius > 0
        assert not attack(logits, x[held], inside[held], radius[held], PAIRS[:3], steps=6).any()
        for _ in range(5):
            step = normal(*x.shape, generator=generator)
            y = logits(x + step * like(radius / norm(step), x))
            assert (ahead(y, inside) > 0)[held].all()


@pytest.fixture(scope="module")
def digits() -> GloRoNet:
    torch.manual_seed(0)
    net = GloRoNet(gn.models.build("c(8,3,1).c(16,3,2).d(32).d(10)", (1, 8, 8), 10), 0.3, (1, 8, 8))
    gn.fit(net, data.load("digits"), TrainConfig(epochs=8, batch_size=128, lr=5e-3, power_iterations=2), device="cpu")
    return net


def test_digits_no_attack_changes_a_certified_set(digits):
    x, logits = data.load("digits").test_x[:150].double(), in_float64(digits)
    c, some = certify_relaxed(digits, x, Top(3)), 0
    for k in range(1, 4):
        inside, radius = members(c.order, k), c.radii[:, k - 1] * (1 - 1e-9)
        held = radius > 0.02
        some += int(held.sum())
        assert not attack(logits, x[held], inside[held], radius[held], PAIRS).any()
        # The attack is a real one: not far outside the radii it does succeed.
        assert attack(logits, x[held], inside[held], radius[held] * 8, PAIRS[:1]).double().mean() > 0.5
    assert some > 350


def test_digits_the_float32_net_keeps_the_set_at_float32_points(digits):
    x = data.load("digits").test_x[:150]
    c = certify_relaxed(digits, x, Top(3), semantics="float32", per_sample=True)
    for k in range(1, 4):
        inside, radius = members(c.order, k), c.radii[:, k - 1]
        held = radius > 0
        assert held.float().mean() > 0.5
        assert not attack(digits.logits, x[held], inside[held], radius[held], PAIRS[:2], steps=8).any()


def test_digits_sets_that_part_have_balls_that_do_not_meet(digits):
    """Where balls meet both sets are the largest, so one holds the other: else ‖x₁ − x₂‖ ≥ r₁ + r₂."""
    x = data.load("digits").test_x
    c = certify_relaxed(digits, x, Top(4))
    gap = torch.cat([distance(x, point.expand_as(x))[None] for point in x.split(1)]) + 1e-9
    audited = 0
    for k, other in product(range(1, 5), repeat=2):
        one, two = members(c.order, k).double(), members(c.order, other).double()
        part = one @ two.T < min(k, other)
        r, s = c.radii[:, k - 1, None], c.radii[None, :, other - 1]
        use = part & (r > 0) & (s > 0)
        assert (gap >= r + s)[use].all()
        audited += int(use.sum())
    assert audited > 100_000
    assert not (gap >= 8 * (r + s))[use].all()


# --- ⊥ for training ---


def slack(y: list[float], epsilon: float, k: list[list[float]], inside: set[int]) -> float:
    """min over j inside, i outside of y_j − y_i − ε·K_ji."""
    return min(y[j] - y[i] - epsilon * k[j][i] for j in inside for i in range(len(y)) if i not in inside)


@settings(max_examples=80)
@given(seeds, st.integers(1, 4), st.integers(2, 6), st.floats(0, 3), st.integers(0, 2), some_sets)
def test_relaxed_bottom_is_the_formula(seed, batch, m, epsilon, decimals, some):
    generator = torch.Generator().manual_seed(seed)
    logits = normal(batch, m, generator=generator).round(decimals=decimals)  # with few decimals there are ties
    k = normal(m, m, generator=generator).abs()  # not symmetric: K_ji must be read as written
    within = [s & set(range(m)) for s in some if s & set(range(m))]
    for relaxation in (*map(Top, range(1, m)), Affinity(within)):
        bottom = relaxation.bottom_logit(logits, k, epsilon)
        for y, y_bottom in zip(logits.tolist(), bottom.tolist(), strict=True):
            order = sorted(range(m), key=lambda c: -y[c])  # stable: the first on ties
            counted = [set(order[:n]) for n in range(1, m)]
            if isinstance(relaxation, Top):
                counted = counted[: relaxation.k]
            else:
                counted = [t for t in counted if len(t) == 1 or any(t <= s for s in within)]
            best = max(slack(y, epsilon, k.tolist(), t) for t in counted)
            assert y_bottom == pytest.approx(max(y) - best, abs=1e-12)
            if abs(best) > 1e-9:
                assert (max(y) > y_bottom) == (best > 0)


@settings(max_examples=40)
@given(seeds, st.integers(2, 6), st.floats(0, 3))
def test_relaxed_bottom_with_one_class_is_the_plain_one_and_so_is_its_gradient(seed, m, epsilon):
    generator = torch.Generator().manual_seed(seed)
    for decimals in (0, 9):
        logits = normal(5, m, generator=generator).round(decimals=decimals).requires_grad_()
        k = normal(m, m, generator=generator).abs().requires_grad_()
        plain = margins.bottom_logit(logits, k, epsilon)
        wanted = torch.autograd.grad(plain.sum(), (logits, k))
        for relaxation in (Top(1), Affinity([])):
            relaxed = relaxation.bottom_logit(logits, k, epsilon)
            assert torch.equal(relaxed, plain)
            found = torch.autograd.grad(relaxed.sum(), (logits, k))
            assert all(torch.allclose(a, b, atol=1e-15) for a, b in zip(found, wanted, strict=True))


@settings(max_examples=20)
@given(seeds)
def test_relaxed_bottom_has_the_gradient_of_its_formula_and_moves_with_the_logits(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = normal(4, 5, generator=generator).requires_grad_()
    k = normal(5, 5, generator=generator).abs().requires_grad_()
    for relaxation in (Top(3), Affinity([{0, 1, 2}, {3, 4}])):
        assert torch.autograd.gradcheck(lambda y, k, r=relaxation: r.bottom_logit(y, k, 0.3), (logits, k))
        (gradient,) = torch.autograd.grad(relaxation.bottom_logit(logits, k, 0.3).sum(), logits)
        assert torch.allclose(gradient.sum(1), torch.ones(4).double())  # all logits up by c: ⊥ too


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_numbers_are_always_bottom(bad):
    fine, k = torch.tensor([[5.0, 4.9, 0.0, 0.0]]), 1 - torch.eye(4)
    for relaxation in (Top(3), Affinity([{0, 1}])):
        assert fine.amax() > relaxation.bottom_logit(fine, k, 0.2)
        assert not fine.amax() > margins.bottom_logit(fine, k, 0.2)
        assert not fine.amax() > relaxation.bottom_logit(fine, k * bad, 0.2)
        spoiled = torch.tensor([[5.0, bad, 0.0, 0.0]])
        assert not spoiled.amax() > relaxation.bottom_logit(spoiled, k, 0.2)
        assert relaxation.bottom_logit(fine.bfloat16(), k, 0.2).dtype == torch.float32


@settings(max_examples=10)
@given(nets, some_sets)
def test_what_bottom_lets_through_with_the_bounds_constants_is_certified(seed, some):
    net, x = convolutional(seed), torch.rand(20, *SHAPE)
    y, k = in_float64(net)(x), net.bound().margins
    for relaxation in (Top(3), Affinity(some)):
        told = y.amax(1) > relaxation.bottom_logit(y, k, net.epsilon)
        assert torch.equal(told, certify_relaxed(net, x, relaxation).certified)


@settings(max_examples=20)
@given(seeds, st.floats(0, 2))
def test_losses_take_a_relaxed_bottom_and_ask_for_no_more_than_the_plain_one(seed, epsilon):
    generator = torch.Generator().manual_seed(seed)
    logits, k = normal(8, 5, generator=generator), normal(5, 5, generator=generator).abs()
    labels = torch.randint(5, (8,), generator=generator)
    for loss in (losses.ce, losses.trades_kl, losses.trades_ce):
        found = [loss(logits, k, labels, epsilon, bottom=Top(n).bottom_logit) for n in range(1, 5)]
        assert torch.equal(found[0], loss(logits, k, labels, epsilon))
        assert all(more <= less + 1e-12 for less, more in pairwise(found))


# --- sets of data ---


def test_a_table_counts_what_is_certified_and_holds_the_label(digits, tmp_path):
    d, done = data.load("digits"), []
    t = certify_relaxed_set(digits, d.test_x, d.test_y, Top(3), "1/5", batch_size=100, progress=done.append)
    assert (sum(done), t.certificates.epsilon) == (360, 0.2)
    whole = certify_relaxed(digits, d.test_x, Top(3), "1/5")
    assert torch.equal(whole.order[:, :3], t.certificates.order[:, :3])
    assert torch.allclose(whole.radii, t.certificates.radii, rtol=1e-9)
    hits, sizes = 0, []
    for row, label in zip(whole.prediction.tolist(), d.test_y.tolist(), strict=True):
        hits += label in row
        sizes += [sum(c != BOTTOM for c in row)] * (row[0] != BOTTOM)
    assert t.vra == hits / 360
    assert t.mean_size == pytest.approx(sum(sizes) / len(sizes))
    assert {1, 2, 3} <= set(sizes)
    assert t.plain_vra == certify_set(digits, d.test_x, d.test_y, "1/5").vra < t.vra

    path = tmp_path / "certificates-top3.csv"
    t.write(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    with path.open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert tuple(rows[0]) == COLUMNS
    assert [float(r["radius"]) for r in rows] == t.certificates.radius.tolist()
    assert sum(r["label"] in r["prediction"].split() for r in rows) == hits
    assert all((r["prediction"] == r["set"]) == (r["certified"] == "1") for r in rows)
    assert all(len(r["set"].split()) == int(r["k"]) for r in rows)
    assert {(r["epsilon"], r["semantics"]) for r in rows} == {("0.2", "real")}


def test_nothing_certified_has_no_mean_size(digits):
    d = data.load("digits")
    t = certify_relaxed_set(digits, d.test_x[:50], d.test_y[:50], Top(2), 100)
    assert (t.vra, t.plain_vra) == (0.0, 0.0)
    assert math.isnan(t.mean_size)


@pytest.mark.parametrize("module", [sets, margins], ids=lambda module: module.__name__)
def test_doctests(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
