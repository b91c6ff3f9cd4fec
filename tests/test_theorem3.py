"""The paper's Theorem 3 on toy sets, and the page docs/theorem3.md."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from docs import theorem3
from docs.theorem3 import Construction
from tests.pages import png_size

from gloronet import margins

DOCS = Path(__file__).parent.parent / "docs"
SETS = {"two": theorem3.two_classes(), "four": theorem3.four_classes()}
ROUNDING = 1e-9


@pytest.fixture(params=SETS)
def c(request: pytest.FixtureRequest) -> Construction:
    return SETS[request.param]


def anywhere(n: int, seed: int = 0) -> theorem3.Array:
    return np.random.default_rng(seed).uniform(-0.5, 1.5, (n, 2))


# The distance


def test_two_points_are_parted_by_their_bisector() -> None:
    c = Construction(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([0, 1]), 0.5)
    x = np.array([[0.0, 0.0], [2.0, 7.0], [1.25, -1e6]])
    assert c.g(x) == pytest.approx([-2.0, 2.0, 0.5])  # 1, 1 and 1/4 from the line x = 1, in units of 1/2
    assert c.foot(x) == pytest.approx(np.array([[1.0, 0.0], [1.0, 7.0], [1.0, -1e6]]))


def test_the_boundary_of_four_points_in_a_square_is_a_cross_where_labels_differ() -> None:
    corners = np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
    x = anywhere(200) * 4
    chequered = Construction(corners, np.array([0, 1, 0, 1]), 1.0)
    assert chequered.distance(x) == pytest.approx(np.abs(x).min(1))
    halves = Construction(corners, np.array([0, 1, 1, 0]), 1.0)
    assert halves.distance(x) == pytest.approx(np.abs(x[:, 0]))


def test_collinear_points_and_twins_of_one_label() -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    c = Construction(points, np.array([0, 1, 1, 0]), 1.0)
    assert c.distance(np.array([[0.5, 3.0], [1.0, 1.0], [5.0, 5.0]])) == pytest.approx([0.0, 0.5, 3.0])


def test_a_point_with_two_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="two labels"):
        Construction(np.zeros((2, 2)), np.array([0, 1]), 1.0).distance(np.zeros((1, 2)))


def test_the_boundary_is_where_the_nearest_label_changes(c: Construction) -> None:
    """From both sides: the label holds all the way to the foot, and another one answers just beyond it."""
    x = anywhere(500)
    towards = c.foot(x) - x
    for share in (0.2, 0.9, 0.999):
        assert (c.label(x + share * towards) == c.label(x)).all()
    unit = towards / np.hypot(*towards.T)[:, None]
    beyond = x + towards + 1e-7 * unit
    assert (c.label(beyond) != c.label(x)).mean() > 0.98  # at a corner of B the way may lead out along it
    turn = 2 * np.pi * np.arange(16) / 16
    around = x[:, None] + 0.999 * c.distance(x)[:, None, None] * np.stack([np.cos(turn), np.sin(turn)], 1)
    assert (c.label(around.reshape(-1, 2)).reshape(-1, 16) == c.label(x)[:, None]).all()


# The theorem


def test_it_is_right_on_s_and_certifies_all_of_s_with_one_constant(c: Construction) -> None:
    assert theorem3.separation(c.points, c.labels) > 2 * c.epsilon
    y = c.logits(c.points)
    assert (y.argmax(1) == c.labels).all()
    assert (y.max(1) > c.epsilon * c.constant).all()
    assert (c.radius(c.points) > c.epsilon).all()


def test_two_classes_signed() -> None:
    c = SETS["two"]
    g = c.g(c.points)
    assert ((g > 0) == (c.labels == 1)).all()
    assert (np.abs(g) > c.epsilon * c.constant).all()
    x = anywhere(1000)
    y = c.logits(x)
    assert c.g(x) == pytest.approx(y[:, 1] - y[:, 0])


def test_the_global_constant_holds_and_is_attained_for_every_pair_of_classes(c: Construction) -> None:
    for seed in range(3):
        tries = theorem3.pairs(c, 2000, np.random.default_rng(seed))
        found = theorem3.steepest(theorem3.differences(c), tries)
        classes = c.labels.max() + 1
        assert found.shape == (classes * (classes - 1) // 2,)
        assert (found <= (1 + ROUNDING) * c.constant).all()
        assert (found >= 0.999 * c.constant).all()


def test_pairs_cross_the_boundary() -> None:
    tries = list(theorem3.pairs(SETS["four"], 500, np.random.default_rng(0)))
    crossing = [(SETS["four"].label(x) != SETS["four"].label(z)).mean() for x, z in tries]
    assert crossing[0] > 0.5
    assert crossing[2] > 0.8
    assert crossing[3] == 0


def test_a_steeper_function_would_be_caught() -> None:
    c = SETS["two"]
    tries = theorem3.pairs(c, 500, np.random.default_rng(0))
    assert theorem3.steepest(lambda x: np.where(c.label(x) == 1, 1.0, -1.0), tries) > 10 * c.constant


@pytest.mark.parametrize("radius", [1e-3, 0.05, 1.0])
def test_the_local_constant_is_the_global_one_everywhere(c: Construction, radius: float) -> None:
    x = np.concatenate([c.points, anywhere(500)])
    assert theorem3.local(c, x, radius) * c.epsilon == pytest.approx(1.0, abs=ROUNDING)


def test_the_radius_is_the_distance_to_the_boundary_so_nothing_is_lost(c: Construction) -> None:
    x = anywhere(1000)
    assert c.radius(x) == pytest.approx(c.distance(x))


def test_the_least_margin_is_half_the_separation(c: Construction) -> None:
    """d(p) ≥ separation/2 on S, with equality at the two nearest points of different labels."""
    half = theorem3.separation(c.points, c.labels) / 2
    assert c.distance(c.points).min() == pytest.approx(half)


def test_at_a_separation_of_exactly_two_epsilon_the_two_points_get_bottom() -> None:
    points, labels = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 0.0]]), np.array([0, 1, 1])
    assert (Construction(points, labels, 0.5).radius(points) > 0.5).tolist() == [False, False, True]
    assert (Construction(points, labels, 0.4999).radius(points) > 0.4999).all()


def test_a_set_that_is_not_separated_is_not_certified(c: Construction) -> None:
    """Of two points with different labels within 2ε, d(p) + d(q) ≤ ‖p − q‖ leaves one below ε at least."""
    wide = Construction(c.points, c.labels, 1.25 * c.epsilon)
    certified = wide.radius(c.points) > wide.epsilon
    apart = np.hypot(*np.moveaxis(c.points[:, None] - c.points, 2, 0))
    too_near = (apart <= 2 * wide.epsilon) & (c.labels[:, None] != c.labels)
    assert too_near.any()
    assert not (certified[:, None] & certified & too_near).any()
    assert wide.logits(c.points).argmax(1).tolist() == c.labels.tolist()  # right all the same


def test_the_library_answers_bottom_in_a_band_of_width_epsilon_each_side(c: Construction) -> None:
    x = anywhere(2000)
    y = torch.tensor(c.logits(x))
    constants = torch.full((y.shape[1], y.shape[1]), c.constant, dtype=torch.float64).fill_diagonal_(0)
    answered = y.amax(1) > margins.bottom_logit(y, constants, c.epsilon)
    d = c.distance(x)
    clear = np.abs(d - c.epsilon) > 1e-9
    assert (answered.numpy() == (d > c.epsilon))[clear].all()


def test_the_simple_form_needs_logits_that_share_the_margin() -> None:
    """K_i + K_j is 2/ε for the paper's logits, and too much; d/(2ε) taken off every logit halves each K_i."""
    c = SETS["four"]
    tries = list(theorem3.pairs(c, 2000, np.random.default_rng(0)))

    def shared(x: theorem3.Array) -> theorem3.Array:
        return c.logits(x) - c.distance(x)[:, None] / (2 * c.epsilon)

    assert theorem3.steepest(c.logits, iter(tries)) == pytest.approx(c.constant)
    assert theorem3.steepest(shared, iter(tries)) == pytest.approx(c.constant / 2)
    lead = c.logits(c.points).max(1)
    assert not (lead > c.epsilon * 2 * c.constant).all()
    assert (lead > c.epsilon * c.constant).all()


# The page


def test_the_script_prints_what_the_page_shows_and_draws_its_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theorem3.main(tmp_path)
    assert f"```\n{capsys.readouterr().out}```\n" in (DOCS / "theorem3.md").read_text()
    assert png_size(tmp_path / "theorem3.png") == png_size(DOCS / "theorem3.png")
