"""Augmentation as batched tensor code: one call a batch, on either device, every image drawn on its own.

Only tensor operations of fixed shape and the given generator, so that a call can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from gloronet.config import split_noise
from gloronet.errors import ConfigError, DataError


class Shard(NamedTuple):
    """Samples `start` to `stop` of a batch of `total`: what one of several processes works on.

    Random numbers are drawn for the whole batch, so that a sample is augmented alike whoever works on it.
    """

    start: int
    stop: int
    total: int


Draw = Callable[[int, tuple[int, ...], Generator], tuple[Tensor, ...]]


class Augmentation(NamedTuple):
    """Random numbers, and what is done with them: `draw` alone is random, `apply` is a function like any other."""

    draw: Draw
    """(n, shape of one input, generator) → tensors on the generator's device whose first dimension is the image."""
    apply: Callable[..., Tensor]
    """(batch in [0,1], *what was drawn) → a new batch: in [0,1], unless contrast was changed or noise added."""

    def __call__(self, x: Tensor, generator: Generator, shard: Shard | None = None) -> Tensor:
        return self.apply(x, *self.numbers(shard or Shard(0, len(x), len(x)), tuple(x.shape[1:]), generator))

    def numbers(self, shard: Shard, shape: tuple[int, ...], generator: Generator) -> tuple[Tensor, ...]:
        """What this shard of a batch of inputs of that shape is augmented with."""
        return tuple(t[shard.start : shard.stop] for t in self.draw(shard.total, shape, generator))


def augmentation(name: str) -> Augmentation:
    """The augmentation of that name: (batch in [0,1], generator on its device) → a new batch, in [0,1] unless said.

    A third argument, a `Shard`, says which part of a larger batch this one is.

    - `none`: the batch as it is; the only one for data that are not images (N, C, H, W).
    - `default`: the paper's, as ImageDataGenerator of tf.keras means it: rotation by up to 20°, shifts by up
      to 0.2 of width and height, shear by up to 0.1° (Keras counts in degrees), zoom of each axis by 0.9…1.1,
      horizontal flip; what comes in from outside repeats the nearest pixel.
    - `tfds`: the paper's other one: horizontal flip, zoom 0.25, brightness ± 0.2. The authors' code zooms by
      enlarging a random square of 0.75…1 of the side, so nothing comes in from outside.
    - `authors`: what the code the authors published does to CIFAR-10, where the paper says `default`: horizontal
      flip, saturation of colours times 0.5…1.2 and contrast times 0.8…1.2, each one factor a batch, rotation by up
      to 9° onto the nearest pixel, black around, and a random square of 0.8…1 of the side enlarged. Contrast may
      leave [0,1] by a tenth; there, noise of 0.01 follows: `authors + noise 0.01`.
    - `crop-flip`: shift by up to 4 whole pixels, reflected at the edge, and horizontal flip.
    - `jitter`: for digits and letters, which must not be flipped: rotation by up to 4°, shifts by up to 0.02
      of width and height, zoom by 0.96…1.04.
    - `noise SIGMA`, `crop-flip + noise SIGMA`, …: Gaussian noise of that standard deviation, on every entry, after
      any of the above. Not clipped to [0,1]: it trains the base classifier of randomized smoothing.
    """
    base, sigma = split_noise(name)
    if base not in _AUGMENTATIONS:
        known = ", ".join(_AUGMENTATIONS)
        raise ConfigError(
            f"There is no augmentation {name!r}; there are {known}, and each with ' + noise SIGMA'."
        )
    return _noisy(_AUGMENTATIONS[base], sigma) if sigma else _AUGMENTATIONS[base]


