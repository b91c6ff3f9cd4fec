"""Networks: shapes, TensorFlow's SAME padding, initialisation, and errors that point at the piece."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gloronet.errors import ConfigError
from gloronet.layers import MinMax, Residual
from gloronet.models import build, names
from gloronet.models.notation import Conv, Dense, Skip, parse
from gloronet.net import GloRoNet

DATA_SETS = {
    "2C2F": ((1, 28, 28), 10),
    "4C3F": ((1, 28, 28), 10),
    "6C2F": ((3, 32, 32), 10),
    "8C2F": ((3, 64, 64), 200),
}
# Convolution and dense weights of the paper's strings, by hand.
WEIGHTS = {
    "2C2F": [(16, 1, 4, 4), (32, 16, 4, 4), (100, 1568), (10, 100)],
    "4C3F": [
        (32, 1, 3, 3), (32, 32, 4, 4), (64, 32, 3, 3), (64, 64, 4, 4),
        (512, 3136), (512, 512), (10, 512),
    ],
    "6C2F": [
        (32, 3, 3, 3), (32, 32, 3, 3), (32, 32, 4, 4), (64, 32, 3, 3), (64, 64, 3, 3), (64, 64, 4, 4),
        (512, 4096), (10, 512),
    ],
    "8C2F": [
        (64, 3, 3, 3), (64, 64, 3, 3), (64, 64, 4, 4), (128, 64, 3, 3), (128, 128, 4, 4),
        (256, 128, 3, 3), (256, 256, 4, 4), (200, 16384),
    ],
}  # fmt: skip


def test_names_are_those_of_the_paper():
    assert names() == ("2C2F", "4C3F", "6C2F", "8C2F") == tuple(DATA_SETS)


@pytest.mark.parametrize("name", DATA_SETS)
def test_named_architectures_have_the_papers_shapes(name):
    shape, classes = DATA_SETS[name]
    net = build(name, shape, classes, init="glorot")
    assert [tuple(p.shape) for p in net.parameters() if p.dim() > 1] == WEIGHTS[name]
    assert net(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(("activation", "kind"), [("minmax", MinMax), ("relu", nn.ReLU)])
def test_an_activation_follows_every_layer_but_the_last(activation, kind):
    net = build("2C2F", (1, 28, 28), 10, activation=activation, init="glorot")
    kinds = [type(layer) for layer in net]
    assert kinds == [nn.Conv2d, kind, nn.Conv2d, kind, nn.Flatten, nn.Linear, kind, nn.Linear]


@pytest.mark.parametrize(("shape", "flatten"), [((6,), 0), ((1, 2, 3), 1)])
def test_dense_networks_on_vectors_and_images(shape, flatten):
    net = build("d(8).d(4).d(3)", shape, 3)
    assert sum(isinstance(layer, nn.Flatten) for layer in net) == flatten
    assert net(torch.zeros(5, *shape)).shape == (5, 3)


@settings(deadline=None)
@given(
    st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 4), st.integers(0, 10**6)
)  # fmt: skip
def test_padding_is_tensorflows_same(height, width, kernel, stride, seed):
    """Also where it is asymmetric, and where the stride skips pixels."""
    torch.manual_seed(seed)
    net = build(f"c(2,{kernel},{stride}).d(2)", (3, height, width), 2).double()
    first = next(i for i, layer in enumerate(net) if isinstance(layer, MinMax))
    x = torch.randn(2, 3, height, width, dtype=torch.float64)
    weight = next(layer for layer in net if isinstance(layer, nn.Conv2d)).weight
    expected = _tensorflow_same_conv(x.numpy(), weight.detach().numpy(), stride)
    np.testing.assert_allclose(net[:first](x).detach().numpy(), expected, atol=1e-12)


def test_only_asymmetric_padding_needs_its_own_layer():
    assert not any(isinstance(m, nn.ZeroPad2d) for m in build("2C2F", (1, 28, 28), 10))
    net = build("c(4,4,2).d(2)", (1, 7, 8), 2)  # rows: ⌈7/2⌉ = 4 needs 3 zeros; columns: 2
    assert net[0].padding == (1, 1, 1, 2)  # left, right, top, bottom
    assert net[1].padding == (0, 0)


def test_orthogonal_initialisation():
    torch.manual_seed(0)
    net = build("c(6,3,1).c(32,2,1).d(64).d(4)", (2, 4, 4), 4)
    for layer in net:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            w = layer.weight.detach().double().flatten(1)
            gram = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64), atol=1e-5, rtol=0)
            assert not layer.bias.any()


def test_a_residual_piece_keeps_the_shape_and_starts_near_the_identity():
    torch.manual_seed(0)
    net = build("c(8,3,1).r(3).r(5).d(3)", (1, 6, 7), 3)
    blocks = [layer for layer in net if isinstance(layer, Residual)]
    assert [block.inner.kernel_size for block in blocks] == [(3, 3), (5, 5)]
    x = torch.randn(2, 8, 6, 7)
    for block in blocks:
        assert block(x).shape == x.shape
        torch.testing.assert_close(block(x), x + block.inner(x))
        assert torch.linalg.svdvals(block.inner.weight.detach().flatten(1)).max().item() == pytest.approx(0.1, rel=1e-4)
    glorot = build("c(8,3,1).r(3).d(3)", (1, 6, 7), 3, init="glorot")[2].inner.weight
    assert glorot.abs().max() <= 0.1 * math.sqrt(6 / (16 * 9))


def test_a_residual_piece_is_bounded_as_one_operator():
    torch.manual_seed(0)
    net = GloRoNet(build("c(4,3,1).r(3).d(3)", (1, 6, 6), 3), 0.1, (1, 6, 6)).eval()
    rows = {row.name: row.bound for row in net.layers()}
    block = net.module[2]
    identity = torch.eye(144).reshape(144, 4, 6, 6)
    with torch.no_grad():
        matrix = (block(identity) - block(torch.zeros_like(identity))).flatten(1)
    exact = torch.linalg.svdvals(matrix.double()).max().item()
    assert exact <= rows["2.inner"] <= exact * (1 + 1e-5)


def test_glorot_initialisation():
    torch.manual_seed(0)
    net = build("c(32,3,1).d(200).d(10)", (16, 8, 8), 10, init="glorot")
    for layer, fans in ((net[0], (16 + 32) * 9), (net[3], 32 * 64 + 200)):
        limit = math.sqrt(6 / fans)
        assert 0.98 * limit < layer.weight.abs().max() <= limit
        assert abs(layer.weight.var().item() / (limit**2 / 3) - 1) < 0.1
        assert not layer.bias.any()


def test_the_global_seed_decides_the_weights():
    def weights(seed):
        torch.manual_seed(seed)
        return build("2C2F", (1, 8, 8), 10)[0].weight

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_parse():
    assert parse("c(16,4,2).c(32,4,2).d(100).d(10)") == [
        Conv(16, 4, 2), Conv(32, 4, 2), Dense(100), Dense(10)
    ]  # fmt: skip
    assert parse("c(16,4,2).r(3).d(10)") == [Conv(16, 4, 2), Skip(3), Dense(10)]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("c(16,4,2).q(3).d(10)", r"piece 2, 'q\(3\)', is neither"),
        ("c(16,4,2).(32,4,2).d(10)", r"piece 2, '\(32,4,2\)', is neither"),
        ("c(16,4).d(10)", r"piece 1, 'c\(16,4\)', is neither"),
        ("c(16,4,2).d(10).", r"piece 3, '', is neither"),
        ("c(16, 4, 2).d(10)", r"piece 1, 'c\(16, 4, 2\)', is neither"),
        ("c(16,-4,2).d(10)", r"piece 1, .* is neither"),
        ("d(10)d(10)", r"piece 1, 'd\(10\)d\(10\)', is neither"),
        ("c(16,4,2).c(0,3,1).d(10)", r"piece 2, 'c\(0,3,1\)', has a zero"),
        ("c(16,4,0).d(10)", r"piece 1, .* has a zero"),
        ("d(0).d(10)", r"piece 1, 'd\(0\)', has a zero"),
        ("c(16,4,2).d(8).c(8,3,1).d(10)", r"piece 3, 'c\(8,3,1\)', is a convolution after a dense"),
        ("d(8).c(16,4,2)", r"piece 2, .* is a convolution after"),
        ("c(16,4,2)", r"piece 1, 'c\(16,4,2\)', ends the network"),
        ("c(16,4,2).r(3)", r"piece 2, 'r\(3\)', ends the network"),
        ("c(16,4,2).r(4).d(10)", r"piece 2, 'r\(4\)', has an even kernel"),
        ("c(16,4,2).r(3,3).d(10)", r"piece 2, 'r\(3,3\)', is neither"),
        ("c(16,4,2).r(0).d(10)", r"piece 2, 'r\(0\)', has a zero"),
        ("d(16).r(3).d(10)", r"piece 2, 'r\(3\)', is a convolution after a dense"),
        ("c(15,4,2).d(10)", r"piece 1, 'c\(15,4,2\)', has an odd size"),
        ("c(16,4,2).d(7).d(10)", r"piece 2, 'd\(7\)', has an odd size"),
        ("c(16,4,2).d(12)", r"piece 2, 'd\(12\)', must be d\(10\)"),
        ("7C2F", r"unknown architecture '7C2F'; use one of 2C2F, 4C3F, 6C2F, 8C2F"),
        ("", r"unknown architecture ''"),
    ],
)
def test_malformed_specs_point_at_the_piece(spec, message):
    with pytest.raises(ConfigError, match=message) as e:
        build(spec, (1, 8, 8), 10)
    assert "\n" not in str(e.value)


def test_an_odd_last_layer_and_odd_relu_layers_are_fine():
    assert build("d(4).d(3)", (2,), 3)(torch.zeros(1, 2)).shape == (1, 3)
    assert build("d(5).d(3)", (2,), 3, activation="relu")(torch.zeros(1, 2)).shape == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("c(16,4,2).d(2)", (8,), 2), r"piece 1, .* needs an image"),
        (("2C2F", (8,), 2), r"piece 1, .* needs an image"),
        (("d(2)", (8, 8), 2), "input_shape must be"),
        (("d(2)", (), 2), "input_shape must be"),
        (("d(2)", (0,), 2), "input_shape must be"),
        (("d(1)", (8,), 1), "at least 2 classes"),
        (("d(2)", (8,), 2, "gelu"), "activation must be one of minmax, relu"),
        (("d(2)", (8,), 2, "relu", "zero"), "init must be one of orthogonal, glorot"),
    ],
)
def test_other_bad_arguments(arguments, message):
    with pytest.raises(ConfigError, match=message):
        build(*arguments)


def _tensorflow_same_conv(x: np.ndarray, weight: np.ndarray, stride: int) -> np.ndarray:
    """TensorFlow's definition, in loops: pad_along = k − s where s | n, else k − n mod s, at least 0."""
    k = weight.shape[-1]

    def padding(n: int) -> tuple[int, int]:
        along = max(k - stride if n % stride == 0 else k - n % stride, 0)
        return along // 2, along - along // 2

    x = np.pad(x, ((0, 0), (0, 0), padding(x.shape[2]), padding(x.shape[3])))
    rows, columns = (x.shape[2] - k) // stride + 1, (x.shape[3] - k) // stride + 1
    out = np.empty((x.shape[0], weight.shape[0], rows, columns))
    for i in range(rows):
        for j in range(columns):
            window = x[:, :, i * stride : i * stride + k, j * stride : j * stride + k]
            out[:, :, i, j] = np.einsum("bchw,ochw->bo", window, weight)
    return out
