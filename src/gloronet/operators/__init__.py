"""Linear maps and nonlinearities with their constants, one family a file."""

from gloronet.operators import calls
from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import LinearOperator, Operator, Proved
from gloronet.operators.conv import Conv2d
from gloronet.operators.conv1d import Conv1d
from gloronet.operators.dense import Dense
from gloronet.operators.joins import Concat, Sum
from gloronet.operators.pointwise import Abs, GroupSort, Householder, LeakyReLU, MinMax, ReLU
from gloronet.operators.pool import AvgPool2d, MaxPool2d
from gloronet.operators.rules import rule
from gloronet.operators.shape import CircularPad, Pad, Permute, PixelUnshuffle, Reshape
from gloronet.operators.smooth import ELU, GELU, Sigmoid, Softplus, Tanh

__all__ = [
    "ELU",
    "GELU",
    "Abs",
    "AvgPool2d",
    "CircularPad",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Dense",
    "GroupSort",
    "Householder",
    "LeakyReLU",
    "LinearOperator",
    "MaxPool2d",
    "MinMax",
    "Operator",
    "Pad",
    "Permute",
    "PixelUnshuffle",
    "Proved",
    "ReLU",
    "Reshape",
    "Scale",
    "Sigmoid",
    "Softplus",
    "Sum",
    "Tanh",
    "Translate",
    "calls",
    "rule",
]
