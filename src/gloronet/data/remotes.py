"""The data sets to download: official addresses or maintained mirrors, published checksums."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """The files of a data set, and where to get them: one by one, or all in one archive."""

    folder: str
    """Under the data root; also the folder inside the archive."""
    files: dict[str, str | None]
    """File name → published checksum, as "algorithm:digest".

    Where only the archive's is published: "bytes:size", or None for a file whose being there is all that is asked.
    """
    addresses: tuple[str, ...]
    """Tried in turn, each with the file name (or the archive's) appended."""
    archive: tuple[str, str] | None = None
    """File name and checksum of the archive. Of a .tar.gz `files` are taken, of a .zip everything."""

    @property
    def sealed(self) -> bool:
        """Whether `fetch` notices any damage, because each file has a checksum of its own."""
        return all(checksum and not checksum.startswith("bytes:") for checksum in self.files.values())


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
    "cifar100": Remote(
        folder="cifar-100-binary",
        files={"train.bin": "bytes:153700000", "test.bin": "bytes:30740000"},
        addresses=("https://www.cs.toronto.edu/~kriz/",),
        archive=("cifar-100-binary.tar.gz", "md5:03b5dce01913d631647c71ecec9e9cb8"),
    ),
    "tiny-imagenet": Remote(
        folder="tiny-imagenet-200",
        files={"val/val_annotations.txt": None},  # put in place last, when all images are there
        addresses=("https://cs231n.stanford.edu/", "http://cs231n.stanford.edu/"),
        # the publisher states no checksum; this is the one that those who use the file agree on
        archive=("tiny-imagenet-200.zip", "md5:90528d7ca1a48142e341f4ef8d21d0de"),
    ),
}
