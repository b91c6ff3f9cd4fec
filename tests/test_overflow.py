"""An infinity that a ReLU hides: finite logits that are wrong must not be certified.

In whatever order the products are summed, with fused multiply-add or without: the negative one overflows beside any
single positive one, and two positive ones overflow by themselves. Kernels differ in that order from machine to machine.
"""

from __future__ import annotations

import torch
from torch import nn

import gloronet as gn


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
