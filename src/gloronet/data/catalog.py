"""The data sets by name: what each one is, whether it is here, and how it is read."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from gloronet.data import builtin, formats
from gloronet.data.dataset import Dataset
from gloronet.data.download import REMOTES, data_root
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


def load(name: str, root: Path | str | None = None) -> Dataset:
    """The data set of that name, read from `data_root(root)`; `npz:FILE` reads your own arrays.

    Nothing is downloaded: a data set that is not here says how to get it.
    """
    if name.startswith("npz:"):
        return formats.read_npz(Path(name.removeprefix("npz:")).expanduser(), name)
    if name not in _ENTRIES:
        raise DataError(f"There is no data set {name!r}; {_nearest(name)}")
    read = _ENTRIES[name].read
    if name not in REMOTES:
        return read(Path())
    missing = _missing(name, data_root(root))
    if missing:
        raise DataError(
            f"{name} is not here: {missing[0]} is missing. Run `gloronet data fetch {name}`, "
            "or set GLORONET_DATA to the folder that has it."
        )
    try:
        return read(data_root(root) / REMOTES[name].folder)
    except DataError as e:
        raise DataError(f"{e} Run `gloronet data fetch {name}` to replace what is damaged.") from None


def names(root: Path | str | None = None) -> list[Row]:
    """Every data set there is, and whether its files are under `data_root(root)`."""
    home = data_root(root)
    rows = []
    for name, entry in _ENTRIES.items():
        download = name in REMOTES
        present = not (download and _missing(name, home))
        rows.append(Row(name, entry.about, entry.shape, entry.classes, download, present))
    return [*rows, Row("npz:FILE", "your own x_train, y_train, x_test, y_test", None, None, False, True)]


def _read_mnist(name: str, classes: tuple[str, ...], folder: Path) -> Dataset:
    train_x, test_x = (_images_28(folder / f"{part}-images-idx3-ubyte.gz") for part in ("train", "t10k"))
    train_y, test_y = (
        formats.read_idx(folder / f"{part}-labels-idx1-ubyte.gz", 1).long() for part in ("train", "t10k")
    )
    return Dataset(name, train_x, train_y, test_x, test_y, classes)


def _images_28(path: Path) -> Tensor:
    images = formats.read_idx(path, 3)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{path} holds images of {images.shape[1]}×{images.shape[2]} pixels, not 28×28.")
    return images[:, None]


def _read_cifar10(folder: Path) -> Dataset:
    batches = [formats.read_cifar_batch(folder / file) for file in REMOTES["cifar10"].files]
    sizes = [len(labels) for _, labels in batches]
    if len(set(sizes)) > 1:  # all six are equally long, so a file cut off between two rows shows
        raise DataError(f"{folder}: the batches hold {', '.join(map(str, sizes))} rows, not equally many.")
    *train, (test_x, test_y) = batches
    train_x, train_y = (torch.cat(parts) for parts in zip(*train, strict=True))
    return Dataset("cifar10", train_x, train_y, test_x, test_y, _CIFAR10)


@dataclass(frozen=True)
class _Entry:
    about: str
    shape: tuple[int, ...]
    classes: int
    read: Callable[[Path], Dataset]
    """From the folder its files lie in; what is built in has none and ignores it."""


_DIGITS = tuple(map(str, range(10)))
_FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_IDX_SHAPE = (1, 28, 28)
_ENTRIES = {
    "digits": _Entry("handwritten digits, 1,437 + 360", (1, 8, 8), 10, lambda _: builtin.digits()),
    "moons": _Entry("two half circles in the plane, 1,000 + 500", (2,), 2, lambda _: builtin.moons()),
    "mnist": _Entry(
        "handwritten digits, 60,000 + 10,000", _IDX_SHAPE, 10, partial(_read_mnist, "mnist", _DIGITS)
    ),
    "fashion-mnist": _Entry(
        "clothes, 60,000 + 10,000", _IDX_SHAPE, 10, partial(_read_mnist, "fashion-mnist", _FASHION)
    ),
    "cifar10": _Entry("colour photographs, 50,000 + 10,000", (3, 32, 32), 10, _read_cifar10),
}


def _missing(name: str, root: Path) -> list[Path]:
    remote = REMOTES[name]
    return [path for file in remote.files if not (path := root / remote.folder / file).is_file()]


def _nearest(name: str) -> str:
    known = [*_ENTRIES, "npz:FILE"]
    near = difflib.get_close_matches(name.lower(), known, n=2)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}."
