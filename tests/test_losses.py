"""Losses against their formulas written out, their laws, and gradients where they are delicate."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from gloronet import config
from gloronet.losses import LOSSES, ce, emma, lmt, plain, trades_ce, trades_kl, trades_kl_clipped
from gloronet.margins import bottom_logit

cases = st.tuples(st.integers(0, 10**6), st.integers(1, 5), st.integers(2, 6), st.floats(0, 3))
ALL = {**LOSSES, "plain": plain}


def draw(case):
    """logits, margins (symmetric, 0 on the diagonal), labels, ε"""
    seed, batch, m, epsilon = case
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(batch, m, dtype=torch.float64, generator=g)
    margins = torch.rand(m, m, dtype=torch.float64, generator=g) * (1 - torch.eye(m, dtype=torch.float64))
    return logits, margins + margins.T, torch.randint(m, (batch,), generator=g), epsilon


def test_the_table_is_what_a_config_can_name():
    assert tuple(LOSSES) == config.LOSSES


@settings(deadline=None)
@given(cases)
def test_ce_is_the_softmax_of_m_plus_one_outputs(case):
    logits, margins, labels, epsilon = draw(case)
    bottom = bottom_logit(logits, margins, epsilon)
    expected = 0.0
    for y, y_bottom, label in zip(logits.tolist(), bottom.tolist(), labels.tolist(), strict=True):
        total = sum(math.exp(v) for v in y) + math.exp(y_bottom)
        expected -= math.log(math.exp(y[label]) / total) / len(labels)
    assert ce(logits, margins, labels, epsilon).item() == pytest.approx(expected, rel=1e-9)


@settings(deadline=None)
@given(cases, st.floats(0, 10))
def test_trades_kl_is_cross_entropy_plus_the_divergence(case, lam):
    logits, margins, labels, epsilon = draw(case)
    bottom = bottom_logit(logits, margins, epsilon)
    p, q = logits.softmax(dim=1), torch.cat((logits, bottom.unsqueeze(1)), dim=1).softmax(dim=1)
    kl = (p * (p.log() - q[:, :-1].log())).sum(dim=1)  # softmax(y)⊕0 against softmax(y, y_⊥)
    lse = torch.cat((logits, bottom.unsqueeze(1)), dim=1).logsumexp(1) - logits.logsumexp(1)
    torch.testing.assert_close(kl, lse, atol=1e-8, rtol=1e-6)
    expected = F.cross_entropy(logits, labels) + lam * lse.mean()
    torch.testing.assert_close(trades_kl(logits, margins, labels, epsilon, lam), expected)


@settings(deadline=None)
@given(cases, st.floats(0, 10))
def test_clipped_kl_is_kl_where_no_probability_is_small(case, lam):
    logits, margins, labels, epsilon = draw(case)
    whole, clipped = (loss(logits, margins, labels, epsilon, lam) for loss in (trades_kl, trades_kl_clipped))
    outputs = torch.cat((logits, bottom_logit(logits, margins, epsilon).unsqueeze(1)), dim=1)
    assert outputs.softmax(dim=1).min() > 1e-7  # logits of a few units: nothing is clipped but the 0 beside ⊥
    torch.testing.assert_close(clipped, whole, atol=2e-6 * (1 + lam), rtol=0)


def test_clipped_kl_leaves_a_hopeless_sample_alone():
    """Keras' formula written out, 1e-7 and all; where ⊥ leads by far, no gradient asks for a smaller constant."""
    logits, label, m = torch.tensor([[2.0, 0.0]], dtype=torch.float64), torch.tensor([0]), torch.ones(2, 2).double()
    m = (m - torch.eye(2)).requires_grad_()
    for epsilon, hopeless in ((1.0, False), (17.0, False), (19.0, True), (200.0, True)):
        y = [2.0, 0.0, epsilon]
        p = [math.exp(v) / (math.exp(2) + 1) for v in y[:2]] + [1e-7]
        q = [max(math.exp(v - max(y)) / sum(math.exp(w - max(y)) for w in y), 1e-7) for v in y]
        kl = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
        loss = trades_kl_clipped(logits, m, label, epsilon, 3.0)
        assert loss.item() == pytest.approx(math.log(1 + math.exp(-2)) + 3.0 * kl, rel=1e-9)
        (gradient,) = torch.autograd.grad(loss, m)
        assert (gradient.abs().max() < 1e-4) == hopeless
        (gradient,) = torch.autograd.grad(trades_kl(logits, m, label, epsilon, 3.0), m)
        assert gradient.abs().max() > 0.1


@settings(deadline=None)
@given(cases, st.floats(0, 10))
def test_soft_cross_entropy_adds_the_entropy(case, lam):
    logits, margins, labels, epsilon = draw(case)
    bottom = bottom_logit(logits, margins, epsilon)
    p = logits.softmax(dim=1)
    log_q = torch.cat((logits, bottom.unsqueeze(1)), dim=1).log_softmax(dim=1)[:, :-1]
    soft = trades_ce(logits, margins, labels, epsilon, lam)
    expected = F.cross_entropy(logits, labels) - lam * (p * log_q).sum(dim=1).mean()
    torch.testing.assert_close(soft, expected)
    entropy = -(p * p.log()).sum(dim=1).mean()
    torch.testing.assert_close(soft - trades_kl(logits, margins, labels, epsilon, lam), lam * entropy)


