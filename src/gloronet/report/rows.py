"""A run folder read into arrays, checked once, so that everything below can trust what it draws.

`config.toml` and `certificates.csv` must be there; every other file may be missing (None, or empty).
A file that is there but cannot be read is a ConfigError that names it: a report never skips bad rows.
Files also have to agree with one another: attacks on samples that were never certified, or certificates
made for another ε, are refused rather than drawn side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gloronet.config import Config, parse_epsilon, read_toml
from gloronet.errors import ConfigError
from gloronet.report.files import (
    Array,
    floats,
    ints,
    number,
    parse_json,
    read_csv,
    read_json,
    read_npz,
    read_text,
)

NORMS = {"l2": "ℓ2", "linf": "ℓ∞"}


@dataclass(frozen=True)
class Certificates:
    """One entry per sample, in the order of the file."""

    index: Array
    label: Array
    answer: Array
    """The class with the largest logit, whatever its certificate."""
    certified: Array
    radius: Array
    semantics: tuple[str, ...]

    @property
    def right(self) -> Array:
        return self.answer == self.label

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True)
class Attack:
    """One entry per attacked sample; `row` is its position in the certificates."""

    row: Array
    success: Array
    distance: Array
    """Distance of the adversarial point found; inf where the sample withstood."""
    epsilon: float
    """The radius within which every sample was attacked."""


@dataclass(frozen=True)
class Layer:
    name: str
    rule: str
    method: str
    estimate: float
    """Reached from below; NaN where the layer has none. Certifies nothing."""
    bound: float
    """Proved from above."""


@dataclass(frozen=True)
class Bound:
    constant: float
    layers: tuple[Layer, ...]
    margins: Array
    digest: str
    seconds: float


@dataclass(frozen=True)
class Gallery:
    """Samples stored for showing, floats in [0, 1]; `row` is each one's position in the certificates."""

    row: Array
    images: Array
    adversarial: Array | None
    distance: Array | None

    @property
    def drawable(self) -> bool:
        """Whether they are images, (n, 1 or 3, H, W)."""
        return len(self.row) > 0 and self.images.ndim == 4 and self.images.shape[1] in (1, 3)


@dataclass(frozen=True)
class Regions:
    """Predictions of a 2-D net on a grid, (len(ys), len(xs)), −1 for ⊥; and the samples."""

    xs: Array
    ys: Array
    prediction: Array
    points: Array
    labels: Array


@dataclass(frozen=True)
class Trained:
    """What a run has before it is certified."""

    config: Config
    metrics: dict[str, Array] | None
    bound: Bound | None
    summary: dict[str, Any]

    def class_name(self, k: int) -> str:
        names = self.summary.get("classes", [])
        return str(names[k]) if k < len(names) else str(k)

    @property
    def norm(self) -> str:
        return NORMS[self.config.norm]


@dataclass(frozen=True)
class Run(Trained):
    """Everything a report is made of."""

    epsilon: float
    epsilon_text: str
    certificates: Certificates
    attack: Attack | None
    minimal: Attack | None
    gallery: Gallery | None
    regions: Regions | None


def read(run: Path) -> Run:
    """The run folder `run`; ConfigError when a required file is missing or any file is malformed."""
    trained = read_trained(run)
    if not is_certified(run):
        raise ConfigError(f"{run} holds no certificates.csv; run `gloronet certify {run}` first.")
    certificates, summary = _certificates(run / "certificates.csv"), trained.summary
    text = str(summary.get("epsilon_text", summary.get("epsilon", trained.config.epsilon)))
    epsilon = parse_epsilon(summary.get("epsilon", trained.config.epsilon), f"{run / 'summary.json'}: epsilon")
    _same_epsilon(run / "certificates.csv", certificates, epsilon, text)
    return Run(
        **vars(trained),
        epsilon=epsilon,
        epsilon_text=text,
        certificates=certificates,
        attack=_optional(run / "attacks.csv", lambda path: _attack(path, certificates)),
        minimal=_optional(run / "attacks_minimal.csv", lambda path: _attack(path, certificates)),
        gallery=_optional(run / "gallery.npz", lambda path: _gallery(path, certificates)),
        regions=_optional(run / "regions.npz", _regions),
    )


def read_trained(run: Path) -> Trained:
    """What a run folder says of its training and its bound, certified or not."""
    if not (run / "config.toml").exists():
        raise ConfigError(f"{run} is not a run folder: it holds no config.toml.")
    return Trained(
        config=read_toml(run / "config.toml"),
        metrics=_optional(run / "metrics.jsonl", _metrics),
        bound=_optional(run / "bound.json", _bound),
        summary=_optional(run / "summary.json", _summary) or {},
    )


def is_certified(run: Path) -> bool:
    return (run / "certificates.csv").exists()


def _optional(path: Path, reader: Callable[[Path], Any]) -> Any:
    return reader(path) if path.exists() else None


def _certificates(path: Path) -> Certificates:
    columns = ("index", "label", "prediction", "answer", "radius", "certified", "semantics")
    table = read_csv(path, columns)
    index, label, prediction, answer, certified = (
        ints(path, table, name) for name in ("index", "label", "prediction", "answer", "certified")
    )
    radius = floats(path, table, "radius")
    if len(index) == 0:
        raise ConfigError(f"{path} holds no rows; run `gloronet certify` again.")
    if len(np.unique(index)) != len(index):
        raise ConfigError(f"{path} lists a sample twice; run `gloronet certify` again.")
    for wrong, what in (
        (~(radius >= 0), "a radius below 0 or NaN"),
        ((certified != 0) & (certified != 1), "a value of certified that is neither 0 nor 1"),
        ((label < 0) | (answer < 0), "a label or answer below 0"),
        (
            prediction != np.where(certified == 1, answer, -1),
            "a prediction that is neither answer nor ⊥ (-1)",
        ),
    ):
        if wrong.any():
            raise ConfigError(f"{path}: sample {index[wrong.argmax()]} has {what}.")
    return Certificates(index, label, answer, certified == 1, radius, tuple(sorted(set(table["semantics"]))))


