"""Who answers: a batch in, labels with certified radii out. Two engines of one protocol.

`OnnxEngine` runs a graph of `export_onnx`, the certificate inside it; `TorchEngine` asks the net itself, for nets that
are not exported or of which the graph proves too little. Both take float32 inputs in [0, 1] and a radius ε;
certified ⇔ radius > ε.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from gloronet.config import parse_epsilon
from gloronet.errors import ConfigError
from gloronet.net import GloRoNet

OUTPUTS = ("logits", "label", "radius", "certified")


@dataclass(frozen=True)
class About:
    """What is certified: facts a certificate means nothing without."""

    input_shape: tuple[int, ...]
    classes: tuple[str, ...]
    epsilon: float
    norm: str
    semantics: str
    digest: str
    engine: str


@dataclass(frozen=True)
class Answer:
    """One entry an input: ‖x′ − x‖ < radius ⇒ the net answers `label` at x′."""

    logits: np.ndarray
    label: np.ndarray
    radius: np.ndarray
    certified: np.ndarray

    def __len__(self) -> int:
        return len(self.label)

    def part(self, which: slice) -> Answer:
        return Answer(self.logits[which], self.label[which], self.radius[which], self.certified[which])


class Engine(Protocol):
    @property
    def about(self) -> About: ...

    def answer(self, x: np.ndarray, epsilon: float | None) -> Answer:
        """Of float32 inputs (B, *input_shape); ε is the net's own when None."""


class TorchEngine:
    """The net itself, on the CPU: `"float32"`, its error bounded at each sample, where it can be; else `"real"`."""

    def __init__(self, net: GloRoNet, classes: tuple[str, ...] = ()) -> None:
        self.net = net.cpu().eval()
        semantics = "float32" if net.speaks_of("float32") else "real"
        names = classes or numbered(net.classes)
        digest = net.bound().digest
        self.about = About(net.input_shape, names, net.epsilon, net.norm, semantics, digest, "torch")

    @torch.no_grad()
    def answer(self, x: np.ndarray, epsilon: float | None) -> Answer:
        batch = torch.from_numpy(x)
        semantics = self.about.semantics
        c = self.net.certify(batch, epsilon, semantics, per_sample=semantics == "float32")
        logits = self.net.logits(batch)
        return Answer(logits.numpy(), c.label.numpy(), c.radius.numpy(), c.certified.numpy())


class OnnxEngine:
    """A graph written by `export_onnx`, run by onnxruntime on the CPU, for which its certificates hold."""

    def __init__(self, path: str | Path) -> None:
        self.session = session(Path(path))
        self.about = _about(self.session, Path(path))

    def answer(self, x: np.ndarray, epsilon: float | None) -> Answer:
        inputs = {"x": x} if epsilon is None else {"x": x, "epsilon": np.array(epsilon, np.float64)}
        return Answer(*self.session.run(OUTPUTS, inputs))


def numbered(classes: int) -> tuple[str, ...]:
    return tuple(map(str, range(classes)))


def onnxruntime_is_here() -> bool:
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return False
    return True


def session(path: Path) -> Any:
    """onnxruntime on that file, as a service wants it."""
    if not path.is_file():
        raise ConfigError(f"There is no file {path}.")
    if not onnxruntime_is_here():
        raise ConfigError('Serving an .onnx file needs onnxruntime: pip install "gloronet[onnx]"')
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # A core is left to whoever reads the next request; threads that spin while they wait would take it back.
    options.intra_op_num_threads = max(1, (os.cpu_count() or 1) - 1)
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as e:  # onnxruntime's own kinds of errors have no common base
        raise ConfigError(f"onnxruntime cannot read {path}: {str(e).partition(chr(10))[0]}") from None


def _about(session: Any, path: Path) -> About:
    kept = session.get_modelmeta().custom_metadata_map
    told = {name.removeprefix("gloronet."): value for name, value in kept.items()}
    try:
        shape = tuple(int(side) for side in json.loads(told["input_shape"]))
        count = next(output.shape[1] for output in session.get_outputs() if output.name == "logits")
        classes = tuple(map(str, json.loads(told["classes"]))) if "classes" in told else numbered(count)
        epsilon = parse_epsilon(float(told["epsilon"]))
        return About(shape, classes, epsilon, told["norm"], told["semantics"], told["digest"], "onnxruntime")
    except (KeyError, ValueError, TypeError, StopIteration):
        raise ConfigError(f"{path} carries no certificates: it was not written by gloronet export.") from None
