"""Named architectures, and the notation turned into `nn.Sequential`.

Convolutions are padded as TensorFlow's SAME, which the paper means: n pixels at stride s give ⌈n/s⌉, and
where the padding needed is odd, the extra row and column go below and to the right.
"""

from __future__ import annotations

from math import prod

from torch import nn

from gloronet.errors import ConfigError
from gloronet.layers import MinMax, Residual
from gloronet.models.notation import Conv, Dense, Skip, bad_piece, parse

# The paper's appendix, with the letters its strings drop. Its 8C2F is seven convolutions and one dense layer.
_NAMED = {
    "2C2F": "c(16,4,2).c(32,4,2).d(100)",
    "4C3F": "c(32,3,1).c(32,4,2).c(64,3,1).c(64,4,2).d(512).d(512)",
    "6C2F": "c(32,3,1).c(32,3,1).c(32,4,2).c(64,3,1).c(64,3,1).c(64,4,2).d(512)",
    "8C2F": "c(64,3,1).c(64,3,1).c(64,4,2).c(128,3,1).c(128,4,2).c(256,3,1).c(256,4,2)",
}
_ACTIVATIONS: dict[str, type[nn.Module]] = {"minmax": MinMax, "relu": nn.ReLU}
BRANCH = 0.1
"""How small a residual branch starts, beside the identity it is added to."""
_INITS = {"orthogonal": nn.init.orthogonal_, "glorot": nn.init.xavier_uniform_}


def build(
    spec: str,
    input_shape: tuple[int, ...],
    classes: int,
    activation: str = "minmax",
    init: str = "orthogonal",
) -> nn.Sequential:
    """A freshly initialised network from inputs of `input_shape`, (C, H, W) or (d,), to `classes` logits.

    `spec` is one of `names()`, whose last dense layer takes the size `classes`, or the paper's notation,
    whose last d(n) must have n = classes. The activation follows every layer but the last. Weights are
    orthogonal (as matrices from the receptive field to the output channels) or Glorot-uniform, drawn from
    torch's global generator; biases are zero. A residual branch starts as a tenth of that: x + W∗x begins
    near the identity, and the constant of many such blocks near 1.

    >>> build("c(16,4,2).d(10)", (1, 28, 28), classes=10, activation="relu")
    Sequential(
      (0): Conv2d(1, 16, kernel_size=(4, 4), stride=(2, 2), padding=(1, 1))
      (1): ReLU()
      (2): Flatten(start_dim=1, end_dim=-1)
      (3): Linear(in_features=3136, out_features=10, bias=True)
    )
    """
    _check(input_shape, classes, activation, init)
    spec = spelled(spec, classes)
    pieces = parse(spec)
    layers: list[nn.Module] = []
    shape = tuple(input_shape)
    for i, piece in enumerate(pieces):
        last = i == len(pieces) - 1
        if not isinstance(piece, Dense) and len(shape) != 3:
            raise bad_piece(spec, i, f"needs an image (C, H, W), but the input has shape {shape}")
        if isinstance(piece, Skip):
            layers.append(Residual(nn.Conv2d(shape[0], shape[0], piece.kernel, padding=piece.kernel // 2)))
        elif isinstance(piece, Conv):
            layers += _same_conv(shape, piece)
            shape = (piece.channels, -(-shape[1] // piece.stride), -(-shape[2] // piece.stride))
        else:
            if len(shape) == 3:
                layers.append(nn.Flatten())
            layers.append(nn.Linear(prod(shape), piece.size))
            shape = (piece.size,)
        if not last:
            if activation == "minmax" and shape[0] % 2:
                raise bad_piece(spec, i, "has an odd size, and MinMax needs pairs; make it even or use relu")
            layers.append(_ACTIVATIONS[activation]())
    if shape != (classes,):
        raise bad_piece(spec, len(pieces) - 1, f"must be d({classes}), as there are {classes} classes")
    _initialise(layers, init)
    return nn.Sequential(*layers)


def spelled(spec: str, classes: int) -> str:
    """A named architecture in the notation, with its last dense layer; what is in the notation stays as it is.

    >>> spelled("2C2F", 10)
    'c(16,4,2).c(32,4,2).d(100).d(10)'
    """
    return f"{_NAMED[spec]}.d({classes})" if spec in _NAMED else _literal(spec)


def names() -> tuple[str, ...]:
    """The architectures `build` knows by name.

    >>> names()
    ('2C2F', '4C3F', '6C2F', '8C2F')
    """
    return tuple(_NAMED)


def _same_conv(shape: tuple[int, ...], piece: Conv) -> list[nn.Module]:
    channels, *image = shape
    k, s = piece.kernel, piece.stride
    (top, bottom), (left, right) = (_same_padding(n, k, s) for n in image)
    if (top, left) == (bottom, right):
        return [nn.Conv2d(channels, piece.channels, k, s, padding=(top, left))]
    return [nn.ZeroPad2d((left, right, top, bottom)), nn.Conv2d(channels, piece.channels, k, s)]


def _same_padding(n: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after n pixels, so that the output has ⌈n/stride⌉."""
    out = -(-n // stride)
    total = max((out - 1) * stride + kernel - n, 0)
    return total // 2, total - total // 2


def _initialise(layers: list[nn.Module], init: str) -> None:
    for layer in layers:
        inner = layer.inner if isinstance(layer, Residual) else layer
        if isinstance(inner, nn.Conv2d | nn.Linear):
            _INITS[init](inner.weight, gain=BRANCH if inner is not layer else 1.0)
            assert inner.bias is not None
            nn.init.zeros_(inner.bias)


def _literal(spec: str) -> str:
    if "(" not in spec:
        raise ConfigError(
            f"unknown architecture {spec!r}; use one of {', '.join(_NAMED)}, "
            "or the notation c(channels,kernel,stride).r(kernel).d(size)."
        )
    return spec


def _check(input_shape: tuple[int, ...], classes: int, activation: str, init: str) -> None:
    if len(input_shape) not in (1, 3) or min(input_shape) < 1:
        raise ConfigError(f"input_shape must be (d,) or (C, H, W), all at least 1, not {tuple(input_shape)}.")
    if classes < 2:
        raise ConfigError(f"a classifier needs at least 2 classes, not {classes}.")
    if activation not in _ACTIVATIONS:
        raise ConfigError(f"activation must be one of {', '.join(_ACTIVATIONS)}, not {activation!r}.")
    if init not in _INITS:
        raise ConfigError(f"init must be one of {', '.join(_INITS)}, not {init!r}.")
