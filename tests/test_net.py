"""GloRoNet: certificates that hold to the last bit, ⊥ that is never missing, inputs meant to break both."""

import copy
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.laws import check_bottom, check_jacobians, check_net, exact_logits, exactly_bounded, root_up
from torch import nn
from torch.nn.utils import parametrizations

import gloronet as gn
from gloronet.errors import ConfigError
from gloronet.net import BOTTOM, GloRoNet

seeds = st.integers(0, 10**6)


def network(*sizes, seed=0, activation=nn.ReLU, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = []
    for n, m in itertools.pairwise(sizes):
        layers += [nn.Linear(n, m), activation()]
    return nn.Sequential(*layers[:-1]).to(dtype)


def linear(weight, bias, dtype=torch.float64):
    module = nn.Linear(len(weight[0]), len(weight)).to(dtype)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(weight, dtype=dtype))
        module.bias.copy_(torch.tensor(bias, dtype=dtype))
    return module


# --- the laws, for nets of every kind ---


def conv_net():
    return nn.Sequential(
        gn.Standardize([0.3, 0.6], [0.5, 0.25]),
        nn.Conv2d(2, 4, 3, 2, 1),
        gn.MinMax(),
        gn.Residual(nn.Conv2d(4, 4, 3, padding=1)),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4, 6),
        gn.MinMax(),
        nn.Linear(6, 3),
    )


def pooled_net():
    return nn.Sequential(
        nn.ZeroPad2d((0, 1, 1, 0)),
        nn.Conv2d(2, 3, 2),
        nn.MaxPool2d(3, 2, 1),
        gn.Residual(nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU())),
        nn.Flatten(),
        nn.Linear(27, 4),
    )


NETS = {
    "linear": (lambda: nn.Linear(5, 3), (5,)),
    "two classes": (lambda: network(5, 8, 2), (5,)),
    "relu": (lambda: network(5, 16, 12, 4), (5,)),
    "minmax": (lambda: network(5, 16, 12, 4, activation=gn.MinMax), (5,)),
    "float64": (lambda: network(5, 16, 4, dtype=torch.float64), (5,)),
    "convolutions": (conv_net, (2, 6, 6)),
    "pooled": (pooled_net, (2, 6, 6)),
    "orthogonal": (
        lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(5, 5)), nn.ReLU(), nn.Linear(5, 3)),
        (5,),
    ),
}


@pytest.mark.parametrize(
    ("form", "norm"),
    [("margin", "l2"), ("simple", "l2"), ("lmt", "l2"), ("margin", "linf"), ("simple", "linf")],
)
@pytest.mark.parametrize("name", NETS)
def test_the_laws_hold(name, form, norm):
    torch.manual_seed(1)
    build, shape = NETS[name]
    net = GloRoNet(build(), 0.02, shape, form=form, norm=norm)
    x = torch.rand(40, *shape, dtype=next(net.parameters()).dtype)
    certificates = check_net(net, x)
    assert (certificates.radius > 0).any()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_coarser_forms_give_smaller_radii(norm):
    x = torch.rand(50, 5)
    module = network(5, 16, 4)
    radii = {f: GloRoNet(module, 0.1, (5,), f, norm).certify(x).radius for f in ("margin", "simple")}
    assert (radii["simple"] <= radii["margin"]).all()
    assert (radii["simple"] < radii["margin"]).any()
    if norm == "l2":
        assert (GloRoNet(module, 0.1, (5,), "lmt").certify(x).radius <= radii["margin"]).all()
    else:
        with pytest.raises(ConfigError, match="lmt"):
            GloRoNet(module, 0.1, (5,), "lmt", "linf").bound()