def _noisy(first: Augmentation, sigma: float) -> Augmentation:
    """That augmentation, then noise of standard deviation σ; the numbers it draws itself stay the same."""

    def draw(n: int, shape: tuple[int, ...], generator: Generator) -> tuple[Tensor, ...]:
        numbers = first.draw(n, shape, generator)
        return *numbers, torch.randn((n, *shape), generator=generator, device=generator.device)

    def apply(x: Tensor, *numbers: Tensor) -> Tensor:
        if not x.is_floating_point():
            raise DataError(f"Noise is for inputs of floats in [0,1], not {x.dtype}.")
        return first.apply(x, *numbers[:-1]) + sigma * numbers[-1].to(x.dtype)

    return Augmentation(draw, apply)


def _none(x: Tensor) -> Tensor:
    return x


def _default(x: Tensor, flip: Tensor, *uniform: Tensor) -> Tensor:
    _require_images(x, "default")
    turn, right, down, shear, zoom_x, zoom_y = (2 * u - 1 for u in uniform)
    angle, slant = math.radians(20) * turn, math.radians(0.1) * shear
    height, width = x.shape[-2:]
    # input pixel = rotation · (shift + shear · zoom · flip · output pixel), about the centre, in pixels
    cos, sin = angle.cos(), angle.sin()
    across, up = _sign(flip) * (1 + 0.1 * zoom_x), 1 + 0.1 * zoom_y
    skew_x, skew_y = -slant.sin() * up, slant.cos() * up
    shift_x, shift_y = 0.2 * width * right, 0.2 * height * down
    return _affine(
        x,
        (cos * across, cos * skew_x - sin * skew_y, cos * shift_x - sin * shift_y),
        (sin * across, sin * skew_x + cos * skew_y, sin * shift_x + cos * shift_y),
    )


def _tfds(x: Tensor, flip: Tensor, size: Tensor, left: Tensor, top: Tensor, light: Tensor) -> Tensor:
    _require_images(x, "tfds")
    height, width = x.shape[-2:]
    side = 1 - 0.25 * size
    room = (1 - side) / 2  # how far the square's centre can go from the image's, as a share of the image
    zero = torch.zeros_like(side)
    zoomed = _affine(
        x,
        (_sign(flip) * side, zero, (2 * left - 1) * room * width),
        (zero, side, (2 * top - 1) * room * height),
    )
    return (zoomed + 0.2 * (2 * light - 1).view(-1, 1, 1, 1)).clamp(0, 1)


def _authors(
    x: Tensor, flip: Tensor, turn: Tensor, size: Tensor, left: Tensor, top: Tensor, colour: Tensor, light: Tensor
) -> Tensor:
    _require_images(x, "authors")
    saturation, contrast = (t.view(-1, 1, 1, 1) for t in (0.5 + 0.7 * colour, 0.8 + 0.4 * light))
    if x.shape[1] == 3:  # towards grey or away from it, at most until the least of the three is 0
        value, least = x.amax(1, keepdim=True), x.amin(1, keepdim=True)
        most = value / (value - least).clamp(min=1e-12)
        x = value - (value - x) * torch.minimum(saturation, most)
    mean = x.mean((2, 3), keepdim=True)
    x = mean + (x - mean) * contrast

    angle, zero = 0.157 * (2 * turn - 1), torch.zeros_like(turn)
    cos, sin = angle.cos(), angle.sin()
    turned = _sampled(x, (cos, -sin, zero), (sin, cos, zero), "nearest", "zeros")
    height, width = x.shape[-2:]
    side = 1 - 0.2 * size
    room = (1 - side) / 2
    across = (_sign(flip) * side, zero, (2 * left - 1) * room * (width - 1))
    return _sampled(turned, across, (zero, side, (2 * top - 1) * room * (height - 1)))


def _crop_flip(x: Tensor, down: Tensor, right: Tensor, flip: Tensor) -> Tensor:
    _require_images(x, "crop-flip")
    n, channels, height, width = x.shape
    if min(height, width) <= 4:
        raise DataError(f"Augmentation crop-flip needs images of more than 4×4 pixels, not {height}×{width}.")
    row, column = (torch.arange(size, device=x.device) for size in (height, width))
    rows = _reflect(row + down, height)
    columns = _reflect(torch.where(flip < 0.5, width - 1 - column, column) + right, width)
    image = torch.arange(n, device=x.device).view(n, 1, 1, 1)
    channel = torch.arange(channels, device=x.device).view(1, channels, 1, 1)
    return x[image, channel, rows.view(n, 1, height, 1), columns.view(n, 1, 1, width)]


