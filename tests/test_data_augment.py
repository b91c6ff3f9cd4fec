"""The laws of augmentation: range, shape, seed, and that each one does what it says and no more."""

import colorsys
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import ndimage
from torch import Tensor

from gloronet.config import AUGMENTATIONS
from gloronet.data import augmentation
from gloronet.data.augment import _AUGMENTATIONS, _affine
from gloronet.errors import ConfigError, DataError

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
MOVING = [name for name in AUGMENTATIONS if name != "none"]


def seeded(seed: int, device: str = "cpu") -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


def images(n: int = 64, channels: int = 3, height: int = 12, width: int = 10) -> Tensor:
    return torch.rand(n, channels, height, width, generator=seeded(99))


def coordinates(n: int, size: int) -> Tensor:
    """Images whose two channels are each pixel's column and row over size − 1: a map."""
    line = torch.arange(size) / (size - 1)
    return torch.stack(torch.meshgrid(line, line, indexing="xy")).expand(n, 2, size, size)


def test_the_names_are_those_of_the_config() -> None:
    assert tuple(_AUGMENTATIONS) == AUGMENTATIONS
    with pytest.raises(ConfigError, match="there are none, default, tfds, authors, crop-flip"):
        augmentation("mixup")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_shape_range_device_and_input_are_kept(name: str, device: str) -> None:
    x = images().to(device)
    x[::2] = (x[::2] > 0.5).float()  # images of 0 and 1 alone sit at the edge of the range
    before = x.clone()
    y = augmentation(name)(x, seeded(1, device))
    assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
    beyond = 0.2 if name == "authors" else 0.0  # contrast: a mean m becomes m ± 1.2·(1 − m) at most
    assert y.min() >= -beyond
    assert y.max() <= 1 + beyond
    assert torch.equal(x, before)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MOVING)
def test_the_generator_alone_decides_and_each_image_is_drawn_on_its_own(name: str, device: str) -> None:
    x = images(1).expand(64, -1, -1, -1).to(device)
    augment = augmentation(name)
    global_state = torch.get_rng_state()
    y = augment(x, seeded(5, device))
    assert torch.equal(torch.get_rng_state(), global_state)
    assert torch.equal(y, augment(x, seeded(5, device)))
    assert not torch.equal(y, augment(x, seeded(6, device)))
    assert len(y.flatten(1).unique(dim=0)) > 40
    generator = seeded(5, device)
    assert not torch.equal(augment(x, generator), augment(x, generator))  # and it moves on


def test_none_is_the_identity_for_images_and_vectors() -> None:
    for x in (images(), torch.rand(5, 2)):
        assert torch.equal(augmentation("none")(x, seeded(0)), x)


@pytest.mark.parametrize("name", MOVING)
def test_only_float_images_can_be_moved(name: str) -> None:
    for x in (torch.rand(5, 2), torch.zeros(5, 1, 8, 8, dtype=torch.uint8)):
        with pytest.raises(DataError, match=f"Augmentation {name} is for float images"):
            augmentation(name)(x, seeded(0))


def test_crop_flip_gives_the_crops_of_the_reflected_image_evenly() -> None:
    image = images(1, height=12, width=11)  # large enough that all of them differ
    padded = F.pad(image, (4, 4, 4, 4), mode="reflect")
    crops = [padded[0, :, i : i + 12, j : j + 11] for i in range(9) for j in range(9)]
    known = torch.stack([*crops, *(c.flip(-1) for c in crops)]).flatten(1)
    out = augmentation("crop-flip")(image.expand(2000, -1, -1, -1), seeded(0)).flatten(1)
    which = (out[:, None] == known[None]).all(-1).float().argmax(1)
    assert torch.equal(known[which], out)  # each is one of the 162, pixel for pixel
    assert which.unique().numel() == 162
    assert (which >= 81).float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_crop_flip_refuses_images_too_small_to_reflect() -> None:
    with pytest.raises(DataError, match="more than 4×4 pixels, not 4×8"):
        augmentation("crop-flip")(torch.rand(2, 1, 4, 8), seeded(0))


