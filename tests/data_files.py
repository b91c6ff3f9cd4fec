"""Tiny data sets written in the official file formats, for the tests of the readers."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np

CIFAR_BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]


def idx_bytes(array: np.ndarray, magic: int | None = None) -> bytes:
    """An uncompressed idx file of uint8."""
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return struct.pack(">I", 0x800 + array.ndim if magic is None else magic) + sizes + array.tobytes()


def write_idx(path: Path, array: np.ndarray, magic: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(idx_bytes(array, magic)))


def write_mnist(folder: Path, train: int = 20, test: int = 10) -> dict[str, np.ndarray]:
    """The four files, with random pixels and labels 0, 1, …, 9, 0, …; returns what was written."""
    random = np.random.default_rng(0)
    written = {}
    for part, n in (("train", train), ("t10k", test)):
        written[f"{part}-images-idx3-ubyte.gz"] = random.integers(0, 256, (n, 28, 28), np.uint8)
        written[f"{part}-labels-idx1-ubyte.gz"] = (np.arange(n) % 10).astype(np.uint8)
    for name, array in written.items():
        write_idx(folder / name, array)
    return written


def write_cifar10(folder: Path, rows: int = 3) -> dict[str, np.ndarray]:
    """The six batches; returns their rows of 3073 bytes."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name in CIFAR_BATCHES:
        table = random.integers(0, 256, (rows, 3073), np.uint8)
        table[:, 0] %= 10
        (folder / name).write_bytes(table.tobytes())
        written[name] = table
    return written
