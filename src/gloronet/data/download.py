"""Where data lies, and how it gets there.

A file is put in place only after its checksum has been verified, so a damaged download never replaces a
good file. Loading never downloads; `fetch` is the only function here that uses the network.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from gloronet.data.remotes import REMOTES, Remote
from gloronet.errors import DataError

Progress = Callable[[str, int, int], None]
"""Called with (what, so far, in all or 0 where the server does not say): bytes of a file, or images decoded."""


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
                _download(name, remote.addresses, folder / file, remote.files[file] or "", progress)
        else:
            archive = home / remote.archive[0]
            _download(name, remote.addresses, archive, remote.archive[1], progress)
            unpack = _unzip if archive.suffix == ".zip" else _untar
            unpack(archive, remote, wanted, progress)
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


def _untar(archive: Path, remote: Remote, wanted: list[str], progress: Progress | None) -> None:
    """Puts the wanted members in place, each after its own checksum."""
    with tarfile.open(archive) as tar:
        for file in wanted:
            member = tar.extractfile(f"{remote.folder}/{file}")
            _put(archive, remote, file, member.read() if member else b"")


def _unzip(archive: Path, remote: Remote, wanted: list[str], progress: Progress | None) -> None:
    """Puts all members in place; the wanted ones come last, and so vouch for the others."""
    with zipfile.ZipFile(archive) as pack:
        last = {f"{remote.folder}/{file}" for file in wanted}
        members = [member for member in pack.infolist() if member.filename not in last]
        done, total = 0, sum(member.file_size for member in members)
        for member in members:
            pack.extract(member, archive.parent)
            done += member.file_size
            if progress:
                progress(f"unpacking {archive.name}", done, total)
        for file in wanted:
            _put(archive, remote, file, pack.read(f"{remote.folder}/{file}"))


def _put(archive: Path, remote: Remote, file: str, content: bytes) -> None:
    target = archive.parent / remote.folder / file
    part = target.with_name(f"{target.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(content)
    if not _sound(part, remote.files[file]):
        part.unlink()
        raise DataError(f"{file} of {archive} has the wrong checksum; delete both and fetch again.")
    os.replace(part, target)


def _sound(path: Path, checksum: str | None) -> bool:
    """Whether the file is there and has the checksum."""
    if not path.is_file():
        return False
    if checksum is None:
        return True
    algorithm, digest = checksum.split(":")
    if algorithm == "bytes":
        return path.stat().st_size == int(digest)
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
