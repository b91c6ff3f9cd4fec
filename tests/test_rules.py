"""Every rule keeps its word: constants hold at many points and are reached, roundings are covered,
tracing a module gives the module, and what has no rule is refused with a remedy."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from gloronet.errors import UnsupportedOperation
from gloronet.layers import GroupSort, Householder
from gloronet.net import GloRoNet
from gloronet.operators import (
    ELU,
    GELU,
    CircularPad,
    Concat,
    Conv1d,
    Conv2d,
    LeakyReLU,
    Pad,
    Permute,
    PixelUnshuffle,
    Sigmoid,
    Softplus,
    Tanh,
    circular,
)
from gloronet.operators import GroupSort as GroupSortOperator
from gloronet.operators import Householder as HouseholderOperator
from gloronet.operators.rounding import U32, U64, gamma
from gloronet.operators.smooth import GELU_SLOPES
from gloronet.program import bound, trace


@pytest.fixture(autouse=True)
def one_thread():
    """Thousands of tiny products: threads would only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def randn(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def jacobian(operator, x):
    """The Jacobian at one point, as a matrix."""
    full = torch.autograd.functional.jacobian(lambda z: operator(z[None])[0], x, vectorize=True)
    return full.reshape(-1, x.numel())


def operator_norm(matrix, norm):
    return float(torch.linalg.matrix_norm(matrix.detach(), 2 if norm == "l2" else torch.inf))


def ratio(operator, x, y, norm):
    order = 2 if norm == "l2" else torch.inf
    rise = torch.linalg.vector_norm((operator(x) - operator(y)).flatten(1), order, 1)
    return rise / torch.linalg.vector_norm((x - y).flatten(1), order, 1)


NONLINEAR = {
    "leakyrelu": LeakyReLU((4,), 0.3),
    "leakyrelu-steep": LeakyReLU((4,), -2.5),
    "groupsort": GroupSortOperator((6, 2), 3),
    "householder": HouseholderOperator((6, 2), torch.tensor([0.8, 2.0, -9.0], dtype=torch.float64)),
    "sigmoid": Sigmoid((4,)),
    "tanh": Tanh((4,)),
    "elu": ELU((4,), 0.7),
    "elu-steep": ELU((4,), -1.9),
    "softplus": Softplus((4,), 3.0, 20.0),
    "softplus-negative": Softplus((4,), -0.5, 20.0),
    "gelu": GELU((4,), "none"),
    "gelu-tanh": GELU((4,), "tanh"),
}


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", NONLINEAR)
def test_no_slope_exceeds_the_constant_and_one_reaches_it(name, norm):
    operator = NONLINEAR[name]
    constant = operator.bound(norm).value
    points = [randn(*operator.input_shape, seed=k) * scale for k in range(40) for scale in (0.1, 1.0, 10.0)]
    if len(operator.input_shape) == 1:  # entry by entry: a fine grid of points is cheap
        points += list(torch.linspace(-4, 4, 400, dtype=torch.float64).reshape(-1, 4))
    steepest = max(operator_norm(jacobian(operator, x), norm) for x in points)
    assert steepest <= constant * (1 + 1e-12)
    # In ℓ∞ only a reflection at 45° reaches √2.
    attained = 0.9 if name == "householder" and norm == "linf" else 0.999
    assert steepest >= constant * attained


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", NONLINEAR)
def test_no_pair_of_points_exceeds_the_constant(name, norm):
    """Sampled pairs, close and far, then gradient ascent on the ratio from each."""
    operator = NONLINEAR[name]
    constant = operator.bound(norm).value
    x = randn(64, *operator.input_shape, seed=1) * 2
    y = x + randn(64, *operator.input_shape, seed=2) * torch.logspace(-3, 1, 64).reshape(
        -1, *[1] * len(operator.input_shape)
    )
    assert float(ratio(operator, x, y, norm).max()) <= constant * (1 + 1e-9)
    for t in (x, y):
        t.requires_grad_()
    climber = torch.optim.Adam([x, y], lr=0.05)
    for _ in range(40):
        climber.zero_grad()
        (-ratio(operator, x, y, norm).sum()).backward()
        climber.step()
    assert float(ratio(operator, x, y, norm).detach().max()) <= constant * (1 + 1e-9)


# Roundings


@pytest.mark.parametrize("slope", [0.1, -3.3, -1.07])
def test_leaky_relu_loses_no_more_than_stated(slope):
    """Two roundings: 1.07 itself is rounded to float32, and then the product."""
    operator = LeakyReLU((1,), slope)
    assert_within_stated_error(operator, operator, randn(20_000, 1).float())


def test_householder_loses_no_more_than_stated_even_at_the_switch():
    """Points a few roundings from the line of reflection, where float32 takes the other branch."""
    theta = (randn(50, seed=3) * 4).float()
    exact = HouseholderOperator((100,), theta.double())
    computed = HouseholderOperator((100,), theta)
    half = theta.double() / 2
    along = torch.cat([half.cos(), half.sin()])  # on the line: a·sin = b·cos
    x = (along * torch.logspace(-3, 3, 40, dtype=torch.float64)[:, None]).float()
    x = torch.cat([x, torch.nextafter(x, torch.full_like(x, 9e9)), randn(40, 100).float()])
    a, b = x.double().chunk(2, 1)
    sides = a * half.sin() - b * half.cos()
    in_float32 = x[:, :50] * (theta / 2).sin() - x[:, 50:] * (theta / 2).cos()
    assert bool(((sides > 0) != (in_float32.double() > 0)).any()), "no branch was mistaken"
    assert_within_stated_error(exact, computed, x)


def assert_within_stated_error(exact, computed, x):
    """The float32 value against the float64 one, by the operator's own account."""
    loss = exact.arithmetic()
    error = (computed(x).double() - exact(x.double())).flatten(1).norm(dim=1)
    allowed = gamma(loss.terms, U32) * (loss.gain * x.double().flatten(1).norm(dim=1) + loss.offset)
    assert bool((error <= allowed).all())
    assert bool((error > 0).any()), "nothing was rounded: the test shows nothing"


@pytest.mark.parametrize("name", [n for n in NONLINEAR if NONLINEAR[n].elementary])
def test_elementary_functions_in_float64_are_as_good_as_assumed(name):
    mp = pytest.importorskip("mpmath")
    operator = NONLINEAR[name]
    loss = operator.arithmetic()
    x = torch.cat([torch.linspace(-40, 40, 401), randn(199).float() * 1e-3]).double()
    y = operator(x.reshape(-1, 4)).reshape(-1)
    with mp.workdps(40):
        for point, value in zip(x.tolist(), y.tolist(), strict=True):
            true = _precisely(mp, operator, mp.mpf(point))
            allowed = gamma(loss.terms, U64) * (loss.gain * abs(point) + loss.offset / 2)  # √4 entries
            assert abs(mp.mpf(value) - true) <= allowed
            assert abs(true) <= loss.gain * abs(point) + loss.offset / 2


def _precisely(mp, operator, x):
    if isinstance(operator, Sigmoid):
        return 1 / (1 + mp.exp(-x))
    if isinstance(operator, Tanh):
        return mp.tanh(x)
    if isinstance(operator, ELU):
        return x if x > 0 else mp.mpf(operator.alpha) * mp.expm1(x)
    if isinstance(operator, Softplus):
        return mp.log(1 + mp.exp(mp.mpf(operator.beta) * x)) / mp.mpf(operator.beta)
    if operator.approximate == "none":
        return x * mp.ncdf(x)
    inner = mp.sqrt(2 / mp.pi) * (x + mp.mpf("0.044715") * x**3)
    return x / 2 * (1 + mp.tanh(inner))


# Constants that need a proof


def test_gelu_constant_in_closed_form():
    true = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi)
    assert true < GELU_SLOPES["none"] < true + 1e-9


