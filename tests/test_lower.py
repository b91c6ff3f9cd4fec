"""Constants from below: between them and the bound lies the truth."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gloronet as gn
from gloronet.errors import ConfigError
from gloronet.lower import (
    FLOOR,
    Lower,
    global_lower,
    local_lower,
    lower_margins,
    vra_at,
    vra_estimate_to_tolerance,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_net(seed: int = 1, epsilon: float = 0.1) -> gn.GloRoNet:
    torch.manual_seed(seed)
    return gn.GloRoNet(nn.Sequential(nn.Linear(4, 16), gn.MinMax(), nn.Linear(16, 3)), epsilon, (4,)).eval()


def test_a_linear_net_is_found_exactly() -> None:
    torch.manual_seed(0)
    net = gn.GloRoNet(nn.Linear(6, 3), 0.1, (6,)).eval()
    found = lower_margins(net, torch.rand(50, 6), steps=300)
    proved = net.bound().margins
    assert (found <= proved).all()
    assert (found >= 0.999 * proved).all()


def test_the_search_never_passes_the_bound_and_climbs() -> None:
    net = small_net()
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


@pytest.mark.parametrize("seed", range(3))
def test_a_linear_net_of_two_classes_has_one_constant_everywhere(seed: int) -> None:
    """‖w₁ − w₀‖: the global constant, the local one, and what both searches find, never a digit above it."""
    torch.manual_seed(seed)
    net = gn.GloRoNet(nn.Linear(6, 2), 0.1, (6,)).eval()
    exact, points = float(net.bound().margins.max()), torch.rand(50, 6)
    for found in (
        global_lower(net, points, pairs=20, steps=2000, generator=seeded()),
        local_lower(net, points, centres=20, steps=2000, generator=seeded()),
    ):
        assert 0.9999 * exact <= found.value <= exact
        assert (found.quotients <= exact).all()


def test_the_largest_of_many_classes_is_found() -> None:
    torch.manual_seed(0)
    net = gn.GloRoNet(nn.Linear(6, 4), 0.1, (6,)).eval()
    points = 3 * torch.randn(50, 6)  # so wide that every class is the answer somewhere: j is one that was
    found = global_lower(net, points, steps=3000, generator=seeded())
    assert 0.9999 * net.bound().margins.max() <= found.value <= net.bound().margins.max()


@pytest.mark.parametrize("seed", range(3))
def test_lower_bounds_have_witnesses_and_stay_below_the_upper_one(seed: int) -> None:
    """The two points alone show the quotient, to whoever evaluates the net there himself."""
    net, points = small_net(seed), torch.rand(50, 4)
    upper = float(net.bound().margins.max())
    everywhere = global_lower(net, points, pairs=30, steps=200, generator=seeded())
    nearby = local_lower(net, points, centres=30, steps=200, generator=seeded())
    assert everywhere.value == float(everywhere.quotients.max()) <= upper
    assert nearby.value == pytest.approx(float(nearby.quotients.mean()))
    assert float(nearby.quotients.max()) <= upper
    program = net.program().freeze()
    for found in (everywhere, nearby):
        moved = program(found.points[0]) - program(found.points[1])
        distance = (found.points[0] - found.points[1]).norm(dim=1)
        spread = moved.amax(1) - moved.amin(1)  # of all pairs of classes
        assert (distance > 0).all()
        assert (found.quotients <= spread / distance).all()
    first = program(everywhere.points[0]).argmax(1)
    moved = program(everywhere.points[0]) - program(everywhere.points[1])
    gap = (moved.gather(1, first[:, None]) - moved).abs().amax(1)
    distance = (everywhere.points[0] - everywhere.points[1]).norm(dim=1)
    assert (distance >= FLOOR * (1 - 1e-9)).all()
    torch.testing.assert_close(everywhere.quotients, gap / distance, rtol=1e-7, atol=0)


@pytest.mark.parametrize("epsilon", [1e-5, 0.02, 3.0])
def test_local_points_never_leave_their_balls(epsilon: float) -> None:
    """Two points in one ball of radius ε are at most 2ε apart; with one possible centre, it is seen itself."""
    net, centre = small_net(), torch.rand(1, 4)
    found = local_lower(net, centre, epsilon, centres=5, steps=100, lr=epsilon, generator=seeded())
    away = (found.points - centre.double()).norm(dim=2)
    assert (away <= epsilon).all()
    assert (found.quotients > 0).all()
    assert (found.quotients <= net.bound().margins.max()).all()
    spread = torch.rand(40, 4)
    far = local_lower(net, spread, epsilon, centres=20, steps=5, lr=10 * epsilon, generator=seeded())
    assert ((far.points[0] - far.points[1]).norm(dim=1) <= 2 * epsilon).all()
    nearest = torch.cdist(far.points.flatten(0, 1), spread.double()).amin(1)
    assert (nearest <= epsilon).all()


def test_the_searches_climb_and_the_generator_decides_everything() -> None:
    net, points = small_net(), torch.rand(50, 4)

    def found(steps: int, seed: int = 0) -> tuple[Lower, Lower]:
        options = {"steps": steps, "generator": seeded(seed)}
        return global_lower(net, points, 10, **options), local_lower(net, points, None, 10, **options)

    for few, many in zip(found(1), found(100), strict=True):
        assert (few.quotients <= many.quotients).all()
        assert few.value < many.value
    for a, b in zip(found(10), found(10), strict=True):
        assert torch.equal(a.points, b.points)
    assert not torch.equal(found(10)[0].points, found(10, seed=1)[0].points)


def test_the_searches_count_their_steps_and_leave_the_net_alone() -> None:
    net, points = small_net(), torch.rand(50, 4)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    seen: list[int] = []
    global_lower(net, points, pairs=3, steps=7, progress=seen.append)
    local_lower(net, points, centres=3, steps=5, progress=seen.append)
    assert seen == [1] * 12
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    assert all(p.grad is None for p in net.parameters())


def test_a_ball_of_no_size_has_no_constant() -> None:
    with pytest.raises(ConfigError, match="radius above 0"):
        local_lower(small_net(), torch.rand(5, 4), 0.0)


def trained() -> tuple[gn.GloRoNet, gn.data.Dataset]:
    digits = gn.data.load("digits")
    torch.manual_seed(0)
    f = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), gn.MinMax(), nn.Linear(32, 10))
    net = gn.GloRoNet(f, 0.3, (1, 8, 8))
    gn.fit(net, digits, gn.TrainConfig(epochs=10, batch_size=128, lr=5e-3, lr_schedule="linear"))
    return net.eval(), digits


def test_the_papers_count_is_close_to_the_bounds_and_mutates_nothing() -> None:
    net, digits = trained()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    found = vra_estimate_to_tolerance(net, digits.test_x, digits.test_y)
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
    c, proved = net.certify(digits.test_x), net.bound().margins
    vra = float(((c.label == digits.test_y) & c.certified).double().mean())
    assert vra - 1e-9 <= found.vra <= vra + 0.02
    assert found.margins.dtype == torch.float32
    assert (found.margins <= proved * (1 + 1e-6)).all()
    assert (found.margins >= proved * 0.99).all()
    assert 1 < found.iterations < 10_000
    training = net.train()
    again = vra_estimate_to_tolerance(training, digits.test_x, digits.test_y)  # train() mutates nothing either
    assert (again.vra, again.iterations) == (found.vra, found.iterations)
    assert training.module.training
    assert vra_estimate_to_tolerance(net, digits.test_x, digits.test_y, epsilon=0.0).vra >= found.vra


def test_a_smaller_tolerance_takes_more_iterations_and_none_are_needed_where_nothing_iterates() -> None:
    net = small_net()
    coarse, fine = net.settled_estimate(1e-2), net.settled_estimate(1e-6)
    assert coarse[1] < fine[1]
    assert (coarse[0] <= fine[0] * (1 + 1e-6)).all()
    assert net.settled_estimate(0.0, most=4)[1] <= 4
    linear = gn.GloRoNet(nn.Linear(6, 3), 0.1, (6,)).eval()
    assert linear.settled_estimate()[1] == 0
    rows = gn.GloRoNet(small_net().module, 0.1, (4,), norm="linf").eval()
    assert rows.settled_estimate()[1] == 0
