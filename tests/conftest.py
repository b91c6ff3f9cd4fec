"""What holds for every test process: one thread for each, and hypothesis without a stopwatch."""

import os

import torch
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

settings.register_profile("gloronet", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("gloronet")
