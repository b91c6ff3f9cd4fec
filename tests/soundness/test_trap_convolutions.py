"""Convolutions and pooling as they are executed"""

from __future__ import annotations

import math

import torch
from tests.soundness import naive
from tests.soundness.cases import (
    Answers,
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


def constant_of(*layers: nn.Module, n: int) -> float:
    """K of these layers on one n×n image, by the bound of a whole net; proved to be no less than the
    SVD's."""
    features = nn.Sequential(*layers, nn.ReLU(), nn.Flatten())
    width = features(torch.zeros(1, 1, n, n).double()).shape[1]
    ours = certified(nn.Sequential(*features, linear(torch.ones(2, width))), (1, n, n)).bound().constant
    truth = spectral(jacobian(nn.Sequential(*layers), torch.randn(1, 1, n, n)))
    assert truth * (1 - 1e-12) <= ours <= truth * (1 + 1e-6)
    return ours


def outer(row: list[float]) -> torch.Tensor:
    """The kernel that does along both axes what `row` does along one; norms multiply."""
    return torch.outer(torch.tensor(row), torch.tensor(row))


@case("Circular norm for zero padding, at odd sizes")
def test_circular_norm_for_zero_padding_at_odd_sizes() -> Answers:
    """The FFT gives the exact norm of a circular convolution, and zero padding is "nearly the same". At odd
    sizes the Fourier grid misses the checkerboard, where this sharpening kernel is strongest; the padded
    image does not."""
    kernel, rows = outer([1.0, -2.0, 1.0]), []
    for n in (3, 5, 7):
        wrong, ours = naive.fft_norm(kernel.double(), n), constant_of(conv(kernel, padding=1), n=n)
        assert wrong < 0.98 * ours
        rows.append((wrong, ours))
    return Answers(
        f"K = {', '.join(number(w) for w, _ in rows)} at 3×3, 5×5, 7×7 pixels",
        f"K = {', '.join(number(o) for _, o in rows)}, as the SVD",
    )


@case("Kernels composed across zero padding")
def test_kernels_composed_across_zero_padding() -> Answers:
    """Two convolutions in a row are one, with the composed kernel: true on the circle and on an infinite
    plane. With zero padding between them the border is cut off twice, and terms that cancelled no longer
    do."""
    first, second = [[1.0, 0.0, 1.0]], [[-1.0, 0.0, 1.0]]
    composed = conv([[-1.0, 0.0, 0.0, 0.0, 1.0]], padding=(0, 2))
    n = 4
    wrong = spectral(jacobian(composed, torch.zeros(1, 1, n, n)))
    ours = constant_of(conv(first, padding=(0, 1)), conv(second, padding=(0, 1)), n=n)
    assert wrong < 0.7 * ours
    return Answers(f"K = {number(wrong)}", f"K = {number(ours)}, as the SVD")


@case("Odd strides")
def test_a_stride_that_does_not_divide() -> Answers:
    """The adjoint of a strided convolution is `conv_transpose2d`, whose output may be a row short: torch
    cannot know how many pixels there were. Power iteration then runs on a smaller image and forgets the
    last row."""
    kernel, n = outer([0.0, 1.0, 0.0, 0.0, 2.0]), 7
    wrong = naive.transposed_power_iteration(kernel.double().reshape(1, 1, 5, 5), stride=3, padding=1, n=n)
    ours = constant_of(conv(kernel, stride=3, padding=1), n=n)
    assert wrong < 0.9 * ours
    return Answers(f"K = {number(wrong)} for stride 3 on 7×7 pixels", f"K = {number(ours)}, as the SVD")


@case("Asymmetric SAME padding")
def test_asymmetric_same_padding() -> Answers:
    """TensorFlow's SAME pads one more at the end than at the start where the sum is odd: (1, 2) here. Taken
    for 1 on either side, the last window is lost, and with it the pixels only it reads."""
    kernel, n = outer([2.0, 1.0, 0.0, 0.0]), 3
    wrong = spectral(jacobian(conv(kernel, stride=2, padding=1), torch.zeros(1, 1, n, n)))
    ours = constant_of(nn.ZeroPad2d((1, 2, 1, 2)), conv(kernel, stride=2), n=n)
    assert wrong < 0.5 * ours
    return Answers(f"K = {number(wrong)} for c(1,4,2) on 3×3 pixels", f"K = {number(ours)}, as the SVD")


@case("Overlapping max pooling")
def test_overlapping_max_pooling() -> Answers:
    """ "A maximum is 1-Lipschitz", entry by entry. A pixel that lies in nine windows moves nine outputs, and
    in ℓ2 that is a factor of 3."""
    pooling, head = nn.MaxPool2d(3, 1), torch.stack([torch.ones(9), -torch.ones(9)])
    module = nn.Sequential(pooling, nn.Flatten(), linear(head, [-2.0, 0.0]))
    x, point = torch.zeros(2, 1, 1, 5, 5).double()
    point[0, 0, 2, 2] = 0.12  # all nine windows see the middle
    distance = 6.0  # ‖w₁ − w₀‖
    claimed = 2.0 / (naive.constant([pooling]) * distance)
    net = certified(module, (1, 5, 5))
    ours, c = net.bound().constant, net.certify(x)
    broken = disproof(module, x, point, claimed)
    assert 3.0 <= ours <= 3.0 * (1 + 1e-12)
    assert 1 / 9 * (1 - 1e-6) <= float(c.radius) <= 1 / 9
    return Answers(
        f"K = 1, radius {number(claimed)}, {broken}",
        f"K = {number(ours)}, radius {number(c.radius)}: the best possible",
    )


@case("Overlapping average pooling")
def test_overlapping_average_pooling() -> Answers:
    """Averaging k×k pixels shrinks differences by k, where windows do not overlap. With stride 1 it hardly
    shrinks a smooth image at all."""
    wrong, ours = 1.0 / 3.0, constant_of(nn.AvgPool2d(3, 1, 1), n=16)
    assert wrong < 0.4 * ours
    apart = constant_of(nn.AvgPool2d(3), n=15)
    assert math.isclose(apart, wrong, rel_tol=1e-6)
    return Answers(f"K = {number(wrong)}", f"K = {number(ours)}, as the SVD; {number(apart)} without overlap")
