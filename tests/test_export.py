"""The exported ONNX graph: the same answers as ours, and no certificate that is not ours or that an attack breaks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gloronet as gn
from gloronet import cli
from gloronet.export import OPSET, OUTPUTS
from gloronet.export.certificate import safe_constants
from gloronet.export.nodes import RULES, parts, roundings
from gloronet.layers import GroupSort, Householder
from gloronet.operators import Dense
from gloronet.operators.rounding import U32, U64, norms_up
from gloronet.operators.rules import MODULE_RULES
from gloronet.program.program import INPUT

onnx = pytest.importorskip("onnx", reason="the extra [onnx] is not installed: onnx is missing")
ort = pytest.importorskip("onnxruntime", reason="the extra [onnx] is not installed: onnxruntime is missing")

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
LEVELS = ("ORT_ENABLE_ALL", "ORT_DISABLE_ALL")


class Branches(nn.Module):
    """Two convolutions side by side or added: what an optimiser would like to fuse."""

    def __init__(self, joined: bool) -> None:
        super().__init__()
        self.a, self.b, self.joined = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1), joined

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        return torch.cat([a, b], 1) if self.joined else a + b


class Steps(nn.Module):
    """A function of a few operations, as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Gain(nn.Module):
    """One factor a channel, which an optimiser would like to multiply into the convolution before it."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def image(*layers: nn.Module, shape: tuple[int, ...] = (4, 8, 8)) -> tuple[nn.Module, tuple[int, ...]]:
    body = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        width = body.eval()(torch.zeros(2, *shape)).shape[1]
    return nn.Sequential(*body, nn.Linear(width, 5)), shape


def normed(norm: nn.Module) -> nn.Module:
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.2, 2.0)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def turned(channels: int) -> Householder:
    layer = Householder(channels)
    nn.init.uniform_(layer.theta, -3.0, 3.0)
    return layer


NETS: dict[str, Any] = {
    "dense": lambda: (nn.Sequential(nn.Linear(7, 12), nn.ReLU(), nn.Linear(12, 3)), (7,)),
    "long sums": lambda: (nn.Sequential(nn.Linear(640, 514, bias=False), gn.MinMax(), nn.Linear(514, 3)), (640,)),
    "x + W x, long sums": lambda: (nn.Sequential(gn.Residual(nn.Linear(600, 600)), nn.Linear(600, 3)), (600,)),
    "head alone": lambda: (nn.Linear(6, 4), (6,)),
    "x + W x, dense": lambda: (nn.Sequential(gn.Residual(nn.Linear(8, 8)), gn.MinMax(), nn.Linear(8, 4)), (8,)),
    "convolutions": lambda: image(
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4),
        nn.ZeroPad2d((0, 1, 2, 0)), nn.Conv2d(8, 6, 2, bias=False), gn.MinMax(),
    ),
    "x + W x, convolution": lambda: image(gn.Residual(nn.Conv2d(4, 4, 3, padding=1)), nn.ReLU()),
    "one dimension": lambda: image(
        nn.Conv1d(3, 6, 3, stride=2, padding=1), gn.MinMax(), gn.Residual(nn.Conv1d(6, 6, 3, padding=1)), shape=(3, 16)
    ),
    "circular": lambda: image(
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), gn.MinMax(),
        nn.CircularPad2d((1, 2, 0, 3)), nn.MaxPool2d(2),
    ),
    "circular, one dimension": lambda: image(nn.Conv1d(3, 4, 5, padding=2, padding_mode="circular"), shape=(3, 9)),
    "activations": lambda: image(
        nn.Conv2d(4, 6, 1), nn.LeakyReLU(0.1), Steps(torch.abs), GroupSort(3), nn.Conv2d(6, 6, 1), turned(6)
    ),
    "activations of vectors": lambda: (
        nn.Sequential(nn.Linear(5, 8), GroupSort(4), nn.Linear(8, 8), turned(8), nn.LeakyReLU(1.5), nn.Linear(8, 3)),
        (5,),
    ),
    "pooling": lambda: image(nn.Conv2d(4, 4, 3), nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(3, 1, 1)),
    "zeros before a maximum": lambda: image(nn.Conv2d(4, 4, 3), nn.ZeroPad2d((1, 0, 2, 1)), nn.MaxPool2d(3, 2)),
    "zeros before a mean": lambda: image(nn.Conv2d(4, 4, 3), nn.ZeroPad2d((1, 0, 1, 1)), nn.AvgPool2d(3, 2)),
    "mean of the image": lambda: image(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    "standardised": lambda: image(gn.Standardize([0.5] * 4, [0.2, 0.3, 0.4, 0.5]), nn.Conv2d(4, 4, 3), gn.MinMax()),
    "scaled": lambda: image(
        nn.Conv2d(4, 4, 3), Gain(4), Steps(lambda x: (x * 0.3 - 0.1) / 1.7),
        nn.Conv2d(4, 4, 1), Steps(lambda x: -x + 0.7),
    ),
    "batch norm": lambda: image(
        nn.Conv2d(4, 8, 3, bias=False), normed(nn.BatchNorm2d(8)), nn.ReLU(), nn.Flatten(), nn.Linear(288, 9),
        normed(nn.BatchNorm1d(9)),
    ),
    "sum of branches": lambda: image(Branches(joined=False), nn.ReLU()),
    "concatenation": lambda: image(Branches(joined=True), normed(nn.BatchNorm2d(8)), gn.MinMax()),
    "moved about": lambda: image(
        nn.PixelUnshuffle(2), nn.Conv2d(16, 6, 1), Steps(lambda x: x.permute(0, 2, 3, 1)),
        Steps(lambda x: x.unflatten(3, (2, 3)).flatten(1, 2)), Steps(lambda x: x * 2.5),
    ),
}  # fmt: skip


def made(name: str, seed: int = 0, form: str = "margin") -> gn.GloRoNet:
    torch.manual_seed(seed)
    module, shape = NETS[name]()
    return gn.GloRoNet(module, 0.01, shape, form=form).eval()


def session(path: Path, level: str = LEVELS[0], optimised: Path | None = None) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if optimised is not None:
        options.optimized_model_filepath = str(optimised)
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


class Answer:
    def __init__(self, runtime: Any, x: Tensor, epsilon: float | None = None) -> None:
        feed = {"x": x.numpy()} | ({} if epsilon is None else {"epsilon": np.array(epsilon)})
        outputs = dict(zip(OUTPUTS, map(torch.from_numpy, runtime.run(list(OUTPUTS), feed)), strict=True))
        self.logits, self.label, self.prediction = (outputs[n] for n in ("logits", "label", "prediction"))
        self.radius, self.certified = outputs["radius"], outputs["certified"]


def check_export(net: gn.GloRoNet, x: Tensor, file: Path) -> int:
    """Every law of an export, at the points x, at both ends of what onnxruntime optimises.

    Returns how many of x are certified by "float32" at the median of its radii, but not in ONNX.
    """
    gn.export_onnx(net, file)
    real, single = net.certify(x), net.certify(x, semantics="float32")
    epsilon = float(single.radius.median())
    missed = 0
    for level in LEVELS:
        runtime = session(file, level)
        mine = Answer(runtime, x)
        with torch.no_grad():
            its = net.logits(x)
        assert torch.allclose(mine.logits, its, 1e-4, 1e-5 * float(its.abs().max()))
        assert torch.equal(mine.label, mine.logits.argmax(1))
        assert torch.equal(mine.label[mine.radius > 0], real.label[mine.radius > 0])
        check_delta(net, x, mine)
        assert (mine.radius >= 0).all()
        assert (mine.radius <= never_above(net, single, real)).all()
        assert (single.radius <= real.radius).all()
        for eps in (0.0, net.epsilon, epsilon, float(real.radius.max())):
            at = Answer(runtime, x, eps)
            assert torch.equal(at.certified, at.radius > eps)
            assert torch.equal(at.prediction, torch.where(at.certified, at.label, gn.BOTTOM))
            assert not (at.certified & ~(never_above(net, single, real) > eps)).any()
        missed = max(missed, int(((single.radius > epsilon) & ~(mine.radius > epsilon)).sum()))
        check_edge(net, x, mine, runtime)
    return missed


def never_above(net: gn.GloRoNet, single: gn.Certificates, real: gn.Certificates) -> Tensor:
    """The graph adds in another order than "float32" allows for where it splits sums, and loses less."""
    dense = [op for op in net._proof().program.operators if isinstance(op, Dense)]
    return single.radius if all(parts(op.weight.shape[1]) == 1 for op in dense) else real.radius


def check_delta(net: gn.GloRoNet, x: Tensor, mine: Answer) -> None:
    """onnxruntime's margins are off by no more than δ, which the graph takes off twice."""
    proof = net._proof()
    exact, y = proof.program(x), mine.logits.double()
    lead, told = (t.gather(1, mine.label[:, None]) - t for t in (exact, y))
    allowed, _ = proof.error(U32).rows(norms_up(x.flatten(1)), mine.label)
    assert ((lead - told).abs() <= allowed).all()


