"""The data sets by name: what each one is, whether it is here, and how it is read."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gloronet.data import builtin, classes, folders, formats
from gloronet.data.cache import NotKept
from gloronet.data.dataset import Dataset
from gloronet.data.download import Progress, data_root
from gloronet.data.remotes import REMOTES
from gloronet.errors import DataError


@dataclass(frozen=True)
class Row:
    """One line of `gloronet data list`. Shape and classes are None where your own file decides."""

    name: str
    about: str
    shape: tuple[int, ...] | None
    classes: int | None
    download: bool
    present: bool


def load(name: str, root: Path | str | None = None, progress: Progress | None = None) -> Dataset:
    """The data set of that name, read from `data_root(root)`; `npz:FILE` and `imagefolder:PATH` are your own.

    Nothing is downloaded: a data set that is not here says how to get it. Image files are decoded the first
    time, which `progress` hears of, and kept beside the data.
    """
    kind, colon, own = name.partition(":")
    if colon and kind == "npz":
        return formats.read_npz(Path(own).expanduser(), name)
    if colon and kind == "imagefolder":
        return folders.read_imagefolder(Path(own).expanduser(), name, progress)
    if name not in _ENTRIES:
        raise DataError(f"There is no data set {name!r}; {_nearest(name)}")
    read = _ENTRIES[name].read
    if name not in REMOTES:
        return read(Path(), progress)
    missing = _missing(name, data_root(root))
    if missing:
        raise DataError(
            f"{name} is not here: {missing[0]} is missing. Run `gloronet data fetch {name}`, "
            "or set GLORONET_DATA to the folder that has it."
        )
    folder = data_root(root) / REMOTES[name].folder
    try:
        return read(folder, progress)
    except NotKept:
        raise
    except DataError as e:
        fetch = f"`gloronet data fetch {name}`"
        remedy = f"Run {fetch} to replace what is damaged."
        if not REMOTES[name].sealed:
            remedy = f"If it is damaged, delete {folder} and run {fetch}."
        raise DataError(f"{e} {remedy}") from None


def names(root: Path | str | None = None) -> list[Row]:
    """Every data set there is, and whether its files are under `data_root(root)`."""
    home = data_root(root)
    rows = []
    for name, entry in _ENTRIES.items():
        download = name in REMOTES
        present = not (download and _missing(name, home))
        rows.append(Row(name, entry.about, entry.shape, entry.classes, download, present))
    return [*rows, *(Row(name, about, None, None, False, True) for name, about in _OWN.items())]


def _read_mnist(name: str, labels: tuple[str, ...], folder: Path, _: Progress | None) -> Dataset:
    train_x, test_x = (_images_28(folder / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    train_y, test_y = (
        formats.read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1).long() for part in ("train", "t10k")
    )
    return Dataset(name, train_x, train_y, test_x, test_y, labels)


def _images_28(path: Path) -> Tensor:
    images = formats.read_idx(path, 3)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{path} holds images of {images.shape[1]}×{images.shape[2]} pixels, not 28×28.")
    return images[:, None]


def _read_cifar10(folder: Path, _: Progress | None) -> Dataset:
    batches = [formats.read_cifar_batch(folder / file) for file in REMOTES["cifar10"].files]
    sizes = [len(labels) for _, labels in batches]
    if len(set(sizes)) > 1:  # all six are equally long, so a file cut off between two rows shows
        raise DataError(f"{folder}: the batches hold {', '.join(map(str, sizes))} rows, not equally many.")
    *train, (test_x, test_y) = batches
    train_x, train_y = (torch.cat(parts) for parts in zip(*train, strict=True))
    return Dataset("cifar10", train_x, train_y, test_x, test_y, classes.CIFAR10)


def _read_cifar100(folder: Path, _: Progress | None) -> Dataset:
    (train_x, train_y), (test_x, test_y) = (
        formats.read_cifar_batch(folder / file, label_bytes=2) for file in REMOTES["cifar100"].files
    )
    if len(train_y) != 5 * len(test_y):  # so that a file cut off between two rows shows
        raise DataError(
            f"{folder}: train.bin holds {len(train_y)} rows and test.bin {len(test_y)}, not a fifth of it."
        )
    return Dataset("cifar100", train_x, train_y, test_x, test_y, classes.CIFAR100)


@dataclass(frozen=True)
class _Entry:
    about: str
    shape: tuple[int, ...]
    classes: int
    read: Callable[[Path, Progress | None], Dataset]
    """From the folder its files lie in; what is built in has none and ignores it."""


_IDX_SHAPE = (1, 28, 28)
_ENTRIES = {
    "digits": _Entry("handwritten digits, 1,437 + 360", (1, 8, 8), 10, lambda *_: builtin.digits()),
    "moons": _Entry("two half circles in the plane, 1,000 + 500", (2,), 2, lambda *_: builtin.moons()),
    "mnist": _Entry(
        "handwritten digits, 60,000 + 10,000", _IDX_SHAPE, 10, partial(_read_mnist, "mnist", classes.DIGITS)
    ),
    "fashion-mnist": _Entry(
        "clothes, 60,000 + 10,000", _IDX_SHAPE, 10, partial(_read_mnist, "fashion-mnist", classes.FASHION)
    ),
    "cifar10": _Entry("colour photographs, 50,000 + 10,000", (3, 32, 32), 10, _read_cifar10),
    "cifar100": _Entry("colour photographs, 50,000 + 10,000", (3, 32, 32), 100, _read_cifar100),
    "tiny-imagenet": _Entry("photographs, 100,000 + 10,000", (3, 64, 64), 200, folders.read_tiny_imagenet),
}
_OWN = {
    "npz:FILE": "your own x_train, y_train, x_test, y_test",
    "imagefolder:PATH": "your own images, train/CLASS/* and test/CLASS/*",
}


def _missing(name: str, root: Path) -> list[Path]:
    remote = REMOTES[name]
    return [path for file in remote.files if not (path := root / remote.folder / file).is_file()]


def _nearest(name: str) -> str:
    known = [*_ENTRIES, *_OWN]
    near = difflib.get_close_matches(name.lower(), known, n=2)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}."