def test_radii_are_in_units_of_the_raw_input():
    """A net on standardised inputs: raw radius = std · standardised radius, exactly for one std."""
    head = nn.Linear(4, 3)
    x = torch.rand(20, 4)
    raw = GloRoNet(nn.Sequential(gn.Standardize(0.5, 0.25), head), 0.1, (4,)).certify(x).radius
    inner = GloRoNet(nn.Sequential(head), 0.1, (4,)).certify((x - 0.5) / 0.25).radius
    torch.testing.assert_close(raw, inner * 0.25, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("k", [-40, -3, 1, 20])
def test_moving_powers_of_two_between_layers_changes_no_bound(k):
    module = network(5, 16, 12, 4)
    before = GloRoNet(module, 0.1, (5,)).bound()
    with torch.no_grad():
        module[0].weight.mul_(2.0**k), module[0].bias.mul_(2.0**k)
        module[2].weight.mul_(2.0**-k)
    after = GloRoNet(module, 0.1, (5,)).bound()
    assert after.constant == before.constant
    assert torch.equal(after.margins, before.margins)
    with torch.no_grad():
        module[2].weight.mul_(2.0**k), module[2].bias.mul_(2.0**k)
        module[4].weight.mul_(2.0**-k)
    assert torch.equal(GloRoNet(module, 0.1, (5,)).bound().margins, before.margins)


# --- exact claims ---


def leads(y: list[Fraction], label: int) -> list[Fraction]:
    return [y[label] - v for i, v in enumerate(y) if i != label]


@given(seeds, st.integers(2, 4), st.integers(1, 3), st.sampled_from([1.0, 1e-8, 1e6, 1e-160, 1e150]))
@settings(max_examples=60)
@example(0, 2, 1, 1e-300)
def test_a_linear_model_is_certified_no_further_than_it_truly_goes(seed, m, n, scale):
    """radius ≤ min (y_j − y_i)/‖w_j − w_i‖ and the label leads, both in exact arithmetic."""
    g = torch.Generator().manual_seed(seed)
    w, b, x = (torch.randn(*s, generator=g).double() for s in ((m, n), (m,), (4, n)))
    net = GloRoNet(linear((w * scale).tolist(), (b * scale).tolist()), 0.0, (n,))
    certificates = net.certify(x)
    rows = [[Fraction(v) for v in row] for row in net.module.weight.tolist()]
    for label, radius, point in zip(
        certificates.label.tolist(), certificates.radius.tolist(), x.tolist(), strict=True
    ):
        y = exact_logits(net.program().freeze(), [Fraction(v) for v in point])
        if radius == 0.0:
            continue
        assert min(leads(y, label)) > 0
        for i, row in enumerate(rows):
            gap = sum((a - c) ** 2 for a, c in zip(rows[label], row, strict=True))
            if i != label:
                assert Fraction(radius) ** 2 * gap <= (y[label] - y[i]) ** 2
                assert not math.isinf(radius)


@given(seeds, st.booleans(), st.sampled_from([0, 1, 2, 50]))
@settings(max_examples=80)
def test_adjacent_floats_cannot_deceive(seed, single, steps):
    """Two classes whose weights are a few floats apart: what is certified at ε = 0 leads exactly."""
    g = torch.Generator().manual_seed(seed)
    dtype = torch.float32 if single else torch.float64
    module = network(3, 4, 2, seed=seed, dtype=dtype)
    with torch.no_grad():
        module[2].weight[1] = module[2].weight[0]
        module[2].bias[1] = module[2].bias[0]
        for _ in range(steps):
            i = int(torch.randint(4, (1,), generator=g))
            toward = torch.tensor(float(torch.randn(1, generator=g)) * 1e9, dtype=dtype)
            module[2].weight[1, i] = torch.nextafter(module[2].weight[1, i], toward)
    net = GloRoNet(module, 0.0, (3,))
    x = torch.randn(6, 3, generator=g, dtype=torch.float64).to(dtype)
    certificates = net.certify(x)
    check_bottom(net.eval(), x)
    for label, radius, point in zip(
        certificates.label.tolist(), certificates.radius.tolist(), x.tolist(), strict=True
    ):
        y = exact_logits(net.program().freeze(), [Fraction(v) for v in point])
        assert radius == 0.0 or y[label] > y[1 - label]


@given(seeds)
@settings(max_examples=40)
def test_a_relu_net_keeps_its_label_in_exact_arithmetic(seed):
    """At the rim of the certified ball, over the rationals; and radius·K_ij against the exact lead."""
    net = GloRoNet(network(2, 3, 3, seed=seed, dtype=torch.float64), 0.0, (2,))
    program, bound = net.program().freeze(), net.bound()
    first = net.module[0].weight
    assert exactly_bounded(bound.layers[0].value, first)
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    c = net.certify(x)
    for label, radius, point in zip(c.label.tolist(), c.radius.tolist(), x.tolist(), strict=True):
        centre = [Fraction(v) for v in point]
        y = exact_logits(program, centre)
        for i in range(3):
            if i != label:
                assert Fraction(radius) * Fraction(float(bound.margins[label, i])) <= max(y[label] - y[i], 0)
        if radius == 0.0:
            continue
        for k in range(12):
            direction = [Fraction(math.cos(k * math.pi / 6)), Fraction(math.sin(k * math.pi / 6))]
            length = root_up(sum(v * v for v in direction))
            inside = [v + Fraction(radius) * d / length for v, d in zip(centre, direction, strict=True)]
            assert min(leads(exact_logits(program, inside), label)) > 0


@given(seeds, st.integers(-30, 60), st.sampled_from([5e-324, 1e-300, 1e-17, 3e-16, 1.0]))
@settings(max_examples=80)
def test_not_bottom_means_certified_even_where_the_sum_cancels(seed, steps, top):
    """y_j ≈ 0 and y_i ≈ −εK: the rounding of εK is then far larger than that of y_⊥."""
    g = torch.Generator().manual_seed(seed)
    a, b, epsilon = torch.rand(3, generator=g, dtype=torch.float64).tolist()
    module = linear([[a], [-b]], [0.0, 0.0])
    net = GloRoNet(module, epsilon, (1,)).eval()
    low = top - epsilon * float(net.bound().margins[0, 1])
    for _ in range(abs(steps)):
        low = math.nextafter(low, -math.inf if steps > 0 else math.inf)
    with torch.no_grad():
        module.bias.copy_(torch.tensor([top, low], dtype=torch.float64))
    x = torch.zeros(1, 1, dtype=torch.float64)
    check_bottom(net, x)
    if bool(net.certify(x).certified):
        assert Fraction(top) - Fraction(low) > Fraction(epsilon) * (Fraction(a) + Fraction(b))


# --- ties and equal rows ---


@pytest.mark.parametrize("form", ["margin", "simple", "lmt"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("bias", [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
def test_ties_never_certify(bias, epsilon, form):
    net = GloRoNet(linear([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], bias), epsilon, (2,), form).eval()
    x = torch.zeros(1, 2, dtype=torch.float64)
    assert float(net.certify(x).radius) == 0.0
    assert not net.certify(x).certified
    assert int(net(x).argmax()) == 3


def test_equal_rows_with_equal_biases_never_certify_and_with_unequal_ones_for_ever():
    """K_ij = 0: the two logits move together, so the lead decides, once and for all."""
    for bias, radius in (([1.0, 1.0], 0.0), ([1.0, 0.5], math.inf)):
        net = GloRoNet(linear([[2.0, 3.0], [2.0, 3.0]], bias), 1e6, (2,)).eval()
        x = torch.randn(4, 2, dtype=torch.float64)
        assert net.certify(x).radius.tolist() == [radius] * 4
        assert (net(x).argmax(1) == (2 if radius == 0.0 else 0)).all()
    # A lead below what rounding may have made is no lead.
    almost = math.nextafter(1.0, 2.0)
    net = GloRoNet(linear([[2e9, 3.0], [2e9, 3.0]], [almost, 1.0]), 0.0, (2,))
    assert float(net.certify(torch.ones(1, 2, dtype=torch.float64)).radius) == 0.0


def test_a_third_class_limits_the_radius_that_equal_rows_leave_open():
    net = GloRoNet(linear([[1.0], [1.0], [-1.0]], [1.0, 0.0, 0.0]), 0.1, (1,))
    assert float(net.certify(torch.zeros(1, 1)).radius) == pytest.approx(0.5)


def test_epsilon_equal_to_the_radius_is_not_certified():
    net = GloRoNet(linear([[1.0], [-1.0]], [1.0, 0.0]), 0.0, (1,)).eval()
    x = torch.zeros(1, 1, dtype=torch.float64)
    radius = float(net.certify(x).radius)
    assert not net.certify(x, epsilon=radius).certified
    assert net.certify(x, epsilon=math.nextafter(radius, 0.0)).certified


# --- numbers at their ends ---


def test_constants_too_small_for_float32_do_not_become_zero():
    """‖W₁‖‖W₂‖ = 1e-60 underflows in float32, and in float64 at 1e-400: K must stay above it."""
    for scale, dtype in ((1e-30, torch.float32), (1e-200, torch.float64)):
        module = network(2, 2, 2, 2, dtype=dtype)
        with torch.no_grad():
            for layer in (module[0], module[2]):
                layer.weight.copy_(torch.eye(2, dtype=dtype) * scale), layer.bias.zero_()
            module[4].weight.copy_(torch.eye(2)), module[4].bias.copy_(torch.tensor([1.0, 0.0]))
        net = GloRoNet(module, 0.1, (2,))
        bound = net.bound()
        assert bound.constant > 0.0
        w, v = (Fraction(module[k].weight[0, 0].item()) for k in (0, 2))
        assert Fraction(bound.constant) >= w * v
        radius = float(net.certify(torch.zeros(1, 2)).radius)
        assert math.isinf(1.0 / bound.constant) or radius < math.inf


def test_a_scaling_next_to_a_layer_does_not_underflow_to_zero():
    """Folding 1e-200 into weights of 1e-200 would give 0, a constant function that it is not."""

    class Gain(nn.Module):
        def forward(self, x):
            return x * 1e-200

    module = nn.Sequential(nn.Linear(2, 2, bias=False), Gain(), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        module[0].weight.copy_(torch.eye(2, dtype=torch.float64) * 1e-200)
    assert GloRoNet(module, 0.1, (2,)).bound().constant > 0.0


@pytest.mark.parametrize("scale", [1e6, 1e12])
def test_large_biases_cost_certainty_and_nothing_else(scale):
    module = network(4, 8, 3)
    with torch.no_grad():
        module[0].bias.mul_(scale)
    net = GloRoNet(module, 0.0, (4,))
    x = torch.rand(20, 4)
    check_net(net, x)
    check_bottom(net.double().eval(), x.double())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_broken_inputs_are_answered_with_bottom(value):
    for module in (network(4, 8, 3), network(4, 8, 3, activation=gn.MinMax), nn.Linear(4, 3)):
        net = GloRoNet(module, 0.0, (4,)).eval()
        x = torch.rand(3, 4)
        x[1, 2] = value
        certificates = net.certify(x)
        assert math.isnan(value) or not math.isinf(value) or float(certificates.radius[1]) == 0.0
        if not math.isfinite(value):
            assert not certificates.certified[1]
            assert int(certificates.prediction[1]) == BOTTOM
            assert int(net(x)[1].argmax()) == 3
        alone = GloRoNet(module, 0.0, (4,)).certify(x[[0, 2]])
        torch.testing.assert_close(certificates.radius[[0, 2]], alone.radius)  # its neighbours do not notice
        check_bottom(net, x)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", ["0.weight", "0.bias", "2.weight", "2.bias"])
@pytest.mark.parametrize("form", ["margin", "simple", "lmt"])
def test_broken_weights_certify_nothing(place, value, form):
    module = network(4, 8, 3)
    with torch.no_grad():
        module.get_parameter(place).reshape(-1)[1] = value
    net = GloRoNet(module, 0.0, (4,), form).eval()
    x = torch.rand(5, 4)
    assert not net.certify(x).certified.any()
    assert (net(x).argmax(1) == 3).all()


def test_overflow_certifies_nothing():
    module = network(2, 2, 2, dtype=torch.float64)
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(1e308)
    net = GloRoNet(module, 0.0, (2,)).eval()
    x = torch.rand(3, 2, dtype=torch.float64)
    assert not net.certify(x).certified.any()
    assert (net(x).argmax(1) == 2).all()
    residual = nn.Sequential(
        nn.Linear(2, 2), gn.Residual(nn.ReLU()), gn.Residual(nn.ReLU()), nn.Linear(2, 2)
    ).double()
    with torch.no_grad():
        residual[0].weight.fill_(8e307), residual[3].weight.fill_(1e-308)
    assert not GloRoNet(residual, 0.0, (2,)).certify(x).certified.any()


def test_flushing_subnormals_to_zero_is_refused():
    """With it a weight of 1e-310 counts as 0, K becomes 0 and the radius infinite."""
    net = GloRoNet(network(2, 2, 2), 0.1, (2,))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    try:
        with pytest.raises(ConfigError, match="set_flush_denormal"):
            net.certify(torch.rand(1, 2))
    finally:
        torch.set_flush_denormal(False)
    assert net.certify(torch.rand(1, 2)).radius.shape == (1,)


def test_an_arithmetic_coarser_than_the_logits_is_noticed():
    """Half the module in float32, the logits in float64: ⊥ must allow for float32."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 2).double()
            self.register_buffer("one", torch.ones(4, dtype=torch.float64))

        def forward(self, x):
            return self.head(self.first(x) * self.one)

    told = 0
    for seed in range(30):
        torch.manual_seed(seed)
        module, x = Mixed(), torch.rand(20, 4)
        net = GloRoNet(module, 0.0, (4,)).eval()
        with torch.no_grad():  # the first sample's margin becomes what float32 loses
            y = net.program().freeze()(x)
            module.head.bias += torch.tensor([0.0, float(y[0, 0] - y[0, 1])]) * (1 + 1e-9)
        check_bottom(net, x)
        told += int((net(x).argmax(1) < 2).sum())
    assert told > 100


# --- settings, shapes, modes ---


def test_epsilon_is_read_exactly_and_never_rounded_down():
    module = nn.Linear(2, 2)
    assert GloRoNet(module, "36/255", (2,)).epsilon >= Fraction(36, 255)
    assert GloRoNet(module, 0, (2,)).epsilon == 0.0
    net = GloRoNet(module, "0.1", (2,))
    x = torch.rand(2, 2)
    assert net.certify(x).epsilon == net.epsilon
    assert net.certify(x, epsilon="1/3").epsilon >= Fraction(1, 3)


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, "", "abc", "-1/3", "1/0", "1e999", None, [1]])
def test_a_bad_epsilon_is_one_clear_line(bad):
    with pytest.raises(ConfigError, match="epsilon must be a finite number") as error:
        GloRoNet(nn.Linear(2, 2), bad, (2,))
    assert "\n" not in str(error.value)
    if bad is not None:
        with pytest.raises(ConfigError, match="epsilon"):
            GloRoNet(nn.Linear(2, 2), 0.1, (2,)).certify(torch.rand(1, 2), epsilon=bad)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "cosine"}, "form"),
        ({"norm": "l1"}, "norm"),
        ({"power_iterations": 0}, "power_iterations"),
        ({"module": torch.relu}, "nn.Module"),
        ({"module": nn.Linear(2, 1)}, "two classes"),
    ],
)
def test_bad_settings(settings, message):
    arguments = {"module": nn.Linear(2, 2), "epsilon": 0.1, "input_shape": (2,)} | settings
    with pytest.raises(ConfigError, match=message):
        GloRoNet(**arguments)


@pytest.mark.parametrize("shape", [(3, 5), (4,), (3, 4, 1), (3, 1, 4), ()])
def test_a_wrong_shape_is_refused(shape):
    net = GloRoNet(nn.Linear(4, 3), 0.1, (4,)).eval()
    for call in (net.certify, net.logits, net):
        with pytest.raises(ConfigError, match=r"batches of shape \(B, 4\)"):
            call(torch.rand(shape))


def test_an_empty_batch_has_no_certificates():
    net = GloRoNet(network(4, 8, 3), 0.1, (4,)).eval()
    assert net.certify(torch.rand(0, 4)).radius.shape == (0,)
    assert net(torch.rand(0, 4)).shape == (0, 4)


def test_unknown_semantics_are_refused():
    with pytest.raises(ConfigError, match="semantics"):
        GloRoNet(nn.Linear(2, 2), 0.1, (2,)).certify(torch.rand(1, 2), semantics="hope")


def test_certificates_say_label_or_bottom():
    net = GloRoNet(linear([[1.0], [-1.0]], [0.0, 0.0]), 0.5, (1,))
    c = net.certify(torch.tensor([[2.0], [0.1], [-2.0]], dtype=torch.float64))
    assert c.label.tolist() == [0, 0, 1]
    assert c.prediction.tolist() == [0, BOTTOM, 1]
    assert c.certified.tolist() == [True, False, True]
    assert (c.semantics, c.epsilon) == ("real", 0.5)


def test_training_moves_the_iterates_and_evaluating_does_not():
    net = GloRoNet(network(5, 16, 12, 4), 0.1, (5,))
    x = torch.rand(3, 5)
    buffers = {k: v.clone() for k, v in net.named_buffers()}
    assert buffers
    net.train()(x)
    moved = {k: v.clone() for k, v in net.named_buffers()}
    assert all(not torch.equal(moved[k], buffers[k]) for k in buffers)
    net.eval()(x), net.lipschitz_estimate(), net.certify(x)
    assert all(torch.equal(v, moved[k]) for k, v in net.named_buffers())


def test_a_submodule_left_in_train_mode_does_not_speak_in_eval():
    net = GloRoNet(nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 3)), 0.0, (5,)).eval()
    net.module[1].train()
    check_bottom(net, torch.rand(100, 5))
    assert net.module[1].training


def test_estimates_approach_the_bound_from_below():
    net = GloRoNet(network(5, 16, 12, 4, dtype=torch.float64), 0.1, (5,))
    rough, fine = (net.lipschitz_estimate(n).detach() for n in (1, 500))
    margins = net.bound().margins
    assert (rough <= margins * (1 + 1e-12)).all()
    assert (fine <= margins * (1 + 1e-12)).all()
    torch.testing.assert_close(fine, margins, rtol=1e-5, atol=1e-12)


def test_a_copy_and_a_net_in_float64_are_nets():
    net = GloRoNet(network(5, 16, 4), 0.1, (5,))
    x, before = torch.rand(10, 5), net.bound()
    twin = copy.deepcopy(net)
    with torch.no_grad():
        twin.module[0].weight.mul_(2)
    assert twin.bound().constant == pytest.approx(2 * before.constant)
    assert net.bound() is before
    double = copy.deepcopy(net).to(dtype=torch.float64)
    torch.testing.assert_close(double.certify(x.double()).radius, net.certify(x).radius)
    check_net(double, x.double())
    other = GloRoNet(network(5, 16, 4, seed=9), 0.1, (5,))
    other.load_state_dict(net.state_dict())
    assert other.bound().digest == before.digest


def test_autocast_touches_no_certificate():
    """Under autocast a parametrised weight would come out in bf16, and be another function."""
    module = nn.Sequential(parametrizations.orthogonal(nn.Linear(5, 5)), nn.ReLU(), nn.Linear(5, 3))
    net = GloRoNet(module, 0.01, (5,)).eval()
    x = torch.rand(10, 5)
    plain, told = net.certify(x), net(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        certificates, answers = net.certify(x), net(x)
        fresh = GloRoNet(copy.deepcopy(module), 0.01, (5,)).certify(x)
        estimate = net.lipschitz_estimate()
    assert torch.equal(certificates.radius, plain.radius)
    assert torch.equal(fresh.radius, plain.radius)
    assert torch.equal(answers, told)
    assert estimate.dtype == torch.float32


def test_inference_mode_leaves_a_net_that_can_be_trained():
    x, module = torch.rand(3, 5), network(5, 16, 4)
    with torch.inference_mode():
        net = GloRoNet(module, 0.1, (5,)).eval()
        net(x), net.certify(x)
    net.train()(x).sum().backward()


def test_explain_names_every_layer_and_the_costliest():
    net = GloRoNet(network(5, 16, 12, 4), 0.1, (5,))
    with torch.no_grad():
        net.module[2].weight.mul_(10)
    table = net.explain().splitlines()
    assert [line.split()[0] for line in table[1:6]] == ["0", "1", "2", "3", "4"]
    assert [line for line in table if "costs the most" in line] == [table[3]]
    for row in net.layers():
        assert row.estimate <= row.bound * (1 + 1e-6)


@pytest.mark.parametrize("broken", [False, True])
def test_a_bound_survives_json(broken):
    module = network(5, 16, 4)
    if broken:
        module[0].weight.data[0, 0] = math.inf
    bound = GloRoNet(module, 0.1, (5,)).bound()
    again = gn.Bound.from_json(bound.to_json())
    assert torch.equal(again.margins, bound.margins)
    assert again.margins.dtype == torch.float64
    fields = ("constant", "layers", "chains", "digest", "norm", "form", "seconds")
    assert all(getattr(again, f) == getattr(bound, f) for f in fields)


def test_jacobians_of_a_trained_net_come_close_to_its_bound():
    """The law must be able to fail: for a linear model the Jacobian is the bound."""
    net = GloRoNet(nn.Linear(5, 3), 0.1, (5,))
    check_jacobians(net, torch.rand(4, 5))
    with torch.no_grad():
        proof = net._proof()
        proof.bound.margins.mul_(0.999)
    with pytest.raises(AssertionError):
        check_jacobians(net, torch.rand(4, 5))