def check_edge(net: gn.GloRoNet, x: Tensor, mine: Answer, runtime: Any) -> None:
    """Float32 points at the very edge of the radius, the worst direction among them, get the label from ONNX."""
    use = mine.radius > 0
    x, label, radius = x[use], mine.label[use], mine.radius[use]
    if not len(x):
        return
    points = x.clone().requires_grad_()
    y = net.logits(points)
    rival = y.detach().scatter(1, label[:, None], -torch.inf).argmax(1)
    (slope,) = torch.autograd.grad((y.gather(1, rival[:, None]) - y.gather(1, label[:, None])).sum(), points)
    generator = torch.Generator().manual_seed(0)
    for direction in (slope, *(torch.randn(x.shape, generator=generator) for _ in range(3))):
        length = direction.double().flatten(1).norm(dim=1).clamp_min(1e-300)
        step = (radius * (1 - 1e-9) / length).reshape(-1, *[1] * (x.dim() - 1))
        point = (x.double() + step * direction.double()).float()
        inside = (point.double() - x.double()).flatten(1).norm(dim=1) < radius
        assert torch.equal(Answer(runtime, point).label[inside], label[inside])


# The laws, for every kind of operation


def test_every_rule_is_put_to_the_laws() -> None:
    kinds = {op.kind for name in NETS for op in made(name).program().ops}
    assert kinds == set(RULES)


