"""Fetching, from a server of our own: what is sound is put in place, and nothing else ever is."""

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.data_files import write_cifar10, write_cifar100, write_mnist, write_tiny_imagenet

from gloronet import data
from gloronet.data import download
from gloronet.errors import DataError

NOWHERE = "http://127.0.0.1:9/"  # the discard port: nothing listens


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Site:
    """A folder served over HTTP, with the table of addresses and checksums turned to it."""

    def __init__(self, folder: Path, address: str, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.address, self.patch = folder, address, patch

    def offer(self, name: str, **changes: object) -> None:
        remote = replace(download.REMOTES[name], **{"addresses": (self.address,), **changes})
        self.patch.setitem(download.REMOTES, name, remote)

    def offer_mnist(self, **changes: object) -> None:
        files = {file: md5(self.folder / file) for file in write_mnist(self.folder)}
        self.offer("mnist", files=files, **changes)

    def offer_cifar10(self, source: Path) -> None:
        folder = source / "cifar-10-batches-bin"
        files = {file: sha1(folder / file) for file in write_cifar10(folder)}
        archive = self.folder / "cifar-10-binary.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, folder.name)
        self.offer("cifar10", files=files, archive=(archive.name, md5(archive)))

    def offer_cifar100(self, source: Path) -> None:
        folder = source / "cifar-100-binary"
        files = {file: f"bytes:{(folder / file).stat().st_size}" for file in write_cifar100(folder)}
        archive = self.folder / "cifar-100-binary.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, folder.name)
        self.offer("cifar100", files=files, archive=(archive.name, md5(archive)))

    def offer_tiny_imagenet(self, source: Path) -> None:
        write_tiny_imagenet(source / "tiny-imagenet-200")
        archive = self.folder / "tiny-imagenet-200.zip"
        with zipfile.ZipFile(archive, "w") as pack:
            for path in sorted(source.rglob("*"), key=lambda path: path.suffix != ".txt"):
                pack.write(path, path.relative_to(source))
        self.offer("tiny-imagenet", archive=(archive.name, md5(archive)))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield Site(folder, f"http://127.0.0.1:{server.server_port}/", monkeypatch)
    server.shutdown()
    thread.join()
    server.server_close()


def md5(path: Path) -> str:
    return f"md5:{hashlib.md5(path.read_bytes()).hexdigest()}"


def sha1(path: Path) -> str:
    return f"sha1:{hashlib.sha1(path.read_bytes()).hexdigest()}"


def refuse(name: str, root: Path) -> str:
    with pytest.raises(DataError) as error:
        data.fetch(name, root)
    assert "\n" not in str(error.value)
    return str(error.value)


def refuse_load(name: str, root: Path) -> str:
    with pytest.raises(DataError) as error:
        data.load(name, root)
    return str(error.value)


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_files_are_fetched_once_and_then_load(site: Site, tmp_path: Path) -> None:
    site.offer_mnist()
    seen: list[tuple[str, int, int]] = []
    folder = data.fetch("mnist", tmp_path / "root", lambda *step: seen.append(step))
    assert folder == tmp_path / "root" / "mnist"
    assert contents(folder) == contents(site.folder)
    assert len(data.load("mnist", tmp_path / "root").train_y) == 20
    size = (folder / "train-images-idx3-ubyte.gz").stat().st_size
    assert ("train-images-idx3-ubyte.gz", size, size) in seen
    assert all(0 <= done <= total for _, done, total in seen)

    site.offer("mnist", addresses=(NOWHERE,))
    assert data.fetch("mnist", tmp_path / "root") == folder  # nothing is missing, so nobody is asked


def test_an_archive_is_unpacked_and_cleared_away(site: Site, tmp_path: Path) -> None:
    site.offer_cifar10(tmp_path / "source")
    folder = data.fetch("cifar10", tmp_path / "root")
    assert contents(folder) == contents(tmp_path / "source" / "cifar-10-batches-bin")
    assert [p.name for p in (tmp_path / "root").iterdir()] == [folder.name]
    assert len(data.load("cifar10", tmp_path / "root").test_y) == 3


def test_where_only_the_archive_has_a_checksum_a_file_of_another_size_is_fetched_anew(
    site: Site, tmp_path: Path
) -> None:
    site.offer_cifar100(tmp_path / "source")
    folder = data.fetch("cifar100", tmp_path / "root")
    assert contents(folder) == contents(tmp_path / "source" / "cifar-100-binary")
    (folder / "test.bin").write_bytes(b"cut off")
    assert "delete" in refuse_load("cifar100", tmp_path / "root")
    data.fetch("cifar100", tmp_path / "root")
    assert contents(folder) == contents(tmp_path / "source" / "cifar-100-binary")


def test_a_zip_is_unpacked_whole_and_what_vouches_for_it_comes_last(site: Site, tmp_path: Path) -> None:
    site.offer_tiny_imagenet(tmp_path / "source")
    seen: list[tuple[str, int, int]] = []

    def stop(what: str, done: int, total: int) -> None:
        seen.append((what, done, total))
        if what.startswith("unpacking") and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        data.fetch("tiny-imagenet", tmp_path / "root", stop)
    assert seen[0][0] == "tiny-imagenet-200.zip"
    assert "tiny-imagenet is not here" in refuse_load("tiny-imagenet", tmp_path / "root")
    site.offer("tiny-imagenet", addresses=(NOWHERE,))  # the archive is still there
    folder = data.fetch("tiny-imagenet", tmp_path / "root")
    source = tmp_path / "source" / "tiny-imagenet-200"
    assert {p.relative_to(folder) for p in folder.rglob("*")} == {
        p.relative_to(source) for p in source.rglob("*")
    }
    assert [p.name for p in (tmp_path / "root").iterdir()] == [folder.name]
    assert len(data.load("tiny-imagenet", tmp_path / "root").train_y) == 12


def test_a_damaged_file_is_fetched_anew_and_the_good_ones_are_not(site: Site, tmp_path: Path) -> None:
    site.offer_mnist()
    folder = data.fetch("mnist", tmp_path / "root")
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(b"damaged")
    seen: set[str] = set()
    data.fetch("mnist", tmp_path / "root", lambda file, *_: seen.add(file))
    assert seen == {"t10k-images-idx3-ubyte.gz"}
    assert contents(folder) == contents(site.folder)


def test_a_wrong_checksum_changes_nothing_on_disk(site: Site, tmp_path: Path) -> None:
    site.offer_mnist()
    folder = data.fetch("mnist", tmp_path / "root")
    old = folder / "train-labels-idx1-ubyte.gz"
    old.write_bytes(b"what was there before")
    before = contents(folder)
    (site.folder / old.name).write_bytes(b"not what was published")
    error = refuse("mnist", tmp_path / "root")
    assert "wrong checksum" in error
    assert old.name in error
    assert contents(folder) == before


def test_a_wrong_archive_leaves_the_good_batches(site: Site, tmp_path: Path) -> None:
    site.offer_cifar10(tmp_path / "source")
    folder = data.fetch("cifar10", tmp_path / "root")
    (folder / "test_batch.bin").unlink()
    before = contents(folder)
    (site.folder / "cifar-10-binary.tar.gz").write_bytes(b"not what was published")
    assert "wrong checksum" in refuse("cifar10", tmp_path / "root")
    assert contents(folder) == before


def test_a_wrong_batch_inside_the_archive_is_not_put_in_place(site: Site, tmp_path: Path) -> None:
    site.offer_cifar10(tmp_path / "source")
    archive = site.folder / "cifar-10-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for file in download.REMOTES["cifar10"].files:
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{file}")
            member.size = 5
            tar.addfile(member, io.BytesIO(b"wrong"))
    site.offer("cifar10", archive=(archive.name, md5(archive)))
    assert "data_batch_1.bin" in refuse("cifar10", tmp_path / "root")
    assert contents(tmp_path / "root" / "cifar-10-batches-bin") == {}


@pytest.mark.parametrize("bad", [NOWHERE, "missing/"])
def test_the_next_address_is_tried_and_failure_says_what_to_do(site: Site, tmp_path: Path, bad: str) -> None:
    bad = bad if bad == NOWHERE else site.address + bad  # offline, or 404
    site.offer_mnist(addresses=(bad,))
    error = refuse("mnist", tmp_path / "root")
    assert bad in error
    assert "Check the connection and try again" in error
    assert str(tmp_path / "root" / "mnist") in error
    site.offer("mnist", addresses=(bad, site.address))
    assert contents(data.fetch("mnist", tmp_path / "root")) == contents(site.folder)


def test_a_root_that_cannot_be_written_says_so(site: Site, tmp_path: Path) -> None:
    site.offer_mnist()
    (tmp_path / "root").write_text("a file where the folder should be")
    error = refuse("mnist", tmp_path / "root")
    assert f"Cannot write mnist to {tmp_path / 'root'}" in error
    assert "GLORONET_DATA" in error


@pytest.mark.parametrize("name", ["digits", "npz:own.npz", "nonsense"])
def test_only_remote_data_sets_can_be_fetched(name: str, tmp_path: Path) -> None:
    assert "data sets to fetch: mnist, fashion-mnist, cifar10, cifar100, tiny-imagenet." in refuse(
        name, tmp_path
    )


def test_the_published_checksums_are_well_formed() -> None:
    digits = {"md5": 32, "sha1": 40}
    for remote in download.REMOTES.values():
        for checksum in [*remote.files.values(), *(remote.archive or ("", "md5:" + "0" * 32))[1:]]:
            algorithm, digest = (checksum or "bytes:0").split(":")
            if algorithm == "bytes":  # then the archive's vouches for the file
                assert remote.archive is not None
                assert int(digest) >= 0
                continue
            assert len(bytes.fromhex(digest)) * 2 == digits[algorithm]
        assert all(address.startswith("http") and address.endswith("/") for address in remote.addresses)
