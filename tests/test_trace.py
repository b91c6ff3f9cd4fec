"""trace: what a module really computes, whatever it calls itself; the rest is refused by path and reason."""

import array
import collections
import copy
import ctypes
import random
import types

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.laws import check_program
from torch import nn
from torch.nn.utils import parametrizations

import gloronet as gn
from gloronet.errors import UnsupportedOperation
from gloronet.operators import Dense, LeakyReLU
from gloronet.operators.rules import MODULE_RULES

Linear, Sequential, MinMax = nn.Linear, nn.Sequential, gn.MinMax


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def rules():
    """Rules registered in a test are forgotten after it."""
    kept = dict(MODULE_RULES)
    yield gn.rule
    MODULE_RULES.clear()
    MODULE_RULES.update(kept)


class Calls(nn.Module):
    """x ↦ head(function(self, x)) for a function of one's choice."""

    def __init__(self, function, n=4, **attributes):
        super().__init__()
        self.function = function
        for name, value in attributes.items():
            setattr(self, name, value)
        self.head = Linear(n, 3)

    def forward(self, x):
        return self.head(self.function(self, x))


def kinds(program):
    return [op.kind.rule for op in program.ops]


def constant(module, shape=(4,)):
    return gn.GloRoNet(module, 0.1, shape).bound().constant


def refusal(module, shape=(4,)):
    with pytest.raises(UnsupportedOperation) as error:
        gn.trace(module, shape)
    text = str(error.value)
    assert "\n" not in text
    return text


# --- what is traced equals the module ---


