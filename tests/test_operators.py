"""Every operator under the laws: real grids of shapes, and the cases by which other certifiers are caught."""

import itertools
import math
from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.laws import (
    check_arithmetic,
    check_operator,
    check_powers_of_two,
    dense,
    exact_matrix,
    exactly_bounded,
    matrix_norm,
    normal,
)

from gloronet.operators import (
    Abs,
    AvgPool2d,
    Conv2d,
    Dense,
    MaxPool2d,
    MinMax,
    Operator,
    Pad,
    ReLU,
    Reshape,
    Scale,
    Sum,
    Translate,
    columns,
)
from gloronet.operators.rounding import TINY
from gloronet.operators.symbols import symbol_bound

NORMS = ("l2", "linf")
seeds = st.integers(0, 10**6)


def weights(seed: int, *shape: int, kind: str = "normal") -> torch.Tensor:
    """Kernels that are hard in different ways; kernels of ones and checkerboards meet the borders hardest."""
    g = torch.Generator().manual_seed(seed)
    w = normal(*shape, generator=g)
    if kind == "ones":
        return torch.ones_like(w)
    if kind == "checkerboard":
        sign = (-1.0) ** (torch.arange(shape[-2])[:, None] + torch.arange(shape[-1]))
        return torch.ones_like(w) * sign
    if kind == "antisymmetric":
        return w - w.flip(-1, -2)
    if kind == "sparse":
        return w * (torch.rand(shape, generator=g) < 0.25)
    if kind == "integers":
        return torch.randint(-2, 3, shape, generator=g).double()
    return w


KINDS = ("normal", "ones", "checkerboard", "antisymmetric", "sparse", "integers")


# --- dense ---


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (5, 1), (4, 4), (7, 3), (3, 7), (40, 25)])
def test_dense(shape, norm):
    w = weights(0, *shape)
    check_operator(Dense((shape[1],), w, weights(1, shape[0])), norm)
    check_operator(Dense((shape[1],), torch.zeros_like(w)), norm)
    check_powers_of_two(Dense((shape[1],), w), norm=norm)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [1, 4, 30])
def test_identity_plus_dense(n, norm):
    w = weights(0, n, n)
    for weight in (w, -w, torch.zeros_like(w), -torch.eye(n, dtype=torch.float64)):
        check_operator(Dense((n,), weight, weights(1, n), skip=True), norm)


@given(seeds, st.integers(1, 5), st.integers(1, 5), st.booleans(), st.booleans())
@settings(max_examples=40)
def test_a_dense_evaluation_loses_no_more_than_stated(seed, m, n, skip, single):
    m = n if skip else m
    w, b = weights(seed, m, n), weights(seed + 1, m) * 1e3
    x = weights(seed + 2, 3, n)
    if single:
        w, b, x = w.float(), b.float(), x.float()
    check_arithmetic(Dense((n,), w, b, skip), x)


@given(seeds, st.integers(1, 4))
@settings(max_examples=40)
def test_dense_skip_is_bounded_exactly(seed, n):
    """W near −I: rounding 1 + w must not hide anything."""
    w = -torch.eye(n, dtype=torch.float64) + weights(seed, n, n) * 1e-16
    op = Dense((n,), w, None, skip=True)
    bound = op.bound("l2").value
    exact = [[float(v) for v in row] for row in exact_matrix(op)]
    assert exactly_bounded(bound, torch.tensor(exact, dtype=torch.float64))  # 1 + w − 1 fits a float here


@pytest.mark.parametrize("scale", [1e-320, 1e-200, 1e200, 1e308])
def test_dense_at_the_ends_of_the_range(scale):
    w = torch.tensor([[1.0, 1.0], [-1.0, 1.0]], dtype=torch.float64) * scale
    bound = Dense((2,), w).bound("l2").value
    assert bound > 0
    assert math.isinf(bound) or exactly_bounded(bound, w)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("norm", NORMS)
def test_broken_weights_have_no_bound(bad, norm):
    w, k = weights(0, 3, 3), weights(0, 2, 2, 3, 3)
    w[1, 1] = k[1, 1, 1, 1] = bad
    one = torch.ones(2, 1, 1, dtype=torch.float64) * bad
    for op in (
        Dense((3,), w),
        Dense((3,), w, None, True),
        Conv2d((2, 4, 4), k, None, (1, 1), (1, 1, 1, 1)),
        Conv2d((2, 4, 4), k, None, (1, 1), (1, 1, 1, 1), skip=True),
        Scale((2, 4, 4), one),
    ):
        assert op.bound(norm).value == math.inf


# --- convolutions ---


