"""Randomized smoothing: its confidence bound, radii known in closed form, real digits; and training with noise."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from gloronet import data, models, presets
from gloronet.attacks import pgd
from gloronet.config import AUGMENTATIONS, TrainConfig, read_toml
from gloronet.data import Dataset, augmentation
from gloronet.data.augment import Shard
from gloronet.errors import ConfigError, DataError
from gloronet.net import BOTTOM, GloRoNet
from gloronet.smoothing import lower_confidence, smoothed_certify, smoothed_predict, smoothed_set
from gloronet.train import fit

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def half_space(x: Tensor) -> Tensor:
    """Class 0 where the first coordinate is positive: g is f, and the radius is its absolute value."""
    return torch.stack([x[:, 0], -x[:, 0]], 1)


@given(st.integers(1, 10**6), st.floats(0, 1), st.sampled_from([1e-6, 1e-3, 0.05, 0.5]))
def test_the_confidence_bound_is_the_one_of_clopper_and_pearson(n: int, share: float, alpha: float) -> None:
    count = round(share * n)
    (p,) = lower_confidence(np.array([count]), n, alpha)
    if count == 0:
        assert p == 0
        return
    assert p == pytest.approx(stats.beta.ppf(alpha, count, n - count + 1), rel=1e-9)
    assert stats.binom.sf(count - 1, n, p) == pytest.approx(alpha, rel=1e-6)  # what the quantile is for
    assert lower_confidence(np.array([n]), n, alpha)[0] == pytest.approx(alpha ** (1 / n), rel=1e-12)


@pytest.mark.parametrize("n", [1, 20, 1000])
@pytest.mark.parametrize("p", [0.03, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("alpha", [0.001, 0.1])
def test_the_confidence_bound_holds_as_often_as_it_says(n: int, p: float, alpha: float) -> None:
    every = np.arange(n + 1)
    holds = lower_confidence(every, n, alpha) <= p
    exact = stats.binom.pmf(every, n, p)[holds].sum()  # over all that can be drawn
    assert exact >= 1 - alpha - 1e-12
    draws = 20_000
    drawn = np.random.default_rng(n).binomial(n, p, draws)
    wrong = int((~holds[drawn]).sum())  # and simulated: no more than chance explains
    assert stats.binom.sf(wrong - 1, draws, alpha) > 1e-6


def test_radii_of_a_linear_classifier_stay_below_the_distance_as_often_as_they_say() -> None:
    distance, alpha, times = 0.3, 0.1, 1000
    x = torch.tensor([[distance, 0.0, 0.0]]).expand(times, 3)
    found = smoothed_certify(half_space, x, 0.5, n0=20, n=200, alpha=alpha, generator=seeded(0))
    answered = found.label == 0
    assert set(found.label.tolist()) <= {0, BOTTOM}
    assert answered.double().mean() > 0.9
    above = int((found.radius > distance).sum())
    assert stats.binom.sf(above - 1, times, alpha) > 1e-6
    assert above > 0  # with α = 0.1 it is wrong now and then: stochastic
    assert (found.radius[~answered] == 0).all()
    assert (found.radius[answered] > 0).all()


def test_radii_approach_the_distance_to_the_hyperplane() -> None:
    sigma, normal = 0.5, torch.randn(12, generator=seeded(1))
    normal /= normal.norm()
    distance = torch.tensor([-0.7, -0.3, -0.1, 0.1, 0.4, 0.8])
    x = 0.5 + distance[:, None] * normal + torch.zeros(6, 12)

    def logits(v: Tensor) -> Tensor:
        return ((v - 0.5) @ normal)[:, None] * torch.tensor([1.0, -1.0])

    gaps = []
    for n in (100, 10_000, 400_000):
        found = smoothed_certify(logits, x, sigma, n=n, alpha=1e-4, batch_size=20_000, generator=seeded(2))
        assert (found.radius <= distance.abs() + 1e-6).all()  # 6 of 6, but for a chance of 18e-4 in all
        gaps.append(float((distance.abs() - found.radius).max()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.01
    assert found.label.tolist() == [1, 1, 1, 0, 0, 0]
    assert found.radius.dtype == found.p_lower.dtype == torch.float64
    assert (found.sigma, found.n0, found.n, found.alpha) == (sigma, 100, 400_000, 1e-4)
    assert torch.allclose(found.count / found.n, torch.special.ndtr(distance.abs() / sigma), atol=0.005)


def test_a_sure_answer_has_the_largest_radius_that_n_copies_can_give() -> None:
    sigma, n, alpha = 0.25, 1000, 0.001
    found = smoothed_certify(half_space, torch.tensor([[9.0]]), sigma, n=n, alpha=alpha)
    assert found.count.item() == n
    assert found.radius.item() == pytest.approx(sigma * stats.norm.ppf(alpha ** (1 / n)), rel=1e-9)


def test_it_abstains_on_a_tie() -> None:
    tie = torch.zeros(200, 2)
    found = smoothed_certify(half_space, tie, 0.25, n=1000, alpha=0.001, generator=seeded(3))
    assert (found.label == BOTTOM).double().mean() > 0.98
    assert (found.radius[found.label == BOTTOM] == 0).all()
    answers = smoothed_predict(half_space, tie, 0.25, n=1000, alpha=0.001, generator=seeded(3))
    assert (answers == BOTTOM).double().mean() > 0.98


def test_predictions_are_the_binomial_tests() -> None:
    """Votes put in by hand: p-values as scipy computes them, on both sides of α."""
    for first, second in ((5, 0), (10, 0), (11, 0), (20, 3), (30, 12), (40, 39), (60, 30)):
        third = min(second, 1)
        n, alpha = first + second + third, 0.001
        votes = iter(torch.tensor([2] * first + [0] * second + [1] * third).split(7))
        answer = smoothed_predict(
            lambda v, votes=votes: nn.functional.one_hot(next(votes), 3),
            torch.zeros(1, 2),
            1.0,
            n,
            alpha,
            batch_size=7,
        )
        right = stats.binomtest(first, first + second, 0.5).pvalue <= alpha
        assert answer.tolist() == [2 if right else BOTTOM], (first, second)


def test_predictions_are_right_or_withheld() -> None:
    x = torch.linspace(-1, 1, 41)[:, None]
    answers = smoothed_predict(half_space, x, 0.5, n=2000, generator=seeded(4))
    sure = answers != BOTTOM
    assert torch.equal(answers[sure], (x[sure, 0] < 0).long())
    assert sure[x[:, 0].abs() > 0.1].all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_noise_does_not_depend_on_the_batch_size(device: str) -> None:
    x = torch.tensor([[0.1, 0.3, 0.5], [-0.2, 0.0, 0.9]], device=device)
    results, sizes = [], []
    for batch_size in (7, 100, 500, 1234, 5000):

        def logits(v: Tensor) -> Tensor:
            sizes.append(len(v))
            return half_space(v)

        found = smoothed_certify(logits, x, 0.5, n=2345, batch_size=batch_size, generator=seeded(5, device))
        results.append((found.label.tolist(), found.count.tolist(), found.radius.tolist()))
        assert max(sizes) <= batch_size
        sizes.clear()
    assert all(r == results[0] for r in results)
    other = smoothed_certify(half_space, x, 0.5, n=2345, generator=seeded(6, device))
    assert other.count.tolist() != results[0][1]


@pytest.mark.parametrize("device", DEVICES)
def test_noise_is_gaussian_unclipped_and_only_from_the_generator(device: str) -> None:
    seen: list[Tensor] = []

    def logits(v: Tensor) -> Tensor:
        assert v.device.type == device
        seen.append(v.cpu())
        return half_space(v.flatten(1))

    state, reports = torch.get_rng_state(), []
    x = torch.full((2, 1, 5, 5), 0.5, device=device, dtype=torch.float64)
    cpu = seeded(7)  # wherever the inputs are
    smoothed_certify(logits, x, 0.7, n0=10, n=4000, generator=cpu, progress=reports.append)
    assert torch.equal(torch.get_rng_state(), state)
    assert reports == [1, 1]
    noise = torch.cat(seen) - 0.5
    assert noise.shape == (2 * 4010, 1, 5, 5)
    assert noise.dtype == torch.float64
    assert noise.mean().item() == pytest.approx(0, abs=0.01)
    assert noise.std().item() == pytest.approx(0.7, rel=0.01)
    assert noise.abs().max() > 2
    assert stats.kstest(noise.flatten().numpy() / 0.7, "norm").pvalue > 1e-4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sigma": 0.0}, "sigma must be a positive number, not 0.0"),
        ({"sigma": -1.0}, "sigma must be a positive number"),
        ({"sigma": math.inf}, "sigma must be a positive number"),
        ({"sigma": math.nan}, "sigma must be a positive number"),
        ({"alpha": 0.0}, "alpha must be between 0 and 1"),
        ({"alpha": 1.0}, "alpha must be between 0 and 1"),
        ({"alpha": math.nan}, "alpha must be between 0 and 1"),
        ({"n": 0}, "n must be a whole number of at least 1, not 0"),
        ({"n": 10.5}, "n must be a whole number of at least 1"),
        ({"n0": 0}, "n0 must be a whole number of at least 1"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"x": torch.zeros(3)}, "needs a batch of finite floating-point inputs"),
        ({"x": torch.zeros(0, 3)}, "needs a batch of finite floating-point inputs"),
        ({"x": torch.zeros(3, 2, dtype=torch.uint8)}, "needs a batch of finite floating-point inputs"),
        ({"x": torch.full((3, 2), math.nan)}, "needs a batch of finite floating-point inputs"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(changes: dict, message: str) -> None:
    arguments = {"x": torch.zeros(3, 2), "sigma": 0.5, "n": 10} | changes
    calls = [smoothed_certify] if "n0" in changes else [smoothed_certify, smoothed_predict]
    for call in calls:
        with pytest.raises(ConfigError, match=message) as caught:
            call(half_space, **arguments)
        assert "\n" not in str(caught.value)


def test_a_set_needs_samples_labels_and_an_epsilon() -> None:
    x, labels = torch.rand(10, 2), torch.zeros(10, dtype=torch.int64)
    for bad in ({"labels": labels[:9]}, {"samples": 0}, {"x": x[:0], "labels": labels[:0]}):
        with pytest.raises(ConfigError, match="at least 1 sample and a label for each"):
            smoothed_set(
                half_space, **({"x": x, "labels": labels, "epsilon": 0.1, "sigma": 0.5, "n": 10} | bad)
            )
    with pytest.raises(ConfigError, match="epsilon must be a finite number"):
        smoothed_set(half_space, x, labels, "-1", 0.5, n=10)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


@pytest.fixture(scope="module")
def trained(digits: Dataset) -> GloRoNet:
    torch.manual_seed(0)
    module = models.build("c(8,3,1).c(16,4,2).d(64).d(10)", digits.input_shape, 10, "relu")
    net = GloRoNet(module, 0.3, digits.input_shape)
    config = TrainConfig(
        epochs=20, batch_size=128, loss="plain", lr=3e-3, lr_schedule="linear", augmentation="noise 0.25"
    )
    fit(net, digits, config, device="cpu")
    return net.eval()


def test_real_digits_end_to_end(digits: Dataset, trained: GloRoNet) -> None:
    options = {"n": 1000, "samples": 60, "seed": 1}
    table = smoothed_set(trained.logits, digits.test_x, digits.test_y, "0.3", 0.25, **options)
    k = len(digits.test_x)
    assert table.index.tolist() == [i * k // 60 for i in range(60)]
    assert (table.label == digits.test_y.numpy()[table.index]).all()
    assert table.clean > 0.85
    assert 0.6 < table.vra <= table.clean
    summary = table.summary()
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert summary["stochastic"] is True
    settings = {name: summary[name] for name in ("sigma", "n0", "n", "alpha", "samples", "seed", "epsilon")}
    assert settings == {"sigma": 0.25, "n0": 100, "alpha": 0.001, "epsilon": table.epsilon, **options}
    rows = summary["rows"]
    certified = [r for r in rows if r["answer"] == r["label"] and r["radius"] > table.epsilon]
    assert summary["vra"] == len(certified) / 60
    again = smoothed_set(trained.logits, digits.test_x, digits.test_y, 0.3, 0.25, batch_size=333, **options)
    assert again.summary()["rows"] == rows


def test_no_attack_on_the_network_moves_the_smoothed_answer_within_its_radius(
    digits: Dataset, trained: GloRoNet
) -> None:
    x = data.to_unit(digits.test_x[:40])
    found = smoothed_certify(trained.logits, x, 0.25, n=1000, generator=seeded(8))
    sure = found.radius > 0
    x, label, radius = x[sure], found.label[sure], found.radius[sure]
    moved = pgd(trained.logits, x, label, radius * 0.99, steps=20, restarts=2, generator=seeded(9))
    answers = smoothed_predict(trained.logits, moved.x, 0.25, n=1000, generator=seeded(10))
    assert ((answers == label) | (answers == BOTTOM)).all()


def test_every_sample_is_taken_where_there_are_fewer() -> None:
    x, labels = torch.rand(7, 2), torch.zeros(7, dtype=torch.int64)
    assert smoothed_set(half_space, x, labels, 0.1, 0.5, n=10).index.tolist() == list(range(7))
    assert smoothed_set(half_space, x, labels, 0.1, 0.5, n=10, samples=3).index.tolist() == [0, 2, 4]


@pytest.mark.parametrize("device", DEVICES)
def test_noise_has_its_mean_and_deviation_and_is_not_clipped(device: str) -> None:
    x = torch.rand(500, 3, 8, 8, generator=seeded(0)).to(device)
    noise = (augmentation("noise 0.25")(x, seeded(1, device)) - x).double().cpu()
    assert noise.mean().item() == pytest.approx(0, abs=0.005)
    assert noise.std().item() == pytest.approx(0.25, rel=0.01)
    assert (x.cpu() + noise).min() < -0.3
    assert (x.cpu() + noise).max() > 1.3
    assert stats.kstest(noise.flatten().numpy() / 0.25, "norm").pvalue > 1e-4


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name != "none"])
def test_noise_comes_after_any_other_augmentation_which_stays_the_same(name: str) -> None:
    x = torch.rand(16, 3, 9, 10, generator=seeded(0))
    generator = seeded(2)
    plain = augmentation(name)(x, generator)
    noise = torch.randn(x.shape, generator=generator)  # what comes next
    assert torch.equal(augmentation(f"{name} + noise 0.5")(x, seeded(2)), plain + 0.5 * noise)


@pytest.mark.parametrize("name", ["noise 0.25", "crop-flip + noise 0.25"])
def test_a_sample_is_given_the_same_noise_whoever_works_on_it(name: str) -> None:
    x, augment = torch.rand(10, 3, 8, 8, generator=seeded(0)), augmentation(name)
    whole = augment(x, seeded(3))
    cuts = (0, 3, 4, 10)
    parts = [augment(x[a:b], seeded(3), Shard(a, b, 10)) for a, b in itertools.pairwise(cuts)]
    assert torch.equal(torch.cat(parts), whole)


def test_noise_is_for_vectors_too_and_for_floats_alone() -> None:
    x = torch.rand(5, 2)
    assert augmentation("noise 1")(x, seeded(0)).shape == x.shape
    assert torch.equal(augmentation("noise 0")(x, seeded(0)), x)
    with pytest.raises(DataError, match="Noise is for inputs of floats"):
        augmentation("noise 1")(torch.zeros(5, 2, dtype=torch.uint8), seeded(0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("noise", "must be one of none, default"),
        ("noise0.25", "must be one of none, default"),
        ("mixup + noise 0.25", "must be one of none, default"),
        ("noise 0.25 + crop-flip", "must be one of none, default"),
        ("noise 0.1 + noise 0.1", "must be one of none, default"),
        ("noise -1", "σ in augmentation 'noise -1' must be a finite number"),
        ("noise inf", "must be a finite number"),
        ("crop-flip + noise much", "must be a finite number of at least 0"),
    ],
)
def test_noise_that_cannot_be_read_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        TrainConfig(augmentation=name)
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError):
        augmentation(name)


@pytest.mark.parametrize("name", [name for name in presets.names() if name.startswith("smoothing/")])
def test_the_presets_train_plainly_with_noise(name: str) -> None:
    config = presets.read(name)
    assert config.train.loss == "plain"
    assert config.train.augmentation.endswith("noise 1.0" if name.endswith("1.58") else "noise 0.25")
    assert config.norm == "l2"


def test_noise_in_a_config_of_ones_own(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('[train]\naugmentation = "jitter + noise 36/255"\n')
    assert read_toml(path).train.augmentation == "jitter + noise 36/255"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_each_replay_of_a_captured_call_has_noise_of_its_own() -> None:
    x, generator = torch.rand(8, 3, 8, 8).cuda(), seeded(0, "cuda")
    augment = augmentation("crop-flip + noise 0.5")
    augment(x, generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        y = augment(x, generator)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(y, first)
