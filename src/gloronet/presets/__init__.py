"""Recipes that ship with the package: one TOML file a preset."""

from __future__ import annotations

import difflib
from pathlib import Path

from gloronet.config import Config, read_toml
from gloronet.errors import ConfigError

_FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The presets' names; those in a folder carry it: `tuned/mnist-0.3`."""
    return sorted(path.relative_to(_FOLDER).as_posix().removesuffix(".toml") for path in _FOLDER.rglob("*.toml"))


def read(recipe: str) -> Config:
    """The config of a preset, by name, or of a TOML file, by path."""
    if recipe in names():
        return read_toml(_FOLDER / f"{recipe}.toml")
    if recipe.startswith(("npz:", "imagefolder:")):
        raise ConfigError(f"{recipe} is a data set; train on it by: gloronet train PRESET --set data.name={recipe}")
    if recipe.endswith(".toml") or "/" in recipe:
        return read_toml(Path(recipe))
    near = difflib.get_close_matches(recipe, names(), 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names())}."
    raise ConfigError(
        f"There is no preset {recipe!r}; {hint} A config of your own is a path ending in .toml."
    )
