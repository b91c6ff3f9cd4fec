"""Decoded images, kept beside the data as a plain .npy file: decoded once, memory-mapped ever after.

Beside `train.npy` lies `train.json`, its seal: which files it was made of (names, sizes and times of change, in
order) and the size and time of change of the array itself. Where either differs, the images are decoded anew.
The seal is against what happens to files, not against malice or a failing disk: the pixels are not read to check it.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gloronet.data.decode import decode, pixels
from gloronet.data.download import Progress
from gloronet.errors import DataError


class NotKept(DataError):
    """Decoded images cannot be written; the data themselves may be sound."""


def decoded(
    folder: Path,
    part: str,
    files: Sequence[Path],
    size: tuple[int, int] | None = None,
    progress: Progress | None = None,
) -> Tensor:
    """The images in these files under `folder`, uint8 (n, 3, height, width), behind a memory map.

    All have the given size, or that of the first one. `progress` hears of images only where some are decoded.
    """
    kept = _place(folder) / f"{part}.npy"
    made_of = _made_of(folder, files)
    array = _map(kept, made_of, len(files), size)
    if array is None:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            _write(kept, made_of, files, size or pixels(files[0]).shape[1:], progress)
        except OSError as e:
            raise NotKept(
                f"Cannot write the decoded images to {kept.parent} ({e.strerror or e}); "
                "check its space and permissions."
            ) from None
        array = _map(kept, made_of, len(files), size)
    if array is None:
        raise NotKept(f"{kept} was changed while it was written; try again.")
    return torch.from_numpy(array)


def _place(folder: Path) -> Path:
    """`folder/decoded`, or a folder of the user's own for data that cannot be written to."""
    if os.access(folder, os.W_OK):
        return folder / "decoded"
    digest = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
    return Path.home() / ".cache" / "gloronet" / "decoded" / f"{folder.name}-{digest[:12]}"


def _made_of(folder: Path, files: Sequence[Path]) -> str:
    """A digest of names, sizes and times of change: which files, in which order, in which state."""
    digest = hashlib.sha256(b"gloronet decoded images, 1\n")
    for file in files:
        try:
            state = file.stat()
        except OSError as e:
            raise DataError(f"{file} cannot be read ({e.strerror}).") from None
        name = os.fsencode(file.relative_to(folder).as_posix())
        digest.update(name + f"\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _map(path: Path, made_of: str, n: int, size: tuple[int, int] | None) -> np.ndarray | None:
    """The kept array, unless it is missing, stale or damaged."""
    try:
        if json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) != _seal(path, made_of):
            return None
        # copy on write: a tensor cannot promise not to write
        array = np.load(path, mmap_mode="c", allow_pickle=False)
    except Exception:  # as a damaged file has it; numpy parses headers as Python
        return None
    sound = array.dtype == np.uint8 and array.ndim == 4 and array.shape[:2] == (n, 3)
    return array if sound and size in (None, array.shape[2:]) else None


def _write(
    path: Path, made_of: str, files: Sequence[Path], size: tuple[int, ...], progress: Progress | None
) -> None:
    """Array, then seal; each is put in place when it is whole."""
    height, width = size
    header = {"descr": "|u1", "fortran_order": False, "shape": (len(files), 3, height, width)}
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")  # other processes may write theirs
    try:
        with part.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            done = 0
            for block in decode(files, (height, width)):
                stream.write(block.data)
                done += len(block)
                if progress:
                    progress(f"decoding {path.stem}", done, len(files))
        os.replace(part, path)
        part.write_text(json.dumps(_seal(path, made_of)), encoding="utf-8")
        os.replace(part, path.with_suffix(".json"))
    finally:
        part.unlink(missing_ok=True)


def _seal(path: Path, made_of: str) -> dict[str, Any]:
    state = path.stat()
    return {"made_of": made_of, "bytes": state.st_size, "changed": state.st_mtime_ns}
