"""GloRoClassifier: a network that certifies its answers, with scikit-learn's manners.

    clf = GloRoClassifier(epsilon=0.3).fit(X, y)
    clf.predict(X)           # the class where it is proved within ε, −1 for ⊥
    clf.certified_radius(X)  # ℓ2, in the units of X

Each feature is standardised inside the network, so radii are about X itself, as it is given. In a Pipeline
that is X as the step before left it: after a StandardScaler a radius counts standard deviations. Answers are
computed in float64, and proved of the exact function of the stored weights (semantics `"real"`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from gloronet import models, train
from gloronet.certify import at_once
from gloronet.config import TrainConfig, parse_epsilon
from gloronet.errors import ConfigError
from gloronet.layers import Standardize
from gloronet.net import BOTTOM, GloRoNet


class GloRoClassifier(ClassifierMixin, BaseEstimator):
    """A classifier of vectors (n, features) that answers a class only where no change within ε alters it.

    `epsilon` is an ℓ2 radius in the units of X, so no default could be right. `architecture` lists the layers
    before the last, which has one output a class, in the paper's notation; or it is a function
    (features, classes) → nn.Module, for a network of your own. `bottom` is what `predict` says for ⊥: the
    string of it where classes are strings, and never a class.

    After `fit`: `classes_`, `n_features_in_`, and `net_`, the GloRoNet, to save, export or attack.
    """

    def __init__(
        self,
        epsilon: float | str,
        *,
        architecture: str | Callable[[int, int], nn.Module] = "d(64).d(64)",
        epochs: int = 100,
        batch_size: int = 128,
        loss: str = "ce",
        lr: float = 5e-3,
        bottom: Any = BOTTOM,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.architecture = architecture
        self.epochs = epochs
        self.batch_size = batch_size
        self.loss = loss
        self.lr = lr
        self.bottom = bottom
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> GloRoClassifier:
        """Trains a fresh network, in float32, to answer y on X and on all that is within ε of it."""
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32))
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ConfigError(f"A classifier needs two classes or more, but y has 1 class: {classes[0]}.")
        answers, x, epsilon = _answers(classes, self.bottom), _single(X), parse_epsilon(self.epsilon)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            module = nn.Sequential(_standardize(x, epsilon), self._network(x.shape[1], len(classes)))
            net = GloRoNet(module, epsilon, x.shape[1:])
        data = _Examples(torch.from_numpy(x), torch.from_numpy(labels), tuple(map(str, classes)))
        config = TrainConfig(self.epochs, self.batch_size, self.loss, lr=self.lr, lr_schedule="linear", seed=seed)
        train.fit(net, data, config)
        self.classes_, self._answers, self.net_ = classes, answers, net
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The class of each sample where it is certified at ε, and ⊥ (`bottom`) elsewhere."""
        index = self._joined(X, lambda x: self.net_.certify(x).prediction)
        return self._answers[index]

    def certified_radius(self, X: Any) -> np.ndarray:
        """The proved r of each sample: whatever is nearer than r, in ℓ2 and the units of X, gets the same class.

        That class is what `predict` answers or, where r ≤ ε, would answer if it did not abstain.
        """
        return self._joined(X, lambda x: self.net_.certify(x).radius)

    def predict_proba(self, X: Any) -> np.ndarray:
        """The softmax of the logits, (n, classes): what the network believes, proved or not.

        ⊥ is no class and has no column: of the softmax with ⊥, this is the distribution given an answer.
        """
        return self._joined(X, lambda x: self.net_.program().freeze()(x).softmax(1))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The verified-robust accuracy (VRA) at ε: the share both right and certified; ⊥ is never right."""
        check_is_fitted(self)
        bottom = self._answers[BOTTOM]
        if bottom in np.asarray(y):
            raise ConfigError(f"y holds {bottom}, which is what predict says for ⊥: set bottom to something else.")
        return super().score(X, y, sample_weight)

    def _network(self, features: int, classes: int) -> nn.Module:
        make = self.architecture
        if isinstance(make, str):
            return models.build(f"{make}.d({classes})", (features,), classes)
        if isinstance(make, nn.Module) or not callable(make):
            raise ConfigError(
                "architecture is a string such as 'd(64).d(64)' or a function (features, classes) that makes a new "
                f"nn.Module, as each fit begins anew; not {type(make).__name__}."
            )
        return make(features, classes)

    def _joined(self, X: Any, answer: Callable[[Tensor], Tensor]) -> np.ndarray:
        """What `answer` says of X, some samples at a time; float64 stays, so it is about X to its last bit."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=(np.float64, np.float32), reset=False)
        place = next(self.net_.parameters()).device
        parts = torch.tensor(np.ascontiguousarray(X), device=place).split(at_once(place))
        return torch.cat([answer(part) for part in parts]).cpu().numpy()


class _Examples(NamedTuple):
    """What is trained on: inputs in their own units, which no Dataset of images in [0, 1] could hold."""

    train_x: Tensor
    train_y: Tensor
    classes: tuple[str, ...]


def _answers(classes: np.ndarray, bottom: Any) -> np.ndarray:
    """The classes and, last, what stands for ⊥: a prediction is an index into them, as BOTTOM is −1."""
    if all(isinstance(c, str) for c in classes):
        bottom = str(bottom)
    with suppress(TypeError):  # nothing can be both a date and −1
        answers = np.append(classes, bottom)
        if len(np.unique(answers)) == len(classes) + 1 and np.array_equal(answers[:-1], classes):
            return answers
    named = ", ".join(map(str, classes[:5])) + ", …" * (len(classes) > 5)
    raise ConfigError(
        f"bottom={bottom!r} cannot stand for ⊥ beside the classes {named}: "
        "set it to a value of their kind that is none of them."
    )


def _single(X: np.ndarray) -> np.ndarray:
    """X in float32, in which networks are trained."""
    with np.errstate(over="ignore"):
        x = X.astype(np.float32)
    if not np.isfinite(x).all():
        raise ConfigError(f"X reaches {np.abs(X).max():g}, beyond the range of float32: choose larger units.")
    return x


def _standardize(x: np.ndarray, epsilon: float) -> Standardize:
    """Each feature with mean 0 and deviation 1, but none stretched by more than 1/ε.

    What varies by less than ε, an adversary may overwrite: magnifying it would only raise the constant.
    """
    scale = np.maximum(x.std(axis=0, dtype=np.float64), epsilon)  # exactly 0 for a constant: x is float32
    return Standardize(x.mean(axis=0, dtype=np.float64).tolist(), np.where(scale > 0, scale, 1.0).tolist())
