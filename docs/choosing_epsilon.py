"""What a change of ℓ2 size ε looks like, and how far apart images of different classes are: docs/choosing-epsilon.md.

    python -m docs.choosing_epsilon        # digits, MNIST and CIFAR-10, from GLORONET_DATA as elsewhere
    python -m docs.choosing_epsilon RUN    # and Tiny-ImageNet, with the net of a run of tuned/tiny-imagenet

Prints the page's table and draws a picture a data set: one test image, random noise of size ε added to it, and the
change of size ε that an attack found to be the worst for a certified net.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import gloronet as gn
from gloronet.data import Dataset, to_unit
from gloronet.report import style

SAMPLES = 1000
"""So many test images look for their nearest of another class, among all test images."""


@dataclass(frozen=True)
class Set:
    name: str
    title: str
    image: int
    """Which test image is drawn."""
    epsilons: tuple[str, ...]
    """The sizes drawn."""
    usual: tuple[str, ...]
    """Those of the literature, for the table."""
    net: Callable[[Dataset], gn.GloRoNet]


def small_net(data: Dataset) -> gn.GloRoNet:
    """The network of the digits' preset, after 50 epochs."""
    torch.manual_seed(0)
    f = gn.models.build("d(256).d(256).d(10)", data.input_shape, len(data.classes))
    net = gn.GloRoNet(f, "0.3", data.input_shape)
    gn.fit(net, data, gn.TrainConfig(epochs=50, batch_size=128, lr=2e-3, lr_schedule="linear", power_iterations=2))
    return net


def of_zoo(name: str, data: Dataset) -> gn.GloRoNet:
    return gn.load(f"zoo:{name}")


def sets(tiny: str | None = None) -> list[Set]:
    found = [
        Set("digits", "digits, 8×8", 9, ("0.1", "0.3", "0.6", "1", "2"), ("0.3",), small_net),
        Set("mnist", "MNIST, 28×28", 0, ("0.3", "0.8", "1.58", "3", "5"), ("0.3", "1.58"),
            partial(of_zoo, "mnist-1.58")),
        Set("cifar10", "CIFAR-10, 32×32, colour", 13, ("36/255", "72/255", "108/255", "0.8", "2"),
            ("36/255", "72/255", "108/255"), partial(of_zoo, "cifar10")),
    ]  # fmt: skip
    if tiny is not None:
        found.append(
            Set("tiny-imagenet", "Tiny-ImageNet, 64×64, colour", 42, ("36/255", "108/255", "0.8", "2"), ("36/255",),
                lambda data: gn.load(tiny))
        )  # fmt: skip
    return found


# The table


def rows(s: Set, data: Dataset) -> list[str]:
    """For each usual ε: how far it moves every value alone, and how many images are nearer than 2ε to another class."""
    n = math.prod(data.input_shape)
    gap = nearest_other(data)
    lines = []
    for text in s.usual:
        epsilon = gn.config.parse_epsilon(text)
        lines.append(
            f"{s.name:<14} {n:>7} {text:>8} {255 * epsilon / math.sqrt(n):>13.2f} {epsilon**2:>12.3f} "
            f"{gap.min() / 2:>9.2f} {gap.median() / 2:>9.2f} {(gap <= 2 * epsilon).double().mean():>9.1%}"
        )
    return lines


HEAD = (
    f"{'':<14} {'values':>7} {'ε':>8} {'all values by':>13} {'or so many':>12} {'half the way to':^19} {'nearer':>9}\n"
    f"{'':<14} {'':>7} {'':>8} {'of 255 levels':>13} {'from 0 to 1':>12} {'least':>9} {'median':>9} {'than 2ε':>9}"
)


def nearest_other(data: Dataset) -> Tensor:
    """ℓ2 from each of the first test images to the nearest test image of another class, in float64."""
    x = to_unit(data.test_x).flatten(1)
    found = []
    for part, labels in zip(x[:SAMPLES].split(100), data.test_y[:SAMPLES].split(100), strict=True):
        apart = torch.cdist(part, x).masked_fill(labels[:, None] == data.test_y, math.inf)
        nearest = apart.argmin(1)
        found.append((part.double() - x[nearest].double()).norm(dim=1))
    return torch.cat(found)