def _same_epsilon(path: Path, c: Certificates, epsilon: float, text: str) -> None:
    """certified ⇔ radius > ε, but for radii so near ε that printing them may have moved them across."""
    wrong = (c.certified != (c.radius > epsilon)) & ~np.isclose(c.radius, epsilon, rtol=1e-4, atol=0)
    if wrong.any():
        k = int(wrong.argmax())
        raise ConfigError(
            f"{path} was not made for ε = {text}: sample {c.index[k]} has radius {c.radius[k]:g} and "
            f"certified = {int(c.certified[k])}. Run `gloronet certify` again."
        )


def _attack(path: Path, certificates: Certificates) -> Attack:
    table = read_csv(path, ("index", "label", "success", "distance", "epsilon"))
    row = _locate(path, ints(path, table, "index"), certificates)
    success = ints(path, table, "success") == 1
    # A sample that withstood has no distance to report: blank, nan and inf all say so.
    table["distance"] = [d if hit else "inf" for d, hit in zip(table["distance"], success, strict=True)]
    distance, epsilon = floats(path, table, "distance"), floats(path, table, "epsilon")
    if len(row) == 0:
        raise ConfigError(f"{path} holds no rows; run `gloronet attack` again.")
    if (ints(path, table, "label") != certificates.label[row]).any():
        raise ConfigError(f"{path} and certificates.csv disagree about labels; run `gloronet attack` again.")
    if not (np.isfinite(distance[success]) & (distance[success] >= 0)).all():
        raise ConfigError(f"{path} has a success without a distance; run `gloronet attack` again.")
    return Attack(row, success, distance, float(epsilon.min()))


def _locate(path: Path, index: Array, certificates: Certificates) -> Array:
    place = {int(k): row for row, k in enumerate(certificates.index)}
    unknown = [k for k in index if k not in place]
    if unknown:
        raise ConfigError(f"{path} speaks of sample {unknown[0]}, which certificates.csv does not hold.")
    return np.array([place[int(k)] for k in index], dtype=np.int64)


def _metrics(path: Path) -> dict[str, Array] | None:
    epochs: dict[int, dict[str, Any]] = {}  # a resumed run may write an epoch again: the last one counts
    for at, line in enumerate(read_text(path).splitlines(), 1):
        entry = parse_json(path, line, f" line {at}")
        if not isinstance(entry, dict) or not isinstance(entry.get("epoch"), int):
            raise ConfigError(f"{path} line {at} is not an object with a whole-number epoch.")
        epochs[entry["epoch"]] = entry
    if not epochs:
        return None
    columns = ("epoch", "loss", "accuracy", "vra_estimate")
    return {name: np.array([number(path, epochs[k].get(name)) for k in sorted(epochs)]) for name in columns}


def _bound(path: Path) -> Bound:
    table = read_json(path)
    try:
        layers = tuple(
            Layer(
                str(layer["name"]),
                str(layer["rule"]),
                str(layer["method"]),
                number(path, layer.get("estimate")),
                number(path, layer["bound"]),
            )
            for layer in table["layers"]
        )
        margins = np.asarray(table["margins"], dtype=np.float64)
        if margins.ndim != 2 or margins.shape[0] != margins.shape[1]:
            raise ValueError("margins is not a square matrix")
        seconds = number(path, table.get("seconds"))
        return Bound(number(path, table["constant"]), layers, margins, str(table.get("digest", "")), seconds)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        if isinstance(e, ConfigError):
            raise
        raise ConfigError(f"{path} is not a bound ({e!r}); run `gloronet lipschitz` again.") from None


def _gallery(path: Path, certificates: Certificates) -> Gallery:
    arrays = read_npz(path, ("index", "images"))
    row, images = _locate(path, arrays["index"].ravel(), certificates), _unit(arrays["images"])
    adversarial, distance = None, None
    if "adversarial" in arrays:
        arrays = read_npz(path, ("adversarial", "adversarial_distance"))
        adversarial, distance = _unit(arrays["adversarial"]), arrays["adversarial_distance"].ravel()
        if adversarial.shape != images.shape or len(distance) != len(images):
            raise ConfigError(f"{path}: images, adversarial and adversarial_distance do not match.")
    if len(row) != len(images):
        raise ConfigError(f"{path}: {len(row)} indices for {len(images)} images.")
    return Gallery(row, images, adversarial, distance)


def _unit(images: Array) -> Array:
    return images / (255.0 if images.dtype == np.uint8 else 1.0)


def _regions(path: Path) -> Regions:
    a = read_npz(path, ("xs", "ys", "prediction", "points", "labels"))
    regions = Regions(a["xs"], a["ys"], a["prediction"], a["points"], a["labels"])
    shape, n = (len(regions.ys), len(regions.xs)), len(regions.labels)
    if regions.prediction.shape != shape or regions.points.shape != (n, 2) or min(shape) < 2:
        raise ConfigError(f"{path}: xs, ys, prediction, points and labels do not have matching shapes.")
    return regions


def _summary(path: Path) -> dict[str, Any]:
    summary = read_json(path)
    if not isinstance(summary, dict) or not isinstance(summary.get("classes") or [], list):
        raise ConfigError(f"{path} is not a JSON object with a list of classes.")
    return {key: value for key, value in summary.items() if value is not None}
