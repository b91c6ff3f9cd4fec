"""Data sets that are folders of images: Tiny-ImageNet as it is published, and your own."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from gloronet.data.cache import decoded
from gloronet.data.dataset import Dataset
from gloronet.data.decode import SUFFIXES
from gloronet.data.download import Progress
from gloronet.errors import DataError


def read_tiny_imagenet(folder: Path, progress: Progress | None = None) -> Dataset:
    """train/WNID/images/*.JPEG and val/images/*.JPEG, 64×64, with the labels of val/val_annotations.txt.

    Labels index the sorted class ids. Training images come by class and name, the others as they are annotated.
    Every class has equally many training images, so that an unpacking that was broken off shows.
    """
    classes = _classes(folder / "train")
    _check_wnids(folder / "wnids.txt", classes)
    train = [_images(folder / "train" / wnid / "images") for wnid in classes]
    for wnid, images in zip(classes, train, strict=True):
        if len(images) != len(train[0]):
            raise DataError(
                f"{folder / 'train' / wnid} holds {len(images)} images but {classes[0]} {len(train[0])}, "
                "not equally many."
            )
    test = _annotated(folder / "val", classes)
    return _dataset("tiny-imagenet", folder, classes, train, test, (64, 64), progress)


def read_imagefolder(folder: Path, name: str, progress: Progress | None = None) -> Dataset:
    """train/CLASS/* and test/CLASS/* (val/CLASS/* where there is no test), images of one size, always as RGB.

    Class names are the sorted names of train's folders. What begins with a dot is passed over.
    """
    tested = folder / ("test" if (folder / "test").is_dir() or not (folder / "val").is_dir() else "val")
    for part in (folder / "train", tested):
        if not part.is_dir():
            raise DataError(
                f"There is no folder {part}; imagefolder:PATH reads PATH/train/CLASS/ and PATH/test/CLASS/ (or val)."
            )
    classes, known = _classes(folder / "train"), _classes(tested)
    strangers = sorted(set(known) - set(classes))
    if strangers:
        raise DataError(
            f"{tested / strangers[0]} is a class that {folder / 'train'} does not have; rename one."
        )
    train = [_images(folder / "train" / c) for c in classes]
    test = [(file, classes.index(c)) for c in known for file in _images(tested / c)]
    return _dataset(name, folder, classes, train, test, None, progress)


def _dataset(
    name: str,
    folder: Path,
    classes: tuple[str, ...],
    train: list[list[Path]],
    test: list[tuple[Path, int]],
    size: tuple[int, int] | None,
    progress: Progress | None,
) -> Dataset:
    files = [file for images in train for file in images]
    labels = [label for label, images in enumerate(train) for _ in images]
    train_x = decoded(folder, "train", files, size, progress)
    height, width = train_x.shape[2:]
    test_x = decoded(folder, "test", [file for file, _ in test], (height, width), progress)
    test_y = torch.tensor([label for _, label in test])
    return Dataset(name, train_x, torch.tensor(labels), test_x, test_y, classes)


def _classes(folder: Path) -> tuple[str, ...]:
    names = tuple(sorted(entry.name for entry in _entries(folder) if entry.is_dir()))
    if len(names) < 2:
        raise DataError(f"{folder} holds {len(names)} folders, one a class; a classifier needs at least two.")
    return names


def _images(folder: Path) -> list[Path]:
    """The images in a folder by name; anything else in it is refused, not passed over."""
    names = sorted(entry.name for entry in _entries(folder))
    if not names:
        raise DataError(f"{folder} is empty; it should hold images.")
    for name in names:
        if not name.lower().endswith(SUFFIXES):
            raise DataError(
                f"{folder / name} is no image ({', '.join(SUFFIXES)}); take it out of the folder."
            )
    return [folder / name for name in names]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        raise DataError(f"There is no folder {folder}.") from None
    except OSError as e:
        raise DataError(f"{folder} cannot be read ({e.strerror}).") from None


def _check_wnids(path: Path, classes: tuple[str, ...]) -> None:
    """Copies without wnids.txt are about; one that is there has to agree with the folders."""
    if not path.is_file():
        return
    listed = set(_lines(path))
    if listed != set(classes):
        odd = min(listed ^ set(classes))
        raise DataError(
            f"{path} does not list the folders of {path.parent / 'train'}: {odd} is in one alone."
        )


def _annotated(folder: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """Images and labels in the order of val_annotations.txt: file name, class id and a box, set off by tabs."""
    path, index = folder / "val_annotations.txt", {wnid: label for label, wnid in enumerate(classes)}
    labels: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        file, wnid, *_ = *line.split("\t"), "", ""
        if wnid not in index or file in labels:
            raise DataError(f"{path}, line {number}: {line!r} is not a new file name and a class of train.")
        labels[file] = index[wnid]
    there = {image.name for image in _images(folder / "images")}
    odd = sorted(there ^ labels.keys())
    if odd:
        what = "is not in val_annotations.txt" if odd[0] in there else "is missing"
        raise DataError(f"{folder / 'images' / odd[0]} {what}.")
    return [(folder / "images" / file, label) for file, label in labels.items()]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path} cannot be read ({getattr(e, 'strerror', None) or 'not a text'}).") from None