def test_tfds_enlarges_a_square_inside_the_image_flips_half_and_brightens() -> None:
    n, size = 2000, 33
    grey = torch.full((n, 1, size, size), 0.5)
    out = augmentation("tfds")(torch.cat([0.3 + 0.4 * coordinates(n, size), grey], 1), seeded(0))
    light = out[:, 2].flatten(1)
    assert (light.max(1).values - light.min(1).values).max() < 1e-6  # the same for the whole image
    shift = light[:, 0] - 0.5
    assert shift.abs().max() <= 0.2 + 1e-6
    assert shift.min() < -0.19
    assert shift.max() > 0.19

    column, row = ((out[:, :2] - shift.view(-1, 1, 1, 1) - 0.3) / 0.4 * (size - 1)).unbind(1)
    step_x = (column[:, 16, 26] - column[:, 16, 6]) / 20
    step_y = (row[:, 26, 16] - row[:, 6, 16]) / 20
    assert torch.allclose(step_x.abs(), step_y, atol=1e-3)  # a square, and never upside down
    assert step_y.min().item() == pytest.approx(0.75, abs=0.002)
    assert step_y.max().item() == pytest.approx(1, abs=0.002)
    assert (step_x < 0).float().mean().item() == pytest.approx(0.5, abs=0.04)
    room = (1 - step_y) * size / 2  # the square stays inside the image
    for centre in (column[:, 16, 16] - 16, row[:, 16, 16] - 16):
        assert (centre.abs() <= room + 0.01).all()
        assert (centre / room.clamp(min=0.1)).abs().max() > 0.97


def test_default_turns_shifts_zooms_and_flips_as_keras_means_it() -> None:
    n, size = 4000, 41
    middle = size // 2
    out = augmentation("default")(coordinates(n, size), seeded(0)) * (size - 1)
    centre = out[:, :, middle, middle] - middle
    along_x = (out[:, :, middle, middle + 2] - out[:, :, middle, middle - 2]) / 4  # where a step right leads
    along_y = (out[:, :, middle + 2, middle] - out[:, :, middle - 2, middle]) / 4
    inside = ((centre.abs() + 3) < middle).all(1)  # so that no pixel here was repeated from the edge
    assert inside.float().mean() > 0.95
    along_x, along_y, centre = along_x[inside].double(), along_y[inside].double(), centre[inside].double()

    flipped = along_x[:, 0] < 0
    assert flipped.double().mean().item() == pytest.approx(0.5, abs=0.03)
    along_x = torch.where(flipped[:, None], -along_x, along_x)
    for zoom in (along_x.norm(dim=1), along_y.norm(dim=1)):
        assert zoom.min().item() == pytest.approx(0.9, abs=0.002)
        assert zoom.max().item() == pytest.approx(1.1, abs=0.002)
    angle = torch.atan2(along_x[:, 1], along_x[:, 0])
    assert angle.min().item() == pytest.approx(-math.radians(20), abs=0.01)
    assert angle.max().item() == pytest.approx(math.radians(20), abs=0.01)
    shear = torch.atan2(-along_y[:, 0], along_y[:, 1]) - angle
    assert shear.abs().max().item() == pytest.approx(math.radians(0.1), rel=0.1)  # Keras counts it in degrees
    cos, sin = angle.cos(), angle.sin()  # the shift comes before the rotation
    for shift in (cos * centre[:, 0] + sin * centre[:, 1], cos * centre[:, 1] - sin * centre[:, 0]):
        assert shift.abs().max().item() == pytest.approx(0.2 * size, abs=0.05)
        assert shift.mean().item() == pytest.approx(0, abs=0.3)


