"""gloronet: classifiers that prove their own answers."""

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

__version__ = "0.1.0"

__all__ = [
    "BOTTOM",
    "Bound",
    "Certificates",
    "Config",
    "ConfigError",
    "DataConfig",
    "DataError",
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
    "report",
    "rule",
    "save",
    "schedules",
    "trace",
]
