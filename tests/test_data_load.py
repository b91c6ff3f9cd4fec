"""Loading by name: built-in sets pinned, every reader on tiny official files, every damage refused."""

import gzip
import hashlib
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.data_files import CIFAR_BATCHES, idx_bytes, write_cifar10, write_cifar100, write_idx, write_mnist

from gloronet import data
from gloronet.errors import DataError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


def refuse(name: str, root: Path | None = None) -> str:
    with pytest.raises(DataError) as error:
        data.load(name, root)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- built in ---


def test_digits_and_their_split_never_change() -> None:
    digits = data.load("digits")
    assert (len(digits.train_y), len(digits.test_y)) == (1437, 360)
    assert digits.input_shape == (1, 8, 8)
    assert digits.classes == tuple("0123456789")
    assert digits.train_x.dtype == torch.float32
    sixteenths = torch.cat([digits.train_x, digits.test_x]) * 16
    assert sixteenths.unique().tolist() == list(range(17))
    share = torch.cat([digits.train_y, digits.test_y]).bincount() * 360 / 1797
    assert ((digits.test_y.bincount() - share).abs() < 1).all()

    test_set = (digits.test_x * 16).to(torch.uint8).numpy().tobytes() + digits.test_y.numpy().tobytes()
    assert hashlib.sha256(test_set).hexdigest().startswith("8711cbc73a4a2af68b75d3cb8a7a5127")


def test_moons_fill_the_unit_square_and_keep_their_distance() -> None:
    moons, again = data.load("moons"), data.load("moons")
    assert torch.equal(moons.train_x, again.train_x)
    assert moons.input_shape == (2,)
    assert (moons.train_x.shape, moons.test_x.shape) == ((1000, 2), (500, 2))
    assert len(moons.classes) == 2
    assert moons.test_y.bincount().tolist() == [250, 250]
    x, y = torch.cat([moons.train_x, moons.test_x]), torch.cat([moons.train_y, moons.test_y])
    assert (x.min(0).values < 0.02).all()
    assert (x.max(0).values > 0.98).all()
    assert torch.cdist(x[y == 0], x[y == 1]).min() > 0.18
    # interleaved: no straight line does it
    line = torch.linalg.lstsq(torch.cat([x, torch.ones(1500, 1)], 1), y.float()[:, None] - 0.5).solution
    right = ((torch.cat([x, torch.ones(1500, 1)], 1) @ line)[:, 0] > 0) == (y == 1)
    assert right.float().mean() < 0.95


# --- idx ---


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_are_read_byte_for_byte(name: str, tmp_path: Path) -> None:
    written = write_mnist(tmp_path / name)
    loaded = data.load(name, tmp_path)
    assert loaded.name == name
    assert len(loaded.classes) == 10
    assert loaded.input_shape == (1, 28, 28)
    assert loaded.train_x.dtype == torch.uint8
    assert np.array_equal(loaded.train_x[:, 0].numpy(), written["train-images-idx3-ubyte.gz"])
    assert np.array_equal(loaded.test_x[:, 0].numpy(), written["t10k-images-idx3-ubyte.gz"])
    assert np.array_equal(loaded.train_y.numpy(), written["train-labels-idx1-ubyte.gz"])
    assert np.array_equal(loaded.test_y.numpy(), written["t10k-labels-idx1-ubyte.gz"])


def test_the_data_root_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "mnist")
    monkeypatch.setenv("GLORONET_DATA", str(tmp_path))
    assert data.data_root() == tmp_path
    assert len(data.load("mnist").test_y) == 10
    assert data.data_root(tmp_path / "argument") == tmp_path / "argument"
    monkeypatch.setenv("GLORONET_DATA", "")
    assert data.data_root() == Path.home() / ".cache" / "gloronet"


IMAGES = np.zeros((20, 28, 28), np.uint8)
LABELS = np.zeros(20, np.uint8)


