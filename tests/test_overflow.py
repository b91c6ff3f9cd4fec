"""An infinity that a ReLU hides: finite logits that are wrong must not be certified.

In whatever order the products are summed, with fused multiply-add or without: the negative one overflows beside any
single positive one, and two positive ones overflow by themselves. Kernels differ in that order from machine to machine.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

import gloronet as gn
from gloronet.proof import write


def hidden(weight: list[float], tail: float, dtype: torch.dtype) -> gn.GloRoNet:
    first, last = nn.Linear(len(weight), 1, dtype=dtype), nn.Linear(1, 2, dtype=dtype)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([weight], dtype=torch.float64))
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[0.0], [tail]]))
        last.bias.copy_(torch.tensor([100.0, 0.0]))
    return gn.GloRoNet(nn.Sequential(first, nn.ReLU(), last), 1e-9, (len(weight),)).eval()


def test_float32_overflow_behind_a_relu_is_bottom() -> None:
    net = hidden([-2e38, 3e38, 3e38, 3e38], 1e-35, torch.float32)
    x = torch.tensor([[4.0, 1.0, 1.0, 1.0]]).repeat(3, 1)
    assert (net.certify(x).label == 1).all()
    assert (net(x).argmax(1) == 2).all()
    assert not net.certify(x, semantics="float32").certified.any()


def test_float64_overflow_behind_a_relu_is_not_certified() -> None:
    net = hidden([-1e308] + [1.5e308] * 6, 1e-304, torch.float64)
    x = torch.tensor([[8.0] + [1.0] * 6], dtype=torch.float64).repeat(3, 1)
    assert not net.certify(x).certified.any()
    assert (net(x).argmax(1) == 2).all()


def behind_a_relu(first: nn.Module, shape: tuple[int, ...], weight: float, dtype: torch.dtype) -> gn.GloRoNet:
    """ReLU(weight·first(x) + 5) against 1, where the weight is negative: an infinity in `first` makes it 0."""
    middle, last = nn.Linear(1, 1, dtype=dtype), nn.Linear(1, 2, dtype=dtype)
    with torch.no_grad():
        middle.weight.fill_(weight)
        middle.bias.fill_(5.0)
        last.weight.copy_(torch.tensor([[1.0], [0.0]]))
        last.bias.copy_(torch.tensor([0.0, 1.0]))
    module = nn.Sequential(first, nn.Flatten(), middle, nn.ReLU(), last)
    return gn.GloRoNet(module, 0.1, shape).eval()


def test_the_sum_of_a_mean_may_overflow_where_the_mean_does_not(tmp_path: Path) -> None:
    net = behind_a_relu(nn.AvgPool2d(4), (1, 4, 4), -5e-38, torch.float32)
    x, far = torch.full((2, 1, 4, 4), 2.0e37), torch.full((2, 1, 4, 4), 2.2e37)
    assert not torch.equal(net.logits(x).argmax(1), net.logits(far).argmax(1))  # 16 of them overflow
    assert float(net.certify(x, semantics="float32").radius.max()) < float((far - x)[0].norm())
    beyond = torch.full((2, 1, 4, 4), 4e37)
    assert not net.certify(beyond, semantics="float32").certified.any()
    assert (net(beyond).argmax(1) == 2).all()
    proof = write(net, beyond, None, tmp_path, semantics="float32")
    assert not any(json.loads(proof.proof.read_text())["content"]["certificates"]["certified"])


def test_the_sum_of_a_mean_may_overflow_in_float64() -> None:
    net = behind_a_relu(nn.AvgPool2d(4), (1, 4, 4), -1e-307, torch.float64)
    x = torch.full((2, 1, 4, 4), 2.2e307, dtype=torch.float64)  # exactly, the logits are 2.8 and 1
    assert (net.logits(x).argmax(1) == 1).all()
    assert not net.certify(x).certified.any()


def test_a_softplus_of_great_beta_may_overflow() -> None:
    net = behind_a_relu(nn.Softplus(beta=1e10), (1,), -1e-300, torch.float64)
    x = torch.full((2, 1), 1e300, dtype=torch.float64)
    assert (net.logits(x).argmax(1) == 0).all()  # torch takes x itself there: 4 and 1
    c = net.certify(x)
    assert not (c.certified & (c.label != 0)).any()