def test_gelu_by_tanh_never_rises_faster_than_its_constant():
    """Bisection of [0, 6] until f′ ≤ ½(1 + T(b)) + ½·b·S(a)·p′(b) is below the constant on each piece [a, b].

    Beyond 6, ½x·S·p′ ≤ 2x·p′·e^(−2p), which decreases, so f′ ≤ 1 + its value at 6.
    """
    c, k = math.sqrt(2 / math.pi), 0.044715
    p, slope = (lambda x: c * (x + k * x**3)), (lambda x: c * (1 + 3 * k * x**2))
    target = GELU_SLOPES["tanh"] - 1e-12  # leaves room for the roundings of this test
    assert 1 + 2 * 6 * slope(6) * math.exp(-2 * p(6)) < target
    pieces = np.linspace(0, 6, 1001)
    low, high = pieces[:-1], pieces[1:]
    highest = 0.0
    for _ in range(40):
        above = 0.5 * (1 + np.tanh(p(high))) + 0.5 * high * (1 - np.tanh(p(low)) ** 2) * slope(high)
        highest = max(highest, *(0.5 * (1 + np.tanh(p(low))) + 0.5 * low / np.cosh(p(low)) ** 2 * slope(low)))
        low, high = low[above > target], high[above > target]
        if not len(low):
            break
        middle = (low + high) / 2
        low, high = np.concatenate([low, middle]), np.concatenate([middle, high])
        assert len(low) < 10**7
    assert not len(low)
    assert highest > GELU_SLOPES["tanh"] - 1e-8  # and it is the true constant, not merely a large one


