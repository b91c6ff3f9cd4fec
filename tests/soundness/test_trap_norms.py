"""Norms from below, taken for bounds"""

from __future__ import annotations

import torch
from tests.laws import dense, exactly_bounded
from tests.soundness import naive
from tests.soundness.cases import (
    Answers,
    at,
    case,
    certified,
    conv,
    disproof,
    jacobian,
    linear,
    number,
    spectral,
)
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import gloronet as gn
from gloronet.operators import Conv2d, Dense
from gloronet.operators.norms import dense_bound


@case("All-ones start on an antisymmetric kernel")
def test_all_ones_start_on_an_antisymmetric_kernel() -> Answers:
    """Power iteration "from ones, for reproducibility". An edge detector maps a constant image to zero, so
    the iteration ends where it began: K = 0, and every radius is infinite."""
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).double()
    op = Conv2d((1, 8, 8), sobel.reshape(1, 1, 3, 3))
    wrong = naive.power_iteration(op.apply, op.adjoint, torch.ones(1, 1, 8, 8).double(), 1000)
    truth, ours = spectral(dense(op)), op.bound("l2").value
    assert wrong == 0.0
    assert truth <= ours <= truth * (1 + 1e-6)
    return Answers(f"K = {number(wrong)}; the SVD says {number(truth)}", f"K = {number(ours)}")


@case("A start in the wrong half")
def test_a_start_in_the_wrong_half() -> Answers:
    """Zero padding wakes that iteration up, but a symmetric kernel keeps a symmetric start symmetric, and
    the largest singular vector here is antisymmetric. Only rounding errors could ever find it."""
    op = Conv2d((1, 1, 4), torch.tensor([-1.0, 1.0, -1.0]).double().reshape(1, 1, 1, 3), padding=(0, 0, 1, 1))
    wrong = naive.power_iteration(op.apply, op.adjoint, torch.ones(1, 1, 1, 4).double(), 20)
    truth, ours = spectral(dense(op)), op.bound("l2").value
    assert wrong < 0.99 * truth < ours <= truth * (1 + 1e-6)
    assert truth <= ours
    return Answers(f"K = {number(wrong)}; the SVD says {number(truth)}", f"K = {number(ours)}")


@case("Clustered spectrum")
def test_clustered_spectrum() -> Answers:
    """Power iteration separates two singular values at the speed of their ratio, and training draws them
    together. Five iterations a step, or fifty at the end, stop well below the norm."""
    module = nn.Sequential(
        linear(torch.tensor([0.99] * 63 + [1.0]).diag()), linear([[0.0] * 63 + [1.0], [0.0] * 64])
    )
    op = Dense((64,), module[0].weight.detach())
    five, fifty = (
        naive.power_iteration(op.apply, op.adjoint, torch.ones(1, 64).double(), k) for k in (5, 50)
    )
    x, point = torch.zeros(2, 1, 64).double()
    x[0, -1], point[0, -1] = 1.0, -0.001  # the label is 0 as long as the last entry is above 0
    assert five < fifty < 0.995
    broken = disproof(module, x, point, 1.0 / fifty)
    ours, c = op.bound("l2").value, certified(module, (64,)).certify(x)
    assert 1.0 <= ours <= 1.0 + 1e-6
    assert 1.0 - 1e-6 <= float(c.radius) <= 1.0
    return Answers(
        f"K = {number(five)} after 5 iterations, {number(fifty)} after 50; the norm is 1. "
        f"A radius of {number(1 / fifty)}, {broken}",
        f"K = {number(ours)}, radius {number(c.radius)}",
    )


@case("Identity plus convolution")
def test_identity_plus_convolution() -> Answers:
    """A residual block x + W∗x is sharpest for the checkerboard. On the circle the constant image is an
    eigenvector too, so power iteration that starts there is content with 1."""
    kernel = [[0.0, 0.0, 0.0], [-0.5, 1.0, -0.5], [0.0, 0.0, 0.0]]
    block = gn.Residual(conv(kernel, padding=1, padding_mode="circular"))
    module = nn.Sequential(block, nn.ReLU(), nn.Flatten(), linear(torch.eye(64)[:2]))
    matrix = jacobian(block, torch.zeros(1, 1, 8, 8))
    wrong = naive.power_iteration(lambda u: matrix @ u, lambda u: matrix.T @ u, torch.ones(64).double(), 1000)
    truth, ours = spectral(matrix), certified(module, (1, 8, 8)).bound().constant
    assert wrong < 1.0 + 1e-9
    assert truth <= ours <= truth * (1 + 1e-6)
    return Answers(
        f"K = {number(wrong)}; the SVD says {number(truth)}", f"K = {number(ours)}, as one operator"
    )