def check_conv(op: Conv2d) -> None:
    """Symbols, and checked Cholesky on either side, each against the SVD of the whole matrix."""
    check_operator(op, "l2")
    check_operator(op, "linf")
    truth = matrix_norm(dense(op), "l2")
    kernel, slip = op._kernel()
    symbols = symbol_bound(kernel, op.input_shape[1:], op.stride, op.padding, op.dilation)
    assert symbols + slip >= truth * (1 - 1e-12)
    for outputs in (True, False):
        with mock.patch.object(Conv2d, "_side", lambda _, outputs=outputs: (outputs, 0.0)):
            exact = op._exact_bound(kernel)
        assert exact + slip >= truth * (1 - 1e-12)
        if truth > 1e-9:
            assert exact + slip <= truth * (1 + 1e-6)


GRID = [
    (n, k, s, p, d)
    for n, k, s, p, d in itertools.product((1, 2, 5, 6), (1, 2, 3, 5), (1, 2, 3), (0, 1, 2), (1, 2))
    if n + 2 * p >= d * (k - 1) + 1
]


@pytest.mark.parametrize("part", range(4))
def test_convolutions_on_the_whole_grid(part):
    """Size, kernel (also larger than the image), stride, padding, dilation: all that torch takes."""
    for i, (n, k, s, p, d) in enumerate(GRID):
        if i % 4 == part:
            kind = KINDS[i // 4 % len(KINDS)]
            op = Conv2d((1, n, n), weights(i, 2, 1, k, k, kind=kind), None, (s, s), (p,) * 4, (d, d))
            check_conv(op)


@st.composite
def convolutions(draw):
    axis = st.tuples(
        st.integers(1, 6),
        st.integers(1, 4),
        st.integers(1, 4),
        st.integers(0, 3),
        st.integers(0, 3),
        st.integers(1, 2),
    )
    (h, kh, sh, top, bottom, dh), (w, kw, sw, left, right, dw) = draw(axis), draw(axis)
    assume(h + top + bottom > dh * (kh - 1) and w + left + right > dw * (kw - 1))
    groups = draw(st.sampled_from([1, 1, 2]))
    c, d = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    weight = weights(draw(seeds), d, c // groups, kh, kw, kind=draw(st.sampled_from(KINDS)))
    return Conv2d((c, h, w), weight, None, (sh, sw), (top, bottom, left, right), (dh, dw), groups)


@given(convolutions())
@settings(max_examples=150)
def test_convolutions_at_random(op):
    check_conv(op)
    assert op.arithmetic().gain >= matrix_norm(dense(op).abs(), "l2") * (1 - 1e-12)


@settings(deadline=None)
@given(convolutions())
def test_a_single_image_as_columns_is_the_same_convolution(op):
    """What a GPU does with power iterates, on either side of the adjoint."""
    assume(op.groups == 1)
    x, y = (torch.randn(1, *shape, dtype=torch.float64) for shape in (op.input_shape, op.output_shape))
    arguments = (op.stride, op.padding, op.dilation)
    torch.testing.assert_close(columns.convolve_one(x, op.weight, *arguments), op.apply(x))
    found = columns.transpose_one(y, op.weight, op.input_shape[1:], *arguments)
    torch.testing.assert_close(found, op.adjoint(y))


@given(seeds, st.integers(1, 3), st.sampled_from([(3, 3), (3, 1), (2, 3), (5, 5)]), st.data())
@settings(max_examples=60)
def test_identity_plus_convolution(seed, c, kernel, data):
    """‖I + W‖ with the identity on any tap that padding can put it on, with groups and dilation too."""
    (kh, kw), d = kernel, data.draw(st.integers(1, 2))
    top, left = d * data.draw(st.integers(0, kh - 1)), d * data.draw(st.integers(0, kw - 1))
    padding = (top, d * (kh - 1) - top, left, d * (kw - 1) - left)
    groups = data.draw(st.sampled_from([1, c]))
    w = weights(seed, c, c // groups, kh, kw)
    op = Conv2d((c, 4, 5), w, weights(seed + 1, c), (1, 1), padding, (d, d), groups, skip=True)
    check_conv(op)
    without = dense(replace(op, skip=False))
    assert torch.equal(dense(op), without + torch.eye(len(without), dtype=torch.float64))


@given(convolutions(), st.booleans())
@settings(max_examples=40)
def test_a_convolution_loses_no_more_than_stated(op, single):
    assume(math.prod(op.output_shape) * math.prod(op.input_shape) <= 1500)
    x = weights(1, 2, *op.input_shape)
    op = replace(op, bias=weights(2, op.weight.shape[0]) * 100)
    if single:
        op, x = replace(op, weight=op.weight.float(), bias=op.bias.float()), x.float()
    check_arithmetic(op, x)


def test_a_convolution_scales_exactly():
    check_powers_of_two(Conv2d((2, 5, 5), weights(0, 3, 2, 3, 3), None, (2, 2), (1, 1, 1, 1)))
    check_powers_of_two(Conv2d((2, 5, 5), weights(0, 3, 2, 3, 3), None, (2, 2), (1, 1, 1, 1)), norm="linf")
    kernel = weights(0, 3, 2, 3, 3)
    symbols = [
        symbol_bound(kernel * 2.0**k, (5, 5), (1, 1), (1, 1, 1, 1), (1, 1)) * 2.0**-k
        for k in (-200, -1, 0, 9)
    ]
    assert len(set(symbols)) == 1


@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_a_convolution_at_every_scale(scale):
    op = Conv2d((2, 4, 4), weights(0, 2, 2, 3, 3), None, (1, 1), (1, 1, 1, 1))
    truth = matrix_norm(dense(op), "l2")
    bound = replace(op, weight=op.weight * scale).bound("l2").value
    assert truth * (1 - 1e-12) <= bound / scale <= truth * (1 + 1e-6)


def test_wrapping_the_image_around_is_no_bound_for_zero_padding():
    """The circle of the image's own size: a peer's bound, and below the truth. Ours is not."""
    below = 0
    for seed, n in itertools.product(range(60), (2, 3, 4)):
        op = Conv2d((1, n, n), weights(seed, 1, 1, 3, 3), None, (1, 1), (1, 1, 1, 1))
        truth = matrix_norm(dense(op), "l2")
        spectrum = torch.fft.fft2(dense_kernel(op.weight[0, 0], n)).abs().max()
        below += float(spectrum) < truth * (1 - 1e-6)
        assert symbol_bound(op.weight, (n, n), (1, 1), op.padding, (1, 1)) >= truth * (1 - 1e-12)
        assert op.bound("l2").value >= truth * (1 - 1e-12)
    assert below > 0


def dense_kernel(kernel: torch.Tensor, n: int) -> torch.Tensor:
    """The kernel laid on a circle of n×n, taps that meet added."""
    image = torch.zeros(n, n, dtype=torch.float64)
    for i, j in itertools.product(range(3), range(3)):
        image[(i - 1) % n, (j - 1) % n] += kernel[i, j]
    return image


def test_a_start_in_the_kernel_of_the_operator_deceives_the_estimate_alone():
    """Kernel rows that sum to zero: a start of ones gives an estimate near 0, and the bound does not care."""
    kernel = torch.tensor([[0.0, 0, 0], [-1, 0, 1], [0, 0, 0]], dtype=torch.float64)[None, None]
    op = Conv2d((1, 6, 6), kernel, None, (1, 1), (0, 0, 0, 0))
    ones = torch.ones(1, 1, 6, 6, dtype=torch.float64)
    sigma, _ = op.estimate(ones / ones.norm(), 5, "l2")
    assert float(sigma) < 1e-12
    check_conv(op)
    assert op.bound("l2").value > 1.5


def test_identity_plus_convolution_of_norm_three_that_a_naive_start_takes_for_one():
    """I + W with W = 2 on one direction that the start has no part of: ‖I + W‖ = 3, not 1, not 1 + ‖W‖."""
    w = torch.zeros(2, 2, 1, 1, dtype=torch.float64)
    w[:, :, 0, 0] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])  # 2 on (1, −1)/√2, 0 on (1, 1)
    op = Conv2d((2, 3, 3), w, None, (1, 1), (0, 0, 0, 0), skip=True)
    ones = torch.ones(1, 2, 3, 3, dtype=torch.float64)
    sigma, _ = op.estimate(ones / ones.norm(), 50, "l2")
    assert float(sigma) == pytest.approx(1.0)
    assert 3.0 <= op.bound("l2").value <= 3.0 * (1 + 1e-6)
    minus = replace(op, weight=-w)
    assert 1.0 <= minus.bound("l2").value <= 1.0 + 1e-6  # and not 1 + ‖W‖ = 3


def test_a_kernel_that_meets_nothing_but_padding():
    """Non-zero taps, all of them on zeros: the operator is 0 and any bound holds; no crash, no NaN."""
    w = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    w[..., 0, 0] = 5.0
    op = Conv2d((1, 1, 1), w, None, (1, 1), (1, 1, 1, 1))
    assert not dense(op).any()
    assert 0.0 <= op.bound("l2").value < math.inf


# --- pooling ---


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("padding", [(0, 0), (1, 0), (1, 1)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 3), (4, 4)])
@pytest.mark.parametrize("kernel", [(2, 2), (3, 3), (3, 2)])
def test_pooling(kernel, stride, padding, norm):
    average = AvgPool2d((2, 6, 5), kernel, stride, padding)
    check_operator(average, norm)
    check_operator(MaxPool2d((2, 6, 5), kernel, stride, padding), norm)
    check_arithmetic(average, weights(0, 1, 2, 6, 5))
    check_arithmetic(average, weights(0, 1, 2, 6, 5).float())


