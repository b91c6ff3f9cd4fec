"""Where data lies, and how it gets there: official addresses or maintained mirrors, published checksums.

A file is put in place only after its checksum has been verified, so a damaged download never replaces a
good file. Loading never downloads; `fetch` is the only function here that uses the network.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gloronet.errors import DataError

Progress = Callable[[str, int, int], None]
"""Called with (file name, bytes so far, bytes in all or 0 where the server does not say)."""


@dataclass(frozen=True)
class Remote:
    """The files of a data set, and where to get them: one by one, or all in one archive."""

    folder: str
    """Under the data root; also the folder inside the archive."""
    files: dict[str, str]
    """File name → published checksum, as "algorithm:digest"."""
    addresses: tuple[str, ...]
    """Tried in turn, each with the file name (or the archive's) appended."""
    archive: tuple[str, str] | None = None
    """File name and checksum of the archive."""


REMOTES = {
    "mnist": Remote(
        folder="mnist",
        files={
            "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
        },
        addresses=(  # the original site refuses most downloads
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
    ),
    "fashion-mnist": Remote(
        folder="fashion-mnist",
        files={
            "train-images-idx3-ubyte.gz": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "md5:25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "md5:bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "md5:bb300cfdad3c16e7a12a480ee83cd310",
        },
        addresses=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
    ),
    "cifar10": Remote(
        folder="cifar-10-batches-bin",
        files={
            "data_batch_1.bin": "sha1:aadd24acce27caa71bf4b10992e9e7b2d74c2540",
            "data_batch_2.bin": "sha1:c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
            "data_batch_3.bin": "sha1:1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
            "data_batch_4.bin": "sha1:aab85764eb3584312d3c7f65fd2fd016e36a258e",
            "data_batch_5.bin": "sha1:26e2849e66a845b7f1e4614ae70f4889ae604628",
            "test_batch.bin": "sha1:67eb016db431130d61cd03c7ad570b013799c88c",
        },
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        archive=("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530"),
    ),
}


def data_root(root: Path | str | None = None) -> Path:
    """The folder data sets lie in: the argument, else $GLORONET_DATA, else ~/.cache/gloronet."""
    return Path(root or os.environ.get("GLORONET_DATA") or Path.home() / ".cache" / "gloronet").expanduser()


def fetch(name: str, root: Path | str | None = None, progress: Progress | None = None) -> Path:
    """Downloads what is missing or damaged of a data set, verifies it, and returns its folder."""
    remote = REMOTES.get(name)
    if remote is None:
        raise DataError(f"There is nothing to fetch for {name!r}; data sets to fetch: {', '.join(REMOTES)}.")
    home = data_root(root)
    folder = home / remote.folder
    try:
        wanted = [file for file, checksum in remote.files.items() if not _sound(folder / file, checksum)]
        if not wanted:
            return folder
        folder.mkdir(parents=True, exist_ok=True)
        if remote.archive is None:
            for file in wanted:
                _download(name, remote.addresses, folder / file, remote.files[file], progress)
        else:
            archive = home / remote.archive[0]
            _download(name, remote.addresses, archive, remote.archive[1], progress)
            _unpack(archive, remote, wanted, folder)
            archive.unlink()
    except OSError as e:
        raise DataError(
            f"Cannot write {name} to {home} ({e.strerror or e}); check its space and permissions, "
            "or set GLORONET_DATA to another folder."
        ) from None
    return folder


def _download(
    name: str, addresses: tuple[str, ...], target: Path, checksum: str, progress: Progress | None
) -> None:
    """Puts a verified copy at `target`, from the first address that has one, or leaves `target` alone."""
    import pooch  # only fetching needs these two
    from requests import RequestException

    pooch.get_logger().setLevel("WARNING")  # progress is reported by us
    failures = []
    for address in addresses:
        bar = _Bar(target.name, progress) if progress else False
        try:
            pooch.retrieve(
                address + target.name,
                known_hash=checksum,
                fname=target.name,
                path=target.parent,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
            return
        except RequestException as e:
            failures.append(f"{address} cannot be reached or refuses ({type(e).__name__})")
        except ValueError:  # what pooch raises when the checksum differs
            failures.append(f"{address} sent a file with the wrong checksum, which was thrown away")
    raise DataError(
        f"Cannot fetch {target.name} of {name}: {'; '.join(failures)}. Check the connection and "
        f"try again, or put the file into {target.parent} yourself."
    )


def _unpack(archive: Path, remote: Remote, wanted: list[str], folder: Path) -> None:
    """Puts the wanted members in place, each after its own checksum."""
    with tarfile.open(archive) as tar:
        for file in wanted:
            member = tar.extractfile(f"{remote.folder}/{file}")
            part = folder / f"{file}.part"
            part.write_bytes(member.read() if member else b"")
            if not _sound(part, remote.files[file]):
                part.unlink()
                raise DataError(f"{file} of {archive} has the wrong checksum; delete both and fetch again.")
            os.replace(part, folder / file)


def _sound(path: Path, checksum: str) -> bool:
    """Whether the file is there and has the checksum."""
    if not path.is_file():
        return False
    algorithm, digest = checksum.split(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == digest


class _Bar:
    """What pooch wants of a progress bar, passed on to a `Progress` function."""

    def __init__(self, file: str, progress: Progress) -> None:
        self.file, self.progress, self.total, self.done = file, progress, 0, 0

    def update(self, size: int) -> None:
        self.done += size
        self.progress(self.file, min(self.done, self.total or self.done), self.total)

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass
