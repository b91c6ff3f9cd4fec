"""What is served: a run folder, a net of the zoo or an .onnx file → an engine, and what else is known beside it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gloronet import data, folder, zoo
from gloronet.config import read_toml
from gloronet.data import to_unit
from gloronet.data.classes import BY_DATA_SET
from gloronet.data.dataset import Dataset
from gloronet.errors import ConfigError, DataError, GloroError
from gloronet.export import export_onnx
from gloronet.net import GloRoNet
from gloronet.run import load
from gloronet.serve.engine import Engine, OnnxEngine, TorchEngine, onnxruntime_is_here


@dataclass(frozen=True)
class Served:
    name: str
    engine: Engine
    net: GloRoNet | None = None
    """For the attack, which needs gradients and works in ℓ2; an .onnx file has none."""
    samples: Dataset | None = None

    @property
    def attackable(self) -> bool:
        return self.net is not None and self.engine.about.norm == "l2"


def open_served(what: str, root: Path | None = None) -> Served:
    """The net behind a run folder, `zoo:NAME` or `model.onnx`, its bound proved, ready to answer."""
    if what.endswith(".onnx"):
        return Served(Path(what).name, OnnxEngine(what))
    shipped = what.startswith(zoo.PREFIX)
    run = zoo.folder(what) if shipped else Path(what)
    net = load(run)
    if shipped:  # nothing is written into the package
        with folder.bar("bounding", None) as advance:
            net.bound(lambda layer: advance(0, f"bounding {layer or 'the top'}"))
    else:
        folder.bound_of(run, net)
    samples, labels = _data(run, root, net)
    probes = None if samples is None else to_unit(samples.test_x[:16]).numpy()
    return Served(what if shipped else run.resolve().name, engine_of(net, labels, probes), net, samples)


def engine_of(net: GloRoNet, classes: tuple[str, ...] = (), probes: np.ndarray | None = None) -> Engine:
    """onnxruntime on the exported graph where it can be had and proves enough, else torch.

    The graph takes off twice what float32 can lose, by norms; in a very deep net that may be all there is to prove.
    `TorchEngine` bounds it entry by entry, which is slower and loses less. Enough is half of its radii, summed over the
    probes (default: 16 random pictures).
    """
    if not onnxruntime_is_here():
        return TorchEngine(net, classes)
    with tempfile.TemporaryDirectory(prefix="gloronet-") as there:
        path = Path(there) / "model.onnx"
        try:
            export_onnx(net, path, classes=classes or None)
        except GloroError:
            return TorchEngine(net, classes)
        fast = OnnxEngine(path)
    slow = TorchEngine(net, classes)
    x = probes if probes is not None else _pictures(net.input_shape)
    fast_proves, slow_proves = (float(np.minimum(e.answer(x, None).radius, 1e6).sum()) for e in (fast, slow))
    return fast if fast_proves >= slow_proves / 2 else slow


def _pictures(shape: tuple[int, ...]) -> np.ndarray:
    """Random levels, one a channel, under random noise."""
    random = np.random.RandomState(0)
    level, noise = random.random_sample((16, shape[0], *[1] * (len(shape) - 1))), random.random_sample((16, *shape))
    return (0.7 * level + 0.3 * noise).astype(np.float32)


def _data(run: Path, root: Path | None, net: GloRoNet) -> tuple[Dataset | None, tuple[str, ...]]:
    """The data set the net was trained on, where it is on this machine, and the names of its classes."""
    try:
        name = read_toml(run / "config.toml").data.name
        found = data.load(name, root)
    except DataError:
        return None, BY_DATA_SET.get(name, ())
    except ConfigError:
        return None, ()
    if found.input_shape != net.input_shape or len(found.classes) != net.classes:
        return None, ()
    return found, found.classes