@pytest.mark.parametrize("name", NETS)
def test_answers_are_ours_and_certificates_are_never_more(name: str, tmp_path: Path) -> None:
    net = made(name)
    x = torch.rand(60, *net.input_shape, generator=torch.Generator().manual_seed(1))
    assert check_export(net, x, tmp_path / "model.onnx") <= 3
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    shapes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in inferred.graph.output}
    assert shapes == {n: ["batch", net.classes] if n == "logits" else ["batch"] for n in OUTPUTS}
    assert [o.version for o in model.opset_import] == [OPSET]


@pytest.mark.parametrize("form", ["simple", "lmt"])
def test_other_forms_carry_their_own_margins(form: str, tmp_path: Path) -> None:
    assert check_export(made("convolutions", form=form), torch.rand(40, 4, 8, 8), tmp_path / "model.onnx") <= 1


@settings(max_examples=8, deadline=None)
@given(
    name=st.sampled_from(["batch norm", "x + W x, convolution", "sum of branches", "activations of vectors"]),
    seed=st.integers(0, 10_000),
    bias=st.sampled_from([0.0, 1e3, 1e6]),
    scale=st.sampled_from([1e-30, 1e-3, 50.0, 1e20]),
)
def test_laws_hold_for_any_scale(
    name: str, seed: int, bias: float, scale: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    net = made(name, seed)
    with torch.no_grad():
        for p in net.module.parameters():
            if p.dim() == 1:
                p.mul_(bias)
    x = torch.rand(24, *net.input_shape) * scale - scale / 3  # outside [0, 1] the bound holds as well
    file = tmp_path_factory.mktemp("scale") / "model.onnx"
    gn.export_onnx(net, file)
    # The graph asks for the sizes at x, too: far from the edge of [0, 1] less is lost than anywhere in it.
    mine, single = Answer(session(file), x), net.certify(x, semantics="float32", per_sample=True)
    check_delta(net, x, mine)
    assert (mine.radius <= single.radius).all()
    assert torch.equal(mine.label[mine.radius > 0], single.label[mine.radius > 0])


# What onnxruntime really runs


def singles(model: Any) -> set[float]:
    """All float32 numbers of a graph but 0 and −∞."""
    arrays = [onnx.numpy_helper.to_array(t) for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT]
    return {float(v) for a in arrays for v in a.reshape(-1) if v != 0 and np.isfinite(v)}


def arithmetic(model: Any) -> dict[str, int]:
    """How many nodes compute, by what they do; a layer with its activation inside is still that layer."""
    kinds = [n.op_type.removeprefix("Fused") for n in model.graph.node]
    return {kind: kinds.count(kind) for kind in ("Add", "Sum", "Sub", "Mul", "Div", "Conv", "Gemm", "Max", "Min")}


@pytest.mark.parametrize("name", NETS)
def test_no_optimisation_touches_a_weight_or_merges_operations(name: str, tmp_path: Path) -> None:
    file, run = tmp_path / "model.onnx", tmp_path / "run.onnx"
    net = made(name)
    gn.export_onnx(net, file)
    session(file, LEVELS[0], run)
    before, after = onnx.load(file), onnx.load(run)
    assert singles(after) == singles(before)
    skips = sum(bool(op.attributes.get("skip")) for op in net.program().ops)
    had, has = arithmetic(before), arithmetic(after)
    assert had.pop("Add") - skips <= has.pop("Add")  # x + W x is the one sum that may become part of its layer
    assert has == had


def test_without_the_barrier_weights_would_change(tmp_path: Path) -> None:
    """Why max(·, −∞) is there: left out, onnxruntime multiplies the gain of BatchNorm into the convolution."""
    file, run = tmp_path / "model.onnx", tmp_path / "run.onnx"
    gn.export_onnx(made("scaled"), file)
    model = onnx.load(file)
    low = {t.name for t in model.graph.initializer if np.isneginf(onnx.numpy_helper.to_array(t)).all()}
    through = {n.output[0]: n.input[0] for n in model.graph.node if low & set(n.input)}
    assert through
    for node in model.graph.node:
        for k, name in enumerate(node.input):
            if name in through and node.output[0] not in through:
                node.input[k] = through[name]
    onnx.save(model, file)
    session(file, LEVELS[0], run)
    assert singles(onnx.load(run)) != singles(model)


# Corners


def test_radius_by_hand(tmp_path: Path) -> None:
    """The example of docs/guarantee.md: K = 4·√2, and two equal rows, whose K is 0."""
    f = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 3))
    with torch.no_grad():
        f[0].weight.copy_(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        f[0].bias.zero_()
        f[2].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
        f[2].bias.copy_(torch.tensor([0.0, 0.0, -1.0]))
    net = gn.GloRoNet(f, "1/10", (2,)).eval()
    runtime = session(gn.export_onnx(net, tmp_path / "m.onnx"))
    mine = Answer(runtime, torch.tensor([[0.8, 0.1], [0.5, 0.375], [0.1, float("nan")]]))
    assert mine.prediction.tolist() == [0, -1, -1]
    assert mine.radius.tolist() == pytest.approx([2 / (4 * 2**0.5), 0.0, 0.0], rel=1e-5)


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_any_batch(rows: int, tmp_path: Path) -> None:
    net = made("convolutions")
    runtime = session(gn.export_onnx(net, tmp_path / "m.onnx"))
    mine = Answer(runtime, torch.rand(rows, 4, 8, 8))
    assert mine.logits.shape == (rows, 5)
    assert all(t.shape == (rows,) for t in (mine.label, mine.prediction, mine.radius, mine.certified))
    kinds = (torch.float32, torch.int64, torch.int64, torch.float64, torch.bool)
    assert tuple(getattr(mine, name).dtype for name in OUTPUTS) == kinds


def test_epsilon_is_an_input_that_may_be_left_out(tmp_path: Path) -> None:
    net = made("dense")
    runtime = session(gn.export_onnx(net, tmp_path / "m.onnx", epsilon="1/1000"))
    assert [i.name for i in runtime.get_inputs()] == ["x"]
    assert [i.name for i in runtime.get_overridable_initializers()] == ["epsilon"]
    x = torch.rand(50, 7)
    usual, same, wide = Answer(runtime, x), Answer(runtime, x, 0.001), Answer(runtime, x, 1e9)
    assert torch.equal(usual.prediction, same.prediction)
    assert (usual.prediction >= 0).any()
    assert (wide.prediction == gn.BOTTOM).all()
    assert torch.equal(usual.radius, wide.radius)
    assert not Answer(runtime, x, float("nan")).certified.any()
    below = Answer(runtime, x, -1.0)  # no ball at all, but what has no radius stays uncertified
    assert torch.equal(below.certified, below.radius > 0)


@pytest.mark.parametrize("name", ["dense", "convolutions", "pooling"])
def test_what_is_not_finite_or_too_large_is_bottom(name: str, tmp_path: Path) -> None:
    net = made(name)
    runtime = session(gn.export_onnx(net, tmp_path / "m.onnx"))
    x = torch.rand(8, *net.input_shape)
    clean = Answer(runtime, x, 0.0)
    for k, bad in enumerate((float("nan"), float("inf"), -float("inf"), 3e38)):
        x[k].view(-1)[0] = bad
    x[4] = 1e38
    mine = Answer(runtime, x, 0.0)
    assert (mine.prediction[:5] == gn.BOTTOM).all()
    assert (mine.radius[:5] == 0).all()
    assert torch.equal(mine.prediction[5:], clean.prediction[5:])
    assert torch.allclose(mine.radius[5:], clean.radius[5:], 1e-6)
    assert (net.certify(x, semantics="float32").radius[:5] == 0).all()


def test_an_overflow_and_a_tie_and_swallowed_margins_are_bottom(tmp_path: Path) -> None:
    first, last = nn.Linear(2, 2, bias=False), nn.Linear(2, 2)
    with torch.no_grad():
        first.weight.copy_(torch.eye(2) * 1e25)
        last.weight.copy_(torch.eye(2) * 1e20)
        last.bias.zero_()
    x = torch.tensor([[1.0, 0.0]])
    net = gn.GloRoNet(nn.Sequential(first, nn.ReLU(), last), 0.0, (2,)).eval()
    assert not Answer(session(gn.export_onnx(net, tmp_path / "overflow.onnx")), x).certified.any()
    with torch.no_grad():
        first.weight.copy_(torch.eye(2))
        last.weight.copy_(torch.eye(2))
        last.bias.fill_(2.0**24)
    net = gn.GloRoNet(last, 0.0, (2,)).eval()
    runtime = session(gn.export_onnx(net, tmp_path / "swallowed.onnx"))
    assert not Answer(runtime, torch.tensor([[0.7, 0.2], [0.5, 0.5]])).certified.any()


def test_constants_of_zero_limit_nothing(tmp_path: Path) -> None:
    """All rows equal: only float32's own rounding and its range end the radius."""
    head = nn.Linear(3, 2)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[0.5, 1.0, -0.5]] * 2))
        head.bias.copy_(torch.tensor([1.0, 0.0]))
    net = gn.GloRoNet(head, 0.1, (3,)).eval()
    assert float(net.bound().margins.max()) == 0.0
    mine = Answer(session(gn.export_onnx(net, tmp_path / "m.onnx")), torch.rand(4, 3))
    single = net.certify(torch.rand(4, 3), semantics="float32")
    assert (mine.radius > 1e5).all()
    assert (single.radius > 1e5).all()


