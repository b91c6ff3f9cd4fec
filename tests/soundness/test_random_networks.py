"""Random networks of every operation that has a rule: no point, pair, gradient or attack contradicts a
bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.laws import NOISE, check_attack, check_bottom
from tests.soundness.networks import PIECES, network
from torch import Tensor

import gloronet as gn
from gloronet.operators.base import Operator

STATED = ("dense", "conv1d", "conv2d", "avgpool", "scale", "translate", "sum", "leakyrelu", "householder")
"""What computes in float32 with a stated error; all other pieces select, or are elementary functions."""
KINDS = (("l2", "margin"), ("l2", "simple"), ("l2", "lmt"), ("linf", "margin"), ("linf", "simple"))
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("rule", PIECES)
@FEW
@given(data=st.data())
def test_nothing_contradicts_the_bound(rule: str, data: st.DataObject) -> None:
    module, shape = network(data.draw, rule)
    norm, form = data.draw(st.sampled_from(KINDS))
    net = gn.GloRoNet(module, 0.05, shape, form, norm).eval()
    assert rule in {op.kind.rule for op in net.program().ops}
    x = torch.randn(8, *shape, dtype=torch.float64)
    check_program(net, x)
    check_slopes(net, x)
    check_climb(net, x)
    check_bottom(net, x)
    check_attack(net, x, net.certify(x), steps=10)


@pytest.mark.parametrize("rule", STATED)
@settings(FEW, max_examples=2)
@given(data=st.data())
def test_the_float32_network_keeps_its_label_within_the_float32_radius(
    rule: str, data: st.DataObject
) -> None:
    module, shape = network(data.draw, rule)
    net = gn.GloRoNet(module.float(), 0.05, shape).eval()
    x = torch.randn(8, *shape)
    check_bottom(net, x)
    if net.speaks_of("float32"):
        for per_sample in (False, True):
            check_attack(net, x, net.certify(x, semantics="float32", per_sample=per_sample), steps=10)


def test_every_rule_is_drawn() -> None:
    """All operators there are, but for what is made of others (a chain) and what only a user can add."""
    known = {kind.rule for kind in kinds(Operator) if hasattr(kind, "rule")}
    assert known - {"chain", "user rule"} == set(PIECES)


def kinds(base: type[Operator]) -> list[type[Operator]]:
    own = [base] if base.__module__.startswith("gloronet.") else []
    return [*own, *(kind for direct in base.__subclasses__() for kind in kinds(direct))]


def check_program(net: gn.GloRoNet, x: Tensor) -> None:
    """The Program is the module, and every estimate is at most the bound."""
    with torch.no_grad():
        mine, its = net.program().freeze()(x), net.logits(x)
        estimate = net.lipschitz_estimate(30)
    assert torch.allclose(mine, its, 1e-9, 1e-8)
    proved = net.bound()
    if net.norm == "l2" or not proved.chains:  # in ℓ∞ the estimate of a chain is the product of its row sums
        assert (estimate <= proved.margins * (1.0 + NOISE)).all()


def check_slopes(net: gn.GloRoNet, x: Tensor) -> None:
    """At every point the module's own Jacobian has a norm of at most K, and its margins of at most K_ij."""
    features, head = net.module
    proved = net.bound()
    j = torch.autograd.functional.jacobian(lambda z: features(z).sum(0), x)  # (features, batch, *shape)
    j = j.flatten(2).transpose(0, 1)
    steepest = torch.linalg.matrix_norm(j, 2) if net.norm == "l2" else j.abs().sum(2).amax(1)
    assert (steepest <= proved.constant * (1.0 + NOISE)).all()
    rows = head.weight.detach() @ j
    slopes = torch.linalg.vector_norm(rows[:, :, None] - rows[:, None], 2 if net.norm == "l2" else 1, dim=3)
    assert (slopes <= proved.margins * (1.0 + NOISE)).all()


def check_climb(net: gn.GloRoNet, x: Tensor) -> None:
    """Pairs that climb ‖f(a) − f(b)‖/‖a − b‖ and |Δ(y_j − y_i)|/‖a − b‖ by their gradients stay below the
    bounds."""
    order = 2 if net.norm == "l2" else float("inf")
    features, head = net.module
    proved = net.bound()
    pair = torch.stack([x, x + 0.1 * torch.randn_like(x)]).requires_grad_()
    climber = torch.optim.Adam([pair], lr=0.05)
    for _ in range(20):
        z = features(pair.flatten(0, 1)).reshape(2, len(x), -1)
        gap = torch.linalg.vector_norm((pair[0] - pair[1]).flatten(1), order, dim=1).clamp_min(1e-3)
        ratio = torch.linalg.vector_norm(z[0] - z[1], order, dim=1) / gap
        y = head(z[0]) - head(z[1])
        margins = (y[:, :, None] - y[:, None]).abs() / gap[:, None, None]
        assert (ratio <= proved.constant * (1.0 + 1e-9)).all()
        assert (margins <= proved.margins * (1.0 + 1e-9)).all()
        climber.zero_grad()
        (-(ratio + margins.amax((1, 2))).sum()).backward()
        climber.step()
