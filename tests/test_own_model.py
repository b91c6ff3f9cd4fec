"""Bring your own model and loop: compiled nets certify what they did before. The guide itself: tests/test_docs.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.laws import check_net
from tests.pages import COMPILING
from torch import nn
from torch.nn import functional as F

import gloronet as gn
from gloronet.errors import ConfigError, UnsupportedOperation

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

class Mine(nn.Module):
    """A user's: BatchNorm, a residual sum, functional calls, a layer used twice, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.block = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        for _ in range(2):
            x = x + F.relu(self.block(x))
        return self.head(self.drop(x))


def own(seed: int = 0) -> gn.GloRoNet:
    torch.manual_seed(seed)
    return gn.GloRoNet(Mine(), epsilon=0.05, input_shape=(2, 3))


def batch(n: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, 2, 3, generator=generator)
    return x, (3 * x[:, 0, 0]).long().clamp(max=2)


def step(net: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    x, y = batch()
    loss = F.cross_entropy(net(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_wrapped_model_of_ones_own_obeys_every_law_before_and_after_training() -> None:
    net = own()
    check_net(net, batch()[0])
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    net.train()
    losses = [step(net, optimizer) for _ in range(60)]
    assert losses[-1] < 0.8 * losses[0]
    c = check_net(net, batch()[0])
    assert c.certified.any()


def test_the_plain_loop_lowers_the_loss_that_is_ours() -> None:
    """F.cross_entropy(net(x), y) is gn.losses.ce of the logits and the estimate, gradients and all."""
    x, y = batch()
    results = []
    for ours in (False, True):
        net = own().train()
        net.module.drop.p = 0.0
        parts = (net.logits(x), net.lipschitz_estimate(), y, net.epsilon) if ours else ()
        loss = gn.losses.ce(*parts) if ours else F.cross_entropy(net(x), y)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in net.parameters())])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


class Gated(Mine):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x.flatten(1))
        return self.head(F.silu(x))


def test_an_unsupported_operation_is_refused_where_it_stands() -> None:
    class Swish(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.silu(x)

    named = nn.Sequential(Mine().stem, nn.Sequential(Swish()), nn.Linear(8, 3))
    with pytest.raises(UnsupportedOperation, match=r"Swish at 1\.0\. Register one with @gn\.rule\(Swish\)"):
        gn.GloRoNet(named, 0.05, (6,))
    with pytest.raises(UnsupportedOperation, match=r"silu at the top of the network\. Put it into a module"):
        gn.GloRoNet(Gated(), 0.05, (2, 3))


# --- torch.compile ---


def compiled(how: str, net: gn.GloRoNet, backend: Any) -> Any:
    if how == "torch.compile(net)":
        return torch.compile(net, backend=backend)
    (net.module if how == "net.module.compile()" else net).compile(backend=backend)
    return net


def certified_alike(a: Any, b: Any, x: torch.Tensor) -> None:
    """Bit for bit: what net(x) answers in eval(), the certificates and the bound."""
    a.eval(), b.eval()
    with torch.no_grad():
        assert torch.equal(a(x), b(x))
    for semantics in ("real", "float32"):
        one, other = a.certify(x, semantics=semantics), b.certify(x, semantics=semantics)
        assert torch.equal(one.radius, other.radius)
        assert torch.equal(one.margin, other.margin)
    assert torch.equal(a.bound().margins, b.bound().margins)
    assert a.bound().digest == b.bound().digest


HOW = ("net.compile()", "net.module.compile()", "torch.compile(net)")


@COMPILING
@pytest.mark.parametrize(("how", "backend"), [*((how, "aot_eager") for how in HOW), (HOW[0], "inductor")])
def test_a_compiled_net_trains_as_a_plain_one_and_certifies_the_very_same(how: str, backend: str) -> None:
    if backend == "inductor" and not shutil.which("g++"):
        pytest.skip("torch compiles for a CPU with g++, and there is none")
    losses = []
    for compiling in (False, True):
        net = own()
        net.module.drop.p = 0.0  # a compiler draws other random numbers
        model = compiled(how, net, backend) if compiling else net
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        losses.append([step(model, optimizer) for _ in range(6)])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=0)
    assert losses[0][-1] < losses[0][0]

    twin = own()
    twin.load_state_dict(net.state_dict())
    certified_alike(model, twin, batch()[0])


def test_compiling_is_no_reason_to_trace_again() -> None:
    net = own()
    program = net.program()
    net.module.compile(backend="aot_eager")
    assert net.program() is program


def liar(graph: torch.fx.GraphModule, inputs: Any) -> Any:
    """A compiler that gets every sum wrong."""

    def run(*arguments: Any) -> Any:
        return tuple(t + 1.0 if t.is_floating_point() else t for t in graph(*arguments))

    return run


@COMPILING
@pytest.mark.parametrize("how", HOW)
def test_no_compiler_has_a_say_in_what_is_certified(how: str) -> None:
    x = batch()[0]
    net, twin = own().eval(), own().eval()
    model = compiled(how, net, liar)
    certified_alike(model, twin, x)
    if how == "net.module.compile()":
        assert not torch.allclose(net.logits(x), twin.logits(x))  # the compiler is at work where it may be
    radius = torch.compile(lambda x: net.certify(x).radius, backend=liar)
    assert torch.equal(radius(x), twin.certify(x).radius)
    certified_alike(model, twin, x)


@COMPILING
def test_compiled_first_and_wrapped_then_is_refused_and_a_compiled_part_is_not() -> None:
    with pytest.raises(UnsupportedOperation, match=r"torch.compile's wrapper of Mine\. .* net\.module\.compile\(\)"):
        gn.GloRoNet(torch.compile(Mine(), backend="aot_eager"), 0.05, (2, 3))
    parts = [Mine().eval().stem, nn.Linear(8, 3)]
    whole = gn.GloRoNet(nn.Sequential(*parts), 0.05, (6,))
    mixed = gn.GloRoNet(nn.Sequential(torch.compile(parts[0], backend=liar), parts[1]), 0.05, (6,))
    x = batch()[0].flatten(1)
    whole.eval(), mixed.eval()
    assert torch.equal(mixed(x), whole(x))
    assert torch.equal(mixed.certify(x).radius, whole.certify(x).radius)


# --- saving ---


@COMPILING
def test_a_net_of_ones_own_comes_back_bit_for_bit_compiled_or_not(tmp_path: Path) -> None:
    net = own()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    net.train()
    step(net, optimizer)
    net.compile(backend="aot_eager")
    net.module.compile(backend="aot_eager")
    gn.save(net, tmp_path / "run")
    loaded = gn.load(tmp_path / "run", model=Mine())
    assert not loaded.training
    assert loaded.state_dict().keys() == own().state_dict().keys()
    certified_alike(loaded, net, batch()[0])
    loaded.train()
    net.train()
    loaded.module.drop.p = net.module.drop.p = 0.0
    assert torch.equal(loaded.lipschitz_estimate(), net.lipschitz_estimate())


def test_what_is_not_the_net_itself_is_not_saved_and_another_class_not_filled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="save takes the GloRoNet itself, not OptimizedModule"):
        gn.save(torch.compile(own(), backend="aot_eager"), tmp_path)
    with pytest.raises(ConfigError, match="save takes the GloRoNet itself, not Mine"):
        gn.save(Mine(), tmp_path)
    assert not list(tmp_path.iterdir())
    gn.save(own(), tmp_path)
    with pytest.raises(ConfigError, match="belongs to another network"):
        gn.load(tmp_path, model=nn.Sequential(nn.Flatten(), nn.Linear(6, 3)))