def test_metadata(tmp_path: Path) -> None:
    net = made("dense")
    names = ["ä", "b", "c"]
    told = session(gn.export_onnx(net, tmp_path / "m.onnx", epsilon="36/255", classes=names)).get_modelmeta()
    about = {k.removeprefix("gloronet."): v for k, v in told.custom_metadata_map.items()}
    assert float(about.pop("epsilon")) == gn.config.parse_epsilon("36/255")
    assert json.loads(about.pop("classes")) == names
    assert about == {
        "format": "1", "epsilon_text": "36/255", "norm": "l2", "form": "margin", "semantics": "float32",
        "version": gn.__version__, "digest": net.bound().digest, "input_shape": "[7]", "input_range": "[0, 1]",
    }  # fmt: skip
    assert told.producer_name == "gloronet"
    again = session(gn.export_onnx(net, tmp_path / "m.onnx")).get_modelmeta().custom_metadata_map
    assert again["gloronet.epsilon_text"] == "0.01"
    assert "gloronet.classes" not in again


def test_exporting_twice_gives_the_same_file_and_changes_no_net(tmp_path: Path) -> None:
    net = made("batch norm").train()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    one, two = (gn.export_onnx(net, tmp_path / f"{k}.onnx").read_bytes() for k in (1, 2))
    assert one == two
    assert net.training
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["1.onnx", "2.onnx"]


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x) * 1.0


