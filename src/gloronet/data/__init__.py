"""Data: a name → tensors in [0,1], from the official file formats, with nothing of pickle.

`load` reads files and never downloads, `fetch` downloads and verifies, `to_unit` makes uint8 images float32
on whatever device they are.
"""

from gloronet.data.augment import augmentation
from gloronet.data.catalog import Row, load, names
from gloronet.data.dataset import Dataset, Examples, to_unit
from gloronet.data.download import data_root, fetch

__all__ = ["Dataset", "Examples", "Row", "augmentation", "data_root", "fetch", "load", "names", "to_unit"]