class Hand(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.blocks = nn.ModuleList([Linear(16, 16) for _ in range(2)])
        self.head = Linear(16, 3)

    def forward(self, x):
        h = F.max_pool2d(torch.relu(self.stem(x - 0.5) * 2.0), 2)
        h = h.reshape(h.shape[0], -1)
        for block in self.blocks:
            h = h + block(h).abs()
        return self.head(h / 3.0)


class Twice(nn.Module):
    """One activation and one layer, each called twice under its one path."""

    def __init__(self):
        super().__init__()
        self.layer, self.act, self.head = Linear(4, 4), MinMax(), Linear(4, 3)

    def forward(self, x):
        return self.head(self.act(self.layer(self.act(self.layer(x)))))


def tied():
    module = Sequential(Linear(4, 4), nn.ReLU(), Linear(4, 4), Linear(4, 3))
    module[2].weight = module[0].weight
    return module


def reshaped(m, x):
    return x.view(-1, 2, 2).unsqueeze(1).squeeze(1).flatten(1).unflatten(1, (4, 1)).reshape(-1, 4)


def standardised(m, x):
    return ((x - m.mean) / m.std).flatten(1)


def parametrised(f, g=lambda layer: layer):
    return Sequential(f(Linear(4, 4)), nn.ReLU(), g(Linear(4, 3)))


SHARED = Linear(4, 4)
LAYERS = ["dense", "relu", "dense"]
WITH_BATCH = {"mean": torch.rand(1, 2, 1, 1), "std": torch.rand(1, 2, 1, 1) + 1}

TRACED = {
    "linear alone": (Linear(4, 3), (4,), ["dense"]),
    "sequential": (Sequential(Linear(4, 6), MinMax(), Linear(6, 3)), (4,), ["dense", "minmax", "dense"]),
    "nested": (Sequential(Sequential(Linear(4, 6), Sequential(nn.ReLU())), Linear(6, 3)), (4,), LAYERS),
    "by hand": (Hand(), (2, 4, 4), None),
    "a module called twice": (Twice(), (4,), ["dense", "minmax", "dense", "minmax", "dense"]),
    "a module at two places": (Sequential(SHARED, nn.ReLU(), SHARED, Linear(4, 3)), (4,), [*LAYERS, "dense"]),
    "tied weights": (tied(), (4,), [*LAYERS, "dense"]),
    "dropout": (Sequential(Linear(4, 6), nn.Dropout(0.9), Linear(6, 3)), (4,), ["dense", "reshape", "dense"]),
    "in-place": (Sequential(Linear(4, 6), nn.ReLU(inplace=True), Linear(6, 3)), (4,), LAYERS),
    "standardised": (
        Sequential(gn.Standardize([0.1, 0.2], [0.5, 2.0]), nn.Flatten(), Linear(8, 3)),
        (2, 2, 2),
        ["translate", "scale", "reshape", "dense"],
    ),
    "constants with a batch of one": (
        Calls(standardised, 8, **WITH_BATCH),
        (2, 2, 2),
        ["translate", "scale", "reshape", "dense"],
    ),
    "asymmetric padding": (
        Sequential(nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(1, 2, 3, 2), nn.Flatten(), Linear(8, 3)),
        (1, 4, 5),
        ["conv2d", "reshape", "dense"],
    ),
    "grouped, dilated": (
        Sequential(nn.Conv2d(4, 4, (3, 2), (2, 1), (2, 1), (2, 1), groups=2), nn.Flatten(), Linear(32, 3)),
        (4, 4, 3),
        ["conv2d", "reshape", "dense"],
    ),
    "pooled": (
        Sequential(nn.AvgPool2d(3, 1, 1), nn.MaxPool2d(2), nn.Flatten(), Linear(4, 3)),
        (1, 4, 4),
        ["avgpool", "maxpool", "reshape", "dense"],
    ),
    "orthogonal": (parametrised(parametrizations.orthogonal), (4,), LAYERS),
    "spectral norm": (
        parametrised(parametrizations.spectral_norm, parametrizations.orthogonal),
        (4,),
        LAYERS,
    ),
    "x + x": (Calls(lambda m, x: x + x), (4,), ["sum", "dense"]),
    "no bias": (Sequential(Linear(4, 4, bias=False), Linear(4, 3, bias=False)), (4,), ["dense", "dense"]),
    "numbers": (Calls(lambda m, x: (x * -2 + 1) / 0.3), (4,), ["scale", "translate", "scale", "dense"]),
    "shapes": (Calls(reshaped), (4,), None),
    "float64": (
        Sequential(Linear(4, 6), MinMax(), Linear(6, 3)).double(),
        (4,),
        ["dense", "minmax", "dense"],
    ),
}


@pytest.mark.parametrize("name", TRACED)
def test_the_program_computes_what_the_module_computes(name):
    module, shape, expected = TRACED[name]
    program = check_program(module, shape)
    assert expected is None or kinds(program) == expected


def test_tracing_leaves_the_module_as_it_was():
    module = Sequential(Linear(4, 6), nn.Dropout(), nn.ReLU(), Linear(6, 3))
    module[1].eval()
    modes = [m.training for m in module.modules()]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    gn.trace(module, (4,))
    assert [m.training for m in module.modules()] == modes
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


@pytest.mark.parametrize("shared", [[2.0], {0: 2.0}, collections.deque([2.0])], ids=lambda s: type(s).__name__)
def test_tracing_gives_back_the_very_containers_that_were_there(shared):
    module = Calls(lambda m, x: x * m.own[0], own=shared)
    net = gn.GloRoNet(module, 0.1, (4,))
    assert module.own is shared
    assert net.bound().constant == pytest.approx(2.0)
    program = net.program()
    assert net.program() is program
    shared[0] = 6.0
    assert net.bound().constant == pytest.approx(6.0)


# --- residual blocks ---

CONV = {"kernel_size": 3, "padding": 1}
ONE = {
    "dense": (gn.Residual(Linear(4, 4)), (4,), 4),
    "conv": (gn.Residual(nn.Conv2d(2, 2, **CONV)), (2, 3, 3), 18),
    "dilated": (gn.Residual(nn.Conv2d(2, 2, 3, padding=2, dilation=2)), (2, 3, 3), 18),
    "grouped": (gn.Residual(nn.Conv2d(2, 2, **CONV, groups=2)), (2, 3, 3), 18),
    "padded apart": (gn.Residual(Sequential(nn.ZeroPad2d((0, 2, 2, 0)), nn.Conv2d(2, 2, 3))), (2, 3, 3), 18),
    "branch first": (Calls(lambda m, x: m.layer(x) + x, layer=Linear(4, 4)), (4,), None),
}
APART = {
    "nonlinear": (gn.Residual(Sequential(Linear(4, 4), nn.ReLU())), (4,), 4),
    "used twice": (Calls(lambda m, x: (lambda w: x + w + w)(m.layer(x)), layer=Linear(4, 4)), (4,), None),
    "not around its own input": (Calls(lambda m, x: x + m.layer(x.abs()), layer=Linear(4, 4)), (4,), None),
    "off the taps": (
        gn.Residual(Sequential(nn.ZeroPad2d((1, 3, 1, 3)), nn.Conv2d(2, 2, 3, dilation=2))), (2, 3, 3), 18,
    ),
    "strided": (gn.Residual(nn.Conv2d(2, 2, 1, stride=(1, 2))), (2, 3, 1), 6),
}  # fmt: skip


def residual_net(block, size):
    return block if size is None else Sequential(block, nn.Flatten(), Linear(size, 3))


@pytest.mark.parametrize("name", ONE)
def test_a_linear_branch_around_its_input_is_one_operator(name):
    block, shape, size = ONE[name]
    module = residual_net(block, size)
    program = check_program(module, shape)
    assert "sum" not in kinds(program)
    (op,) = [op for op in program.ops if op.attributes.get("skip")]
    operator = op.operator({k: t.double() for k, t in program.freeze().tensors.items()})
    n = int(np.prod(shape))
    eye = torch.eye(n, dtype=torch.float64).reshape(n, *shape)
    truth = float(torch.linalg.matrix_norm(operator.apply(eye).flatten(1), 2))
    assert truth * (1 - 1e-12) <= operator.bound("l2").value <= truth * (1 + 1e-6)


@pytest.mark.parametrize("name", APART)
def test_what_is_no_single_operator_stays_a_sum(name):
    block, shape, size = APART[name]
    program = check_program(residual_net(block, size), shape)
    assert "sum" in kinds(program)
    assert not any(op.attributes.get("skip") for op in program.ops)


def test_the_norm_of_a_residual_block_is_of_i_plus_w():
    block = gn.Residual(Linear(4, 4))
    with torch.no_grad():
        block.inner.weight.copy_(-0.5 * torch.eye(4))
    assert constant(Sequential(block, Linear(4, 3))) == pytest.approx(0.5, rel=1e-6)  # 1 + ‖W‖ would be 1.5


# --- the graph is the truth ---


def test_forward_hooks_are_seen():
    for add in (
        lambda m: m.register_forward_hook(lambda _, __, output: 5 * output),
        lambda m: m.register_forward_pre_hook(lambda _, inputs: (5 * inputs[0],)),
    ):
        module = Sequential(Linear(4, 6), nn.ReLU(), Linear(6, 3))
        plain = constant(module)
        handle = add(module[1])
        check_program(module, (4,))
        assert constant(module) == pytest.approx(5 * plain)
        handle.remove()
        assert constant(module) == plain


def test_a_hook_on_a_module_with_a_rule_is_not_overlooked():
    module = Sequential(Linear(4, 6), MinMax(), Linear(6, 3))
    module[1].register_forward_hook(lambda _, __, output: 5 * output)
    assert "at 1" in refusal(module)
    plain = Sequential(Linear(4, 6), MinMax(), Linear(6, 3))
    everywhere = nn.modules.module.register_module_forward_hook
    handle = everywhere(lambda m, _, output: 5 * output if isinstance(m, MinMax) else None)
    try:
        assert "at 1" in refusal(plain)
    finally:
        handle.remove()
    assert kinds(gn.trace(plain, (4,))) == ["dense", "minmax", "dense"]


def test_a_patched_forward_is_seen():
    module = Sequential(Linear(4, 6), MinMax(), Linear(6, 3))
    module[1].forward = lambda x: 3 * x
    module[0].forward = types.MethodType(lambda self, x: F.linear(x, 2 * self.weight), module[0])
    assert kinds(check_program_of(module)) == ["dense", "scale", "dense"]
    weight = module[0].weight.detach().double()
    assert constant(module) == pytest.approx(6 * float(torch.linalg.matrix_norm(weight, 2)), rel=1e-6)


def check_program_of(module):
    """As check_program, for modules whose patches a deep copy would bind to the original."""
    program, x = gn.trace(module, (4,)), torch.randn(5, 4)
    assert torch.allclose(program.freeze()(x), module(x).double(), rtol=1e-4, atol=1e-5)
    return program


def test_a_class_patched_after_its_rule_was_made_loses_the_rule(rules):
    class Act(nn.Module):
        def forward(self, x):
            return torch.relu(x)

    @rules(Act)
    def _(module, shape, norm):
        return 1.0

    module = Sequential(Linear(4, 6), Act(), Linear(6, 3))
    net = gn.GloRoNet(module, 0.1, (4,))
    one = net.bound().constant
    assert kinds(net.program()) == ["dense", "user rule", "dense"]
    Act.forward = lambda self, x: 7 * torch.relu(x)
    assert kinds(net.program()) == ["dense", "relu", "scale", "dense"]
    assert net.bound().constant == pytest.approx(7 * one)


def test_a_subclass_inherits_no_rule():
    class Louder(MinMax):
        def forward(self, x):
            return 2 * x

    class Same(MinMax):
        pass

    assert kinds(check_program(Sequential(Linear(4, 6), Louder(), Linear(6, 3)), (4,))) == [
        "dense",
        "scale",
        "dense",
    ]
    assert "Same at 1" in refusal(Sequential(Linear(4, 6), Same(), Linear(6, 3)))


def test_a_view_of_what_is_later_changed_in_place():
    def alias(_, x):
        h = x * 1.0
        y = h.view(-1, 2, 2)
        h *= 2
        return y.flatten(1)

    module = Calls(alias)
    check_program(module, (4,))
    assert constant(module) == pytest.approx(2.0)


def test_weights_that_a_block_remembers_are_not_taken_for_those_there_are():
    module = Sequential(parametrizations.orthogonal(Linear(4, 4)), nn.ReLU(), Linear(4, 3))
    x = torch.randn(5, 4)
    net = gn.GloRoNet(module, 0.1, (4,)).eval()
    with torch.nn.utils.parametrize.cached():
        module(x)
        again = gn.GloRoNet(module, 0.1, (4,))
        assert type(module[0].weight) is torch.Tensor  # nothing of the trace is remembered
        assert torch.isfinite(again.lipschitz_estimate()).all()
        for ask in (net.bound, lambda: net.certify(x), lambda: net(x)):
            with pytest.raises(gn.GloroError, match="outside of that block"):
                ask()
    assert net.certify(x).label.tolist() == module(x).argmax(1).tolist()


def test_parametrised_weights_are_bounded_as_they_come_out():
    orthogonal = Sequential(parametrizations.orthogonal(Linear(4, 4)), nn.ReLU(), Linear(4, 3))
    assert constant(orthogonal) == pytest.approx(1.0, rel=1e-5)
    with torch.no_grad():
        orthogonal[0].parametrizations.weight.original.mul_(100)
    weight = orthogonal[0].weight.detach().double()
    assert constant(orthogonal) == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-6)


