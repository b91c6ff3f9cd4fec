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


def write_cifar100(folder: Path, rows: int = 2) -> dict[str, np.ndarray]:
    """train.bin and test.bin, a fifth of it; returns their rows of 3074 bytes: coarse, fine, pixels."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, n in (("train.bin", 5 * rows), ("test.bin", rows)):
        table = random.integers(0, 256, (n, 3074), np.uint8)
        table[:, 0] %= 20
        table[:, 1] %= 100
        (folder / name).write_bytes(table.tobytes())
        written[name] = table
    return written


def write_image(path: Path, size: tuple[int, int] = (64, 64), mode: str = "RGB", seed: int = 0) -> None:
    """Random colours on a coarse grid, in the format of the file's name; size is height and width."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (-(-size[0] // 8), -(-size[1] // 8), 4)
    colours = np.random.default_rng(seed).integers(0, 256, shape, np.uint8).repeat(8, 0).repeat(8, 1)
    Image.fromarray(colours[: size[0], : size[1]]).convert("RGB").convert(mode).save(path)


def write_tiny_imagenet(folder: Path, official: bool = True) -> None:
    """Three classes of four training images and two others each, one of each four grey.

    `official`: with wnids.txt (not in order), boxes and unlabelled images, as in the published archive.
    """
    wnids = ("n02", "n10", "n01")
    for i, wnid in enumerate(wnids):
        for k in range(4):
            mode = "L" if k == 2 else "RGB"
            write_image(folder / "train" / wnid / "images" / f"{wnid}_{k}.JPEG", mode=mode, seed=10 * i + k)
    lines = []
    for k in range(6):
        write_image(folder / "val" / "images" / f"val_{k}.JPEG", mode="L" if k == 3 else "RGB", seed=100 + k)
        lines.append(f"val_{k}.JPEG\t{wnids[k % 3]}" + "\t0\t0\t9\t9" * official)
    (folder / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    if official:
        (folder / "wnids.txt").write_text("".join(f"{wnid}\n" for wnid in wnids))
        (folder / "train" / "n01" / "n01_boxes.txt").write_text("n01_0.JPEG\t0\t0\t9\t9\n")
        write_image(folder / "test" / "images" / "test_0.JPEG")
