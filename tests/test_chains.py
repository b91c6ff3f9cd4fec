"""Linear operations in a row: bounded as one, estimated as one, never below the truth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import gloronet as gn
from gloronet.program.bound import as_one
from gloronet.program.chains import groups


def norm_of(net: gn.GloRoNet, first: int, last: int) -> float:
    """The float64 spectral norm of operations first … last, by a dense SVD."""
    program = net.program().freeze()
    chain = as_one(program.ops, program.operators, range(first, last + 1))
    n = math.prod(chain.input_shape)
    columns = chain.apply(torch.eye(n, dtype=torch.float64).reshape(n, *chain.input_shape))
    return float(torch.linalg.matrix_norm(columns.flatten(1), 2))


def randomised(module: nn.Module) -> nn.Module:
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.1, 3.0)
            for p in m.parameters():
                p.data.normal_()
    return module


def nets() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    image, tail = (2, 6, 6), [nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)]
    found = {
        "conv, BatchNorm": nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), *tail),
        "grouped conv, BatchNorm": nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), *tail),
        "conv, average pooling": nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.AvgPool2d(2), *tail),
        "standardise, conv": nn.Sequential(
            gn.Standardize([0.4, 0.5], [0.1, 0.7]), nn.Conv2d(2, 4, 3, padding=1), *tail
        ),
        "conv, conv": nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 4, 3, padding=1, stride=2), *tail),
        "residual, BatchNorm": nn.Sequential(
            gn.Residual(nn.Conv2d(2, 2, 3, padding=1)), nn.BatchNorm2d(2), nn.AvgPool2d(3, 1, 1), *tail
        ),
        "dense, dense, BatchNorm": nn.Sequential(
            nn.Flatten(), nn.Linear(72, 20), nn.Linear(20, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 3)
        ),
    }
    return {name: (net, image) for name, net in found.items()}


@pytest.mark.parametrize("name", nets())
@pytest.mark.parametrize("seed", range(3))
def test_a_chain_is_bounded_as_one(name: str, seed: int) -> None:
    torch.manual_seed(seed)
    module, shape = nets()[name]
    module.eval()(torch.zeros(2, *shape))
    net = gn.GloRoNet(randomised(module), 0.1, shape).eval()
    proved = net.bound()
    (chain,) = proved.chains
    truth = norm_of(net, chain.first, chain.last)
    apart = math.prod(layer.value for layer in proved.layers[chain.first : chain.last + 1])
    assert truth <= chain.value <= truth * (1 + 1e-6)
    assert chain.value < apart
    assert proved.constant <= chain.value * math.prod(
        layer.value for k, layer in enumerate(proved.layers[:-1]) if not chain.first <= k <= chain.last
    ) * (1 + 1e-12)
    estimate = net.double().lipschitz_estimate(3000)
    assert (estimate <= proved.margins * (1 + 1e-12)).all()
    assert (estimate >= proved.margins * (1 - 1e-3)).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.sampled_from([1e-150, 1e-6, 1.0, 1e6, 1e150]))
def test_a_dense_chain_at_any_scale(seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        module[0].weight.mul_(scale)
        module[1].weight.mul_(1 / scale)
    net = gn.GloRoNet(module, 0.1, (5,)).eval()
    for chain in net.bound().chains:
        truth = float(torch.linalg.matrix_norm((module[1].weight @ module[0].weight).detach(), 2))
        assert chain.value >= truth * (1 - 1e-12)


def test_a_branch_inside_ends_a_chain() -> None:
    """A value that two operations read is not inside a chain: its constant is needed on its own."""

    class Fork(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.a(x)
            return self.c(torch.relu(self.b(h)) + h)

    net = gn.GloRoNet(Fork(), 0.1, (6,)).eval()
    program = net.program().freeze()
    assert all(len(group) == 1 for group in groups(program.ops, program.operators))
    assert not net.bound().chains


def test_explain_says_what_a_chain_saves() -> None:
    torch.manual_seed(0)
    module = randomised(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)))
    assert "as one operator" in gn.GloRoNet(module, 0.1, (8,)).eval().explain()


def test_training_a_net_with_chains_keeps_one_iterate_a_chain() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    net = gn.GloRoNet(module, 0.1, (8,)).train()
    assert len([name for name, _ in net.named_buffers(recurse=False)]) == 1
    loss = net(torch.rand(32, 8)).logsumexp(1).sum()
    loss.backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in net.parameters())