def test_names_that_collide_stay_apart(rules):
    """A parameter called as an operation is, and a rule whose `weight` is not the module's `weight`."""

    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.add, self.head = nn.Parameter(torch.randn(4, 4)), Linear(4, 3)

        def forward(self, x):
            return self.head(F.linear(torch.relu(F.linear(x, self.add + self.add)), self.add))

    check_program(Named(), (4,))

    class Double(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4))

        def forward(self, x):
            return F.linear(x, 2 * self.weight)

    @rules(Double)
    def _(module, shape, norm):
        return gn.operators.Dense(shape, 2 * module.weight)

    module = Calls(lambda m, x: F.linear(torch.relu(m.double_layer(x)), m.double_layer.weight))
    module.double_layer = Double()
    check_program(module, (4,))


# --- rules of one's own ---


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(2.0))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return torch.sin(self.rate * self.drop(x))


def test_a_float_rule_vouches_for_a_module_with_parameters(rules):
    @rules(Wave)
    def _(module, shape, norm):
        return abs(module.rate.item())

    module = Sequential(Linear(4, 4), Wave(), Linear(4, 3))
    check_program(module, (4,))
    net = gn.GloRoNet(module, 0.1, (4,))
    first = net.bound().constant
    module[1].rate.data.mul_(3)
    assert net.bound().constant == pytest.approx(3 * first)
    x = torch.randn(5, 4)
    net.train()  # the certificate speaks about eval mode, whatever mode the net is in
    assert torch.equal(net.certify(x).margin, net.certify(x).margin)
    check = gn.GloRoNet(copy.deepcopy(module), 0.1, (4,))
    assert check.bound().constant == net.bound().constant