def test_authors_changes_colours_alike_in_a_batch_and_places_image_by_image() -> None:
    flat = torch.tensor([0.8, 0.6, 0.2]).view(1, 3, 1, 1).expand(500, 3, 32, 32)
    factors = []
    for seed in range(300):
        out = augmentation("authors")(flat, seeded(seed))
        inner = out[:, :, 12:20, 12:20]  # what a turn of 9° brings in from outside does not reach the middle
        assert (inner - inner[0, :, 0, 0].view(1, 3, 1, 1)).abs().max() < 1e-6  # one colour, in every image
        value, _, least = inner[0, :, 0, 0].tolist()
        assert value == pytest.approx(0.8, abs=1e-5)
        factors.append((value - least) / 0.6)
    assert min(factors) == pytest.approx(0.5, abs=0.02)
    assert max(factors) == pytest.approx(1.2, abs=0.02)

    # In TensorFlow: to hue, saturation and value, the saturation times the factor, at most 1, and back.
    x = images(8, height=16, width=16)
    still = [torch.full((8,), v) for v in (0.9, 0.5, 0.0, 0.5, 0.5)]  # no flip, no turn, the whole image
    for colour in (0.0, 0.4, 1.0):
        ours = _AUGMENTATIONS["authors"].apply(x, *still, torch.full((8,), colour), torch.full((8,), 0.5))
        before, after = (t.permute(0, 2, 3, 1).reshape(-1, 3).tolist() for t in (x, ours))
        for pixel, found in zip(before, after, strict=True):
            h, s, v = colorsys.rgb_to_hsv(*pixel)
            theirs = colorsys.hsv_to_rgb(h, min(1.0, s * (0.5 + 0.7 * colour)), v)
            assert found == pytest.approx(theirs, abs=1e-5)

    stretched = _AUGMENTATIONS["authors"].apply(x, *still, torch.full((8,), 5 / 7), torch.ones(8))
    mean = x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(stretched, mean + 1.2 * (x - mean), atol=1e-5, rtol=0)


def test_authors_turns_by_nine_degrees_and_enlarges_a_square_inside() -> None:
    n, size = 1500, 101
    draw, apply = _AUGMENTATIONS["authors"]
    *places, colour, _ = draw(n, (2, size, size), seeded(1))
    out = apply(coordinates(n, size), *places, colour, torch.full((n,), 0.5)) * (size - 1)
    middle, arm = size // 2, 20
    along_x = (out[:, :, middle, middle + arm] - out[:, :, middle, middle - arm]) / (2 * arm)
    along_y = (out[:, :, middle + arm, middle] - out[:, :, middle - arm, middle]) / (2 * arm)
    rounding = 0.04  # to the nearest pixel, over 40
    flipped = along_x[:, 0] < 0
    assert flipped.float().mean().item() == pytest.approx(0.5, abs=0.04)
    along_x = torch.where(flipped[:, None], -along_x, along_x)
    for side in (along_x.norm(dim=1), along_y.norm(dim=1)):
        assert side.min().item() == pytest.approx(0.8, abs=rounding)
        assert side.max().item() == pytest.approx(1, abs=rounding)
    angle = torch.atan2(along_x[:, 1], along_x[:, 0])
    assert angle.abs().max().item() == pytest.approx(0.157, abs=rounding)
    assert angle.mean().abs() < 0.01
    centre = out[:, :, middle, middle] - middle
    assert centre.abs().max() < 0.1 * size * 1.2  # the square is inside, however it is turned
    black = apply(torch.ones(n, 2, size, size), *places, colour, torch.full((n,), 0.5))
    assert black[:, :, middle, middle].min() > 0.999
    assert (black[:, :, 0, 0] == 0).float().mean() > 0.2  # corners turned out of the picture


def test_affine_agrees_with_scipy_on_oblong_images() -> None:
    x = images(6, channels=2, height=9, width=14)
    to_x, to_y = torch.randn(2, 3, 6, generator=seeded(3)).unbind()
    ours = _affine(x, tuple(to_x), tuple(to_y)).numpy()
    for i in range(6):
        a, b = to_x[:, i].double().numpy(), to_y[:, i].double().numpy()
        matrix = np.array([[b[1], b[0]], [a[1], a[0]]])  # scipy counts (row, column) from the corner
        corner = np.array([4.0, 6.5])
        offset = corner + np.array([b[2], a[2]]) - matrix @ corner
        for plane, moved in zip(x[i].double().numpy(), ours[i], strict=True):
            theirs = ndimage.affine_transform(plane, matrix, offset, order=1, mode="nearest")
            assert np.allclose(moved, theirs, atol=2e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", MOVING)
def test_a_call_can_be_captured_in_a_cuda_graph(name: str) -> None:
    x, generator, augment = images().cuda(), seeded(0, "cuda"), augmentation(name)
    augment(x, generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        y = augment(x, generator)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(y, first)  # each replay draws anew
