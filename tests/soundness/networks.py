"""Random networks, made of every operation that has a rule: blocks that fit whatever shape comes in.

A block is a function (draw, shape) → module, or None where it does not fit. `network(draw, first)` puts a few
of them in a row, `first` for sure, ends in a linear layer, and draws all numbers, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn

import gloronet as gn
from gloronet.layers import GroupSort, Householder, MinMax, Residual, Standardize

Draw = Callable[[Any], Any]
Shape = tuple[int, ...]
CLASSES = 3
LARGEST = 200
"""Entries of a value: so many backward passes are cheap."""


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


# Blocks


def conv(draw: Draw, shape: Shape, keep: bool = False) -> nn.Module | None:
    """Any stride, padding (zeros on each side, or a circle), dilation and groups that fit; `keep`: the same shape."""
    if len(shape) not in (2, 3):
        return None
    c, axes = shape[0], len(shape) - 1
    kernel = draw(st.sampled_from((1, 3) if keep else (1, 2, 3, 4)))
    dilation = draw(st.sampled_from((1, 1, 2)))
    reach = dilation * (kernel - 1)
    padding = reach // 2 if keep else draw(st.integers(0, min(2, *shape[1:])))
    if any(n + 2 * padding <= reach for n in shape[1:]):
        return None
    mode = draw(st.sampled_from(("zeros", "circular"))) if 0 < padding <= min(shape[1:]) else "zeros"
    groups = draw(st.sampled_from([g for g in (1, 2) if c % g == 0]))
    width = c if keep else draw(st.sampled_from([w for w in (2, 4) if w % groups == 0]))
    settings = {"stride": 1 if keep else draw(st.sampled_from((1, 1, 2, 3))), "padding": padding, "dilation": dilation}
    kind = nn.Conv1d if axes == 1 else nn.Conv2d
    return kind(c, width, kernel, groups=groups, padding_mode=mode, bias=draw(st.booleans()), **settings)


def dense(draw: Draw, shape: Shape) -> nn.Module:
    n = math.prod(shape)
    width = draw(st.sampled_from((4, 6, 8)))
    return nn.Sequential(nn.Flatten(), nn.Linear(n, width, bias=draw(st.booleans())))


def pool(draw: Draw, shape: Shape) -> nn.Module | None:
    if len(shape) != 3 or min(shape[1:]) < 3:
        return None
    kernel, stride = draw(st.sampled_from((2, 3))), draw(st.sampled_from((1, 2, 3)))
    padding = draw(st.integers(0, 1))
    return draw(st.sampled_from((nn.AvgPool2d, nn.MaxPool2d)))(kernel, stride, padding)


def adaptive(draw: Draw, shape: Shape) -> nn.Module | None:
    if len(shape) != 3:
        return None
    return nn.AdaptiveAvgPool2d(draw(st.sampled_from([k for k in (1, 2, 3) if not any(n % k for n in shape[1:])])))


def batchnorm(draw: Draw, shape: Shape) -> nn.Module:
    kind = nn.BatchNorm2d if len(shape) == 3 else nn.BatchNorm1d
    return kind(shape[0], eps=draw(st.sampled_from((1e-5, 0.1))), affine=draw(st.booleans()))


def residual(draw: Draw, shape: Shape) -> nn.Module | None:
    """x + Wx, or x + |Wx|, which is no linear operator."""
    linear = nn.Linear(shape[0], shape[0]) if len(shape) == 1 else conv(draw, shape, keep=True)
    if linear is None:
        return None
    return Residual(linear if draw(st.booleans()) else nn.Sequential(linear, Calls(torch.abs)))


def joined(draw: Draw, shape: Shape) -> nn.Module | None:
    """Branches added, or side by side; the input itself may be one of them."""
    branches = [residual(draw, shape), draw(st.sampled_from((nn.Identity(), nn.ReLU(), Calls(torch.neg))))]
    if branches[0] is None:
        return None
    if draw(st.booleans()):
        return Branches(lambda ys: ys[0] + ys[1], *branches)
    dim = 1 + draw(st.integers(0, len(shape) - 1))
    return Branches(lambda ys: torch.cat(ys, dim), *branches)


def rearranged(draw: Draw, shape: Shape) -> nn.Module | None:
    """Reshaped, permuted, padded, unshuffled: the same entries elsewhere."""
    n = math.prod(shape)
    if len(shape) == 1:
        return nn.Unflatten(1, draw(st.sampled_from([(n, 1), (1, n), (1, n, 1)])))
    amounts = draw(st.lists(st.integers(0, 1), min_size=2 * len(shape) - 2, max_size=2 * len(shape) - 2))
    pads = (nn.ZeroPad1d, nn.CircularPad1d) if len(shape) == 2 else (nn.ZeroPad2d, nn.CircularPad2d)
    found: list[nn.Module] = [
        Calls(lambda x: x.transpose(-1, -2)),
        Calls(lambda x: x.permute(0, *range(x.dim() - 1, 0, -1))),
        *(pad(tuple(amounts)) for pad in pads),
        nn.Dropout(0.5),
    ]
    if len(shape) == 3 and not any(s % 2 for s in shape[1:]):
        found.append(nn.PixelUnshuffle(2))
    return draw(st.sampled_from(found))


def affine(draw: Draw, shape: Shape) -> nn.Module:
    """x·g, x/g, x + c, x − c, with a constant a channel or one for all."""
    wide = (shape[0], *[1] * (len(shape) - 1)) if draw(st.booleans()) else ()
    constant = 0.5 + torch.rand(wide, dtype=torch.float64)
    if draw(st.integers(0, 4)) == 0 and len(shape) == 3:
        return Standardize([0.3] * shape[0], [0.25] * shape[0])
    functions = (lambda x, c: x * c, lambda x, c: x / c, lambda x, c: x + c, lambda x, c: x - c)
    return Calls(draw(st.sampled_from(functions)), constant)


def activation(draw: Draw, shape: Shape) -> nn.Module:
    found: list[nn.Module] = [nn.ReLU(), nn.LeakyReLU(draw(st.sampled_from((0.1, -0.5, 2.0)))), Calls(torch.abs)]
    if shape[0] % 2 == 0:
        found += [MinMax(), GroupSort(2), Householder(shape[0])]
    return draw(st.sampled_from(found))


def smooth(draw: Draw, shape: Shape) -> nn.Module:
    found = (nn.Sigmoid(), nn.Tanh(), nn.ELU(1.5), nn.Softplus(2.0), nn.GELU(), nn.GELU("tanh"))
    return draw(st.sampled_from(found))


BLOCKS = (conv, dense, pool, adaptive, batchnorm, residual, joined, rearranged, affine, activation, smooth)


# Whole networks


def network(draw: Draw, first: Callable[..., nn.Module | None]) -> tuple[nn.Sequential, Shape]:
    """(features, head) in eval mode, and the input's shape."""
    shape = input_shape = draw(st.sampled_from(((6,), (2, 7), (2, 6, 6), (1, 5, 7), (2, 4, 6))))
    torch.manual_seed(draw(st.integers(0, 2**16)))
    layers: list[nn.Module] = []
    plan = draw(st.permutations([first, *(draw(st.sampled_from(BLOCKS)) for _ in range(4))]))
    for block in plan:
        module = block(draw, shape)
        if module is None:
            continue
        module = randomised(module.double()).eval()
        with torch.no_grad():
            after = tuple(module(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
        if math.prod(after) <= LARGEST:
            layers, shape = [*layers, module], after
    head = nn.Linear(math.prod(shape), CLASSES).double()
    return nn.Sequential(nn.Sequential(*layers, nn.Flatten()), head).eval(), input_shape


@torch.no_grad()
def randomised(module: nn.Module) -> nn.Module:
    """BatchNorms as after training, gains of either sign; angles of any size."""
    for m in module.modules():
        if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.05, 3.0)
            for p in m.parameters():
                p.normal_()
        if isinstance(m, Householder):
            m.theta.uniform_(-7.0, 7.0)
    return module


def rules_of(net: gn.GloRoNet) -> set[str]:
    return {op.kind.rule for op in net.program().ops}
