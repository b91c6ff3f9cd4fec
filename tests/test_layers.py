"""The layers we add: MinMax only reorders, Standardize and Residual do what their formulas say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gloronet.errors import ConfigError
from gloronet.layers import MinMax, Residual, Standardize


def test_minmax_pairs_the_two_halves():
    x = torch.tensor([[1.0, 5.0, 3.0, 4.0]])
    assert MinMax()(x).tolist() == [[3.0, 5.0, 1.0, 4.0]]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([(2, 4), (3, 2, 5, 5), (1, 6, 1, 3)]))
def test_minmax_is_a_permutation_of_each_sample(seed, shape):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).round(decimals=1)  # with ties
    y = MinMax()(x)
    assert y.shape == x.shape
    assert torch.equal(y.flatten(1).sort().values, x.flatten(1).sort().values)
    # ... and of each pair: what is paired stays at its place in the image.
    a, b = x.chunk(2, dim=1)
    high, low = y.chunk(2, dim=1)
    assert torch.equal(torch.stack((a, b)).sort(dim=0).values, torch.stack((low, high)))


def test_minmax_has_an_orthogonal_jacobian():
    x = torch.randn(6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    jacobian = torch.autograd.functional.jacobian(lambda v: MinMax()(v.unsqueeze(0))[0], x)
    torch.testing.assert_close(jacobian @ jacobian.T, torch.eye(6, dtype=torch.float64))


@pytest.mark.parametrize("shape", [(2, 3), (2, 5, 4, 4), (4,)])
def test_minmax_refuses_what_it_cannot_pair(shape):
    with pytest.raises(ConfigError, match=r"must be even.*shape"):
        MinMax()(torch.zeros(shape))


def test_standardize_by_channel_and_by_one_number():
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, std = [0.1, 0.2, 0.3], [0.5, 1.0, 2.0]
    y = Standardize(mean, std)(x)
    for c in range(3):
        torch.testing.assert_close(y[:, c], (x[:, c] - mean[c]) / std[c])
    torch.testing.assert_close(Standardize(0.5, 0.25)(x), 4 * x - 2)
    torch.testing.assert_close(Standardize(0.5, 0.25)(x.flatten(1)), 4 * x.flatten(1) - 2)


def test_standardize_is_saved_and_moved_with_the_net():
    layer = Standardize([0.1, 0.2], [1.0, 2.0])
    assert set(layer.state_dict()) == {"mean", "std"}
    assert layer.double().mean.dtype == torch.float64
    assert not list(layer.parameters())


@pytest.mark.parametrize(
    ("mean", "std"),
    [(0.5, 0.0), (0.5, -1.0), ([0.0, 0.0], [1.0, 0.0]), ([0.0], [1.0, 1.0]), (0.0, [1.0, 1.0]),
     (float("nan"), 1.0), (0.0, float("inf")), (0.0, float("nan")), ([[0.0]], [[1.0]])],
)  # fmt: skip
def test_standardize_refuses_bad_numbers(mean, std):
    with pytest.raises(ConfigError, match="Standardize needs"):
        Standardize(mean, std)


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 12), (3, 4, 4)])
def test_standardize_never_broadcasts_over_other_channels(shape):
    with pytest.raises(ConfigError, match="3 channels"):
        Standardize([0.0, 0.0, 0.0], [1.0, 1.0, 1.0])(torch.zeros(shape))


def test_residual_adds_its_input():
    layer = Residual(nn.Linear(3, 3))
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(layer(x), x + x @ layer.inner.weight.T + layer.inner.bias)


def test_residual_refuses_to_broadcast():
    with pytest.raises(ConfigError, match="keep the shape"):
        Residual(nn.Linear(3, 1))(torch.zeros(2, 3))
