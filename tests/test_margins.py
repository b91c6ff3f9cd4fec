"""⊥ and the margins against loops that spell the formulas out, on ties, and under gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gloronet import margins as room
from gloronet.config import FORMS
from gloronet.errors import ConfigError
from gloronet.margins import bottom_logit, certified_estimate, pairwise_margins

KINDS = [("margin", "l2"), ("margin", "linf"), ("simple", "l2"), ("simple", "linf"), ("lmt", "l2")]
seeds = st.integers(0, 10**6)


def random(seed, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(seeds, st.integers(1, 5), st.integers(2, 6), st.floats(0, 3), st.integers(0, 2))
def test_bottom_is_the_formula(seed, batch, m, epsilon, decimals):
    logits = random(seed, batch, m).round(decimals=decimals)  # with few decimals there are ties
    margins = random(seed + 1, m, m).abs()  # not symmetric: K_ji must be read as written
    bottom = bottom_logit(logits, margins, epsilon)
    certified = certified_estimate(logits, margins, epsilon)
    for b in range(batch):
        y = logits[b].tolist()
        j = y.index(max(y))
        expected = max(y[i] + epsilon * margins[j, i].item() for i in range(m) if i != j)
        assert bottom[b].item() == pytest.approx(expected, abs=1e-12)
        assert certified[b].item() == (y[j] > bottom[b].item())


@pytest.mark.parametrize("epsilon", [0.0, 0.3])
def test_ties_never_certify(epsilon):
    logits = torch.tensor([[2.0, 1.0, 2.0], [1.0, 1.0, 1.0], [0.0, 3.0, 3.0]])
    for margins in (torch.zeros(3, 3), 1 - torch.eye(3)):
        assert (bottom_logit(logits, margins, epsilon) >= logits.amax(dim=1)).all()
        assert not certified_estimate(logits, margins, epsilon).any()


def test_a_margin_of_exactly_epsilon_k_does_not_certify():
    margins = torch.tensor([[0.0, 2.0], [2.0, 0.0]])
    logits = torch.tensor([[1.0, 0.0], [1.0 + 2**-20, 0.0]])
    assert certified_estimate(logits, margins, 0.5).tolist() == [False, True]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_broken_numbers_never_certify(bad):
    fine, margins = torch.tensor([[5.0, 0.0, 0.0]]), 1 - torch.eye(3)
    assert certified_estimate(fine, margins, 0.1).all()
    assert not certified_estimate(fine, margins * bad, 0.1).any()
    assert not certified_estimate(torch.tensor([[5.0, math.nan, 0.0]]), margins, 0.1).any()


def test_bottom_takes_epsilon_as_a_tensor_and_stays_float32():
    logits, margins = random(0, 4, 3).float(), random(1, 3, 3).abs().float()
    bottom = bottom_logit(logits, margins, torch.tensor(0.25))
    assert bottom.dtype == torch.float32
    assert torch.equal(bottom, bottom_logit(logits, margins, 0.25))
    assert bottom_logit(logits.bfloat16(), margins, 0.25).dtype == torch.float32


@settings(deadline=None)
@given(seeds, st.integers(2, 6), st.integers(1, 5), st.floats(0.01, 10))
def test_margins_are_the_formulas(seed, m, n, k):
    w = random(seed, m, n)
    expected = {
        ("margin", "l2"): lambda i, j: (w[j] - w[i]).norm(),
        ("margin", "linf"): lambda i, j: (w[j] - w[i]).abs().sum(),
        ("simple", "l2"): lambda i, j: w[i].norm() + w[j].norm(),
        ("simple", "linf"): lambda i, j: w[i].abs().sum() + w[j].abs().sum(),
    }
    for (form, norm), formula in expected.items():
        margins = pairwise_margins(k, w, form, norm)
        loop = torch.tensor([[0.0 if i == j else float(formula(i, j)) for i in range(m)] for j in range(m)])
        torch.testing.assert_close(margins, k * loop.double(), rtol=1e-6, atol=1e-12)
        assert torch.equal(margins.diagonal(), torch.zeros(m, dtype=torch.float64))


@settings(deadline=None)
@given(seeds, st.integers(2, 40), st.integers(1, 8), st.floats(0.01, 10))
def test_lmt_is_the_spectral_norm_from_below(seed, m, n, k):
    w = random(seed, m, n)
    margins = pairwise_margins(k, w, "lmt")
    exact = math.sqrt(2) * k * torch.linalg.matrix_norm(w, 2)
    off = ~torch.eye(m, dtype=torch.bool)
    assert (margins[off] <= exact * (1 + 1e-12)).all()
    assert (margins[off] >= exact * (1 - 1e-3)).all()
    assert not margins.diagonal().any()


def test_forms_are_ordered_by_how_much_they_give_away():
    w = random(3, 10, 64)
    margin, simple, lmt = (pairwise_margins(1.0, w, form) for form in ("margin", "simple", "lmt"))
    assert (margin <= simple + 1e-12).all()
    assert (margin <= lmt * (1 + 1e-3)).all()


def test_close_rows_lose_few_digits_in_float32():
    """Rows that share a large part: the Gram matrix alone would have nothing left of the difference."""
    w = random(0, 5, 100) * 0.01 + 10
    exact = pairwise_margins(1.0, w, "margin")
    torch.testing.assert_close(
        pairwise_margins(1.0, w.float(), "margin").double(), exact, rtol=1e-4, atol=0
    )  # fmt: skip


WEIGHTS = {
    "random": random(0, 4, 3),
    "identical rows": torch.ones(4, 3, dtype=torch.float64),
    "zero": torch.zeros(4, 3, dtype=torch.float64),
    "two rows equal": random(1, 3, 3)[[0, 1, 1, 2]],
    "orthogonal": torch.eye(4, 3, dtype=torch.float64),
    "nearly equal": torch.ones(4, 3, dtype=torch.float64) + 1e-9 * random(2, 4, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize(("form", "norm"), KINDS)
def test_margins_and_their_gradients_are_finite_everywhere(form, norm, weight, dtype):
    w = WEIGHTS[weight].to(dtype, copy=True).requires_grad_()
    k = torch.tensor(2.0, dtype=dtype, requires_grad=True)
    margins = pairwise_margins(k, w, form, norm)
    assert margins.isfinite().all()
    (margins * random(5, 4, 4)).sum().backward()
    for gradient in (w.grad, k.grad):
        assert gradient.isfinite().all()
        assert gradient.abs().max() < 1e3


@settings(max_examples=20, deadline=None)
@given(seeds, st.sampled_from(KINDS[:-1]))
def test_gradients_are_those_of_the_formula(seed, kind):
    w, k = random(seed, 3, 4).requires_grad_(), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k, w: pairwise_margins(k, w, *kind), (k, w))


def test_the_gradient_of_lmt_is_that_of_the_spectral_norm():
    w = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)).requires_grad_()
    pairwise_margins(1.0, w, "lmt")[0, 1].backward()
    expected = torch.zeros(3, 3, dtype=torch.float64)
    expected[0, 0] = math.sqrt(2)  # √2·u vᵀ
    torch.testing.assert_close(w.grad, expected)


def test_broken_weights_are_not_hidden():
    w = torch.tensor([[1.0, math.nan], [0.0, 1.0]])
    for form in FORMS:
        assert pairwise_margins(1.0, w, form).isnan().any()


def test_autocast_does_not_touch_the_margins():
    w = random(0, 5, 50).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = [pairwise_margins(1.0, w, form) for form in FORMS]
    assert all(torch.equal(a, pairwise_margins(1.0, w, form)) for a, form in zip(inside, FORMS, strict=True))


@pytest.mark.parametrize(("form", "norm"), [("max", "l2"), ("margin", "l1"), ("lmt", "linf")])
def test_unknown_forms_and_norms(form, norm):
    with pytest.raises(ConfigError, match=r"one of|use form"):
        pairwise_margins(1.0, torch.eye(2), form, norm)


def test_a_small_head_on_a_gpu_has_the_same_distances_and_gradients():
    rows = torch.randn(7, 20, dtype=torch.float64, requires_grad=True)
    twin = rows.detach().clone().requires_grad_()
    weights = torch.rand(7, 7, dtype=torch.float64)
    one, other = room._distances(rows), room._differences(twin)
    torch.testing.assert_close(one, other)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(rows.grad, twin.grad)
    equal = torch.ones(3, 4, requires_grad=True)
    room._differences(equal).sum().backward()
    assert torch.equal(equal.grad, torch.zeros(3, 4))