@settings(deadline=None)
@given(cases)
def test_trades_without_lambda_is_plain(case):
    logits, margins, labels, epsilon = draw(case)
    expected = plain(logits, margins, labels, epsilon)
    for loss in (trades_kl, trades_kl_clipped, trades_ce):
        torch.testing.assert_close(loss(logits, margins, labels, epsilon, 0.0), expected)


@settings(deadline=None)
@given(cases)
def test_emma_is_its_formula(case):
    logits, margins, labels, epsilon = draw(case)
    expected = 0.0
    for y, label in zip(logits.tolist(), labels.tolist(), strict=True):
        total = 0.0
        for i, v in enumerate(y):
            z, push = v - y[label], epsilon * margins[label, i].item()
            r = min(max(-z / max(push, 1e-8), 0.01), 1.0)
            total += math.exp(z + r * push)
        expected += math.log(total) / len(labels)
    assert emma(logits, margins, labels, epsilon).item() == pytest.approx(expected, rel=1e-9)


def test_emma_pushes_a_distant_rival_by_all_of_epsilon_and_a_near_one_to_the_tie():
    margins, label = torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([0])
    far, near = torch.tensor([[5.0, 0.0]]), torch.tensor([[0.5, 0.0]])
    # With every r = 1, EMMA is LMT's formula with the margins it is given.
    torch.testing.assert_close(emma(far, margins, label, 1.0), lmt(far, margins, label, 1.0))
    torch.testing.assert_close(emma(near, margins, label, 1.0), torch.tensor(math.log(2)))


def test_emma_holds_r_fixed():
    logits = torch.tensor([[0.5, 0.0]], requires_grad=True)
    emma(logits, torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([0]), 1.0).backward()
    # At the tie both have probability 1/2; were r not fixed, z + r·ε·m = 0 would have no gradient at all.
    torch.testing.assert_close(logits.grad, torch.tensor([[-0.5, 0.5]]))


@settings(deadline=None)
@given(cases)
def test_lmt_raises_every_logit_but_the_labels(case):
    logits, margins, labels, epsilon = draw(case)
    raised = logits.clone()
    for b, label in enumerate(labels.tolist()):
        for i in range(logits.shape[1]):
            raised[b, i] += epsilon * margins[label, i] if i != label else 0.0
    torch.testing.assert_close(lmt(logits, margins, labels, epsilon), F.cross_entropy(raised, labels))


@settings(deadline=None)
@given(cases, st.floats(1, 2))
def test_larger_margins_and_larger_epsilons_never_cost_less(case, factor):
    logits, margins, labels, epsilon = draw(case)
    for loss in LOSSES.values():
        base = loss(logits, margins, labels, epsilon, 1.0)
        assert loss(logits, margins * factor, labels, epsilon, 1.0) >= base - 1e-12
        assert loss(logits, margins, labels, epsilon * factor, 1.0) >= base - 1e-12
        assert base >= plain(logits, margins, labels, epsilon, 1.0) - 1e-12


def test_without_epsilon_bottom_is_the_second_best_logit_and_not_absent():
    logits, labels = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0])
    expected = -math.log(math.exp(2) / (math.exp(2) + 2 * math.exp(1) + 1))
    assert ce(logits, 1 - torch.eye(3), labels, 0.0).item() == pytest.approx(expected)
    assert plain(logits, 1 - torch.eye(3), labels, 0.0).item() < expected


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 100.0])
@pytest.mark.parametrize("margins", [torch.zeros(3, 3), 1 - torch.eye(3), 1e4 * (1 - torch.eye(3))])
@pytest.mark.parametrize(
    "logits",
    [torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]), torch.tensor([[1e4, -1e4, 0]] * 2)],
)
def test_values_and_gradients_are_finite(name, epsilon, margins, logits):
    logits, margins = logits.clone().requires_grad_(), margins.clone().requires_grad_()
    loss = ALL[name](logits, margins, torch.tensor([0, 2]), torch.tensor(epsilon), torch.tensor(2.0))
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    assert logits.grad.isfinite().all()
    assert margins.grad is None or margins.grad.isfinite().all()


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "plain"])
def test_margins_get_a_gradient(name):
    logits, margins = torch.tensor([[1.0, 0.5, 0.0]]), (1 - torch.eye(3)).requires_grad_()
    LOSSES[name](logits, margins, torch.tensor([0]), 0.3, 1.0).backward()
    off_diagonal = margins.grad * (1 - torch.eye(3))
    assert off_diagonal.max() > 0  # larger margins cost more: the net is asked to be smoother
    assert off_diagonal.min() >= 0


@pytest.mark.parametrize("name", ALL)
def test_half_precision_logits_are_computed_in_float32(name):
    g = torch.Generator().manual_seed(0)
    logits = (10 * torch.randn(8, 3, generator=g)).bfloat16()
    arguments = 1 - torch.eye(3), torch.randint(3, (8,), generator=g), 0.01, 1.0
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = ALL[name](logits, *arguments)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, ALL[name](logits.float(), *arguments))