def test_what_cannot_be_exported_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gn.rule(Odd)(lambda module, shape, norm: 1.0)
    monkeypatch.setitem(MODULE_RULES, Odd, MODULE_RULES.pop(Odd))  # for this test only
    file = tmp_path / "m.onnx"
    file.write_bytes(b"earlier")

    def wrapped(activation: nn.Module, norm: str = "l2", dtype: torch.dtype = torch.float32) -> gn.GloRoNet:
        module = nn.Sequential(nn.Linear(2, 4), activation, nn.Linear(4, 2)).to(dtype)
        return gn.GloRoNet(module, 0.1, (2,), norm=norm).eval()

    refused = {
        "tanh at 1": (wrapped(nn.Tanh()), gn.UnsupportedOperation),
        r"No ONNX rule for Odd \(user rule\) at 1": (wrapped(Odd()), gn.UnsupportedOperation),
        'for norm "l2"': (wrapped(nn.ReLU(), norm="linf"), gn.ConfigError),
        "float32 module": (wrapped(nn.ReLU(), dtype=torch.float64), gn.ConfigError),
    }
    for message, (net, kind) in refused.items():
        with pytest.raises(kind, match=message):
            gn.export_onnx(net, file)
    infinite = wrapped(nn.ReLU())
    with torch.no_grad():
        infinite.module[0].weight[0, 0] = torch.inf
    with pytest.raises(gn.ConfigError, match="not finite"):
        gn.export_onnx(infinite, file)
    with pytest.raises(gn.ConfigError, match="2 classes, but 3 names"):
        gn.export_onnx(wrapped(nn.ReLU()), file, classes=["a", "b", "c"])
    with pytest.raises(gn.ConfigError, match="it is a folder"):
        gn.export_onnx(wrapped(nn.ReLU()), tmp_path)
    assert file.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [file]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(gn.ConfigError, match=r"pip install 'gloronet\[onnx\]'"):
        gn.export_onnx(made("dense"), tmp_path / "m.onnx")


