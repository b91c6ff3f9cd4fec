"""Image files → uint8 pixels as they are stored: nothing is resized, cropped, turned or blended with a background."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from gloronet.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".ppm", ".pgm", ".webp")
BLOCK = 1024
"""Images decoded before they are handed on."""
_FORMATS = ("PNG", "JPEG", "BMP", "PPM", "WEBP")
_MODES = ("1", "L", "P", "RGB")
"""What has one meaning as red, green and blue of 8 bits. Not so transparency, 16 bits, CMYK without its profile."""


def decode(files: Sequence[Path], size: tuple[int, int]) -> Iterator[np.ndarray]:
    """All images in their order, as blocks (n, 3, height, width); one of another size is refused."""
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1), "decode") as pool:  # Pillow decodes without the GIL
        for start in range(0, len(files), BLOCK):
            yield np.stack(list(pool.map(partial(_of_size, size), files[start : start + BLOCK])))


def pixels(path: Path) -> np.ndarray:
    """One image as uint8 (3, height, width): red, green, blue; grey becomes three equal planes."""
    from PIL import Image  # only what decodes needs it

    try:
        with Image.open(path, formats=_FORMATS) as image:
            image.load()
            if image.mode not in _MODES or "transparency" in image.info:
                raise DataError(
                    f"{path} is neither RGB nor greyscale of 8 bits without transparency (its mode is {image.mode}); "
                    "convert it, or take it out of the folder."
                )
            return np.ascontiguousarray(np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    except Image.UnidentifiedImageError:
        raise DataError(f"{path} is not a sound image of {', '.join(_FORMATS)}; replace it.") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as e:
        reason = (getattr(e, "strerror", None) or str(e)).partition("\n")[0]
        raise DataError(f"{path} is not a sound image ({reason}); replace it.") from None


def _of_size(size: tuple[int, int], path: Path) -> np.ndarray:
    image = pixels(path)
    if image.shape[1:] != size:
        theirs, ours = ("×".join(map(str, shape)) for shape in (image.shape[1:], size))
        raise DataError(
            f"{path} has {theirs} pixels (height×width), not {ours}; all images must have one size."
        )
    return image