def _jitter(x: Tensor, *uniform: Tensor) -> Tensor:
    _require_images(x, "jitter")
    turn, right, down, zoom = (2 * u - 1 for u in uniform)
    height, width = x.shape[-2:]
    angle, scale = math.radians(4) * turn, 1 + 0.04 * zoom
    cos, sin = scale * angle.cos(), scale * angle.sin()
    return _affine(x, (cos, -sin, 0.02 * width * right), (sin, cos, 0.02 * height * down))


def _uniform(count: int) -> Draw:
    """`count` vectors of independent uniform numbers, one number an image."""
    return lambda n, _, generator: torch.rand(
        (count, n), generator=generator, device=generator.device
    ).unbind()


def _flip_turn_crop_colours(n: int, _: tuple[int, ...], generator: Generator) -> tuple[Tensor, ...]:
    """Five uniform numbers an image, and two a batch, the same for every image of it."""
    own = torch.rand((5, n), generator=generator, device=generator.device)
    common = torch.rand((2, 1), generator=generator, device=generator.device)
    return *own.unbind(), *common.expand(2, n).unbind()


def _shifts_and_flip(n: int, _: tuple[int, ...], generator: Generator) -> tuple[Tensor, ...]:
    """Two whole numbers from −4 to 4 and a uniform one, each (n, 1)."""
    shift = torch.randint(-4, 5, (2, n, 1), generator=generator, device=generator.device)
    return *shift.unbind(), torch.rand((n, 1), generator=generator, device=generator.device)


_AUGMENTATIONS = {
    "none": Augmentation(_uniform(0), _none),
    "default": Augmentation(_uniform(7), _default),
    "tfds": Augmentation(_uniform(5), _tfds),
    "authors": Augmentation(_flip_turn_crop_colours, _authors),
    "crop-flip": Augmentation(_shifts_and_flip, _crop_flip),
    "jitter": Augmentation(_uniform(4), _jitter),
}

_Row = tuple[Tensor, Tensor, Tensor]


def _affine(x: Tensor, to_x: _Row, to_y: _Row) -> Tensor:
    """Output pixel (a, b) is x bilinear at to_x·(a, b, 1), to_y·(a, b, 1); pixels count from the centre."""
    return _sampled(x, to_x, to_y).clamp(0, 1)  # the four weights may add up to a rounding error more than 1


def _sampled(x: Tensor, to_x: _Row, to_y: _Row, mode: str = "bilinear", outside: str = "border") -> Tensor:
    """The same for any values, by another interpolation, or with something else around."""
    height, width = x.shape[-2:]
    # grid_sample counts in half widths and half heights
    matrix = torch.stack(
        [
            torch.stack([to_x[0], to_x[1] * (height / width), to_x[2] * (2 / width)], -1),
            torch.stack([to_y[0] * (width / height), to_y[1], to_y[2] * (2 / height)], -1),
        ],
        -2,
    )
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode=mode, padding_mode=outside, align_corners=False)


def _reflect(index: Tensor, size: int) -> Tensor:
    """An index up to size − 1 outside 0…size − 1, reflected at the edge pixel: −1 → 1, size → size − 2."""
    return (size - 1) - ((size - 1) - index.abs()).abs()


def _sign(flip: Tensor) -> Tensor:
    """−1 for a half of [0,1), 1 for the other."""
    return torch.where(flip < 0.5, -1.0, 1.0)


def _require_images(x: Tensor, name: str) -> None:
    if x.dim() != 4 or not x.is_floating_point():
        raise DataError(
            f"Augmentation {name} is for float images (N, C, H, W), not {x.dtype} of shape {tuple(x.shape)}; "
            "use 'none'."
        )
