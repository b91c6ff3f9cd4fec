"""What holds for every test process: one thread each, hypothesis without a stopwatch, a Ctrl-C that is heard."""

import os
import signal

import torch
from hypothesis import settings

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)

# What a shell starts in the background ignores Ctrl-C, and so would all it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("gloronet", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("gloronet")