def test_softplus_is_the_smooth_one_where_torch_jumps():
    x = torch.tensor([[math.nextafter(10.0, 0.0), math.nextafter(10.0, 11.0)]], dtype=torch.float64)
    jump = F.softplus(x, 2.0).diff() / x.diff()
    assert float(jump.abs()) > 1e5  # no constant bounds torch's
    y = Softplus((2,), 2.0, 20.0)(x)
    assert float((y.diff() / x.diff()).abs()) <= 2.0  # one rounding of the value beside a step of one ulp
    x = torch.linspace(-30, 30, 3001, dtype=torch.float64)[None]
    gap = (Softplus((3001,), 2.0, 20.0)(x) - F.softplus(x, 2.0)).abs().max()
    assert float(gap) <= math.exp(-20) / 2 + 1e-14


# Linear operators


def matrix_of(operator):
    n = math.prod(operator.input_shape)
    columns = operator.apply(torch.eye(n, dtype=torch.float64).reshape(n, *operator.input_shape))
    return columns.flatten(1).T


def assert_linear_laws(operator, loosest=1 + 1e-5):
    matrix = matrix_of(operator)
    x, y = randn(1, *operator.input_shape, seed=7), randn(1, *operator.output_shape, seed=8)
    assert operator.apply(x).shape[1:] == operator.output_shape
    torch.testing.assert_close((operator.apply(x) * y).sum(), (x * operator.adjoint(y)).sum())
    spectral = operator_norm(matrix, "l2")
    proved = operator.bound("l2").value
    assert spectral * (1 - 1e-14) <= proved <= spectral * loosest
    assert operator_norm(matrix, "linf") <= operator.bound("linf").value * (1 + 1e-14)


