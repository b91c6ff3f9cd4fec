"""The modules we add to torch's: each in its own file, with its rule beside it."""

from gloronet.layers.groupsort import GroupSort
from gloronet.layers.householder import Householder
from gloronet.layers.minmax import MinMax
from gloronet.layers.residual import Residual
from gloronet.layers.standardize import Standardize

__all__ = ["GroupSort", "Householder", "MinMax", "Residual", "Standardize"]
