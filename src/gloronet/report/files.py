"""Files read strictly: CSV columns, JSON, npz arrays. Anything malformed is a ConfigError naming the file."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from gloronet import npz
from gloronet.errors import ConfigError
from gloronet.npz import Array


def read_csv(path: Path, columns: tuple[str, ...]) -> dict[str, list[str]]:
    """The named columns as strings; other columns of the file are left alone."""
    try:
        header, *lines = [cells for cells in csv.reader(read_text(path).splitlines()) if cells] or [[]]
    except csv.Error as e:
        raise ConfigError(f"{path} is not valid CSV: {e}") from None
    missing = [name for name in columns if name not in header]
    if missing:
        raise ConfigError(f"{path} has no column {', '.join(missing)}; its header is {','.join(header)!r}.")
    for number, cells in enumerate(lines, 1):
        if len(cells) != len(header):
            raise ConfigError(f"{path} row {number} has {len(cells)} cells; its header has {len(header)}.")
    return {name: [cells[header.index(name)] for cells in lines] for name in columns}


def ints(path: Path, table: dict[str, list[str]], name: str) -> Array:
    return _column(path, table, name, int, np.int64)


def floats(path: Path, table: dict[str, list[str]], name: str) -> Array:
    return _column(path, table, name, float, np.float64)


def read_json(path: Path) -> Any:
    return parse_json(path, read_text(path))


def parse_json(path: Path, text: str, where: str = "") -> Any:
    try:
        return json.loads(text)
    except ValueError as e:
        raise ConfigError(f"{path}{where} is not valid JSON: {e}") from None


def number(path: Path, value: Any) -> float:
    """A number of a JSON file as a float; null and a missing key are NaN."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{path}: {value!r} is not a number.")
    return float(value)


def read_npz(path: Path, names: tuple[str, ...]) -> dict[str, Array]:
    """All arrays of the file, which must hold at least the named ones."""
    try:
        arrays = npz.read(path)
    except (OSError, ValueError) as e:
        raise ConfigError(f"{path} is not a readable npz file: {e}") from None
    missing = [name for name in names if name not in arrays]
    if missing:
        raise ConfigError(f"{path} has no array {', '.join(missing)}.")
    return arrays


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} cannot be read as text: {e}") from None


def _column(path: Path, table: dict[str, list[str]], name: str, parse: type, dtype: type) -> Array:
    try:
        return np.array([parse(cell) for cell in table[name]], dtype=dtype)
    except (ValueError, OverflowError) as e:
        raise ConfigError(f"{path}, column {name}: {e}.") from None