def test_an_operator_rule_stays_live(rules):
    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.tensor([1.0, -3.0, 2.0, 0.5]))

        def forward(self, x):
            return x * self.gain.exp()

    @rules(Gain)
    def _(module, shape, norm):
        return gn.operators.Scale(shape, module.gain.exp())

    module = Sequential(Gain(), Linear(4, 3))
    check_program(module, (4,))
    net = gn.GloRoNet(module, 0.1, (4,))
    assert net.bound().constant == pytest.approx(np.exp(2.0))
    module[0].gain.data.fill_(1.0)
    assert net.bound().constant == pytest.approx(np.exp(1.0))
    net.train()
    net.lipschitz_estimate().sum().backward()
    assert module[0].gain.grad.abs().sum() > 0


@pytest.mark.parametrize("answer", [float("nan"), -1.0, float("inf"), None, "3", [1.0], torch.ones(3)])
def test_a_rule_must_answer_a_finite_constant(answer, rules):
    rules(Wave)(lambda module, shape, norm: answer)
    with pytest.raises(UnsupportedOperation, match="Wave answered"):
        gn.GloRoNet(Sequential(Linear(4, 4), Wave(), Linear(4, 3)), 0.1, (4,)).bound()


def test_a_rule_must_fit_its_module(rules):
    module = Sequential(Linear(4, 4), Wave(), Linear(4, 3))
    rules(Wave)(lambda module, shape, norm: gn.operators.ReLU((7,)))
    assert "Wave at 1" in refusal(module)
    rules(Wave)(lambda module, shape, norm: gn.operators.ReLU(shape))
    assert "Wave at 1 answered an operator that computes something else" in refusal(module)


