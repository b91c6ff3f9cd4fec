"""One timed epoch of the original `gloro` package (TensorFlow); `benchmarks.peers` runs it in a process of its own.

    PYTHON benchmarks/peer_gloro.py FOLDER [--batch 512] [--epsilon 0.3] [--images N] [--threads N]

PYTHON needs tensorflow, gloro and numpy, and nothing of ours; FOLDER has MNIST's official .gz files. The
package is used as its README says: `GloroNet`, `compile`, `fit`, with its own number of power iterations.
Prints one JSON line. `steps_seconds` ends with the last batch; `seconds` goes on to the end of the epoch as
`fit` has it, which is after `UpdatePowerIterates` has run the power method until it stands.
Tracing the graph is not timed: the net has trained on two batches before, in a `fit` of its own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--epsilon", type=float, default=0.3)
    parser.add_argument("--images", type=int, help="only the first N")
    parser.add_argument("--threads", type=int, default=0, help="0: as TensorFlow likes")
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        import gloro
        import numpy as np
        import tensorflow as tf
    except ImportError as e:
        print(json.dumps({"installed": False, "why": str(e)}))
        return
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
    x = read_idx(options.folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)[: options.images]
    y = read_idx(options.folder / "train-labels-idx1-ubyte.gz", 8)[: options.images]
    result = timed_epoch(x.astype("float32") / 255, y.astype("int64"), options.batch, options.epsilon)
    versions = {"gloro": gloro.__version__, "tensorflow": tf.__version__, "numpy": np.__version__}
    print(json.dumps({"installed": True, **result, "versions": versions}))


def timed_epoch(x: np.ndarray, y: np.ndarray, batch: int, epsilon: float) -> dict[str, Any]:
    from gloro.training.callbacks import UpdatePowerIterates

    net = build(epsilon)
    net.compile(optimizer="adam", loss="sparse_crossentropy", metrics=["clean_acc", "vra"])
    # Keras traces batches of one size and batches of several as two graphs: the last of the two is as short as
    # the epoch's last, or the timed epoch would trace again.
    first = batch + (len(x) % batch or batch)
    net.fit(x[:first], y[:first], batch_size=batch, verbose=0, callbacks=[UpdatePowerIterates(verbose=False)])
    # Callbacks run in order: one clock is read before the iterates are refreshed, the other after.
    steps, whole = clock(), clock()
    callbacks = [steps, UpdatePowerIterates(verbose=False), whole]
    history = net.fit(x, y, batch_size=batch, verbose=0, callbacks=callbacks).history
    return {
        "seconds": whole.seconds,
        "steps_seconds": steps.seconds,
        "loss": history["loss"][0],
        "vra_estimate": history["vra"][0],
        "power_iterations": int(net.num_iterations),
        "images": len(x),
    }


def build(epsilon: float) -> Any:
    """2C2F with MinMax; Keras' `same` is the padding the paper means."""
    from gloro import GloroNet
    from gloro.layers import MinMax
    from tensorflow.keras.layers import Conv2D, Dense, Flatten, Input

    init = "orthogonal"
    x = Input((28, 28, 1))
    z = MinMax()(Conv2D(16, 4, strides=2, padding="same", kernel_initializer=init)(x))
    z = MinMax()(Conv2D(32, 4, strides=2, padding="same", kernel_initializer=init)(z))
    z = MinMax()(Dense(100, kernel_initializer=init)(Flatten()(z)))
    return GloroNet(x, Dense(10, kernel_initializer=init)(z), epsilon)


def clock() -> Any:
    """A callback that times the epoch. It watches no batches, as that would make Keras wait for each."""
    from tensorflow.keras.callbacks import Callback

    class Clock(Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seconds = time.perf_counter() - self.began

    return Clock()


def read_idx(path: Path, header: int) -> np.ndarray:
    import numpy as np

    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)


if __name__ == "__main__":
    main()
