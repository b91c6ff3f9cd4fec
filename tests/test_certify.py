"""Whole sets: tables and their audit, and trained nets that no attack breaks inside a certified radius."""

import csv
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.laws import check_attack, check_bottom, check_jacobians
from torch import nn

import gloronet as gn
from gloronet import data, models
from gloronet.certify import COLUMNS, Table, certify_set, disjoint_balls, gallery, regions
from gloronet.config import TrainConfig
from gloronet.net import BOTTOM, GloRoNet

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def table(answer, radius, label=None, epsilon=0.1) -> Table:
    answer, radius = np.array(answer), np.array(radius, dtype=np.float64)
    return Table(np.array(answer if label is None else label), answer, radius, radius, epsilon, "real")


# --- tables ---


def test_a_table_counts_right_and_certified():
    t = table([0, 1, 1, 0], [0.3, 0.05, 0.2, 0.1], label=[0, 1, 0, 0])
    assert t.certified.tolist() == [True, False, True, False]  # 0.1 is not above ε = 0.1
    assert (t.clean, t.vra) == (0.75, 0.25)
    assert t.mean_radius == pytest.approx((0.3 + 0.05 + 0.0 + 0.1) / 4)


def test_a_table_is_written_whole_and_reads_back_exactly(tmp_path):
    t = table([0, 1, 2], [1 / 3, math.inf, 0.0], label=[0, 0, 2])
    path = tmp_path / "certificates.csv"
    path.write_text("old")
    t.write(path)
    with path.open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert tuple(rows[0]) == COLUMNS
    assert [float(r["radius"]) for r in rows] == t.radius.tolist()
    assert [int(r["prediction"]) for r in rows] == [0, 1, BOTTOM]
    assert [int(r["certified"]) for r in rows] == [1, 1, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["certificates.csv"]


def test_certifying_a_set_is_certifying_its_batches():
    torch.manual_seed(0)
    net = GloRoNet(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), 0.1, (1, 2, 2)).eval()
    images = torch.randint(0, 256, (25, 1, 2, 2), dtype=torch.uint8)
    done = []
    t = certify_set(net, images, torch.zeros(25), "1/5", batch_size=10, progress=done.append)
    whole = net.certify(images.float() / 255)
    assert done == [10, 10, 5]
    assert t.epsilon == 0.2
    assert np.array_equal(t.answer, whole.label.numpy())
    assert np.allclose(t.radius, whole.radius.numpy(), rtol=1e-12)


def test_the_gallery_shows_extremes_abstentions_and_mistakes():
    radius = np.linspace(0, 1, 100)
    t = table(np.zeros(100, int), radius, label=np.arange(100) % 7 == 3, epsilon=0.5)
    shown = gallery(t, torch.arange(100)[:, None], each=3)
    assert {0, 1, 2, 49, 50, 97, 98, 99, 94} <= set(shown["index"].tolist())  # 94 is the widest mistake
    assert np.array_equal(shown["images"][:, 0], shown["index"])


def test_the_audit_finds_balls_that_meet():
    x = torch.tensor([[0.0, 0.0], [0.6, 0.8], [0.0, 0.1]])
    assert disjoint_balls(table([0, 1, 0], [0.4, 0.5, 9.0]), x) < 0  # the third reaches the second
    assert disjoint_balls(table([0, 1, 0], [0.4, 0.5, 0.0]), x) == pytest.approx(0.1)
    assert disjoint_balls(table([0, 1, 1], [0.4, math.inf, 0.0]), x) == -math.inf
    assert disjoint_balls(table([0, 0, 0], [4.0, 5.0, 6.0]), x) == math.inf
    assert disjoint_balls(table([0, 1, 2], [0.0, 0.0, 0.0]), x) == math.inf


def test_the_audit_raises_no_false_alarm_between_close_points():
    """A fast distance goes through squares: at 1e-7 it would be off by a third."""
    module = nn.Linear(64, 2).double()
    with torch.no_grad():
        module.weight.zero_(), module.bias.copy_(torch.tensor([-0.5, 0.5]))
        module.weight[0, 0], module.weight[1, 0] = 1.0, -1.0
    net = GloRoNet(module, 0.0, (64,))
    for seed in range(10):
        x = torch.rand(60, 64, generator=torch.Generator().manual_seed(seed))
        x[1] = x[0]
        x[0, 0], x[1, 0] = 0.5 + 6e-8, 0.5 - 3e-8
        t = certify_set(net, x, torch.zeros(60))
        assert t.radius[0] > 0
        assert t.radius[1] > 0
        assert disjoint_balls(t, x, block=7) >= 0