def test_a_module_with_a_rule_may_not_mix_samples_or_be_random(rules):
    class Centred(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.rand_like(x)

    for kind in (Centred, Noisy):
        rules(kind)(lambda module, shape, norm: 2.0)
        assert f"{kind.__name__} at 1" in refusal(Sequential(Linear(4, 4), kind(), Linear(4, 3)))


def test_a_new_rule_takes_effect_and_a_kept_bound_does_not_hide_it(rules):
    rules(Wave)(lambda module, shape, norm: 2.0)
    net = gn.GloRoNet(Sequential(Linear(4, 4), Wave(), Linear(4, 3)), 0.1, (4,))
    kept = net.bound()
    rules(Wave)(lambda module, shape, norm: 20.0)
    assert net.bound(known=kept).constant == pytest.approx(10 * kept.constant)


class Gain(nn.Module):
    def forward(self, x, gain=1.0, other=None):
        return x * gain


class Clip(nn.Module):
    def forward(self, x, top=10.0):
        return x.clamp(-top, top)


@pytest.mark.parametrize("call", [lambda m, x: m(x, 3.0), lambda m, x: m(x, gain=3.0), lambda m, x: m(gain=3.0, x=x)])
def test_a_rule_does_not_stand_for_a_call_with_more_than_an_input(call, rules):
    rules(Gain)(lambda module, shape, norm: 1.0)
    # What is large beside it must not hide that another function runs.
    module = Calls(
        lambda m, x: torch.cat([call(m.own, x), m.far(x)], 1), own=Gain(), far=Linear(4, 1), n=5
    )
    nn.init.zeros_(module.far.weight)
    nn.init.constant_(module.far.bias, 1e6)
    assert constant(module) == pytest.approx(3.0)


@pytest.mark.parametrize("call", [lambda m, x: m(x), lambda m, x: m(x=x)])
def test_a_rule_stands_for_a_call_with_an_input_by_any_name(call, rules):
    rules(Clip)(lambda module, shape, norm: 1.0)
    assert "user rule" in kinds(gn.trace(Calls(lambda m, x: call(m.own, x), own=Clip()), (4,)))


def test_what_a_rule_does_not_stand_for_is_refused_as_that(rules):
    rules(Clip)(lambda module, shape, norm: 1.0)
    why = refusal(Calls(lambda m, x: m.own(x, 100.0), own=Clip()))
    assert "Clip at own" in why
    assert "called with more than an input" in why


def test_a_rule_may_not_answer_one_bias_for_all_outputs(rules):
    rules(Wave)(lambda module, shape, norm: Dense(shape, torch.eye(4), torch.ones(1)))
    assert "A bias of 4 outputs has shape (1,)" in refusal(Sequential(Linear(4, 4), Wave(), Linear(4, 3)))


def test_rule_takes_module_classes_only():
    with pytest.raises(TypeError, match=r"nn\.Module class"):
        gn.rule(torch.relu)


# --- what is refused, and how ---


def test_a_tensor_written_in_a_forward_keeps_no_rule_away():
    module = Calls(lambda m, x: m.own(x * torch.tensor([1.0, 2.0, 3.0, 4.0])), own=MinMax())
    assert kinds(check_program(module, (4,))) == ["scale", "minmax", "dense"]
    assert constant(module) == pytest.approx(4.0)


def test_the_refusal_names_the_layer_its_place_and_the_remedy():
    features = Sequential(Linear(4, 4), nn.ReLU(), Linear(4, 4), nn.Hardshrink())
    module = Sequential()
    module.add_module("features", features)
    module.add_module("head", Linear(4, 3))
    assert refusal(module) == (
        "No bound rule for Hardshrink at features.3. "
        "Register one with @gn.rule(nn.Hardshrink), or use MinMax."
    )


MIXING = {
    "x − mean": lambda m, x: x - x.mean(0),
    "softmax over the batch": lambda m, x: x.softmax(0),
    "reshape across": lambda m, x: x.reshape(-1).reshape(x.shape[0], 4),
    "reshape to features first": lambda m, x: x.reshape(4, -1).reshape(-1, 4),
    "transposed": lambda m, x: x.t().reshape(x.shape[0], -1),
    "flip": lambda m, x: x.flip(0),
    "roll": lambda m, x: x.roll(1, 0),
    "cumsum": lambda m, x: x.cumsum(0),
    "sorted": lambda m, x: x.sort(0).values,
    "x xᵀ x": lambda m, x: x @ x.T @ x,
    "plus the first": lambda m, x: x + x[:1],
    "times the batch size": lambda m, x: x * x.shape[0],
    "divided by its length": lambda m, x: x / len(x),
    "times 1/B": lambda m, x: x * (1 / x.shape[0]),
    "plus its place": lambda m, x: x + torch.arange(x.shape[0])[:, None],
    "one number a sample": lambda m, x: x + torch.ones(x.shape[0], 4),
    "another function for one sample": lambda m, x: x * 100 if x.shape[0] == 1 else x,
    "another function for many": lambda m, x: x if x.shape[0] > 5 else 2 * x,
    "shuffled": lambda m, x: x[torch.randperm(x.shape[0])],
}
CHANCE = {
    "noise": lambda m, x: x + torch.rand_like(x),
    "random factor": lambda m, x: x * torch.rand(4),
    "bernoulli": lambda m, x: x * torch.bernoulli(torch.full((4,), 0.5)),
    "dropout that never stops": lambda m, x: F.dropout(x, 0.5, training=True),
    "python's random": lambda m, x: x * random.random(),
    "numpy's random": lambda m, x: x * float(np.random.default_rng().random()),
}
VALUES = {
    "branch on a value": lambda m, x: x if x.sum() > 0 else 2 * x,
    "a number read out": lambda m, x: x * x.sum().item(),
    "x·x": lambda m, x: x * x,
    "1/x": lambda m, x: 1 / x,
    "c − x": lambda m, x: 1 - x,
    "comparison": lambda m, x: torch.where(x > 0, x, 2 * x),
    "float16 on the way": lambda m, x: x.half().float(),
    "whole numbers": lambda m, x: x.round().long().float(),
}


@pytest.mark.parametrize("name", [*MIXING, *CHANCE, *VALUES])
def test_refused(name):
    assert refusal(Calls((MIXING | CHANCE | VALUES)[name]))


@pytest.mark.parametrize("shape", [(), (1,), (1, 5)])
def test_a_bias_that_is_spread_over_outputs_is_refused(shape):
    """Its norm is not that of what is added: a value's size, and with it its rounding, would come out too small."""
    module = Calls(lambda m, x: F.linear(x, m.weight, m.bias), n=5)
    module.weight, module.bias = nn.Parameter(torch.ones(5, 4)), nn.Parameter(torch.ones(shape))
    assert "expand it to one entry each" in refusal(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("kind", ["TorchScript", "lazy"])
def test_what_cannot_be_read_is_refused_in_a_sentence(kind):
    module, why = nn.LazyLinear(3), "LazyLinear at the top does not know its size yet"
    if kind == "TorchScript":
        module, why = Sequential(torch.jit.trace(Linear(4, 3), torch.zeros(1, 4))), "at 0 is TorchScript"
    with pytest.raises(gn.ConfigError, match=why):
        gn.GloRoNet(module, 0.1, (4,))


def test_autocast_inside_a_forward_is_refused():
    def half(m, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.linear(x, torch.eye(4))

    assert "autocast" in refusal(Calls(half))


def test_division_by_zero_is_traced_and_certifies_nothing():
    net = gn.GloRoNet(Calls(lambda m, x: x / 0.0), 0.0, (4,))
    assert net.bound().constant == float("inf")
    assert not net.certify(torch.rand(3, 4)).certified.any()


def change_parameter(m, x):
    with torch.no_grad():
        m.head.weight.mul_(1.5)
    return x


def change_data(m, x):
    m.head.weight.data.mul_(1.5)
    return x


def change_buffer(m, x):
    m.counter += 1
    return x * m.counter


def replace_buffer(m, x):
    m.counter = m.counter + 1
    return x * m.counter


def count(m, x):
    m.calls += 1
    return x * m.calls


def change_input(m, x):
    return x.relu_()


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("function", [change_buffer, replace_buffer])
def test_a_module_that_changes_its_buffers_is_refused(function, persistent):
    module = Calls(function)
    module.register_buffer("counter", torch.tensor(1.0), persistent=persistent)
    assert "changes counter" in refusal(module)


@pytest.mark.parametrize(
    ("function", "attributes"),
    [
        (change_parameter, {}),
        (change_data, {}),
        (change_input, {}),
        (change_buffer, {"counter": torch.tensor(1.0)}),
        (replace_buffer, {"counter": torch.tensor(1.0)}),
        (count, {"calls": 0}),
    ],
)
def test_a_module_that_changes_itself_is_refused(function, attributes):
    assert refusal(Calls(function, **attributes))


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2)])
def test_pooling_that_takes_the_batch_for_channels_is_refused(pool):
    assert "at 0: it takes the batch for" in refusal(Sequential(pool, nn.Flatten(), Linear(4, 3)), (4, 4))


