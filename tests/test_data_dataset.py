"""What every data set obeys: exact pixels, checked tensors, stratified hold-out."""

import dataclasses

import numpy as np
import pytest
import torch

from gloronet import data
from gloronet.data.dataset import split
from gloronet.errors import DataError

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def small(**changes: object) -> data.Dataset:
    images = torch.arange(12 * 4, dtype=torch.uint8).reshape(12, 1, 2, 2)
    labels = torch.tensor([0] * 6 + [1] * 4 + [2] * 2)
    values = {"train_x": images, "train_y": labels, "test_x": images[:3], "test_y": labels[:3]}
    return data.Dataset(**{"name": "small", "classes": ("a", "b", "c"), **values, **changes})


@pytest.mark.parametrize("device", DEVICES)
def test_every_pixel_is_the_float32_nearest_to_k_over_255(device: str) -> None:
    pixels = data.to_unit(torch.arange(256, dtype=torch.uint8, device=device))
    assert pixels.dtype == torch.float32
    assert pixels.cpu().numpy().tolist() == [float(np.float32(k / 255)) for k in range(256)]


def test_to_unit_passes_float32_through_and_refuses_the_rest() -> None:
    x = torch.rand(2, 3)
    assert data.to_unit(x) is x
    with pytest.raises(DataError, match="uint8 or float32"):
        data.to_unit(x.double())


def test_a_dataset_knows_its_shape_and_is_frozen() -> None:
    assert small().input_shape == (1, 2, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": ("a",)}, "at least two classes"),
        ({"classes": ("a", "b")}, "go from 0 to 2; 2 classes are numbered 0 to 1"),
        ({"test_y": torch.tensor([0, -1, 0])}, "test labels go from -1 to 0"),
        ({"test_y": torch.tensor([0, 1])}, "must be 3 int64"),
        ({"test_y": torch.tensor([0, 1, 1], dtype=torch.int32)}, "must be 3 int64"),
        ({"test_x": torch.zeros(3, 4, dtype=torch.uint8)}, "uint8 images"),
        ({"test_x": torch.zeros(3, 1, 2, 2, dtype=torch.float64)}, "float32"),
        ({"test_x": torch.zeros(3, 2, 2, dtype=torch.uint8)}, "must have shape"),
        ({"test_x": torch.zeros(0, 1, 2, 2, dtype=torch.uint8)}, "not empty"),
        ({"test_x": torch.zeros(3, 1, 2, 3, dtype=torch.uint8)}, "make them alike"),
        ({"test_x": torch.zeros(3, 1, 2, 2)}, "make them alike"),
        ({"test_x": torch.tensor([[0.0, 1.5]] * 3)}, r"range over \[0, 1.5\]; scale"),
        ({"test_x": torch.tensor([[-0.5, 1.0]] * 3)}, r"range over \[-0.5, 1\]"),
        ({"test_x": torch.tensor([[0.0, float("nan")]] * 3)}, "NaN or infinite"),
        ({"test_x": torch.tensor([[0.0, float("inf")]] * 3)}, "NaN or infinite"),
    ],
)
def test_bad_tensors_are_refused_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        small(**changes)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("small")


def test_holdout_moves_training_inputs_in_proportion_and_loses_none() -> None:
    whole = small()
    held = whole.holdout(6)
    assert held.test_y.bincount().tolist() == [3, 2, 1]
    assert held.train_y.bincount().tolist() == [3, 2, 1]
    both = torch.cat([held.train_x, held.test_x]).flatten(1)
    assert sorted(both.tolist()) == sorted(whole.train_x.flatten(1).tolist())
    for x, y in ((held.train_x, held.train_y), (held.test_x, held.test_y)):
        came_from = x[:, 0, 0, 0] // 4  # pixels count 0, 1, 2, … through the images
        assert torch.equal(whole.train_y[came_from.long()], y)


def test_holdout_is_decided_by_its_seed_alone() -> None:
    first, again, other = small().holdout(5, seed=3), small().holdout(5, seed=3), small().holdout(5, seed=4)
    assert torch.equal(first.test_x, again.test_x)
    assert torch.equal(first.train_x, again.train_x)
    assert not torch.equal(first.test_x, other.test_x)


@pytest.mark.parametrize("n", [-1, 0, 12, 13])
def test_holdout_of_nothing_or_everything_is_refused(n: int) -> None:
    with pytest.raises(DataError, match="choose 1 to 11"):
        small().holdout(n)


@pytest.mark.parametrize("n", range(1, 50, 7))
def test_split_gives_each_class_its_share_rounded_up_or_down(n: int) -> None:
    labels = torch.tensor([0] * 31 + [1] * 13 + [3] * 6)  # class 2 is empty
    held, rest = split(labels, n, seed=n)
    assert sorted([*held.tolist(), *rest.tolist()]) == list(range(50))
    assert len(held) == n
    share = labels.bincount() * n / 50
    assert ((labels[held].bincount(minlength=4) - share).abs() < 1).all()
