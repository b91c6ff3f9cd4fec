"""Training: one visible loop (`fit`), checkpoints that resume bit for bit, live progress."""

from gloronet.train.loop import TrainingInterrupted, fit, pick_device
from gloronet.train.progress import LineProgress, LiveProgress, Progress, progress_on
from gloronet.train.ranks import Ranks, joined

__all__ = [
    "LineProgress",
    "LiveProgress",
    "Progress",
    "Ranks",
    "TrainingInterrupted",
    "fit",
    "joined",
    "pick_device",
    "progress_on",
]