@pytest.mark.parametrize(
    "module", [Sequential(Linear(4, 3), nn.ReLU()), Sequential(Linear(4, 4), gn.Residual(Linear(4, 4)))]
)
def test_the_last_operation_must_be_linear(module):
    with pytest.raises(UnsupportedOperation, match="last operation must be a linear layer"):
        gn.GloRoNet(module, 0.1, (4,))


def test_a_net_that_answers_two_things_or_nothing_is_refused():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = Linear(4, 3)

        def forward(self, x):
            return self.head(x), x

    class Constant(Two):
        def forward(self, x):
            return self.head.weight

    assert "one tensor" in refusal(Two())
    assert "one tensor" in refusal(Constant())


# --- what changed is seen, what did not is kept ---


def scaled_by(**attributes):
    return Calls(lambda m, x: x * m.gain, **attributes)


def test_every_change_is_seen_and_nothing_else():
    """The bound is recomputed after whatever changes the function, and is the same object otherwise."""
    module = Sequential(Linear(4, 4), nn.ReLU(), Linear(4, 3))
    net = gn.GloRoNet(module, 0.1, (4,))
    seen = [net.bound()]
    assert net.bound() is seen[0]
    net.certify(torch.rand(2, 4)), net.train(), net.eval()
    assert net.bound() is seen[0]

    def changed(by=None):
        bound = net.bound()
        assert bound is not seen[-1]
        assert by is None or bound.constant == pytest.approx(by * seen[-1].constant, rel=1e-5)
        assert net.bound() is bound
        seen.append(bound)

    module[0].weight.data.mul_(2)
    changed(2.0)
    net.load_state_dict({k: v * (3 if k == "module.0.weight" else 1) for k, v in net.state_dict().items()})
    changed(3.0)
    handle = module[1].register_forward_hook(lambda _, __, y: 5 * y)
    changed(5.0)
    handle.remove()
    changed(0.2)
    module[1] = nn.Identity()
    changed(1.0)
    module[0] = nn.Linear(4, 4)
    changed()
    module.insert(1, nn.Linear(4, 4))
    changed()
    module[0].bias.data.add_(1)
    changed(1.0)
    digests = [bound.digest for bound in seen]
    assert digests.pop(4) == digests[2]  # without its hook it is the function it was
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_changed_buffer_is_seen(persistent):
    module = Calls(lambda m, x: x * m.gain)
    module.register_buffer("gain", torch.tensor(2.0), persistent=persistent)
    net = gn.GloRoNet(module, 0.1, (4,))
    assert net.bound().constant == pytest.approx(2.0)
    module.gain.mul_(10)
    assert net.bound().constant == pytest.approx(20.0)
    module.gain = torch.tensor(7.0)
    assert net.bound().constant == pytest.approx(7.0)


class Settings:
    def __init__(self, gain):
        self.gain = gain


class Slotted:
    __slots__ = ("gain",)

    def __init__(self, gain):
        self.gain = gain


class Listed(list):
    gain = 2.0


class Deque(collections.deque):
    pass


TABLE = {0: 2.0}


def by_default(gain=[2.0]):  # noqa: B006
    return gain[0]


def by_attribute():
    return by_attribute.gain


by_attribute.gain = 2.0


class Lazy(collections.abc.Sequence):
    """A data set, say: to look into it costs, or fails."""

    def __len__(self):
        return 10**12

    def __getitem__(self, index):
        raise RuntimeError("not now")


class Base:
    gain = 2.0


class Derived(Base):
    pass


class Scaling:
    """A hook that is an object."""

    def __init__(self, gain):
        self.gain = gain

    def __call__(self, module, inputs, output):
        return output * self.gain

    def before(self, module, inputs):
        return (inputs[0] * self.gain,)


def change(attribute, value):
    return lambda m: setattr(m, attribute, value)


def change_twice(m):
    """The first function is gone when the second is made, which may be given its id."""
    m.f = lambda: 4.0
    m.f = lambda: 6.0