# Trained nets


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "digits"
    assert cli.main(["train", "--out", str(folder), "--set", "train.epochs=15", "--attack", "0"]) == 0
    return folder


def test_the_verb_exports_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run.parent / "digits.onnx"
    assert cli.main(["export", str(run), str(file)]) == 0
    assert "logits, label, prediction, radius, certified" in capsys.readouterr().out
    about = session(file).get_modelmeta().custom_metadata_map
    summary = json.loads((run / "summary.json").read_text())
    assert json.loads(about["gloronet.classes"]) == summary["classes"]
    assert about["gloronet.digest"] == summary["digest"]
    assert about["gloronet.epsilon_text"] == "0.3"
    assert cli.main(["export", str(run), str(file), "--epsilon", "1/8"]) == 0
    assert session(file).get_modelmeta().custom_metadata_map["gloronet.epsilon"] == "0.125"


def test_a_mistake_at_the_verb_is_one_line(
    run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in (
        ["export", str(run), str(tmp_path)],
        ["export", str(tmp_path / "nowhere"), str(tmp_path / "m.onnx")],
        ["export", "zoo:nothing", str(tmp_path / "m.onnx")],
        ["export", str(run), str(tmp_path / "m.onnx"), "--epsilon", "wide"],
    ):
        assert cli.main(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_trained_digits(run: Path, tmp_path: Path) -> None:
    """Parity on all of the test set, and PGD that finds nothing within what ONNX certified."""
    net, data = gn.load(run), gn.data.load("digits")
    x = gn.data.to_unit(data.test_x)
    file = tmp_path / "m.onnx"
    assert check_export(net, x, file) <= 2
    for level in LEVELS:
        mine, single = Answer(session(file, level), x), net.certify(x, semantics="float32")
        assert torch.equal(mine.label, net.logits(x).argmax(1))
        assert int(single.certified.sum()) - int(mine.certified.sum()) <= 2
        assert mine.certified.float().mean() > 0.4
    attacked = gn.Certificates(mine.label[:80], mine.radius[:80], mine.radius[:80], net.epsilon, "float32")
    found = attack(net, x[:80], attacked)
    moved = Answer(session(file), found)
    assert torch.equal(moved.label, attacked.label)


def attack(net: gn.GloRoNet, x: Tensor, c: gn.Certificates) -> Tensor:
    """Where PGD through torch came nearest to another label within each radius; it must not arrive."""
    found = gn.attacks.pgd(
        net.logits, x, c.label, c.radius * (1 - 1e-6), steps=30, restarts=2, clip=None,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert not found.success[c.radius > 0].any()
    return torch.where((c.radius > 0).reshape(-1, *[1] * (x.dim() - 1)), found.x, x)


def test_the_zoo_on_real_digits(tmp_path: Path) -> None:
    if not (SHARED / "mnist").is_dir():
        pytest.skip("the real MNIST files are not beside this checkout (../shared/data)")
    file = tmp_path / "mnist.onnx"
    assert cli.main(["export", "zoo:mnist-0.3", str(file)]) == 0
    net, data = gn.load("zoo:mnist-0.3"), gn.data.load("mnist", SHARED)
    x, y = gn.data.to_unit(data.test_x[:1000]), data.test_y[:1000]
    single, real = net.certify(x, semantics="float32"), net.certify(x)
    for level in LEVELS:
        mine = Answer(session(file, level), x)
        assert torch.equal(mine.label, single.label)
        assert (mine.radius <= real.radius).all()
        assert not (mine.certified & ~real.certified).any()
        assert int((single.certified & ~mine.certified).sum()) <= 5
        assert float((mine.prediction == y).float().mean()) > 0.95
    about = session(file).get_modelmeta().custom_metadata_map
    assert json.loads(about["gloronet.classes"]) == list("0123456789")


def test_what_a_split_sum_loses_is_bounded_by_its_longest_part() -> None:
    """16 parts of 256: at most 257 + 15 roundings a number, where one sum has 4097."""
    dense = Dense((4096,), torch.randn(3, 4096, dtype=torch.float64), None, False)
    assert dense.arithmetic().terms == 4097
    assert roundings(dense) == 256 + 1 + 15


@pytest.mark.parametrize("name", ["x + W x, convolution", "sum of branches", "scaled", "head alone"])
def test_the_constants_are_on_the_safe_side(name: str) -> None:
    """Twice what `certify` takes off at the sample, from above but not by far; what may be reached, from below."""
    net = made(name)
    proof, x = net._proof(), torch.rand(16, *net.input_shape)
    single, double = proof.error(U32), proof.error(U64)
    constants = safe_constants(proof.program, proof.bound, single, double)
    values = {INPUT: x.double()}
    for op, operator in zip(proof.program.ops, proof.program.operators, strict=True):
        values[op.output] = operator(*(values[name] for name in op.inputs))
    sizes = torch.stack([values[name].flatten(1).norm(dim=1) for name in constants.values], 1)
    told = sizes @ constants.told_by + constants.told_least
    label = values[proof.program.ops[-1].output].argmax(1)
    assert (told[:, -1] == 1).all()
    lost = (told[:, None] @ constants.stated[label])[:, 0]
    delta, _ = proof.float32(x, close=False).rows(label)
    rival = torch.arange(net.classes) != label[:, None]
    assert (lost > 2 * delta)[rival].all()
    assert (lost < 2.2 * delta + 1e-30)[rival].all()
    apart = ~torch.eye(net.classes, dtype=torch.bool)
    assert (constants.steep > proof.bound.margins + single.slope)[apart].all()
    reach = proof.reach(U32, norms_up(x.flatten(1)))
    assert (-lost[~rival] < reach).all()
    assert (-lost[~rival] > 0.99 * reach).all()
