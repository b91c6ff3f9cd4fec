"""Constants from below: between them and the bound lies the truth."""

from __future__ import annotations

import torch
from torch import nn

import gloronet as gn
from gloronet.lower import lower_margins, vra_at


def test_a_linear_net_is_found_exactly() -> None:
    torch.manual_seed(0)
    net = gn.GloRoNet(nn.Linear(6, 3), 0.1, (6,)).eval()
    found = lower_margins(net, torch.rand(50, 6), steps=300)
    proved = net.bound().margins
    assert (found <= proved).all()
    assert (found >= 0.999 * proved).all()


def test_the_search_never_passes_the_bound_and_climbs() -> None:
    torch.manual_seed(1)
    net = gn.GloRoNet(nn.Sequential(nn.Linear(4, 16), gn.MinMax(), nn.Linear(16, 3)), 0.1, (4,)).eval()
    starts = torch.rand(50, 4)
    few, many = (lower_margins(net, starts, steps=k) for k in (1, 200))
    proved = net.bound().margins
    assert (few <= many).all()
    assert (many <= proved).all()
    assert (many.diagonal() == 0).all()
    assert torch.equal(many, many.T)


def test_vra_grows_as_constants_shrink() -> None:
    logits, labels = torch.randn(100, 4).double(), torch.randint(4, (100,))
    ones = 1.0 - torch.eye(4, dtype=torch.float64)
    vras = [vra_at(logits, labels, k * ones, 1.0) for k in (4.0, 1.0, 0.25, 0.0)]
    assert vras == sorted(vras)
    assert vras[-1] == float((logits.argmax(1) == labels).double().mean())