CHANGES = {
    "number": ({"gain": 2.0}, lambda m: m.gain, change("gain", 6.0)),
    "tensor": ({"gain": torch.tensor(2.0)}, lambda m: m.gain, change("gain", torch.tensor(6.0))),
    "tensor in place": ({"gain": torch.tensor(2.0)}, lambda m: m.gain, lambda m: m.gain.mul_(3)),
    "in containers": ({"all": [{"a": 2.0}]}, lambda m: m.all[0]["a"], lambda m: m.all[0].update(a=6.0)),
    "of an object": ({"own": Settings(2.0)}, lambda m: m.own.gain, lambda m: setattr(m.own, "gain", 6.0)),
    "of a slotted object": ({"own": Slotted(2.0)}, lambda m: m.own.gain, lambda m: setattr(m.own, "gain", 6.0)),
    "in an object": ({"own": Settings([2.0])}, lambda m: m.own.gain[0], lambda m: m.own.gain.insert(0, 6.0)),
    "array": ({"array": np.array([2.0])}, lambda m: float(m.array[0]), lambda m: m.array.fill(6.0)),
    "function": ({"f": lambda: 2.0}, lambda m: m.f(), change_twice),
    "bytes": ({"own": bytearray([2])}, lambda m: m.own[0], lambda m: m.own.__setitem__(0, 6)),
    "packed": ({"own": array.array("d", [2.0])}, lambda m: m.own[0], lambda m: m.own.__setitem__(0, 6.0)),
    "deque": ({"own": collections.deque([2.0])}, lambda m: m.own[0], lambda m: m.own.__setitem__(0, 6.0)),
    "a deque of one's own": ({"own": Deque([2.0])}, lambda m: m.own[0], lambda m: m.own.__setitem__(0, 6.0)),
    "a view of a dict": ({"own": types.MappingProxyType(TABLE)}, lambda m: m.own[0], lambda m: TABLE.update({0: 6.0})),
    "a number of C": ({"own": ctypes.c_double(2.0)}, lambda m: m.own.value, lambda m: setattr(m.own, "value", 6.0)),
    "a default": ({"f": by_default}, lambda m: m.f(), lambda m: m.f.__defaults__[0].insert(0, 6.0)),
    "of a function": ({"f": by_attribute}, lambda m: m.f(), lambda m: setattr(m.f, "gain", 6.0)),
    "array of objects": ({"own": np.array([[2.0]], object)}, lambda m: m.own[0, 0], lambda m: m.own.fill(6.0)),
    "of a list": ({"own": Listed()}, lambda m: m.own.gain, lambda m: setattr(m.own, "gain", 6.0)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_attribute_is_seen(name):
    attributes, gain, modify = CHANGES[name]
    module = Calls(lambda m, x: x * gain(m), **attributes)
    net = gn.GloRoNet(module, 0.1, (4,))
    assert net.bound().constant == pytest.approx(2.0)
    modify(module)
    assert net.bound().constant == pytest.approx(6.0)


def test_what_is_no_plain_container_is_not_looked_into():
    gone = memoryview(bytearray(3))
    gone.release()
    net = gn.GloRoNet(Calls(lambda m, x: x, own=Lazy(), other=gone), 0.1, (4,))
    assert net.program() is net.program()


class OfTheClass(nn.Module):
    gain = 2.0

    def __init__(self):
        super().__init__()
        self.head = Linear(4, 3)

    def times(self, x):
        return x * self.gain

    def forward(self, x):
        return self.head(self.times(x))


@pytest.mark.parametrize(("name", "value"), [("gain", 6.0), ("times", lambda self, x: 6.0 * x)])
def test_what_changes_in_the_class_is_seen(name, value, monkeypatch):
    net = gn.GloRoNet(OfTheClass(), 0.1, (4,))
    assert net.bound().constant == pytest.approx(2.0)
    monkeypatch.setattr(OfTheClass, name, value)
    assert net.bound().constant == pytest.approx(6.0)


def test_what_changes_in_the_class_of_an_attribute_is_seen(monkeypatch):
    net = gn.GloRoNet(Calls(lambda m, x: x * m.own.gain, own=Derived()), 0.1, (4,))
    assert net.bound().constant == pytest.approx(2.0)
    monkeypatch.setattr(Base, "gain", 6.0)
    assert net.bound().constant == pytest.approx(6.0)


@pytest.mark.parametrize("before", [False, True])
def test_what_a_hook_holds_is_watched(before):
    module, hook = Sequential(nn.ReLU(), Linear(4, 3)), Scaling(2.0)
    if before:
        module[0].register_forward_pre_hook(hook.before)
    else:
        module[0].register_forward_hook(hook)
    net = gn.GloRoNet(module, 0.1, (4,))
    assert net.bound().constant == pytest.approx(2.0)
    hook.gain = 6.0
    assert net.bound().constant == pytest.approx(6.0)


def test_a_hook_that_is_a_method_of_the_net_costs_no_trace_a_step():
    module = Calls(lambda m, x: m.own(x), own=nn.ReLU(), seen=lambda *_: None)
    module.own.register_forward_hook(types.MethodType(lambda *_: None, module))
    net = gn.GloRoNet(module, 0.1, (4,))
    program = net.program()
    with torch.no_grad():
        module.head.weight.mul_(2)
    assert net.program() is program


def test_a_method_of_torch_that_is_patched_is_seen(monkeypatch):
    module = Sequential(nn.Conv2d(1, 1, 1, bias=False), nn.Flatten(), Linear(4, 3))
    nn.init.constant_(module[0].weight, 2.0)
    net = gn.GloRoNet(module, 0.1, (1, 2, 2))
    assert net.bound().constant == pytest.approx(2.0)
    plain = nn.Conv2d._conv_forward
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda self, x, *rest: 3 * plain(self, x, *rest))
    assert net.bound().constant == pytest.approx(6.0)


def check_same(net, x):
    assert torch.allclose(net.program().freeze()(x), net.module(x).double(), 1e-5)


class Tied(nn.Module):
    """Two layers of one weight, a parameter or a buffer."""

    def __init__(self, kind):
        super().__init__()
        self.a, self.b, self.head = nn.Module(), nn.Module(), Linear(2, 2)
        for layer in (self.a, self.b):
            if kind is nn.Parameter:
                layer.weight = getattr(self.a, "weight", nn.Parameter(torch.eye(2)))
            else:
                layer.register_buffer("weight", getattr(self.a, "weight", torch.eye(2)))

    def forward(self, x):
        return self.head(F.relu(F.linear(F.relu(F.linear(x, self.a.weight)), self.b.weight)))


@pytest.mark.parametrize("kind", [nn.Parameter, torch.Tensor])
@pytest.mark.parametrize("which", ["a", "b"])
def test_tied_tensors_that_come_apart_are_seen(kind, which):
    net = gn.GloRoNet(Tied(kind), 0.1, (2,))
    assert net.bound().constant == pytest.approx(1.0)
    state = {name: t.clone() for name, t in net.module.state_dict().items()}
    state[f"{which}.weight"] *= 5
    net.module.load_state_dict(state, assign=True)
    assert net.bound().constant == pytest.approx(5.0)
    check_same(net, torch.rand(5, 2))


def test_tied_parameters_of_a_module_with_a_float_rule_may_come_apart(rules):
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = self.q = nn.Parameter(torch.tensor(1.0))

        def forward(self, x):
            return self.p * self.q * x

    rules(Product)(lambda m, shape, norm: (m.p * m.q).abs().item())
    module = Sequential(Product(), Linear(4, 3))
    net = gn.GloRoNet(module, 0.1, (4,))
    assert net.bound().constant == pytest.approx(1.0)
    module[0].q = nn.Parameter(torch.tensor(50.0))
    assert net.bound().constant == pytest.approx(50.0)
    check_same(net, torch.rand(5, 4))


def test_a_rule_may_read_a_parameter_into_an_attribute(rules):
    rules(nn.PReLU)(lambda m, shape, norm: LeakyReLU(shape, m.weight.item()))
    module = Sequential(nn.PReLU(init=1.0), Linear(4, 3))
    net = gn.GloRoNet(module, 0.1, (4,))
    assert net.bound().constant == pytest.approx(1.0)
    program = net.program()
    assert net.program() is program
    nn.init.constant_(module[0].weight, 10.0)
    assert net.bound().constant == pytest.approx(10.0)


ASKING = {
    "exporting": torch.compiler.is_exporting,
    "compiling": torch.compiler.is_compiling,
    "without gradients": lambda: not torch.is_grad_enabled(),
    "with gradients": torch.is_grad_enabled,
}


@pytest.mark.parametrize("name", ASKING)
def test_a_module_that_asks_how_it_is_run_is_refused(name):
    with pytest.raises(UnsupportedOperation, match="must not ask how it is run"):
        gn.GloRoNet(Calls(lambda m, x: x if ASKING[name]() else 10 * x), 0.1, (4,))


@pytest.mark.parametrize("answer", [lambda y: (y, y), lambda y: y[:, :2], lambda y: y.double(), lambda y: None])
def test_so_is_one_that_then_answers_another_kind_of_thing(answer):
    class Asks(Linear):
        def forward(self, x):
            y = super().forward(x)
            return y if torch.compiler.is_exporting() else answer(y)

    with pytest.raises(UnsupportedOperation, match="must not ask how it is run"):
        gn.trace(Asks(4, 3), (4,))


def test_a_rule_may_come_to_answer_a_tensor_it_left_out(rules):
    class Shifted(Linear):
        pass

    rules(Shifted)(lambda m, shape, norm: Dense(shape, m.weight, m.bias if m.bias.any() else None))
    module = Sequential(Shifted(4, 4), Linear(4, 3))
    nn.init.zeros_(module[0].bias)
    net = gn.GloRoNet(module, 0.1, (4,))
    check_same(net, torch.rand(5, 4))
    nn.init.ones_(module[0].bias)
    check_same(net, torch.rand(5, 4))


def test_a_forward_may_ask_whether_it_is_trained():
    net = gn.GloRoNet(Calls(lambda m, x: x * 2 if m.head.weight.requires_grad else x * 6), 0.1, (4,))
    assert net.bound().constant == pytest.approx(2.0)
    net.requires_grad_(False)
    assert net.bound().constant == pytest.approx(6.0)


def test_modules_hidden_deep_in_plain_lists_are_watched_at_any_depth():
    deep = Linear(4, 4)
    for _ in range(6):
        deep = Sequential(deep)
    module = Calls(lambda m, x: m.hidden[0](x), hidden=[deep])
    net = gn.GloRoNet(module, 0.1, (4,))
    before = net.bound().constant
    weight = next(deep.parameters())
    weight.data.mul_(3)
    assert net.bound().constant == pytest.approx(3 * before, rel=1e-5)
    layer = next(m for m in deep.modules() if isinstance(m, Linear))
    layer.weight = nn.Parameter(3 * weight)
    assert net.bound().constant == pytest.approx(9 * before, rel=1e-5)


def test_a_number_beside_half_precision_is_float32():
    """As torch multiplies: by float32(0.7), rounding afterwards; bfloat16(0.7) is 0.69921875."""
    module = Calls(lambda m, x: x * 0.7).to(torch.bfloat16)
    exact = gn.GloRoNet(module, 0.1, (4,)).program().freeze().operators[0]
    assert float(exact(torch.ones(1, 4, dtype=torch.float64))[0, 0]) == float(torch.tensor(0.7))


def test_a_module_hidden_in_a_plain_list_is_watched_too():
    module = Calls(lambda m, x: m.hidden[0](x), hidden=[Linear(4, 4)])
    net = gn.GloRoNet(module, 0.1, (4,))
    before = net.bound().constant
    module.hidden[0].weight.data.mul_(3)
    assert net.bound().constant == pytest.approx(3 * before, rel=1e-5)


def test_another_form_norm_or_input_shape_is_another_bound():
    net = gn.GloRoNet(Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), Linear(32, 3)), 0.1, (1, 4, 4))
    first = net.bound()
    net.norm = "linf"
    assert net.bound().norm == "linf"
    net.norm, net.form = "l2", "simple"
    assert net.bound().form == "simple"
    net.form, net.input_shape = "margin", (1, 2, 8)
    assert net.program().input_shape == (1, 2, 8)
    net.input_shape = (1, 4, 4)
    assert torch.equal(net.bound().margins, first.margins)
