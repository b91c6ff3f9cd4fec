"""An infinity that a ReLU hides: finite logits that are wrong must not be certified."""

from __future__ import annotations

import torch
from torch import nn

import gloronet as gn


def hidden(n: int, weight: torch.Tensor, tail: float, dtype: torch.dtype) -> gn.GloRoNet:
    first, last = nn.Linear(n, 1, dtype=dtype), nn.Linear(1, 2, dtype=dtype)
    with torch.no_grad():
        first.weight.copy_(weight)
        first.bias.zero_()
        last.weight.copy_(torch.tensor([[0.0], [tail]]))
        last.bias.copy_(torch.tensor([100.0, 0.0]))
    return gn.GloRoNet(nn.Sequential(first, nn.ReLU(), last), 1e-9, (n,)).eval()


def test_float32_overflow_behind_a_relu_is_bottom() -> None:
    net = hidden(4, 2e38 * torch.tensor([[-1.0, -1.0, 1.0, 1.5]]), 1e-35, torch.float32)
    x = torch.ones(3, 4)
    assert (net.certify(x).label == 1).all()
    assert (net(x).argmax(1) == 2).all()
    assert not net.certify(x, semantics="float32").certified.any()


def test_float64_overflow_behind_a_relu_is_not_certified() -> None:
    weight = 1.5e307 * torch.tensor([[-1.0] * 40 + [1.0] * 60], dtype=torch.float64)
    net = hidden(100, weight, 1e-304, torch.float64)
    x = torch.ones(3, 100, dtype=torch.float64)
    assert not net.certify(x).certified.any()
    assert (net(x).argmax(1) == 2).all()
