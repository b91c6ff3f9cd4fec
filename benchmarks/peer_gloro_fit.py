"""One training by the original `gloro` package (TensorFlow); `benchmarks.same_settings` runs it in its own process.

    PYTHON benchmarks/peer_gloro_fit.py TASK.npz

PYTHON needs tensorflow, gloro and numpy, and nothing of ours. The task holds the images and labels to train on
and to judge on, and `settings`, JSON: the network, its loss, and ε, λ and the learning rate of every single step, so
that no schedule is written twice. As its README says, power iterates are refreshed with every epoch; for the
judgement they run until they stand. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any


def main() -> None:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import gloro
    import numpy as np
    import tensorflow as tf

    task = np.load(sys.argv[1])
    settings = json.loads(str(task["settings"]))
    tf.config.set_visible_devices([], "GPU")
    tf.config.threading.set_intra_op_parallelism_threads(settings["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(settings["threads"])
    tf.keras.utils.set_random_seed(settings["seed"])
    # Theirs are channels last, from 0 to 1.
    x, judged = (task[name].transpose(0, 2, 3, 1).astype("float32") / 255 for name in ("train_x", "test_x"))
    labels, truth = (task[name].astype("int64") for name in ("train_y", "test_y"))

    net = build(settings, x.shape[1:])
    fit(net, x, labels, settings)
    net.epsilon = settings["epsilon"]
    net.refresh_iterates(convergence_threshold=1e-5, batch_size=100)
    outputs = np.concatenate([net.predict(part, verbose=0) for part in np.array_split(judged, 10)])
    print(json.dumps({
        "clean": float((outputs[:, :-1].argmax(1) == truth).mean()),
        "vra_estimate": float((outputs.argmax(1) == truth).mean()),
        "margin_estimate": float(tf.reduce_max(net.lipschitz_constant())),
        "versions": {"gloro": gloro.__version__, "tensorflow": tf.__version__, "numpy": np.__version__},
    }))  # fmt: skip


def build(settings: dict[str, Any], shape: tuple[int, ...]) -> Any:
    """The network in the paper's notation, whose padding is Keras' `same`."""
    from gloro import GloroNet
    from gloro.layers import MinMax
    from tensorflow.keras.layers import Conv2D, Dense, Flatten, Input, ReLU

    activation = {"minmax": MinMax, "relu": ReLU}[settings["activation"]]
    init = {"orthogonal": "orthogonal", "glorot": "glorot_uniform"}[settings["init"]]
    x = z = Input(shape)
    pieces = [(kind, [int(n) for n in numbers.split(",")])
              for kind, numbers in re.findall(r"([cd])\(([0-9,]+)\)", settings["network"])]  # fmt: skip
    for k, (kind, numbers) in enumerate(pieces):
        if kind == "c":
            channels, kernel, stride = numbers
            z = Conv2D(channels, kernel, strides=stride, padding="same", kernel_initializer=init)(z)
        else:
            z = Dense(*numbers, kernel_initializer=init)(z if len(z.shape) == 2 else Flatten()(z))
        if k < len(pieces) - 1:
            z = activation()(z)
    return GloroNet(x, z, settings["epsilon"], num_iterations=settings["power_iterations"])


def fit(net: Any, x: Any, labels: Any, settings: dict[str, Any]) -> None:
    import tensorflow as tf
    from gloro.training.callbacks import UpdatePowerIterates
    from gloro.training.losses import get

    loss = get({"ce": "sparse_crossentropy", "trades-kl": "sparse_trades_kl", "trades-ce": "sparse_trades_ce"}[
        settings["loss"]
    ])  # fmt: skip
    net.compile(optimizer=tf.keras.optimizers.Adam(settings["steps"][0][2]), loss=loss, metrics=["clean_acc", "vra"])

    class Told(tf.keras.callbacks.Callback):
        """Sets ε, λ and the learning rate before every step, and says on stderr how it goes."""

        step = 0

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            self.model.epsilon, lam, self.model.optimizer.learning_rate = settings["steps"][self.step]
            if hasattr(loss, "lam"):
                loss.lam = lam
            self.step += 1

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            print(epoch + 1, {name: round(float(value), 4) for name, value in (logs or {}).items()}, file=sys.stderr)

    callbacks = [Told(), UpdatePowerIterates(verbose=False)]
    net.fit(x, labels, batch_size=settings["batch_size"], epochs=settings["epochs"], verbose=0, callbacks=callbacks)


if __name__ == "__main__":
    main()