def cut_gzip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("train-images-idx3-ubyte.gz", cut_gzip, "is truncated"),
        ("train-images-idx3-ubyte.gz", flip_a_byte, "is not a sound gzip file"),
        ("train-images-idx3-ubyte.gz", lambda p: p.write_bytes(idx_bytes(IMAGES)), "not a sound gzip file"),
        ("train-images-idx3-ubyte.gz", lambda p: p.write_bytes(b""), "truncated"),
        ("train-images-idx3-ubyte.gz", lambda p: p.write_bytes(gzip.compress(b"\0\0\x08\x03\0")), "header"),
        ("train-images-idx3-ubyte.gz", lambda p: write_idx(p, LABELS), "magic number 2049, not 2051"),
        ("train-images-idx3-ubyte.gz", lambda p: write_idx(p, IMAGES, 0xD03), "magic number 3331, not 2051"),
        ("train-images-idx3-ubyte.gz", lambda p: write_idx(p, IMAGES[:, :8, :9]), "8×9 pixels, not 28×28"),
        (
            "train-images-idx3-ubyte.gz",
            lambda p: p.write_bytes(gzip.compress(idx_bytes(IMAGES)[:-784])),
            "announces 20×28×28 bytes but holds 14896",
        ),
        (
            "t10k-labels-idx1-ubyte.gz",
            lambda p: p.write_bytes(gzip.compress(idx_bytes(LABELS) + b"\0")),
            "announces 20 bytes but holds 21",
        ),
        ("train-labels-idx1-ubyte.gz", lambda p: write_idx(p, LABELS[:19]), "must be 20 int64"),
        ("train-labels-idx1-ubyte.gz", lambda p: write_idx(p, LABELS + 10), "go from 10 to 10; 10 classes"),
        ("t10k-images-idx3-ubyte.gz", lambda p: write_idx(p, IMAGES[:0]), "not empty"),
    ],
)
def test_damaged_idx_files_are_refused(
    file: str, damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    write_mnist(tmp_path / "mnist")
    damage(tmp_path / "mnist" / file)
    error = refuse("mnist", tmp_path)
    assert message in error
    assert "`gloronet data fetch mnist`" in error


def test_a_missing_file_says_how_to_get_it(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    missing = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
    missing.unlink()
    error = refuse("mnist", tmp_path)
    assert str(missing) in error
    assert "`gloronet data fetch mnist`" in error
    assert "GLORONET_DATA" in error


# --- CIFAR-10 ---


def test_cifar_rows_are_a_label_and_three_planes(tmp_path: Path) -> None:
    written = write_cifar10(tmp_path / "cifar-10-batches-bin")
    loaded = data.load("cifar10", tmp_path)
    assert loaded.input_shape == (3, 32, 32)
    assert (len(loaded.train_y), len(loaded.test_y)) == (15, 3)
    assert loaded.classes[:2] == ("airplane", "automobile")
    train = np.concatenate([written[f] for f in CIFAR_BATCHES[:5]])
    assert np.array_equal(loaded.train_y.numpy(), train[:, 0])
    assert np.array_equal(loaded.test_y.numpy(), written["test_batch.bin"][:, 0])
    image, channel, row, column = 7, 2, 5, 11
    assert loaded.train_x[image, channel, row, column] == train[image, 1 + 1024 * channel + 32 * row + column]
    assert np.array_equal(loaded.test_x.flatten(1).numpy(), written["test_batch.bin"][:, 1:])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are no whole number of 3073-byte rows"),
        (bytes(3 * 3073 - 1), "truncated"),
        (bytes(2 * 3073), "3, 3, 2, 3, 3, 3 rows"),
        (bytes([10]) + bytes(3 * 3073 - 1), "train labels go from 0 to 10; 10 classes"),
    ],
)
def test_damaged_cifar_batches_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    write_cifar10(folder)
    (folder / "data_batch_3.bin").write_bytes(content)
    error = refuse("cifar10", tmp_path)
    assert message in error
    assert "`gloronet data fetch cifar10`" in error


# --- CIFAR-100 ---