@pytest.mark.parametrize(
    ("kernel", "stride", "k"), [(2, 2, 1.0), (2, 3, 1.0), (3, 1, 3.0), (3, 2, 2.0), (2, 1, 2.0)]
)
def test_max_pooling_stretches_as_much_as_windows_overlap(kernel, stride, k):
    op = MaxPool2d((1, 9, 9), (kernel, kernel), (stride, stride))
    assert op.bound("l2").value == pytest.approx(k)
    assert op.bound("linf").value == 1.0
    # One pixel rises in every window that sees it: the constant is reached.
    x, y = torch.zeros(2, 1, 1, 9, 9, dtype=torch.float64)
    y[..., 4, 4] = 1.0
    windows = int(op(y).sum())
    assert (op(y) - op(x)).norm() == pytest.approx(math.sqrt(windows))
    assert math.sqrt(windows) <= op.bound("l2").value * (1 + 1e-15)


# --- the rest ---

FACTOR = torch.tensor([3.0, -0.5, 0.25], dtype=torch.float64).reshape(3, 1, 1)
SMALL: list[Operator] = [
    ReLU((3, 2, 2)),
    Abs((5,)),
    MinMax((4, 3)),
    MinMax((6,)),
    Reshape((2, 3), (6,)),
    Pad((1, 2, 3), (0, 1, 2, 0)),
    Scale((3, 2, 2), FACTOR),
    Scale((3, 2, 2), FACTOR, divide=True),
    Scale((3, 2, 2), FACTOR[None], divide=True),
    Scale((4,), torch.tensor(-7.0, dtype=torch.float64)),
    Scale((4,), torch.tensor(0.0, dtype=torch.float64)),
    Translate((3, 2, 2), FACTOR),
    Translate((3, 2, 2), FACTOR[None], subtract=True),
]


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("op", SMALL, ids=lambda op: f"{op.rule}{op.input_shape}")
def test_small_operators(op, norm):
    check_operator(op, norm)


