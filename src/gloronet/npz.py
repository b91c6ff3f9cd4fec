"""Files of arrays, read as a stranger's: nothing is unpickled, and whatever is wrong is a ValueError of one line."""

from __future__ import annotations

import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def read(path: Path, names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an npz file: those named that are in it, or all. FileNotFoundError where there is no file."""
    try:
        with path.open("rb") as stream:  # by name, np.load would leave a damaged file open
            if not zipfile.is_zipfile(stream):
                raise ValueError("it is no zip archive")
            with np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in file.files if names is None or name in names}
    except FileNotFoundError:
        raise
    except Exception as e:  # zipfile, zlib and numpy, which parses headers as Python, each raise as they like
        raise ValueError(str(e).partition("\n")[0]) from None