def test_cifar100_rows_are_two_labels_and_three_planes(tmp_path: Path) -> None:
    written = write_cifar100(tmp_path / "cifar-100-binary")
    loaded = data.load("cifar100", tmp_path)
    assert loaded.input_shape == (3, 32, 32)
    assert (len(loaded.train_y), len(loaded.test_y)) == (10, 2)
    assert len(set(loaded.classes)) == 100
    assert (loaded.classes[0], loaded.classes[26], loaded.classes[99]) == ("apple", "crab", "worm")
    for part, x, y in (("train", loaded.train_x, loaded.train_y), ("test", loaded.test_x, loaded.test_y)):
        assert np.array_equal(y.numpy(), written[f"{part}.bin"][:, 1])  # the fine label is the second
        assert np.array_equal(x.flatten(1).numpy(), written[f"{part}.bin"][:, 2:])
    row = {row.name: row for row in data.names(tmp_path)}["cifar100"]
    assert (row.shape, row.classes, row.present) == (loaded.input_shape, 100, True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes are no whole number of 3074-byte rows"),
        (bytes(10 * 3073), "truncated or of another format"),
        (bytes(9 * 3074), "train.bin holds 9 rows and test.bin 2, not a fifth of it"),
        (bytes([0, 100]) + bytes(10 * 3074 - 2), "train labels go from 0 to 100; 100 classes"),
    ],
)
def test_damaged_cifar100_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    write_cifar100(folder)
    (folder / "train.bin").write_bytes(content)
    error = refuse("cifar100", tmp_path)
    assert message in error
    assert f"delete {folder} and run `gloronet data fetch cifar100`" in error


# --- a user's own arrays ---

OWN = {
    "x_train": np.linspace(0, 1, 12, dtype=np.float64).reshape(6, 2),
    "y_train": np.array([0, 1, 2, 0, 1, 2], np.uint8),
    "x_test": np.zeros((2, 2)),
    "y_test": np.array([0, 2], np.int32),
}


def save(path: Path, **changes: object) -> str:
    arrays = {key: value for key, value in {**OWN, **changes}.items() if value is not None}
    np.savez(path, **arrays)
    return f"npz:{path}"


def test_npz_floats_become_float32_and_classes_are_counted(tmp_path: Path) -> None:
    name = save(tmp_path / "own.npz")
    own = data.load(name)
    assert own.name == name
    assert own.classes == ("0", "1", "2")
    assert own.input_shape == (2,)
    assert np.array_equal(own.train_x.numpy(), OWN["x_train"].astype(np.float32))
    assert own.train_y.tolist() == [0, 1, 2, 0, 1, 2]


def test_npz_images_stay_uint8_and_classes_are_named(tmp_path: Path) -> None:
    images = np.asfortranarray(np.arange(6 * 3 * 4 * 5, dtype=np.uint16).astype(np.uint8).reshape(6, 3, 4, 5))
    names = np.array(["cat", "dog", "été"])
    own = data.load(save(tmp_path / "own.npz", x_train=images, x_test=images[:2], classes=names))
    assert own.train_x.dtype == torch.uint8
    assert own.train_x.is_contiguous()
    assert np.array_equal(own.train_x.numpy(), images)
    assert own.classes == ("cat", "dog", "été")


