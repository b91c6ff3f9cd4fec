"""The one object that carries the design: what a network really computes."""

from gloronet.program.bound import Bound, LayerBound, bound, head
from gloronet.program.error import LogitError, SampleError, logit_error, sample_error
from gloronet.program.estimate import SplitEstimate, advance, estimate, settle
from gloronet.program.program import FrozenProgram, Op, Program
from gloronet.program.trace import trace

__all__ = [
    "Bound",
    "FrozenProgram",
    "LayerBound",
    "LogitError",
    "Op",
    "Program",
    "SampleError",
    "SplitEstimate",
    "advance",
    "bound",
    "estimate",
    "head",
    "logit_error",
    "sample_error",
    "settle",
    "trace",
]
