"""Readers of the official file formats. Each refuses a file that is not laid out as its format says."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gloronet import npz
from gloronet.data.dataset import Dataset
from gloronet.errors import DataError

CIFAR_PIXELS = 3 * 32 * 32  # the red, green and blue planes, each row by row


def read_idx(path: Path, dimensions: int) -> Tensor:
    """The uint8 array of a gzipped idx file: 00 00 08 rank, sizes as big-endian uint32, then the bytes."""
    try:
        data = gzip.decompress(path.read_bytes())
    except EOFError:
        raise DataError(f"{path} is truncated.") from None
    except (gzip.BadGzipFile, zlib.error) as e:
        raise DataError(f"{path} is not a sound gzip file ({e}).") from None
    except OSError as e:
        raise DataError(f"{path} cannot be read ({e.strerror}).") from None
    header = 4 + 4 * dimensions
    if len(data) < header:
        raise DataError(f"{path} is truncated: it ends inside the {header}-byte header.")
    magic, expected = int.from_bytes(data[:4], "big"), 0x800 + dimensions
    if magic != expected:
        raise DataError(f"{path} has magic number {magic}, not {expected} (idx, {dimensions} dimensions).")
    shape = [int(size) for size in np.frombuffer(data, ">u4", dimensions, 4)]
    if len(data) - header != math.prod(shape):
        sizes = "×".join(map(str, shape))
        raise DataError(f"{path} announces {sizes} bytes but holds {len(data) - header} after its header.")
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=header).reshape(shape).copy())


def read_cifar_batch(path: Path, label_bytes: int = 1) -> tuple[Tensor, Tensor]:
    """Images (N, 3, 32, 32) uint8 and labels int64 of one file of CIFAR's binary versions.

    A row is its labels, the finest last, and then the pixels: CIFAR-10 has one label, CIFAR-100 two.
    """
    try:
        rows = np.fromfile(path, np.uint8)
    except OSError as e:
        raise DataError(f"{path} cannot be read ({e.strerror}).") from None
    row = label_bytes + CIFAR_PIXELS
    if len(rows) == 0 or len(rows) % row:
        raise DataError(
            f"{path} is truncated or of another format: {len(rows)} bytes are no whole number "
            f"of {row}-byte rows."
        )
    table = torch.from_numpy(rows.reshape(-1, row))
    return table[:, label_bytes:].reshape(-1, 3, 32, 32), table[:, label_bytes - 1].long()


def read_npz(path: Path, name: str) -> Dataset:
    """A user's own arrays: x_train, y_train, x_test, y_test and, if there are names, classes.

    Inputs are uint8 images (N, C, H, W), or floats in [0,1] of shape (N, C, H, W) or (N, d); labels are whole
    numbers from 0. Without `classes` there are as many as the training labels show.
    """
    keys = ("x_train", "y_train", "x_test", "y_test")
    arrays = _npz_arrays(path, keys)
    train_x, test_x = (_npz_inputs(path, key, arrays[key]) for key in ("x_train", "x_test"))
    train_y, test_y = (_npz_labels(path, key, arrays[key]) for key in ("y_train", "y_test"))
    return Dataset(name, train_x, train_y, test_x, test_y, _npz_classes(path, arrays.get("classes"), train_y))


def _npz_arrays(path: Path, keys: tuple[str, ...]) -> dict[str, np.ndarray]:
    remedy = f"Save {', '.join(keys)} as plain arrays with numpy.savez."
    try:
        arrays = npz.read(path, (*keys, "classes"))
    except FileNotFoundError:
        raise DataError(f"There is no file {path}; write npz:FILE with the path of your arrays.") from None
    except ValueError as e:
        raise DataError(f"{path} is not a sound npz file ({e}). {remedy}") from None
    missing = [key for key in keys if key not in arrays]
    if missing:
        raise DataError(f"{path} has no {', '.join(missing)}. {remedy}")
    return arrays


def _npz_inputs(path: Path, key: str, x: np.ndarray) -> Tensor:
    if x.dtype != np.uint8 and x.dtype.kind != "f":
        raise DataError(f"{path}: {key} must be uint8 images or floats in [0,1], not {x.dtype}.")
    with np.errstate(over="ignore"):  # what overflows becomes infinite, and is refused as such
        return torch.from_numpy(x.astype(np.uint8 if x.dtype == np.uint8 else np.float32, order="C"))


def _npz_labels(path: Path, key: str, y: np.ndarray) -> Tensor:
    if y.dtype.kind not in "iu" or y.ndim != 1 or len(y) == 0:
        raise DataError(f"{path}: {key} must be a list of whole numbers, not {y.dtype} of shape {y.shape}.")
    return torch.from_numpy(y.astype(np.int64))


def _npz_classes(path: Path, classes: np.ndarray | None, train_y: Tensor) -> tuple[str, ...]:
    if classes is None:
        count = int(train_y.max()) + 1
        if count > len(train_y):
            raise DataError(
                f"{path}: y_train has {len(train_y)} labels that go up to {count - 1}; "
                "number the classes 0, 1, 2, …"
            )
        return tuple(map(str, range(count)))
    if classes.dtype.kind != "U" or classes.ndim != 1:
        raise DataError(f"{path}: classes must be a list of strings, not {classes.dtype} {classes.shape}.")
    return tuple(map(str, classes))
