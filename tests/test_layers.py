"""The layers we add: MinMax and GroupSort only reorder, Householder reflects, the others do what they say."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gloronet.errors import ConfigError
from gloronet.layers import GroupSort, Householder, MinMax, Residual, Standardize


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


def test_standardize_by_channel_by_entry_and_by_one_number():
    x = torch.rand(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    mean, std = [0.1, 0.2, 0.3], [0.5, 1.0, 2.0]
    y = Standardize(mean, std)(x)
    for c in range(3):
        torch.testing.assert_close(y[:, c], (x[:, c] - mean[c]) / std[c])
    vectors = x[:, :, 0, 0]
    torch.testing.assert_close(Standardize(mean, std)(vectors), y[:, :, 0, 0])
    torch.testing.assert_close(Standardize([0.5], [0.25])(vectors[:, :1]), 4 * vectors[:, :1] - 2)
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


@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (2, 12), (2, 1), (3, 4, 4)])
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


@settings(deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from([((2, 6), 3), ((3, 4, 5, 5), 4), ((1, 6, 1, 3), 2), ((2, 3), 1)])
)
def test_groupsort_sorts_each_group(seed, case):
    shape, size = case
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).round(decimals=1)  # with ties
    y = GroupSort(size)(x)
    assert y.shape == x.shape
    for k in range(0, shape[1], size):
        assert torch.equal(y[:, k : k + size], x[:, k : k + size].sort(1).values)


@pytest.mark.parametrize(("shape", "size"), [((2, 5), 2), ((2, 4, 3, 3), 3), ((4,), 2)])
def test_groupsort_refuses_what_it_cannot_group(shape, size):
    with pytest.raises(ConfigError, match=r"must be a multiple.*shape"):
        GroupSort(size)(torch.zeros(shape))
    with pytest.raises(ConfigError, match="1 or more"):
        GroupSort(0)


def test_householder_starts_as_minmax():
    x = torch.randn(4, 6, 3, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(Householder(6)(x), MinMax()(x))


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_householder_keeps_or_reflects_each_pair(seed):
    """Against its definition: the identity where a·sin(θ/2) > b·cos(θ/2), I − 2vvᵀ elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    layer = Householder(6).double()
    with torch.no_grad():
        layer.theta.copy_(torch.randn(3, generator=generator) * 4)
    x = torch.randn(20, 6, generator=generator, dtype=torch.float64)
    y = layer(x)
    for k, theta in enumerate(layer.theta.detach()):
        v = torch.stack([(theta / 2).sin(), -(theta / 2).cos()])
        pairs = x[:, [k, k + 3]]
        reflected = pairs @ (torch.eye(2, dtype=torch.float64) - 2 * torch.outer(v, v))
        expected = torch.where((pairs @ v > 0)[:, None], pairs, reflected)
        torch.testing.assert_close(y[:, [k, k + 3]], expected)
    torch.testing.assert_close(y.norm(dim=1), x.norm(dim=1))
    y.sum().backward()
    assert bool(layer.theta.grad.isfinite().all())


def test_householder_refuses_other_channels():
    with pytest.raises(ConfigError, match="3 angles"):
        Householder(6)(torch.zeros(2, 4))
    for channels in (0, 5):
        with pytest.raises(ConfigError, match="even number"):
            Householder(channels)
