"""Relaxed guarantees: a set of classes that no small change of the input can alter, where one label is too much to ask.

After Leino & Fredrikson, "Relaxing Local Robustness" (NeurIPS 2021):

    certify_relaxed(net, x, Top(3))                         # the 3 likeliest classes, or fewer, proved to stay
    certify_relaxed(net, x, Affinity([{3, 5}, {4, 9}]))     # one class, or classes that may be confused

`Top(1)` is `net.certify`.
"""

from gloronet.relaxed.certify import RelaxedCertificates, certify_relaxed
from gloronet.relaxed.sets import Affinity, Relaxation, Top
from gloronet.relaxed.table import COLUMNS, RelaxedTable, certify_relaxed_set

__all__ = [
    "COLUMNS",
    "Affinity",
    "Relaxation",
    "RelaxedCertificates",
    "RelaxedTable",
    "Top",
    "certify_relaxed",
    "certify_relaxed_set",
]
