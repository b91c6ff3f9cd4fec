"""Trained nets that ship with the package, each with its certificates and the proof of them.

    net = gn.load("zoo:mnist-0.3")

An entry is a folder: `config.toml`, `model.safetensors`, `proof.json` (with a certificate for every image of the
official test set, which it names by its hash) and `zoo.json`, what is claimed. Of the seeds trained it is the
median, not the best. `gloronet zoo check NAME` certifies the test set anew and has the proof checked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gloronet.config import Config, read_toml
from gloronet.errors import ConfigError

PREFIX = "zoo:"
_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The nets there are.

    >>> "mnist-0.3" in names()
    True
    """
    return sorted(path.parent.name for path in _FOLDER.glob("*/zoo.json"))


def folder(name: str) -> Path:
    """Where the net of that name lies, with or without `zoo:` before it."""
    name = name.removeprefix(PREFIX)
    if name not in names():
        raise ConfigError(f"There is no net {name!r} in the zoo; there are {', '.join(names())}.")
    return _FOLDER / name


def trained_with(config: Config) -> str | None:
    """The net that was trained with these very settings, its seed among them."""
    return next((name for name in names() if read_toml(folder(name) / "config.toml") == config), None)


def claims(name: str) -> dict[str, Any]:
    """What is claimed of the net: VRA and clean accuracy on the test set, how and on what it was trained."""
    return json.loads((folder(name) / "zoo.json").read_text())
