"""The data sets that need no file: scikit-learn's digits and the two moons."""

from __future__ import annotations

import numpy as np
import torch

from gloronet.data.dataset import Dataset, split


def digits() -> Dataset:
    """1,797 handwritten digits, 8×8 pixels of 17 greys k/16; the split of 1,437 and 360 never changes."""
    from sklearn.datasets import load_digits  # slow to import, and only this needs it

    pixels, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(pixels.astype(np.float32) / 16).reshape(-1, 1, 8, 8)
    y = torch.from_numpy(labels.astype(np.int64))
    test, train = split(y, 360, seed=0)
    return Dataset("digits", x[train], y[train], x[test], y[test], tuple(map(str, range(10))))


def moons() -> Dataset:
    """Two interleaved half circles, blurred by a disc of radius 0.1 and stretched to fill [0,1]².

    Half circles of radius 1 about (0, 0), upper, and (1, ½), lower, are ½ apart at the nearest. Blurred they
    stay 0.3 apart, so after the stretch (1/3.2 across, 1/1.7 up) the classes keep 0.09 or more: 1,000 points
    to train and 500 to test that a globally robust net can separate.
    """
    random = np.random.RandomState(0)  # NumPy keeps this generator's stream for ever
    n = 1500
    y = np.arange(n) % 2
    t = np.pi * random.random_sample(n)
    upper = np.stack([np.cos(t), np.sin(t)], 1)
    point = np.where(y[:, None] == 0, upper, [1.0, 0.5] - upper)
    angle, radius = 2 * np.pi * random.random_sample(n), 0.1 * np.sqrt(random.random_sample(n))
    point += radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    unit = (point - [-1.1, -0.6]) / [3.2, 1.7]

    tx, ty = torch.from_numpy(unit.astype(np.float32)), torch.from_numpy(y.astype(np.int64))
    return Dataset("moons", tx[:1000], ty[:1000], tx[1000:], ty[1000:], ("upper", "lower"))