# The pictures


def paint(figure: Figure, s: Set, data: Dataset) -> None:
    """One image, and below each ε what noise and what an attack of that size make of it."""
    net = s.net(data)
    x = to_unit(data.test_x[s.image : s.image + 1])
    c = net.certify(x)
    generator = torch.Generator().manual_seed(0)
    figure.set_size_inches(1.32 * (len(s.epsilons) + 1), 3.4)
    axes = figure.subplots(2, len(s.epsilons) + 1)
    for ax in axes.flat:
        ax.set(xticks=[], yticks=[])
        ax.grid(visible=False)
        ax.spines[:].set(visible=True, linewidth=2.5)
    legend(axes[1, 0])
    show(axes[0, 0], x, said(data, int(c.label)), style.INK)
    axes[0, 0].set_title(f"r = {float(c.radius):.3f}", fontsize=9)
    for k, text in enumerate(s.epsilons, 1):
        epsilon = gn.config.parse_epsilon(text)
        attacked = gn.attacks.pgd(net.logits, x, c.label, epsilon, steps=30, restarts=2, generator=generator).x
        axes[0, k].set_title(f"ε = {text}", fontsize=9)
        for ax, changed in ((axes[0, k], noisy(x, epsilon, generator)), (axes[1, k], attacked)):
            with torch.no_grad():
                answer = net.logits(changed).argmax(1)
            same = bool(answer == c.label)
            proved = epsilon < float(c.radius)
            assert same or not proved
            colour = style.PROVED if proved else style.BOTTOM if same else style.ATTACKED
            show(ax, changed, said(data, int(answer)), colour)
    axes[0, 1].set_ylabel("noise", fontsize=9)
    axes[1, 1].set_ylabel("attack", fontsize=9)
    figure.suptitle(s.title, x=0.01, ha="left", fontsize=10)


def legend(ax: Axes) -> None:
    """What the frames mean, in the one place that is free."""
    ax.set_axis_off()
    told = {"proved:\nε < r": style.PROVED, "not proved,\nthe same": style.BOTTOM, "another\nanswer": style.ATTACKED}
    for k, (text, colour) in enumerate(told.items()):
        y = 0.84 - 0.33 * k
        ax.plot(0.06, y, "s", color=colour, markersize=8, transform=ax.transAxes)
        ax.text(0.17, y, text, fontsize=8, va="center", transform=ax.transAxes)


def show(ax: Axes, x: Tensor, said: str, colour: str) -> None:
    image = x[0].permute(1, 2, 0).expand(-1, -1, 3).numpy()
    ax.imshow(image, interpolation="nearest")
    ax.set_xlabel(said, fontsize=9)
    ax.spines[:].set_color(colour)


def said(data: Dataset, label: int) -> str:
    """A class's name; those of Tiny-ImageNet are long numbers, and a shorter one tells as much."""
    return f"class {label}" if data.name == "tiny-imagenet" else data.classes[label]


def noisy(x: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    """x and Gaussian noise, scaled so that the change has size ε after the image was cut to [0, 1]."""
    noise = torch.randn(x.shape, generator=generator)
    low, high = 0.0, 1e3
    for _ in range(60):
        middle = (low + high) / 2
        size = float(((x + middle * noise).clamp(0, 1) - x).double().norm())
        low, high = (middle, high) if size < epsilon else (low, middle)
    return (x + low * noise).clamp(0, 1)


def main(chosen: list[Set], folder: Path = Path(__file__).parent) -> None:
    """Prints the table and draws the pictures into `folder`."""
    print(HEAD)
    for s in chosen:
        data = gn.data.load(s.name)
        print("\n".join(rows(s, data)))
        picture = style.png(partial(paint, data=data), s)
        (folder / f"epsilon_{s.name}.png").write_bytes(picture)


if __name__ == "__main__":
    main(sets(*sys.argv[1:]))