# --- trained nets ---


@pytest.fixture(scope="module")
def moons() -> GloRoNet:
    torch.manual_seed(0)
    net = GloRoNet(models.build("d(32).d(32).d(2)", (2,), 2), 0.05, (2,))
    gn.fit(
        net,
        data.load("moons"),
        TrainConfig(epochs=60, batch_size=50, lr=2e-2, power_iterations=2),
        device="cpu",
    )
    return net


def test_theorem_2_a_net_certified_at_half_epsilon_is_globally_robust(moons):
    """On a grid of the plane no two points within ε get two different answers that are not ⊥."""
    epsilon, side = moons.epsilon, 101
    axis = torch.linspace(0, 1, side)
    grid = torch.cartesian_prod(axis, axis)
    prediction = moons.certify(grid, epsilon=epsilon / 2).prediction.reshape(side, side)
    assert {BOTTOM, 0, 1} == set(prediction.unique().tolist())
    reach = int(epsilon * (side - 1)) + 1
    pairs = 0
    for i in range(reach + 1):
        for j in range(-reach, reach + 1):
            if math.hypot(i, j) / (side - 1) > epsilon * (1 - 1e-6) or (i, j) <= (0, 0):
                continue  # too far apart, but for what the grid's float32 may hide; or counted already
            here, there = slice(max(0, -j), side - max(0, j)), slice(max(0, j), side + min(0, j))
            a, b = prediction[: side - i, here], prediction[i:, there]
            told = (a != BOTTOM) & (b != BOTTOM)
            assert (a == b)[told].all()
            pairs += int(told.sum())
    assert pairs > 100_000


def test_moons_are_certified_attacked_in_vain_and_drawn(moons):
    d = data.load("moons")
    t = certify_set(moons, d.test_x, d.test_y)
    assert t.clean > 0.97
    assert t.vra > 0.9
    assert disjoint_balls(t, d.test_x) >= 0
    check_attack(moons, d.test_x, moons.certify(d.test_x))
    picture = regions(moons, d.test_x, d.test_y, side=20)
    assert picture["prediction"].shape == (20, 20)
    corner = moons.certify(torch.tensor([[1.0, 0.0]])).prediction
    assert picture["prediction"][0, -1] == int(corner)  # rows are the second coordinate


def test_digits_no_attack_succeeds_inside_a_certified_radius():
    torch.manual_seed(0)
    d = data.load("digits")
    net = GloRoNet(models.build("c(8,3,1).c(16,3,2).d(32).d(10)", (1, 8, 8), 10), 0.3, (1, 8, 8))
    gn.fit(net, d, TrainConfig(epochs=12, batch_size=128, lr=5e-3, power_iterations=2), device="cpu")
    t = certify_set(net, d.test_x, d.test_y)
    assert t.clean > 0.9
    assert t.vra > 0.5
    assert disjoint_balls(t, d.test_x) >= 0
    check_attack(net, d.test_x, net.certify(d.test_x))
    check_jacobians(net, d.test_x[:20])
    check_bottom(net, d.test_x)
    # The attack is a real one: not far outside the certified radii it does succeed.
    far = torch.from_numpy(t.radius).clamp(min=0.1) * 6
    assert (
        gn.attacks.pgd(net.logits, d.test_x, d.test_y, far, steps=20, restarts=1).success.float().mean() > 0.5
    )


def test_mnist_no_attack_succeeds_inside_a_certified_radius(tmp_path):
    if not (SHARED / "unpack.py").exists():
        pytest.skip("the real MNIST files are not beside this checkout (../shared/data)")
    subprocess.run([sys.executable, SHARED / "unpack.py", tmp_path, "mnist"], check=True, capture_output=True)
    full = data.load("mnist", tmp_path)
    d = data.Dataset(
        "mnist", full.train_x[:6000], full.train_y[:6000], full.test_x[:500], full.test_y[:500], full.classes
    )
    torch.manual_seed(0)
    net = GloRoNet(models.build("2C2F", (1, 28, 28), 10), 0.3, (1, 28, 28))
    gn.fit(net, d, TrainConfig(epochs=2, batch_size=128, lr=2e-3, power_iterations=2), device="cpu")
    t = certify_set(net, d.test_x, d.test_y)
    assert t.clean > 0.8
    assert t.vra > 0.3
    assert disjoint_balls(t, d.test_x) >= 0
    x = data.to_unit(d.test_x)
    check_attack(net, x, net.certify(x), steps=10, restarts=1)
    check_bottom(net, x)
