"""GloRoClassifier: scikit-learn's own checks, and what certificates of tables must hold to besides."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_iris, load_wine
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator, parametrize_with_checks
from tests.laws import check_net
from torch import nn

import gloronet as gn
from gloronet.errors import ConfigError, UnsupportedOperation
from gloronet.proof import checker, write

torch.set_num_threads(1)  # threads that share a core with other workers wait for each other

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])[Y]
QUICK: dict[str, Any] = {"architecture": "d(16)", "epochs": 20, "lr": 0.05, "random_state": 0}


def iris(epsilon: float | str = 0.1, **changes: Any) -> gn.GloRoClassifier:
    return gn.GloRoClassifier(epsilon, **(QUICK | changes))


@pytest.fixture(scope="module")
def fitted() -> gn.GloRoClassifier:
    return iris().fit(X, Y)


# --- scikit-learn's checks ---

ABSTAINS = {
    "check_classifiers_classes": "it fits the classes −1 and 1, where −1 is what predict says for ⊥: refused by fit",
    "check_classifiers_train": "it wants the likeliest class from predict everywhere; where none is proved that is ⊥",
}
LINEAR: dict[str, Any] = {"architecture": nn.Linear, "epochs": 10, "lr": 0.1}


@parametrize_with_checks(
    [gn.GloRoClassifier(epsilon=0.1, **LINEAR)], expected_failed_checks=lambda estimator: ABSTAINS
)
def test_it_has_scikit_learns_manners(estimator: Any, check: Any) -> None:
    check(estimator)


def test_abstaining_is_all_that_those_checks_complain_about() -> None:
    """At ε = 0 nothing but a tie is ⊥, and with −2 for it no class is mistaken for it: all of them pass."""
    never = gn.GloRoClassifier(epsilon=0, bottom=-2, **LINEAR)
    left = [check for _, check in estimator_checks_generator(never) if check.func.__name__ in ABSTAINS]
    assert {check.func.__name__ for check in left} == set(ABSTAINS)
    for check in left:
        check(never)


# --- certificates ---


def test_predictions_radii_and_score_say_the_same(fitted: gn.GloRoClassifier) -> None:
    predicted, radius, belief = fitted.predict(X), fitted.certified_radius(X), fitted.predict_proba(X)
    certified = radius > 0.1
    assert 0 < certified.sum() < len(X)
    np.testing.assert_array_equal(predicted == gn.BOTTOM, ~certified)
    np.testing.assert_array_equal(predicted[certified], belief.argmax(1)[certified])
    assert fitted.score(X, Y) == np.mean((belief.argmax(1) == Y) & certified)
    assert fitted.score(X, Y, sample_weight=Y == 0) == np.mean((predicted == Y)[Y == 0])
    table = gn.certify.certify_set(fitted.net_, torch.from_numpy(X).float(), torch.from_numpy(Y))
    assert abs(table.vra - fitted.score(X, Y)) <= 0.02  # X rounded to float32 moves what is near ε


def test_the_net_obeys_every_law_and_survives_attack(fitted: gn.GloRoClassifier) -> None:
    c = check_net(fitted.net_, torch.from_numpy(X[::3]).float())
    assert c.certified.any()
    # The attack is worth something: it does break samples, only never within their radius.
    far = gn.attacks.minimal(fitted.net_.logits, torch.from_numpy(X[::3]).float(), c.label, 5.0, clip=None)
    assert far.success.double().mean() > 0.9
    assert (far.distance >= c.radius).all()


def test_no_point_of_a_ball_gets_another_class(fitted: gn.GloRoClassifier) -> None:
    random = np.random.RandomState(0)
    radius, label = fitted.certified_radius(X), fitted.predict_proba(X).argmax(1)
    for _ in range(20):
        step = random.standard_normal(X.shape)
        step *= (radius * (1 - 1e-9) / np.linalg.norm(step, axis=1))[:, None]
        np.testing.assert_array_equal(fitted.predict_proba(X + step).argmax(1), label)


@pytest.mark.parametrize("k", [-60, -3, 8, 60])
def test_radii_are_in_the_units_of_x(fitted: gn.GloRoClassifier, k: int) -> None:
    """In units 2ᵏ times as fine, the very same training: every radius is 2ᵏ times as large, to the last bit."""
    other = iris(0.1 * 2.0**k).fit(X * 2.0**k, Y)
    np.testing.assert_array_equal(other.certified_radius(X * 2.0**k), fitted.certified_radius(X) * 2.0**k)
    np.testing.assert_array_equal(other.predict(X * 2.0**k), fitted.predict(X))


def test_in_a_pipeline_a_radius_is_about_what_the_step_before_hands_on() -> None:
    wine, kinds = load_wine(return_X_y=True)
    pipe = make_pipeline(StandardScaler(), gn.GloRoClassifier(0.3, **QUICK)).fit(wine, kinds)
    scaler, last = pipe
    scaled = scaler.transform(wine)
    radius = last.certified_radius(scaled)
    assert pipe.score(wine, kinds) == last.score(scaled, kinds) > 0.8
    # The same step in raw units is, in the unit of the narrowest feature, far longer than any radius.
    narrow = scaler.scale_.argmin()
    step = np.zeros_like(wine)
    step[:, narrow] = 0.99 * radius
    assert (np.linalg.norm(scaler.transform(wine + step) - scaled, axis=1) > 5 * radius).all()
    np.testing.assert_array_equal(
        pipe.predict_proba(wine + step * scaler.scale_).argmax(1), pipe.predict_proba(wine).argmax(1)
    )


def test_settings_are_chosen_by_vra() -> None:
    search = GridSearchCV(iris(), {"epochs": [1, 20]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"epochs": 20}
    best = clone(search.estimator).set_params(**search.best_params_).fit(X, Y)
    assert search.score(X, Y) == best.score(X, Y)


def test_what_varies_less_than_epsilon_is_not_magnified() -> None:
    """A feature that tells the classes apart by less than ε would be divided by its deviation, and drown all else."""
    faint = np.column_stack([X, 1e-3 * Y])
    clf = iris().fit(faint, Y)
    assert clf.net_.module[0].std.flatten()[-1] == np.float32(0.1)
    assert clf.score(faint, Y) > 0.7
    assert iris(0).fit(faint, Y).net_.module[0].std.flatten()[-1] < 1e-3


@pytest.mark.parametrize("value", [0.1, 0.0, 1e30])
def test_a_constant_feature_is_part_of_the_ball(value: float) -> None:
    padded = np.column_stack([X, np.full(len(X), value)])
    for epsilon in (0, 0.1):
        clf = iris(epsilon).fit(padded, Y)
        radius = clf.certified_radius(padded)
        assert np.isfinite(radius).all()
        assert value == 1e30 or clf.score(padded, Y) > 0.8
        moved = padded + np.array([0, 0, 0, 0, 1]) * 0.99 * radius[:, None]
        np.testing.assert_array_equal(
            clf.predict_proba(moved).argmax(1), clf.predict_proba(padded).argmax(1)
        )


# --- labels, and what stands for ⊥ ---


@pytest.mark.parametrize(
    ("labels", "bottom", "shown"),
    [
        (Y * 1000 + 7, -1, -1),
        (Y.astype(np.uint8), -1, -1),
        (Y - 2, 1, 1),
        (Y.astype(float), -1, -1.0),
        (NAMES, -1, "-1"),
        (NAMES, "I do not know", "I do not know"),
        (NAMES.astype(object), -1, "-1"),
        (Y > 1, -1, -1),
    ],
    ids=["far apart", "uint8", "negative", "floats", "strings", "long bottom", "objects", "booleans"],
)
def test_labels_of_any_kind_come_back_and_bottom_is_none_of_them(labels: Any, bottom: Any, shown: Any) -> None:
    clf = iris(0.3, bottom=bottom).fit(X, labels)
    predicted = clf.predict(X)
    np.testing.assert_array_equal(clf.classes_, np.unique(labels))
    np.testing.assert_array_equal(predicted == shown, clf.certified_radius(X) <= 0.3)
    assert set(predicted.tolist()) == {*np.unique(labels).tolist(), shown}
    assert clf.score(X, labels) == np.mean(predicted == labels) > 0.5


@pytest.mark.parametrize(
    ("labels", "bottom"),
    [
        (np.where(Y > 0, 1, -1), -1),
        (Y, 2),
        (Y, "abstain"),
        (Y, None),
        (Y, [5, 6]),
        (Y > 0, True),
        (NAMES, "virginica"),
        (np.where(Y > 0, "1", "-1"), -1),
        (Y.astype(np.uint64) + 2**63, -1),
        (np.array(["2024-05-01", "2025-05-01", "2026-05-01"], "M8[D]")[Y], -1),
    ],
)
def test_a_bottom_that_could_be_taken_for_a_class_is_refused(labels: Any, bottom: Any) -> None:
    with pytest.raises(ConfigError, match="cannot stand for ⊥ beside the classes"):
        iris(bottom=bottom).fit(X, labels)


def test_bottom_is_never_right(fitted: gn.GloRoClassifier) -> None:
    with pytest.raises(ConfigError, match="y holds -1, which is what predict says for ⊥"):
        fitted.score(X, np.where(Y == 0, -1, Y))
    assert fitted.score(X, Y + 100) == 0


# --- the same again, and copies ---


def test_the_same_random_state_gives_the_same_bits_and_takes_no_one_elses(fitted: gn.GloRoClassifier) -> None:
    before = torch.get_rng_state()
    again = clone(fitted).fit(X, Y)
    assert torch.equal(torch.get_rng_state(), before)
    radius = fitted.certified_radius(X)
    np.testing.assert_array_equal(again.certified_radius(X), radius)
    np.testing.assert_array_equal(again.fit(X, Y).certified_radius(X), radius)
    assert not np.array_equal(clone(fitted).set_params(random_state=1).fit(X, Y).certified_radius(X), radius)


def test_fitting_again_forgets_all_there_was() -> None:
    clf = iris().fit(X, Y)
    clf.fit(X[:100, :2], NAMES[:100])
    assert clf.n_features_in_ == 2
    assert set(clf.predict(X[:, :2])) <= {"setosa", "versicolor", "-1"}


def test_a_copy_goes_its_own_way(fitted: gn.GloRoClassifier) -> None:
    radius = fitted.certified_radius(X)
    other = copy.deepcopy(fitted)
    np.testing.assert_array_equal(other.certified_radius(X), radius)
    with torch.no_grad():
        other.net_.module[1][-1].weight.mul_(0.5)
    assert (other.certified_radius(X) != radius).any()
    np.testing.assert_array_equal(fitted.certified_radius(X), radius)


def test_the_net_is_saved_without_pickle(fitted: gn.GloRoClassifier, tmp_path: Path) -> None:
    gn.save(fitted.net_, tmp_path)
    loaded = gn.load(tmp_path, model=copy.deepcopy(fitted.net_.module))
    np.testing.assert_array_equal(loaded.certify(torch.from_numpy(X)).radius, fitted.certified_radius(X))


def test_an_auditor_agrees(fitted: gn.GloRoClassifier, tmp_path: Path) -> None:
    gn.save(fitted.net_, tmp_path)
    proof = write(fitted.net_, torch.from_numpy(X).float(), torch.from_numpy(Y), tmp_path, "0.1", "real")
    assert checker.main([str(proof.proof), str(proof.model), str(proof.inputs)]) == 0
    assert proof.certified > 100


def test_asking_for_gloronet_loads_neither_scikit_learn_nor_the_compiler() -> None:
    code = "import sys, gloronet; print({'sklearn', 'torch._dynamo'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'GloRoRegressor'"):
        gn.GloRoRegressor  # noqa: B018


# --- networks of one's own, and bad input ---


def batch_normed(features: int, classes: int) -> nn.Module:
    hidden = nn.Sequential(nn.Linear(features, 16), nn.BatchNorm1d(16), nn.ReLU())
    return nn.Sequential(hidden, gn.Residual(nn.Linear(16, 16)), nn.Linear(16, classes))


def images(features: int, classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 8, 2), gn.MinMax(), nn.Flatten(), nn.Linear(8, classes)
    )


@pytest.mark.parametrize("architecture", [batch_normed, images])
def test_the_network_may_be_your_own(architecture: Any) -> None:
    clf = iris(architecture=architecture).fit(X, Y)
    assert clf.score(X, Y) > 0.7
    check_net(clf.net_, torch.from_numpy(X[::10]).float())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"epsilon": -1}, ConfigError, "epsilon must be a finite number"),
        ({"epsilon": None}, ConfigError, "epsilon must be a finite number"),
        ({"epochs": 0}, ConfigError, "epochs must be a whole number"),
        ({"loss": "hinge"}, ConfigError, "loss must be one of"),
        ({"architecture": "d(15)"}, ConfigError, "odd size"),
        ({"architecture": "2C2F"}, ConfigError, "piece 1, '2C2F'"),
        ({"architecture": nn.Linear(4, 3)}, ConfigError, "each fit begins anew; not Linear"),
        ({"architecture": None}, ConfigError, "that makes a new nn.Module"),
        ({"architecture": lambda n, m: nn.Linear(n, m + 1)}, ConfigError, "3 classes, the net expects .* has 4"),
        (
            {"architecture": lambda n, m: nn.Sequential(nn.Linear(n, 8), nn.SiLU(), nn.Linear(8, m))},
            UnsupportedOperation,
            "No bound rule for SiLU at 1.1",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_one_clear_line(
    changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        iris(**changes).fit(X, Y)
    assert "\n" not in str(caught.value)


def test_input_that_cannot_be_used_is_refused(fitted: gn.GloRoClassifier) -> None:
    for bad, error, message in (
        (np.where(X > 7, np.nan, X), ValueError, "NaN"),
        (np.where(X > 7, np.inf, X), ValueError, "infinity"),
        (X[:, :, None], ValueError, "dim 3"),
        (sparse.csr_array(X), TypeError, "dense"),
    ):
        with pytest.raises(error, match=message):
            iris().fit(bad, Y)
        with pytest.raises(error, match=message):
            fitted.predict(bad)
    with pytest.raises(ConfigError, match=r"reaches 7.9e\+39, beyond the range of float32"):
        iris().fit(X * 1e39, Y)
    with pytest.raises(ConfigError, match="two classes or more, but y has 1 class: 3"):
        iris().fit(X, np.full(len(X), 3))
    with pytest.raises(ValueError, match="3 features, but GloRoClassifier is expecting 4"):
        fitted.certified_radius(X[:, :3])


def test_beyond_all_numbers_nothing_is_certified(fitted: gn.GloRoClassifier) -> None:
    """Sums overflow there in float64 itself."""
    assert (fitted.predict(X * 2e307) == gn.BOTTOM).all()
    assert (fitted.certified_radius(X * 2e307) == 0).all()


def test_few_samples_large_batches_one_feature() -> None:
    two = [0, 100]
    assert iris(0.5).fit(X[two], Y[two]).score(X[two], Y[two]) == 1
    assert iris(batch_size=10**6).fit(X, Y).score(X, Y) > 0.7
    assert iris(batch_size=1, epochs=2, lr=0.01).fit(X, Y).score(X, Y) > 0.7
    petal = X[:, 2:3]
    assert iris().fit(petal, Y).score(petal, Y) > 0.7
    assert (iris().fit(np.ones((150, 2)), Y).predict_proba(np.ones((5, 2))).sum(1).round(12) == 1).all()


def test_inputs_of_every_layout_give_the_same_answers(fitted: gn.GloRoClassifier) -> None:
    radius = fitted.certified_radius(X)
    for same in (np.asfortranarray(X), X.astype(">f8"), X.tolist(), X[::-1][::-1], np.repeat(X, 2, 1)[:, ::2]):
        np.testing.assert_allclose(fitted.certified_radius(same), radius, rtol=1e-12)
    thin = X.astype(np.float32)
    np.testing.assert_allclose(fitted.certified_radius(thin), fitted.certified_radius(thin.astype(float)), rtol=1e-12)
