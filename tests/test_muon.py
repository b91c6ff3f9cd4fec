"""Muon: steps of one spectral size, layers kept near the orthogonal ones, a state that resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gloronet import data, models
from gloronet.config import TrainConfig
from gloronet.net import GloRoNet
from gloronet.train import Progress, TrainingInterrupted, fit
from gloronet.train.muon import PULL, Muon, orthogonal, pulled

torch.set_num_threads(1)
sizes = st.integers(1, 40)


@settings(deadline=None, max_examples=50)
@given(sizes, sizes, st.integers(0, 10**6))
def test_singular_values_come_near_one_and_vectors_stay(m: int, n: int, seed: int) -> None:
    """The result is U f(Σ) Vᵀ: it has the singular vectors of what it is made from."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, m, n, generator=generator, dtype=torch.float64)
    y = orthogonal(x)
    large = torch.linalg.svdvals(x) > 0.05 * torch.linalg.matrix_norm(x)[:, None]
    values = torch.linalg.svdvals(y)
    assert values.max() < 1.3
    assert values[large].min() > 0.5
    torch.testing.assert_close(x.mT @ y, y.mT @ x, atol=1e-9, rtol=0)  # VΣUᵀ·U f V ᵀ is symmetric
    scaled = orthogonal(x * 1e-3)
    torch.testing.assert_close(scaled, y)


def test_padding_by_zeros_changes_nothing() -> None:
    x = torch.randn(1, 6, 20)
    padded = torch.zeros(1, 64, 50)
    padded[:, :6, :20] = x
    torch.testing.assert_close(orthogonal(padded)[:, :6, :20], orthogonal(x))
    assert torch.count_nonzero(orthogonal(padded)) == 120


@pytest.mark.parametrize("size", [0.2, 0.9, 1.0, 1.5, 3.0, 40.0, 1e6])
def test_the_pull_brings_every_singular_value_nearer_to_one(size: float) -> None:
    torch.manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0] for _ in range(2))
    values = torch.linspace(size, 1, 8, dtype=torch.float64)
    after = torch.linalg.svdvals((u * values) @ v + pulled(((u * values) @ v)[None])[0]).flip(0)
    if size <= 1:
        torch.testing.assert_close(after, (values + PULL * (values - values**3)).sort().values)
    assert after.min() >= min(size, 1.0) - 1e-9
    assert after.max() <= max(size, 1.0) + 1e-9
    if size > 1:
        assert after.max() < size


def test_a_step_has_the_spectral_size_of_the_learning_rate() -> None:
    torch.manual_seed(0)
    dense, conv, thin = nn.Linear(300, 200), nn.Conv2d(8, 16, 3), nn.Linear(5, 7)
    parameters = [p for module in (dense, conv, thin) for p in module.parameters()]
    before = [p.detach().clone() for p in parameters]
    for p in parameters:
        p.grad = torch.randn_like(p) * 10 ** torch.randn(())
    Muon(parameters, lr=0.02).step()
    for p, old in zip(parameters, before, strict=True):
        step = p.detach() - old
        if p.dim() == 1:
            torch.testing.assert_close(step.abs(), torch.full_like(step, 0.001), rtol=1e-2, atol=0)
        else:
            rows, columns = len(p), p[0].numel()
            size = torch.linalg.svdvals(step.flatten(1))[0] / max(1, rows / columns) ** 0.5
            assert 0.5 * 0.02 < size < 1.3 * 0.02
            assert (step * p.grad).sum() < 0


def test_only_hidden_layers_are_pulled_and_no_residual_branch() -> None:
    torch.manual_seed(0)
    module = models.build("c(4,3,1).r(3).d(6).d(3)", (1, 6, 6), 3)
    net = GloRoNet(module, 0.1, (1, 6, 6))
    hidden = net.hidden_weights()
    weights = {name: p for name, p in module.named_parameters() if p.dim() > 1}
    mine = [name for name, p in weights.items() if any(p is h for h in hidden)]
    assert mine == ["0.weight", "5.weight"]


def test_it_trains_to_more_than_adam_in_few_steps_and_keeps_layers_near_orthogonal() -> None:
    digits = data.load("digits")
    ends = {}
    for optimizer, lr in (("adam", 5e-3), ("muon", 0.02)):
        torch.manual_seed(0)
        net = GloRoNet(models.build("d(64).d(64).d(10)", digits.input_shape, 10), 0.3, digits.input_shape)
        config = TrainConfig(
            epochs=15, batch_size=128, loss="emma", optimizer=optimizer, lr=lr, lr_schedule="linear"
        )
        ends[optimizer] = fit(net, digits, config, device="cpu")[-1]["vra_estimate"]
    assert ends["muon"] > ends["adam"]
    for weight in net.hidden_weights():
        values = torch.linalg.svdvals(weight.detach())
        assert values.min() > 0.8
        assert values.max() < 1.3


class StopAfterTwo(Progress):
    def epoch(self, metrics: Mapping[str, Any]) -> None:
        if metrics["epoch"] == 2:
            raise KeyboardInterrupt


def test_interrupted_and_resumed_it_ends_with_the_very_same_bits(tmp_path: Path) -> None:
    digits = data.load("digits")

    def fresh() -> GloRoNet:
        torch.manual_seed(0)
        return GloRoNet(models.build("c(4,3,2).d(16).d(10)", digits.input_shape, 10), 0.3, digits.input_shape)

    config = TrainConfig(epochs=4, batch_size=300, optimizer="muon", lr=0.02, lr_schedule="linear")
    whole, broken, resumed = fresh(), fresh(), fresh()
    fit(whole, digits, config, device="cpu")
    with pytest.raises(TrainingInterrupted):
        fit(broken, digits, config, out=tmp_path / "run", device="cpu", progress=StopAfterTwo())
    fit(resumed, digits, config, out=tmp_path / "run", resume=True, device="cpu")
    assert all(torch.equal(resumed.state_dict()[name], t) for name, t in whole.state_dict().items())