@st.composite
def circular_convolutions(draw):
    """Every axis, stride, dilation and padding torch would run, kernels longer than the circle too."""
    groups = draw(st.sampled_from([1, 1, 2]))
    c, d = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    size, kernel, stride, padding, dilation = [], [], [], [], []
    for _ in range(2):
        n, k = draw(st.integers(2, 7)), draw(st.integers(1, 3))
        before, after = draw(st.integers(0, min(n, 3))), draw(st.integers(0, min(n, 3)))
        reach = draw(st.integers(1, 2))
        assume(n + before + after > reach * (k - 1))
        size.append(n)
        kernel.append(k)
        stride.append(draw(st.integers(1, 3)))
        padding += [before, after]
        dilation.append(reach)
    weight = randn(d, c // groups, *kernel, seed=draw(st.integers(0, 999)))
    if draw(st.booleans()):
        weight = weight.abs()  # the largest norms sit at ω = 0, where wrapping counts in full
    return Conv2d(
        (c, *size), weight, None, tuple(stride), tuple(padding), tuple(dilation), groups, circular=True
    )


@settings(deadline=None, max_examples=50)
@given(circular_convolutions())
def test_circular_convolutions(operator):
    assert_linear_laws(operator)
    top, bottom, left, right = operator.padding
    x = randn(2, *operator.input_shape)
    padded = F.pad(x, (left, right, top, bottom), mode="circular") if any(operator.padding) else x
    expected = F.conv2d(padded, operator.weight, None, operator.stride, 0, operator.dilation, operator.groups)
    torch.testing.assert_close(operator(x), expected)


@settings(deadline=None, max_examples=25)
@given(circular_convolutions())
def test_circular_convolutions_too_large_for_their_matrix(operator):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(circular, "LARGEST_SIDE", 0)
        assert_linear_laws(operator, loosest=math.inf)


def test_circular_is_bounded_by_its_own_circle_and_not_by_zeros():
    ones = torch.ones(1, 1, 3, 3, dtype=torch.float64)
    around = Conv2d((1, 8, 8), ones, None, (1, 1), (1, 1, 1, 1), circular=True)
    zeros = Conv2d((1, 8, 8), ones, None, (1, 1), (1, 1, 1, 1))
    assert around.bound("l2").method == "circular symbols"
    assert zeros.bound("l2").value < 8.7 < 9 <= around.bound("l2").value < 9.00001


def test_circular_skip_is_one_operator():
    """x + W∗x with W the kernel −2 in the centre: norm 1, not 3."""
    weight = torch.zeros(2, 2, 3, 3, dtype=torch.float64)
    weight[:, :, 1, 1] = -2 * torch.eye(2)
    operator = Conv2d((2, 5, 5), weight, None, (1, 1), (1, 1, 1, 1), skip=True, circular=True)
    assert 1 <= operator.bound("l2").value < 1.00001
    assert_linear_laws(operator.with_tensors(weight=randn(2, 2, 3, 3)))


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize(
    ("n", "stride", "padding", "dilation", "groups"),
    [(9, 1, (1, 1), 1, 1), (8, 2, (0, 3), 1, 2), (7, 3, (2, 1), 2, 1), (5, 2, (4, 4), 1, 1)],
)
def test_conv1d(n, stride, padding, dilation, groups, around):
    weight = randn(4, 4 // groups, 3)
    operator = Conv1d((4, n), weight, randn(4), (stride,), padding, (dilation,), groups, circular=around)
    assert_linear_laws(operator)
    x = randn(3, 4, n)
    padded = F.pad(x, padding, mode="circular" if around else "constant")
    torch.testing.assert_close(
        operator(x), F.conv1d(padded, weight, operator.bias, stride, 0, dilation, groups)
    )
    x32 = x.float()
    computed = operator.with_tensors(weight=weight.float(), bias=operator.bias.float())
    exact = operator.with_tensors(weight=weight.float().double(), bias=operator.bias.float().double())
    assert_within_stated_error(exact, computed, x32)


def test_conv1d_skip():
    operator = Conv1d((3, 6), randn(3, 3, 3), None, (1,), (1, 1), skip=True)
    assert_linear_laws(operator)


@pytest.mark.parametrize(
    "operator",
    [
        Permute((2, 3, 4), (2, 0, 1)),
        PixelUnshuffle((2, 4, 6), 2),
        Pad((2, 3, 4), (1, 0, 2, 1)),
        Pad((2, 5), (2, 1)),
        CircularPad((2, 4, 4), (1, 1, 1, 1)),
        CircularPad((1, 3, 5), (3, 3, 0, 2)),
        CircularPad((2, 4), (4, 1)),
    ],
    ids=lambda operator: f"{operator.rule}{operator.input_shape}",
)
def test_moving_entries(operator):
    """Exact, their own adjoint's adjoint, and the constant is the norm."""
    assert_linear_laws(operator)
    assert operator.arithmetic().terms == 0
    x = randn(2, *operator.input_shape)
    assert torch.isin(operator(x), torch.cat([x.flatten(), torch.zeros(1)])).all()


# Branches


def test_concat_constants():
    join = Concat((1, 2), 0, (1, 3, 1))
    assert join.output_shape == (5, 2)
    assert join.combine([3.0, 4.0], "l2") == 5.0
    assert join.combine([3.0, 4.0], "linf") == 4.0
    assert join.combine([3e-200, 4e-200], "l2") > 4e-200  # squares would underflow to 0
    k = torch.tensor(3e-30, requires_grad=True)
    both = join.combine([k, 4e-30], "l2")
    torch.testing.assert_close(both, torch.tensor(5e-30))
    both.backward()
    torch.testing.assert_close(k.grad, torch.tensor(0.6))
    assert float(join.combine([torch.tensor(0.0), 0.0], "l2")) == 0.0


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 3), nn.Linear(4, 5), nn.Linear(19, 2)

    def forward(self, x):
        a = self.left(x)
        return self.head(torch.cat([a, torch.tanh(self.right(x)), x + -x * 3, a, x], -1))


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_concatenated_branches_as_a_network(norm):
    """Bound, estimate and true Jacobians of one net in which branches meet, one of them twice."""
    torch.manual_seed(0)
    net = Branches().double()
    program = trace(net, (4,))
    frozen = program.freeze()
    x = randn(50, 4)
    torch.testing.assert_close(frozen(x), net(x).detach(), rtol=0, atol=1e-14)
    proved = bound(frozen, "margin", norm)
    order = 2 if norm == "l2" else 1
    for point in x:
        gradients = jacobian(net, point)
        assert float((gradients[0] - gradients[1]).norm(p=order)) <= proved.margins[0, 1]
    left, right = (operator_norm(m.weight, norm) for m in (net.left, net.right))
    expected = math.hypot(left, right, 4, left, 1) if norm == "l2" else max(left, right, 4, 1)
    assert expected <= proved.constant <= expected * (1 + 1e-6)
    estimate = GloRoNet(net, 0.1, (4,), norm=norm).lipschitz_estimate(300)
    torch.testing.assert_close(estimate.detach(), proved.margins, rtol=1e-6, atol=0)
    estimate.sum().backward()
    largest = {"l2": net.left, "linf": net.head}[norm]  # in ℓ∞ only the steepest branch counts
    assert float(largest.weight.grad.abs().max()) > 0


# Tracing: the Program is the module


class Calls(nn.Module):
    """A function as a network; `head` makes it one that can be certified."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.function(x * self.scale)


IMAGE, SIGNAL = (4, 6, 6), (4, 8)
TRACED = [
    (nn.LeakyReLU(0.2), SIGNAL, "leakyrelu", {"slope": 0.2}),
    (nn.LeakyReLU(0.2, inplace=True), SIGNAL, "leakyrelu", {"slope": 0.2}),
    (GroupSort(2), IMAGE, "groupsort", {"size": 2}),
    (Householder(4), IMAGE, "householder", {}),
    (nn.Sigmoid(), SIGNAL, "sigmoid", {}),
    (nn.Tanh(), SIGNAL, "tanh", {}),
    (nn.ELU(0.5), SIGNAL, "elu", {"alpha": 0.5}),
    (nn.Softplus(2.0, 30.0), SIGNAL, "softplus", {"beta": 2.0, "threshold": 30.0}),
    (nn.GELU(), SIGNAL, "gelu", {"approximate": "none"}),
    (nn.GELU("tanh"), SIGNAL, "gelu", {"approximate": "tanh"}),
    (lambda x: x.permute(0, 3, 1, -2), IMAGE, "permute", {"order": (2, 0, 1)}),
    (lambda x: x.transpose(1, -1), IMAGE, "permute", {"order": (2, 1, 0)}),
    (nn.PixelUnshuffle(3), IMAGE, "pixelunshuffle", {"factor": 3}),
    (nn.ZeroPad2d((1, 2, 3, 0)), IMAGE, "pad", {"padding": (3, 0, 1, 2)}),
    (lambda x: F.pad(x, (1, 2)), SIGNAL, "pad", {"padding": (1, 2)}),
    (nn.CircularPad2d((1, 2, 3, 0)), IMAGE, "circularpad", {"padding": (3, 0, 1, 2)}),
    (nn.CircularPad1d((1, 2)), SIGNAL, "circularpad", {"padding": (1, 2)}),
    (
        nn.Conv2d(4, 2, (4, 3), padding="same", dilation=(1, 2)),
        IMAGE,
        "conv2d",
        {"stride": (1, 1), "padding": (1, 2, 2, 2), "dilation": (1, 2), "groups": 1},
    ),
    (
        nn.Conv2d(4, 2, 3, padding="valid", stride=2),
        IMAGE,
        "conv2d",
        {"stride": (2, 2), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1},
    ),
    (
        nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
        SIGNAL,
        "conv1d",
        {"stride": (2,), "padding": (1, 1), "dilation": (1,), "groups": 2},
    ),
    (
        nn.Conv1d(4, 6, 4, padding="same"),
        SIGNAL,
        "conv1d",
        {"stride": (1,), "padding": (1, 2), "dilation": (1,), "groups": 1},
    ),
    (
        nn.AdaptiveAvgPool2d((2, None)),
        IMAGE,
        "avgpool",
        {"kernel": (3, 1), "stride": (3, 1), "padding": (0, 0)},
    ),
    (nn.AdaptiveAvgPool2d(1), IMAGE, "avgpool", {"kernel": (6, 6), "stride": (6, 6), "padding": (0, 0)}),
    (lambda x: -x, SIGNAL, "scale", {}),
    (lambda x: torch.cat([x, x], -2), SIGNAL, "concat", {"dim": 0, "sizes": (4, 4)}),
    (lambda x: torch.concat([x, x, x], 2), SIGNAL, "concat", {"dim": 1, "sizes": (8, 8, 8)}),
]


@pytest.mark.parametrize(("module", "shape", "rule", "attributes"), TRACED)
def test_traced_as_what_it_computes(module, shape, rule, attributes):
    net = (module if isinstance(module, nn.Module) and list(module.parameters()) else Calls(module)).double()
    program = trace(net, shape)
    last = program.ops[-1]
    assert (last.kind.rule, last.attributes) == (rule, attributes)
    x = randn(5, *shape) * 3
    torch.testing.assert_close(program.freeze()(x), net(x.clone()).detach(), rtol=0, atol=1e-12)
    operator = program.freeze().operators[-1]
    assert operator.output_shape == net(x.clone()).shape[1:]


@pytest.mark.parametrize(("n", "stride"), [(8, 2), (7, 2), (6, 1)])
def test_a_circular_module_is_never_bounded_too_low(n, stride):
    net = nn.Conv2d(2, 3, 3, stride, padding=1, padding_mode="circular").double()
    frozen = trace(net, (2, n, n)).freeze()
    x = randn(2, 2, n, n)
    torch.testing.assert_close(frozen(x), net(x).detach(), rtol=0, atol=1e-14)
    constant = math.prod(operator.bound("l2").value for operator in frozen.operators)
    assert operator_norm(jacobian(net, x[0]), "l2") <= constant


REFUSED = [
    (nn.SiLU(), SIGNAL, "No bound rule for SiLU"),
    (nn.Mish(), SIGNAL, "No bound rule for Mish"),
    (nn.Softmax(1), SIGNAL, "No bound rule for Softmax"),
    (nn.CELU(), SIGNAL, "No bound rule for CELU"),
    (nn.PixelShuffle(2), IMAGE, "No bound rule for PixelShuffle"),
    (nn.Softplus(threshold=2.0), SIGNAL, "jumps, which no constant bounds; leave it at 20"),
    (nn.LeakyReLU(math.inf), SIGNAL, "finite numbers"),
    (nn.AdaptiveAvgPool2d(4), IMAGE, r"does not divide into \(4, 4\)"),
    (nn.AdaptiveAvgPool2d(1), SIGNAL, "channels"),
    (nn.MaxPool2d(3, 2, ceil_mode=True), IMAGE, "ceil_mode"),
    (nn.AvgPool2d(4, 4, ceil_mode=True), IMAGE, "ceil_mode"),
    (nn.AvgPool1d(2), SIGNAL, "height of 1"),
    (nn.MaxPool1d(2), SIGNAL, "height of 1"),
    (lambda x: x.mean((2, 3)), IMAGE, r"nn.AdaptiveAvgPool2d\(1\)"),
    (nn.ReflectionPad2d(1), IMAGE, "zeros and circular"),
    (nn.ConstantPad2d(1, 0.5), IMAGE, "zeros and circular"),
    (nn.ZeroPad2d(-1), IMAGE, "by 0 or more"),
    (lambda x: F.pad(x, (0, 0, 1, 1)), SIGNAL, "after the channels"),
    (lambda x: torch.cat([x, torch.ones(3, 4, 8)]), SIGNAL, "mixes the samples"),
    (lambda x: torch.cat([x, torch.ones(1, 4, 8).expand(x.shape[0], 4, 8)], 1), SIGNAL, "batch|constants"),
    (lambda x: torch.cat([x, x], 0), SIGNAL, "mixes the samples"),
    (lambda x: x.transpose(0, 1), SIGNAL, "mixes the samples"),
    (lambda x: 1 - x, SIGNAL, r"write \(−x\) \+ c"),
    (lambda x: torch.ones(8) - x, SIGNAL, r"write \(−x\) \+ c"),
    (lambda x: x - torch.relu(x), SIGNAL, r"write x \+ \(−y\)"),
]


@pytest.mark.parametrize(("module", "shape", "reason"), REFUSED)
def test_refused_with_a_reason(module, shape, reason):
    net = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), math.prod(shape)), nn.Unflatten(1, shape))
    net.append(module if isinstance(module, nn.Module) else Calls(module))
    with pytest.raises(UnsupportedOperation, match=reason):
        trace(net, shape)
