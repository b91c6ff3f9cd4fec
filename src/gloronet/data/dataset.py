"""What every data set looks like: images or vectors, labels, class names, checked once.

Images stay uint8 until they are on the device; `to_unit` then makes them float32 in [0,1].
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from gloronet.errors import DataError


class Examples(Protocol):
    """What training needs of a data set: inputs of any range, and labels that index `classes`."""

    @property
    def train_x(self) -> Tensor: ...
    @property
    def train_y(self) -> Tensor: ...
    @property
    def classes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test inputs with their labels; every input is in [0,1] after `to_unit`.

    Inputs are uint8 images (N, C, H, W), or float32 in [0,1] of shape (N, C, H, W) or (N, d).
    Labels are int64 and index `classes`.
    """

    name: str
    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise DataError(f"{self.name}: a classifier needs at least two classes, not {len(self.classes)}.")
        for part, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            _check_inputs(f"{self.name}, {part} inputs", x)
            _check_labels(f"{self.name}, {part} labels", y, len(x), len(self.classes))
        train, test = (tuple(x.shape[1:]) for x in (self.train_x, self.test_x))
        if train != test or self.train_x.dtype != self.test_x.dtype:
            raise DataError(
                f"{self.name}: training inputs are {self.train_x.dtype} of shape {train} but test inputs are "
                f"{self.test_x.dtype} of shape {test}; make them alike."
            )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input, without the batch."""
        return tuple(self.train_x.shape[1:])

    def holdout(self, n: int, seed: int = 0) -> Dataset:
        """A copy whose test set is n training inputs, each class in proportion, and no longer trained on.

        For choosing settings without touching the real test set. The same seed gives the same split, always.
        """
        if not 0 < n < len(self.train_y):
            raise DataError(
                f"{self.name}: cannot hold out {n} of {len(self.train_y)} training inputs; "
                f"choose 1 to {len(self.train_y) - 1}."
            )
        test, train = split(self.train_y, n, seed)
        return dataclasses.replace(
            self,
            train_x=self.train_x[train],
            train_y=self.train_y[train],
            test_x=self.train_x[test],
            test_y=self.train_y[test],
        )


def to_unit(x: Tensor) -> Tensor:
    """uint8 k → float32(k/255), the float32 nearest to k/255 on every device; float32 passes through.

    >>> to_unit(torch.tensor([0, 51, 255], dtype=torch.uint8))
    tensor([0.0000, 0.2000, 1.0000])
    """
    if x.dtype == torch.float32:
        return x
    if x.dtype != torch.uint8:
        raise DataError(f"Inputs must be uint8 or float32, not {x.dtype}.")
    # CUDA multiplies by the rounded reciprocal of a Python number; only by a tensor does it divide.
    return x.to(torch.float32) / torch.full((), 255.0, device=x.device)


def split(labels: Tensor, n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Indices (held, rest), both ascending: n inputs drawn at random with each class in proportion.

    Class c gives n·N_c/N inputs; what rounding down leaves goes to the largest fractions, lower class first.
    """
    y = labels.cpu().numpy()
    counts = np.bincount(y)
    quota = n * counts // len(y)
    by_fraction = np.argsort(-(n * counts % len(y)), kind="stable")
    quota[by_fraction[: n - quota.sum()]] += 1

    order = np.random.RandomState(seed).permutation(len(y))  # NumPy keeps this generator's stream for ever
    held = np.zeros(len(y), dtype=bool)
    for c, k in enumerate(quota):
        held[order[y[order] == c][:k]] = True
    mask = torch.from_numpy(held).to(labels.device)
    return mask.nonzero()[:, 0], (~mask).nonzero()[:, 0]


def _check_inputs(what: str, x: Tensor) -> None:
    image, shape = x.dim() == 4, tuple(x.shape)
    if not (image or x.dim() == 2) or 0 in x.shape:
        raise DataError(f"{what} must have shape (N, C, H, W) or (N, d), not empty, but have {shape}.")
    if x.dtype == torch.uint8 and image:
        return
    if x.dtype != torch.float32:
        raise DataError(
            f"{what} must be uint8 images (N, C, H, W) or float32 in [0,1], not {x.dtype} of shape {shape}."
        )
    if not torch.isfinite(x).all():
        raise DataError(f"{what} hold NaN or infinite values; remove or replace them.")
    low, high = x.min().item(), x.max().item()
    if low < 0 or high > 1:
        raise DataError(f"{what} range over [{low:g}, {high:g}]; scale them into [0,1].")


def _check_labels(what: str, y: Tensor, n: int, classes: int) -> None:
    if y.dtype != torch.int64 or y.shape != (n,):
        raise DataError(f"{what} must be {n} int64, one an input, not {y.dtype} of shape {tuple(y.shape)}.")
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise DataError(f"{what} go from {low} to {high}; {classes} classes are numbered 0 to {classes - 1}.")
