"""Folders of images: official layouts, pixels as PIL decodes them, a cache that is noticed when it lies."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.data_files import write_image, write_tiny_imagenet

from gloronet import data
from gloronet.data import Dataset, cache, decode
from gloronet.errors import DataError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def refuse(name: str, root: Path | None = None) -> str:
    with pytest.raises(DataError) as error:
        data.load(name, root)
    assert "\n" not in str(error.value)
    return str(error.value)


def pil(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB")).transpose(2, 0, 1)


def mode(path: Path) -> str:
    with Image.open(path) as image:
        return image.mode


def same(a: Dataset, b: Dataset) -> bool:
    pairs = ((a.train_x, b.train_x), (a.train_y, b.train_y), (a.test_x, b.test_x), (a.test_y, b.test_y))
    return a.classes == b.classes and all(torch.equal(x, y) for x, y in pairs)


def snapshot(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()} if folder.is_dir() else {}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    return tmp_path / "tiny-imagenet-200"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Two classes; one folder and one name that sort differently as text and as written."""
    folder = tmp_path / "own"
    for k, file in enumerate(
        ("train/b/2.png", "train/b/10.jpg", "train/A/x.JPEG", "test/b/t.bmp", "test/A/t.png")
    ):
        write_image(folder / file, (16, 24), "L" if k == 1 else "RGB", seed=k)
    return folder


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is decoded from now on."""
    seen: list[Path] = []
    pixels = decode.pixels
    for module in (decode, cache):
        monkeypatch.setattr(module, "pixels", lambda path: seen.append(path) or pixels(path))
    return seen


# --- Tiny-ImageNet ---


@pytest.mark.parametrize("official", [True, False])
def test_tiny_imagenet_is_read_in_the_order_of_its_class_ids(official: bool, tmp_path: Path) -> None:
    folder = tmp_path / "tiny-imagenet-200"
    write_tiny_imagenet(folder, official)
    loaded = data.load("tiny-imagenet", tmp_path)
    assert loaded.classes == ("n01", "n02", "n10")
    assert loaded.train_y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert loaded.test_y.tolist() == [1, 2, 0, 1, 2, 0]  # annotated n02, n10, n01, …
    assert (loaded.train_x.dtype, loaded.input_shape) == (torch.uint8, (3, 64, 64))
    for i, label in enumerate(loaded.train_y):
        wnid = loaded.classes[label]
        image = pil(folder / "train" / wnid / "images" / f"{wnid}_{i % 4}.JPEG")
        assert np.array_equal(loaded.train_x[i].numpy(), image)
    for k in range(6):
        assert np.array_equal(loaded.test_x[k].numpy(), pil(folder / "val" / "images" / f"val_{k}.JPEG"))
    grey = [(x[0] == x[1]).all().item() and (x[1] == x[2]).all().item() for x in loaded.train_x]
    assert grey == [False, False, True, False] * 3
    row = {row.name: row for row in data.names(tmp_path)}["tiny-imagenet"]
    assert (row.shape, row.classes, row.present, row.download) == ((3, 64, 64), 200, True, True)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("train/n02/images/n02_1.JPEG", cut, "n02_1.JPEG is not a sound image (image file is truncated"),
        ("train/n01/images/n01_0.JPEG", cut, "n01_0.JPEG is not a sound image (image file is truncated"),
        ("val/images/val_5.JPEG", lambda p: p.write_bytes(b"no image"), "val_5.JPEG is not a sound image"),
        ("val/images/val_5.JPEG", lambda p: p.write_bytes(b""), "val_5.JPEG is not a sound image"),
        ("train/n10/images/n10_3.JPEG", Path.unlink, "holds 3 images but n01 4, not equally many"),
        (
            "train/n10/images/n10_3.JPEG",
            lambda p: write_image(p, (64, 48)),
            "n10_3.JPEG has 64×48 pixels (height×width), not 64×64",
        ),
        ("train/n10", shutil.rmtree, "n10 is in one alone"),
        ("train/n10/images", shutil.rmtree, "There is no folder"),
        ("train", shutil.rmtree, "There is no folder"),
        ("wnids.txt", lambda p: p.write_text("n01\nn02\nn10\nn11\n"), "n11 is in one alone"),
        ("wnids.txt", lambda p: p.write_bytes(b"\xff\xfe"), "cannot be read (not a text)"),
        ("val/images/val_2.JPEG", Path.unlink, "val_2.JPEG is missing"),
        ("val/images/val_6.JPEG", write_image, "val_6.JPEG is not in val_annotations.txt"),
        (
            "val/val_annotations.txt",
            lambda p: p.write_text("val_0.JPEG\tn03\n"),
            "line 1: 'val_0.JPEG\\tn03' is not",
        ),
        (
            "val/val_annotations.txt",
            lambda p: p.write_text("val_0.JPEG n01\n"),
            "is not a new file name and a class",
        ),
        ("val/val_annotations.txt", lambda p: p.write_text("val_0.JPEG\tn01\n" * 2), "line 2"),
    ],
)
def test_a_damaged_tiny_imagenet_is_refused(
    file: str, damage: Callable[[Path], object], message: str, tiny: Path
) -> None:
    damage(tiny / file)
    error = refuse("tiny-imagenet", tiny.parent)
    assert message in error
    assert error.startswith(str(tiny)) or error.startswith(f"There is no folder {tiny / file}")
    assert f"delete {tiny} and run `gloronet data fetch tiny-imagenet`" in error
    assert not list(tiny.rglob("*.part"))


def test_a_missing_tiny_imagenet_says_how_to_get_it(tmp_path: Path) -> None:
    error = refuse("tiny-imagenet", tmp_path)
    assert "val_annotations.txt is missing. Run `gloronet data fetch tiny-imagenet`" in error
    assert "GLORONET_DATA" in error


# --- a folder of one's own ---


def test_an_imagefolder_is_read_by_sorted_names(own: Path) -> None:
    (own / "train" / "A" / ".DS_Store").write_bytes(b"what file managers leave")
    loaded = data.load(f"imagefolder:{own}")
    assert loaded.name == f"imagefolder:{own}"
    assert loaded.classes == ("A", "b")
    assert loaded.input_shape == (3, 16, 24)
    assert loaded.train_y.tolist() == [0, 1, 1]
    for x, file in zip(loaded.train_x, ("A/x.JPEG", "b/10.jpg", "b/2.png"), strict=True):
        assert np.array_equal(x.numpy(), pil(own / "train" / file))
    for x, file in zip(loaded.test_x, ("A/t.png", "b/t.bmp"), strict=True):
        assert np.array_equal(x.numpy(), pil(own / "test" / file))
    (own / "test").rename(own / "val")
    assert same(data.load(f"imagefolder:{own}"), loaded)


def transparent(path: Path) -> None:
    Image.new("RGBA", (24, 16)).save(path)


def transparent_colour(path: Path) -> None:
    Image.new("P", (24, 16)).save(path, transparency=0)


def sixteen_bits(path: Path) -> None:
    Image.fromarray(np.zeros((16, 24), np.uint16)).save(path)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        (
            "train/b/2.png",
            lambda p: write_image(p, (16, 25)),
            "2.png has 16×25 pixels (height×width), not 16×24",
        ),
        (
            "test/A/t.png",
            lambda p: write_image(p, (8, 24)),
            "t.png has 8×24 pixels (height×width), not 16×24",
        ),
        ("train/b/2.png", lambda p: p.write_bytes(p.read_bytes()[:60]), "2.png is not a sound image"),
        (
            "train/b/2.png",
            transparent,
            "2.png is neither RGB nor greyscale of 8 bits without transparency (its mode is RGBA)",
        ),
        ("train/b/2.png", transparent_colour, "of 8 bits without transparency (its mode is P)"),
        ("train/b/2.png", sixteen_bits, "of 8 bits without transparency (its mode is I;16)"),
        ("train/b/notes.txt", Path.touch, "notes.txt is no image (.png, .jpg"),
        ("train/b/more.png", Path.mkdir, "more.png is not a sound image (Is a directory)"),
        ("train/c", Path.mkdir, "c is empty; it should hold images"),
        ("test/c", Path.mkdir, "is a class that"),
        ("train/b", shutil.rmtree, "holds 1 folders, one a class"),
        ("test", shutil.rmtree, "There is no folder"),
        ("train", shutil.rmtree, "imagefolder:PATH reads PATH/train/CLASS/ and PATH/test/CLASS/ (or val)"),
    ],
)
def test_a_bad_imagefolder_is_refused_and_what_was_kept_stays(
    file: str, damage: Callable[[Path], object], message: str, own: Path
) -> None:
    data.load(f"imagefolder:{own}")
    before = snapshot(own / "decoded")
    damage(own / file)
    error = refuse(f"imagefolder:{own}")
    assert message in error
    assert str(own / Path(file).parts[0]) in error
    assert snapshot(own / "decoded") == before


# --- what is kept ---


def test_a_second_load_is_the_first_bit_for_bit_and_decodes_nothing(
    tiny: Path, decodings: list[Path]
) -> None:
    seen: list[tuple[str, int, int]] = []
    first = data.load("tiny-imagenet", tiny.parent, lambda *step: seen.append(step))
    assert len(set(decodings)) == 18
    assert seen == [("decoding train", 12, 12), ("decoding test", 6, 6)]
    kept = snapshot(tiny / "decoded")
    assert sorted(kept) == ["test.json", "test.npy", "train.json", "train.npy"]

    decodings.clear()
    second = data.load("tiny-imagenet", tiny.parent, lambda *step: seen.append(step))
    assert same(first, second)
    assert not decodings
    assert len(seen) == 2
    assert snapshot(tiny / "decoded") == kept
    second.train_x[0] = 0  # copy on write: neither file nor other readers see it
    assert snapshot(tiny / "decoded") == kept
    assert same(first, data.load("tiny-imagenet", tiny.parent))
    assert np.array_equal(np.load(tiny / "decoded" / "train.npy", allow_pickle=False), first.train_x.numpy())


def test_blocks_are_put_together_in_order(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = data.load("tiny-imagenet", tiny.parent)
    shutil.rmtree(tiny / "decoded")
    monkeypatch.setattr(decode, "BLOCK", 5)
    seen: list[int] = []
    blocks = data.load("tiny-imagenet", tiny.parent, lambda what, done, total: seen.append(done))
    assert same(whole, blocks)
    assert seen == [5, 10, 12, 5, 6]


def later(path: Path) -> None:
    state = path.stat()
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 0xFF
    path.write_bytes(bytes(content))
    later(path)


def without_seal(path: Path) -> None:
    path.with_suffix(".json").unlink()


def another_array(path: Path) -> None:
    """Of the right length, with a seal that fits it, but not images."""
    array = np.load(path)
    np.save(path, array.view(np.int8))
    seal = json.loads(path.with_suffix(".json").read_text())
    seal |= {"bytes": path.stat().st_size, "changed": path.stat().st_mtime_ns}
    path.with_suffix(".json").write_text(json.dumps(seal))


@pytest.mark.parametrize(
    "damage",
    [
        *(cut, flip, later, Path.unlink, without_seal, another_array),
        lambda p: p.write_bytes(b""),
        lambda p: p.with_suffix(".json").write_text("{"),
        lambda p: p.with_suffix(".json").write_text("[]"),
        lambda p: p.with_suffix(".json").write_bytes(b"\xff"),
    ],
)
def test_a_damaged_cache_is_made_anew(
    damage: Callable[[Path], object], tiny: Path, decodings: list[Path]
) -> None:
    first = data.load("tiny-imagenet", tiny.parent)
    before = {name: torch.clone(x) for name, x in vars(first).items() if isinstance(x, torch.Tensor)}
    first = Dataset(first.name, classes=first.classes, **before)
    decodings.clear()
    damage(tiny / "decoded" / "train.npy")
    assert same(first, data.load("tiny-imagenet", tiny.parent))
    assert len(set(decodings)) == 12  # the other part was sound
    decodings.clear()
    assert same(first, data.load("tiny-imagenet", tiny.parent))
    assert not decodings


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "train/b/2.png").rename(folder / "train/b/0.png"),
        lambda folder: write_image(folder / "train/b/2.png", (16, 24), seed=99),
        lambda folder: write_image(folder / "train/b/3.png", (16, 24), seed=99),
        lambda folder: (folder / "train/b/2.png").unlink(),
        lambda folder: write_image(folder / "test/b/t.bmp", (16, 24), seed=99),  # of the same length
        lambda folder: (folder / "train/b").rename(folder / "train/B"),
    ],
)
def test_a_cache_of_other_files_is_stale(change: Callable[[Path], object], own: Path, tmp_path: Path) -> None:
    name = f"imagefolder:{own}"
    data.load(name)
    change(own)
    if (own / "train" / "B").is_dir():
        (own / "test" / "b").rename(own / "test" / "B")
    loaded = data.load(name)
    fresh = shutil.copytree(own, tmp_path / "fresh", ignore=shutil.ignore_patterns("decoded"))
    assert same(loaded, data.load(f"imagefolder:{fresh}"))


def test_one_size_for_all_even_where_both_parts_were_kept(own: Path) -> None:
    data.load(f"imagefolder:{own}")
    for file in (own / "train").rglob("*.*"):
        write_image(file, (32, 24))
    assert "has 16×24 pixels (height×width), not 32×24" in refuse(f"imagefolder:{own}")


def test_what_stops_halfway_leaves_nothing_behind(own: Path) -> None:
    def stop(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.load(f"imagefolder:{own}", progress=stop)
    assert snapshot(own / "decoded") == {}


def test_a_folder_that_cannot_be_written_has_its_cache_at_home(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decodings: list[Path]
) -> None:
    monkeypatch.setattr(cache.os, "access", lambda path, mode: False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    first = data.load(f"imagefolder:{own}")
    assert not (own / "decoded").exists()
    (place,) = (tmp_path / "home" / ".cache" / "gloronet" / "decoded").iterdir()
    assert place.name.startswith("own-")
    decodings.clear()
    assert same(first, data.load(f"imagefolder:{own}"))
    assert not decodings


def test_a_cache_that_cannot_be_written_says_so_and_blames_no_image(tiny: Path) -> None:
    (tiny / "decoded").write_text("a file where the folder should be")
    error = refuse("tiny-imagenet", tiny.parent)
    assert f"Cannot write the decoded images to {tiny / 'decoded'}" in error
    assert "delete" not in error


# --- the real thing ---


@pytest.mark.slow
def test_real_tiny_imagenet(tmp_path: Path) -> None:
    if not (SHARED / "tiny-imagenet" / "val.npz").is_file():
        pytest.skip(f"no packed Tiny-ImageNet in {SHARED}")
    try:
        command = [sys.executable, SHARED / "unpack.py", tmp_path, "tiny-imagenet"]
        subprocess.run(command, check=True, capture_output=True)
        first = data.load("tiny-imagenet", tmp_path)
        assert (first.train_x.shape, first.test_x.shape) == ((100_000, 3, 64, 64), (10_000, 3, 64, 64))
        assert first.train_y.bincount().tolist() == [500] * 200
        assert first.test_y.bincount().tolist() == [50] * 200
        with np.load(SHARED / "tiny-imagenet" / "val.npz") as pack:
            assert first.test_y.tolist() == pack["labels"].tolist()
            assert first.classes == tuple(map(str, pack["wnids"]))
        train, test = (
            ((x[:, 0] == x[:, 1]) & (x[:, 1] == x[:, 2])).flatten(1).all(1)
            for x in (first.train_x, first.test_x)
        )
        assert train.sum() + test.sum() == 1_989 + 135  # stored grey, and stored in colour that shows none
        files = (tmp_path / "tiny-imagenet-200" / "val" / "images" / f"val_{k}.JPEG" for k in range(10_000))
        stored = torch.tensor([mode(file) == "L" for file in files])
        assert stored.sum() == 168
        assert test[stored].all()
        assert same(first, data.load("tiny-imagenet", tmp_path))
    finally:
        shutil.rmtree(tmp_path)  # 110,000 files and 1.3 GB that pytest would keep
