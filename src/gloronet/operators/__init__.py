"""Linear maps and nonlinearities with their constants, one family a file."""

from gloronet.operators import calls
from gloronet.operators.affine import Scale, Translate
from gloronet.operators.base import LinearOperator, Operator, Proved
from gloronet.operators.conv import Conv2d
from gloronet.operators.dense import Dense
from gloronet.operators.joins import Sum
from gloronet.operators.pointwise import Abs, MinMax, ReLU
from gloronet.operators.pool import AvgPool2d, MaxPool2d
from gloronet.operators.rules import rule
from gloronet.operators.shape import Pad, Reshape

__all__ = [
    "Abs",
    "AvgPool2d",
    "Conv2d",
    "Dense",
    "LinearOperator",
    "MaxPool2d",
    "MinMax",
    "Operator",
    "Pad",
    "Proved",
    "ReLU",
    "Reshape",
    "Scale",
    "Sum",
    "Translate",
    "calls",
    "rule",
]