def with_one(value: float) -> np.ndarray:
    x = OWN["x_train"].copy()
    x[3, 1] = value
    return x


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None, "x_test": None}, "has no x_test, y_test. Save x_train"),
        ({"x_train": with_one(np.nan)}, "NaN or infinite"),
        ({"x_train": with_one(1e300)}, "NaN or infinite"),
        ({"x_train": with_one(255)}, "scale them into [0,1]"),
        ({"x_train": with_one(-0.1)}, "scale them into [0,1]"),
        ({"x_train": OWN["x_train"].astype(np.int64)}, "must be uint8 images or floats in [0,1], not int64"),
        ({"x_train": OWN["x_train"].astype(np.uint8)}, "must be uint8 images (N, C, H, W) or float32"),
        ({"x_train": OWN["x_train"].astype(object)}, "plain arrays"),
        ({"x_train": np.zeros((6, 2, 2))}, "must have shape"),
        ({"x_test": np.zeros((2, 3))}, "make them alike"),
        ({"y_train": np.array([0, 1, 2])}, "must be 6 int64"),
        ({"y_train": np.array([0.0, 1, 2, 0, 1, 2])}, "must be a list of whole numbers, not float64"),
        ({"y_train": np.array([0, 1, 2, 0, 1, -1])}, "train labels go from -1"),
        ({"y_train": np.array([0, 1, 2, 0, 1, 10**12])}, "number the classes 0, 1, 2"),
        ({"y_train": np.zeros(6, int), "y_test": np.zeros(2, int)}, "at least two classes"),
        ({"y_train": np.zeros(0, int)}, "must be a list of whole numbers"),
        ({"y_test": np.array([0, 3])}, "test labels go from 0 to 3; 3 classes"),
        ({"classes": np.array(["a", "b"])}, "train labels go from 0 to 2; 2 classes"),
        ({"classes": np.array([1, 2, 3])}, "classes must be a list of strings"),
    ],
)
def test_bad_npz_arrays_are_refused(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    assert message in refuse(save(tmp_path / "own.npz", **changes))


UNCLOSED = b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + b"{'shape': (3,".ljust(117) + b"\n"
"""An array whose header ends inside a bracket: numpy's tokenizer raises what is no ValueError."""


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.npz"
    name = f"npz:{path}"
    assert f"There is no file {path}" in refuse(name)
    path.write_bytes(b"x_train = ...")
    assert "not a sound npz file" in refuse(name)
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    assert "it is no zip archive" in refuse(name)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x_train.npy", UNCLOSED)
    assert "not a sound npz file" in refuse(name)
    save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "not a sound npz file" in refuse(name)
    path.write_bytes(whole.replace(OWN["x_train"].tobytes(), bytes(OWN["x_train"].nbytes)))
    assert "not a sound npz file" in refuse(name)
    assert "not a sound npz file" in refuse(f"npz:{tmp_path}")


# --- names ---


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("mnst", "did you mean mnist"),
        ("CIFAR-10", "mean cifar10 or cifar100?"),
        ("npz", "npz:FILE"),
        ("imagefolder", "imagefolder:PATH"),
        ("", "digits"),
    ],
)
def test_an_unknown_name_gets_the_nearest_or_all(name: str, hint: str) -> None:
    error = refuse(name)
    assert f"There is no data set {name!r}" in error
    assert hint in error


def test_the_list_says_what_is_here_and_agrees_with_what_loads(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    rows = {row.name: row for row in data.names(tmp_path)}
    remote = ["mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet"]
    assert list(rows) == ["digits", "moons", *remote, "npz:FILE", "imagefolder:PATH"]
    assert [row.name for row in rows.values() if row.download] == remote
    assert [row.name for row in rows.values() if not row.present] == remote[1:]
    for name in ("digits", "moons", "mnist"):
        loaded = data.load(name, tmp_path)
        assert (rows[name].shape, rows[name].classes) == (loaded.input_shape, len(loaded.classes))


# --- the real thing ---


def unpack(name: str, out: Path) -> None:
    if not (SHARED / "unpack.py").is_file():
        pytest.skip(f"no packed data in {SHARED}")
    subprocess.run([sys.executable, SHARED / "unpack.py", out, name], check=True, capture_output=True)


def test_real_mnist(tmp_path: Path) -> None:
    unpack("mnist", tmp_path)
    mnist = data.load("mnist", tmp_path)
    assert (len(mnist.train_y), len(mnist.test_y)) == (60000, 10000)
    assert mnist.train_y[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.test_y[:5].tolist() == [7, 2, 1, 0, 4]
    assert data.to_unit(mnist.train_x).mean().item() == pytest.approx(0.1307, abs=1e-4)
    assert data.fetch("mnist", tmp_path) == tmp_path / "mnist"  # sound, so the network is not used


def test_real_cifar10(tmp_path: Path) -> None:
    try:
        unpack("cifar10", tmp_path)
        cifar = data.load("cifar10", tmp_path)
        assert cifar.train_x.shape == (50000, 3, 32, 32)
        assert cifar.test_y.bincount().tolist() == [1000] * 10
        assert [cifar.classes[i] for i in cifar.train_y[:3]] == ["frog", "truck", "truck"]
        means = cifar.train_x[:, :, ::4, ::4].float().mean((0, 2, 3)) / 255
        assert means.tolist() == pytest.approx([0.491, 0.482, 0.447], abs=0.005)
        assert data.fetch("cifar10", tmp_path) == tmp_path / "cifar-10-batches-bin"
    finally:
        shutil.rmtree(tmp_path)  # 184 MB that pytest would keep
