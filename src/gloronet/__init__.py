"""gloronet: classifiers that prove their own answers."""

from typing import TYPE_CHECKING, Any

from gloronet import (
    attacks,
    certify,
    config,
    data,
    layers,
    losses,
    models,
    operators,
    presets,
    relaxed,
    report,
    schedules,
)
from gloronet.config import Config, DataConfig, ModelConfig, TrainConfig
from gloronet.errors import ConfigError, DataError, GloroError, TrainingError, UnsupportedOperation
from gloronet.export import export_onnx
from gloronet.layers import MinMax, Residual, Standardize
from gloronet.net import BOTTOM, Certificates, GloRoNet
from gloronet.operators import rule
from gloronet.program import Bound, Program, trace
from gloronet.run import load, save
from gloronet.train import fit

if TYPE_CHECKING:
    from gloronet.estimator import GloRoClassifier

__version__ = "0.1.0"

__all__ = [
    "BOTTOM",
    "Bound",
    "Certificates",
    "Config",
    "ConfigError",
    "DataConfig",
    "DataError",
    "GloRoClassifier",
    "GloRoNet",
    "GloroError",
    "MinMax",
    "ModelConfig",
    "Program",
    "Residual",
    "Standardize",
    "TrainConfig",
    "TrainingError",
    "UnsupportedOperation",
    "attacks",
    "certify",
    "config",
    "data",
    "export_onnx",
    "fit",
    "layers",
    "load",
    "losses",
    "models",
    "operators",
    "presets",
    "relaxed",
    "report",
    "rule",
    "save",
    "schedules",
    "trace",
]


def __getattr__(name: str) -> Any:
    """GloRoClassifier when it is asked for: scikit-learn takes as long to import as all the rest."""
    if name != "GloRoClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gloronet.estimator import GloRoClassifier

    return GloRoClassifier
