"""The body of a request → float32 inputs (B, *shape) in [0, 1] and ε; whatever is not exactly that is a Problem.

JSON `{"inputs": …, "epsilon": …}`, `.npy` files, and PNG or JPEG images. Nothing is guessed: no pixel is scaled,
blended, turned or resized unless the request says so. Numbers are rounded to float32, and the certificate is about
the rounded input.
"""

from __future__ import annotations

import io
import json
import math
import struct
from typing import Any, NamedTuple

import numpy as np

from gloronet.config import parse_epsilon
from gloronet.errors import ConfigError
from gloronet.serve.limits import Limits
from gloronet.serve.problems import Problem

IMAGES = {"image/png": "PNG", "image/jpeg": "JPEG"}
NPY = "application/x-npy"
JSON = "application/json"
TYPES = (JSON, *IMAGES, NPY)


class Inputs(NamedTuple):
    x: np.ndarray
    epsilon: float | None


def parse(
    body: bytes, content_type: str, query: dict[str, str], shape: tuple[int, ...], limits: Limits
) -> Inputs:
    """`query` may say `epsilon`, and for images `resize`; anything else would be another question than was meant."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind not in TYPES:
        said = f"not {kind[:100]!r}" if kind else "and this request says none"
        raise Problem(415, f"Content-Type must be one of {', '.join(TYPES)}, {said}.")
    if not body:
        raise Problem(400, "The body is empty.")
    strange = query.keys() - {"epsilon", "resize"}
    if strange:
        raise Problem(422, f"There is no parameter {min(strange)[:100]!r}; there are epsilon and, for images, resize.")
    epsilon: Any = query.get("epsilon")
    if kind == JSON:
        x, told = _json(body)
        if told is not None and epsilon is not None:
            raise Problem(422, "epsilon is given twice, in the body and in the address; leave one out.")
        epsilon = told if told is not None else epsilon
    elif kind == NPY:
        x = _npy(body)
    else:
        x = _image(body, IMAGES[kind], _flag(query, "resize"), shape, limits)
    return Inputs(_checked(x, shape, limits), _epsilon(epsilon))


def _json(body: bytes) -> tuple[np.ndarray, Any]:
    try:
        told = json.loads(body)
    except RecursionError:
        raise Problem(400, "The body is nested too deeply.") from None
    except ValueError as e:
        raise Problem(400, f"The body is not JSON: {str(e)[:200]}.") from None
    if not isinstance(told, dict) or "inputs" not in told:
        raise Problem(422, 'The body must be an object such as {"inputs": [[0.0, 0.5, …]], "epsilon": 0.3}.')
    if unknown := sorted(told.keys() - {"inputs", "epsilon"}):
        raise Problem(422, f"Unknown field {unknown[0][:100]!r}; there are inputs and epsilon.")
    try:
        x = np.array(told["inputs"], object)  # of another dtype one long string would make every entry as wide
        if not {int, float, list}.issuperset(map(type, x.ravel())):
            raise Problem(422, "inputs must hold numbers only.")
        return x.astype(np.float64), told.get("epsilon")
    except OverflowError:
        raise Problem(422, "inputs must hold numbers only, of a size that a float has.") from None
    except (ValueError, TypeError, RecursionError):
        raise Problem(422, "The rows of inputs have different lengths, or are nested too deeply.") from None


def _npy(body: bytes) -> np.ndarray:
    """As np.load, but a header that promises more than the body holds makes nobody allocate it."""
    file = io.BytesIO(body)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        if version not in readers:
            raise Problem(400, f"This .npy file is of version {version}; save it as version 1.0.")
        size, _, dtype = readers[version](file)
        if dtype.kind != "f" or dtype.itemsize > 8:
            raise Problem(
                422, f"The array is of dtype {dtype}, not float32; pixels of 0 to 255 are to be divided by 255."
            )
        if math.prod(size) * dtype.itemsize != len(body) - file.tell():
            raise Problem(400, "The .npy file is cut off, or longer than its header says.")
        return np.load(io.BytesIO(body), allow_pickle=False)
    except Problem:
        raise
    except Exception as e:  # the header is parsed as Python, and what is no Python raises in many ways
        raise Problem(400, f"The body is not a sound .npy file: {_first_line(e)}.") from None


def _image(body: bytes, kind: str, resize: bool, shape: tuple[int, ...], limits: Limits) -> np.ndarray:
    from PIL import Image

    if len(shape) != 3 or shape[0] not in (1, 3):
        raise Problem(415, f"This net takes inputs of shape {shape}, not images; send {JSON} or {NPY}.")
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(body), formats=(kind,)) as image:
            if image.width * image.height > limits.pixels:
                raise Problem(413, f"The image has more than {limits.pixels:,} pixels.")
            if image.size != (width, height) and not resize:
                theirs, ours = f"{image.width}×{image.height}", f"{width}×{height}"
                raise Problem(
                    422, f"The image has {theirs} pixels (width×height), not {ours}; say ?resize=true to resize it."
                )
            if any("16" in str(tile[3]) for tile in image.tile):  # its mode, after decoding, would not tell
                raise Problem(422, "The image has 16 bits a channel; save it with 8 bits.")
            image.load()
            opaque = _opaque(image).convert("L" if channels == 1 else "RGB")
            if opaque.size != (width, height):
                opaque = opaque.resize((width, height), Image.Resampling.BOX)
            pixels = np.asarray(opaque, np.float32).reshape(height, width, channels)
    except Image.UnidentifiedImageError:
        raise Problem(400, f"The body is not a sound {kind} image.") from None
    except Image.DecompressionBombError:
        raise Problem(413, f"The image has more than {limits.pixels:,} pixels.") from None
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, MemoryError) as e:
        raise Problem(400, f"The body is not a sound {kind} image: {_first_line(e)}.") from None
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)) / np.float32(255)


def _opaque(image: Any) -> Any:
    """The image without its alpha channel, if that hides nothing."""
    if image.mode in ("LA", "RGBA") or (image.mode in ("1", "L", "P", "RGB") and "transparency" in image.info):
        full = image.convert("RGBA")
        if full.getextrema()[3][0] < 255:
            raise Problem(422, "The image is transparent in places; put it on a background first.")
        return full.convert("RGB") if image.mode in ("P", "RGB", "RGBA") else full.convert("L")
    if image.mode not in ("1", "L", "P", "RGB"):
        raise Problem(422, f"The image is neither RGB nor greyscale of 8 bits (its mode is {image.mode}).")
    return image


def _checked(x: np.ndarray, shape: tuple[int, ...], limits: Limits) -> np.ndarray:
    flat = (math.prod(shape),)
    if x.shape in (shape, flat):
        x = x.reshape(1, *shape)
    elif x.ndim and x.shape[1:] in (shape, flat):
        x = x.reshape(len(x), *shape)
    else:
        each = " or ".join(str(list(s)) for s in dict.fromkeys((shape, flat)))
        raise Problem(422, f"An input has shape {each}, several have one dimension more; this is {list(x.shape)}.")
    if not 1 <= len(x) <= limits.images:
        raise Problem(413 if len(x) else 422, f"A request holds 1 to {limits.images} inputs, not {len(x)}.")
    if not np.isfinite(x).all():
        raise Problem(422, "The input holds NaN or infinite values.")
    low, high = float(x.min()), float(x.max())
    if low < 0 or high > 1:
        raise Problem(422, f"Values must be in [0, 1]; these range over [{low:g}, {high:g}].")
    return np.ascontiguousarray(x, np.float32)


def _epsilon(told: Any) -> float | None:
    if told is None:
        return None
    try:
        if isinstance(told, bool) or not isinstance(told, str | int | float):
            raise ConfigError("epsilon must be a number of at least 0, such as 0.3 or '36/255'.")
        return parse_epsilon(told)
    except ConfigError as e:
        raise Problem(422, str(e)[:300]) from None


def _flag(query: dict[str, str], name: str) -> bool:
    said = query.get(name, "false")
    if said not in ("true", "false"):
        raise Problem(422, f"{name} must be true or false, not {said[:100]!r}.")
    return said == "true"


def _first_line(e: BaseException) -> str:
    return (str(e) or type(e).__name__).partition("\n")[0][:200].rstrip(".")