@case("Residual as 1 + ‖W‖")
def test_residual_as_one_plus_the_norm() -> Answers:
    """x + Wx bounded by 1 + ‖W‖ is true, but forgets that W may point the other way: a block that halves
    its input is charged for stretching it. I + W is one matrix, with one norm."""
    block = gn.Residual(linear(-0.5 * torch.eye(4)))
    ours = certified(nn.Sequential(block, nn.ReLU(), linear(torch.eye(4)[:2])), (4,)).bound().constant
    wrong = 1.0 + naive.constant([block.inner])
    assert 0.5 <= ours <= 0.5 * (1 + 1e-6)
    assert wrong == 1.5
    return Answers(f"K = {number(wrong)}: true, three times too large", f"K = {number(ours)}")


@case("Residual frozen at initialisation")
def test_residual_frozen_at_initialisation() -> Answers:
    """Branches start at zero, so the block's constant is 1 when it is built. A certifier that took it
    down then still says 1 after training."""
    block = gn.Residual(linear(torch.zeros(2, 2)))
    module = nn.Sequential(block, linear(torch.eye(2)))
    net = certified(module, (2,))
    kept = naive.Cached(lambda: 1.0 + naive.constant([block.inner]))
    assert kept() == 1.0
    assert 1.0 <= net.bound().constant <= 1.0 + 1e-6
    with torch.no_grad():
        block.inner.weight.copy_(torch.eye(2) * 2.0)
    x, point = at(0.2, 0.1), at(0.149, 0.151)
    claimed = float(module(x).detach().diff().abs()) / (kept() * 2**0.5)
    ours, c = net.bound().constant, net.certify(x)
    broken = disproof(module, x, point, claimed)
    assert 3.0 <= ours <= 3.0 * (1 + 1e-6)
    assert 0.0707106 <= float(c.radius) <= 0.1 * 0.5**0.5
    return Answers(
        f"K = {number(kept())}, radius {number(claimed)}, {broken}",
        f"K = {number(ours)}, radius {number(c.radius)}",
    )


@case("Float32 SVD and Gram iteration")
def test_float32_svd_and_gram_iteration() -> Answers:
    """An SVD is exact and Gram iteration an upper bound, on paper. In float32 both are rounded, and the
    result is below the exact norm about as often as above it. Decided here in rational arithmetic, for 100
    matrices."""
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(3, 3, generator=generator) for _ in range(100)]
    low = {
        "SVD": sum(not exactly_bounded(float(torch.linalg.matrix_norm(a, 2)), a) for a in matrices),
        "Gram iteration": sum(not exactly_bounded(naive.gram_iteration(a, 14), a) for a in matrices),
    }
    assert all(20 <= count <= 80 for count in low.values())
    for a in matrices:
        ours = dense_bound(a)
        assert exactly_bounded(ours, a)
        assert ours <= spectral(a) * (1 + 1e-6)
    return Answers(
        f"too low for about half of them: {' and '.join(low)}", "a bound for each, at most 1e-06 above"
    )


@case("Spectral norm of a convolution")
def test_spectral_norm_of_a_convolution() -> Answers:
    """`torch.nn.utils.parametrizations.spectral_norm` divides a kernel by its norm as a matrix c_out ×
    c_in·k·k. Overlapping windows read each pixel again and again: the convolution is not 1-Lipschitz at
    all."""
    layer = spectral_norm(conv(torch.ones(3, 3), padding=1))
    wrong = naive.kernel_matrix_norm(layer.weight.detach())
    module = nn.Sequential(layer, nn.ReLU(), nn.Flatten(), linear(torch.eye(64)[:2])).eval()
    truth = spectral(jacobian(layer, torch.zeros(1, 1, 8, 8)))
    ours = certified(module, (1, 8, 8)).bound().constant
    assert wrong < 1.0 + 1e-6
    assert truth <= ours <= truth * (1 + 1e-6)
    return Answers(
        f"K = {number(wrong)}; the SVD says {number(truth)}", f"K = {number(ours)}: the weight it made"
    )


@case("Slopes sampled at the data")
def test_slopes_sampled_at_the_data() -> Answers:
    """The steepest gradient at ten thousand data points is no Lipschitz constant: between two points the
    network can do what it likes. Here a spike of width 0.002 stands where no point is."""
    tall = linear([[1000.0], [1000.0], [1000.0]], [-499.0, -500.0, -501.0])
    module = nn.Sequential(tall, nn.ReLU(), linear([[1.0, -2.0, 1.0], [0.0, 0.0, 0.0]], [0.0, 0.5]))
    x = torch.cat([torch.linspace(0.0, 0.49, 5000), torch.linspace(0.51, 1.0, 5000)]).double()[:, None]
    wrong = naive.sampled_slope(module, x)
    assert wrong == 0.0
    beside = x[4999:5000]
    broken = disproof(module, beside, at(0.5), float("inf"))
    c = certified(module, (1,)).certify(beside)
    assert 0.0 < float(c.radius) <= 0.01
    return Answers(
        f"K = {number(wrong)}, radius inf, {broken}",
        f"radius {number(c.radius)}, from a constant that holds everywhere",
    )
