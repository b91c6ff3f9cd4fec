"""Random networks, made of every operation that has a rule.

A piece is a function (draw, shape) → module, or None where it does not fit. `network(draw, rule)` begins
with the piece of that rule, goes on with random ones, ends in a linear layer, and draws all numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

from gloronet.layers import GroupSort, Householder, MinMax, Residual, Standardize

Draw = Callable[[Any], Any]
Shape = tuple[int, ...]
Piece = Callable[[Draw, Shape], nn.Module | None]
SHAPES: tuple[Shape, ...] = ((6,), (2, 7), (4, 6), (2, 6, 6), (2, 5, 7), (4, 4, 6))
CLASSES = 3
LARGEST = 200
"""Entries of a value after the first piece: so many backward passes are cheap."""


class Calls(nn.Module):
    """A hand-written forward, with constants that are buffers."""

    def __init__(self, function: Callable[..., Tensor], *constants: Tensor) -> None:
        super().__init__()
        self.function = function
        for k, c in enumerate(constants):
            self.register_buffer(f"c{k}", c)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.buffers())


class Branches(nn.Module):
    """Modules on the same input, joined by `join`."""

    def __init__(self, join: Callable[[list[Tensor]], Tensor], *inner: nn.Module) -> None:
        super().__init__()
        self.join, self.inner = join, nn.ModuleList(inner)

    def forward(self, x: Tensor) -> Tensor:
        return self.join([m(x) for m in self.inner])


def network(draw: Draw, rule: str) -> tuple[nn.Sequential, Shape]:
    """(features, head) in eval mode, and the input's shape."""
    axes = {"conv2d": (3,), "avgpool": (3,), "maxpool": (3,), "pixelunshuffle": (3,), "conv1d": (2,)}
    axes |= {name: (2, 3) for name in ("permute", "pad", "circularpad")}
    shape = input_shape = draw(st.sampled_from([s for s in SHAPES if len(s) in axes.get(rule, (1, 2, 3))]))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    layers: list[nn.Module] = []
    for name in (rule, *draw(st.lists(st.sampled_from(sorted(PIECES)), min_size=2, max_size=4))):
        piece = PIECES[name](draw, shape)
        if piece is not None:
            piece = randomised(piece.double()).eval()
            with torch.no_grad():
                after = tuple(piece(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
            if not layers or math.prod(after) <= LARGEST:
                layers, shape = [*layers, piece], after
    head = nn.Linear(math.prod(shape), CLASSES).double()
    return nn.Sequential(nn.Sequential(*layers, nn.Flatten()), head).eval(), input_shape


@torch.no_grad()
def randomised(module: nn.Module) -> nn.Module:
    """BatchNorms as after training, with gains of either sign; angles of any size."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.05, 3.0)
            for p in m.parameters():
                p.normal_()
        if isinstance(m, Householder):
            m.theta.uniform_(-7.0, 7.0)
    return module


# Linear pieces


def conv(draw: Draw, shape: Shape, keep: bool = False) -> nn.Module | None:
    """Any stride, padding (zeros or a circle), dilation and groups that fit; `keep`: the same shape comes
    out."""
    if len(shape) == 1:
        return None
    c = shape[0]
    every = [(k, d) for k in (1, 2, 3, 4) for d in (1, 2)]
    same = [(1, 1), (3, 1), (3, 2), (2, 2)]  # with the last, x itself falls between two taps
    kernel, dilation = draw(st.sampled_from(same if keep else every))
    reach = dilation * (kernel - 1)
    padding = reach // 2 if keep else draw(st.integers(0, min(2, *shape[1:])))
    if any(n + 2 * padding <= reach for n in shape[1:]):
        kernel, padding = 1, 0
    mode = draw(st.sampled_from(("zeros", "circular"))) if 0 < padding <= min(shape[1:]) else "zeros"
    groups = draw(st.sampled_from([g for g in (1, 2) if c % g == 0]))
    width = c if keep else draw(st.sampled_from((2, 4)))
    stride = 1 if keep else draw(st.sampled_from((1, 1, 2, 3)))
    kind, bias = nn.Conv1d if len(shape) == 2 else nn.Conv2d, draw(st.booleans())
    return kind(c, width, kernel, stride, padding, dilation, groups, bias, padding_mode=mode)


def dense(draw: Draw, shape: Shape) -> nn.Module:
    width = draw(st.sampled_from((4, 6, 8)))
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width, bias=draw(st.booleans())))


def pool(kind: type[nn.Module]) -> Piece:
    def piece(draw: Draw, shape: Shape) -> nn.Module | None:
        if len(shape) != 3 or min(shape[1:]) < 3:
            return None
        sizes = [k for k in (1, 2, 3) if not any(n % k for n in shape[1:])]
        if kind is nn.AvgPool2d and draw(st.booleans()):
            return nn.AdaptiveAvgPool2d(draw(st.sampled_from(sizes)))
        return kind(draw(st.sampled_from((2, 3))), draw(st.sampled_from((1, 2, 3))), draw(st.integers(0, 1)))

    return piece


def scale(draw: Draw, shape: Shape) -> nn.Module:
    """A gain, BatchNorm or standardisation."""
    if draw(st.booleans()):
        norm = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
        return norm(shape[0], eps=draw(st.sampled_from((1e-5, 0.1))), affine=draw(st.booleans()))
    if len(shape) == 3 and draw(st.booleans()):
        return Standardize([0.3] * shape[0], [0.25] * shape[0])
    return constant(lambda x, c: x * c, lambda x, c: x / c, lambda x, c: -x * c)(draw, shape)


def constant(*functions: Callable[..., Tensor]) -> Piece:
    """A function of x and a constant, one for each channel or one for all."""

    def piece(draw: Draw, shape: Shape) -> nn.Module:
        wide = (shape[0], *[1] * (len(shape) - 1)) if draw(st.booleans()) else ()
        return Calls(draw(st.sampled_from(functions)), 0.5 + torch.rand(wide, dtype=torch.float64))

    return piece


# Branches


def residual(draw: Draw, shape: Shape) -> nn.Module:
    """x + Wx, which is one operator, or x + |Wx|, which is a sum."""
    inner = nn.Linear(shape[0], shape[0]) if len(shape) == 1 else conv(draw, shape, keep=True)
    assert inner is not None
    return Residual(inner if draw(st.booleans()) else nn.Sequential(inner, Calls(torch.abs)))


def branches(draw: Draw, shape: Shape) -> tuple[nn.Module, nn.Module]:
    return residual(draw, shape), draw(st.sampled_from((nn.ReLU(), Calls(torch.neg), nn.Tanh())))


def added(draw: Draw, shape: Shape) -> nn.Module:
    return Branches(lambda ys: ys[0] + ys[1], *branches(draw, shape))


def concatenated(draw: Draw, shape: Shape) -> nn.Module:
    dim = 1 + draw(st.integers(0, len(shape) - 1))
    return Branches(lambda ys: torch.cat(ys, dim), *branches(draw, shape), nn.Identity())


# Rearrangements


def reshape(draw: Draw, shape: Shape) -> nn.Module:
    n = math.prod(shape)
    to = draw(st.sampled_from([(n,), (1, n), (1, n, 1)]))
    return Calls(lambda x: x.reshape(-1, *to))


def permute(draw: Draw, shape: Shape) -> nn.Module | None:
    backwards = Calls(lambda x: x.permute(0, *range(x.dim() - 1, 0, -1)))
    return (
        draw(st.sampled_from([backwards, Calls(lambda x: x.transpose(-1, -2))])) if len(shape) > 1 else None
    )


def padded(mode: str) -> Piece:
    """Around the image, with a nonlinearity after it, or it would be merged into a convolution."""

    def piece(draw: Draw, shape: Shape) -> nn.Module | None:
        if len(shape) == 1:
            return None
        sides = 2 * (len(shape) - 1)
        amounts = draw(st.lists(st.integers(0, 1), min_size=sides, max_size=sides))
        return nn.Sequential(Calls(lambda x: nn.functional.pad(x, amounts, mode)), nn.ReLU())

    return piece


def unshuffled(draw: Draw, shape: Shape) -> nn.Module | None:
    if len(shape) != 3:
        return None
    even = [n - n % 2 for n in shape[1:]]
    if not all(even):
        return None
    pads = [k for n in reversed(shape[1:]) for k in (0, n % 2)]
    return nn.Sequential(nn.ZeroPad2d(tuple(pads)), nn.PixelUnshuffle(2))


# Nonlinearities


def on_pairs(make: Callable[[int], nn.Module]) -> Piece:
    """One that takes an even number of channels; where there is an odd number, each comes twice."""

    def piece(draw: Draw, shape: Shape) -> nn.Module:
        if shape[0] % 2 == 0:
            return make(shape[0])
        return nn.Sequential(Calls(lambda x: torch.cat([x, -x], 1)), make(2 * shape[0]))

    return piece


def one_of(*make: Callable[[], nn.Module]) -> Piece:
    return lambda draw, shape: draw(st.sampled_from(make))()


PIECES: dict[str, Piece] = {
    "dense": dense,
    "conv1d": conv,
    "conv2d": conv,
    "avgpool": pool(nn.AvgPool2d),
    "maxpool": pool(nn.MaxPool2d),
    "scale": scale,
    "translate": constant(lambda x, c: x + c, lambda x, c: x - c),
    "sum": added,
    "concat": concatenated,
    "reshape": reshape,
    "permute": permute,
    "pad": padded("constant"),
    "circularpad": padded("circular"),
    "pixelunshuffle": unshuffled,
    "relu": one_of(nn.ReLU),
    "leakyrelu": one_of(lambda: nn.LeakyReLU(0.1), lambda: nn.LeakyReLU(-1.5), lambda: nn.LeakyReLU(2.0)),
    "abs": one_of(lambda: Calls(torch.abs)),
    "minmax": on_pairs(lambda c: MinMax()),
    "groupsort": on_pairs(lambda c: GroupSort(2)),
    "householder": on_pairs(Householder),
    "sigmoid": one_of(nn.Sigmoid),
    "tanh": one_of(nn.Tanh),
    "elu": one_of(lambda: nn.ELU(1.5), nn.ELU),
    "softplus": one_of(nn.Softplus, lambda: nn.Softplus(2.0)),
    "gelu": one_of(nn.GELU, lambda: nn.GELU("tanh")),
}
"""The rule's name → what is drawn for it."""