@pytest.mark.parametrize(
    "op", [op for op in SMALL if isinstance(op, Scale | Translate)], ids=lambda op: op.rule
)
def test_scaling_and_shifting_lose_no_more_than_stated(op):
    check_arithmetic(op, weights(0, 4, *op.input_shape))
    check_arithmetic(op, weights(0, 4, *op.input_shape).float())  # torch rounds the constant first


def test_scaling_is_bounded_by_its_extreme_factor():
    assert Scale((3, 2, 2), FACTOR).bound("l2").value == 3.0
    assert Scale((3, 2, 2), FACTOR, divide=True).bound("linf").value >= 4.0
    assert Scale((3, 2, 2), FACTOR * 0, divide=True).bound("l2").value == math.inf
    assert Scale((2,), torch.full((2,), TINY, dtype=torch.float64), divide=True).bound("l2").value == math.inf


def test_a_sum_adds_constants_and_sees_both_branches():
    op = Sum((4,))
    x, y = weights(0, 2, 3, 4)
    assert torch.equal(op(x, y), x + y)
    assert op.combine([2.0, 3.0], "l2") == op.combine([2.0, 3.0], "linf") == 5.0
    assert op.bound("l2").value == 1.0


def test_an_estimate_is_differentiable_through_its_last_norm_only():
    w = torch.nn.Parameter(weights(0, 4, 3))
    op = Dense((3,), w)
    start = op.start().double()
    sigma, u = op.estimate(start, 50, "l2")
    sigma.backward()
    left, values, right = torch.linalg.svd(w.detach())
    assert sigma.item() == pytest.approx(float(values[0]))
    torch.testing.assert_close(w.grad.abs(), torch.outer(left[:, 0], right[0]).abs(), atol=1e-6, rtol=1e-6)
    assert not u.requires_grad
    assert op.estimate(u, 1, "l2")[0].item() >= sigma.item() * (1 - 1e-12)  # the iterate goes on where it was


def test_an_estimate_of_zero_or_broken_weights_does_not_crash():
    for w in (torch.zeros(3, 3), torch.full((3, 3), math.nan), torch.full((3, 3), 1e-30)):
        op = Dense((3,), w)
        sigma, u = op.estimate(op.start(), 5, "l2")
        assert u.shape == (1, 3)
        assert torch.isfinite(u).all()
        assert not float(sigma) < 0
