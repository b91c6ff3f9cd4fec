"""The report says what the rows say, leaves nothing out silently, and fetches nothing.

The run folders are small but honest: a logistic regression on digits, whose distance to the decision
boundary is known exactly, and on two moons the 1-nearest-neighbour rule, whose margin is 1-Lipschitz.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits, make_moons
from sklearn.linear_model import LogisticRegression

from gloronet.config import Config, DataConfig, write_toml

EPSILON = 0.3


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.DictWriter(file, list(rows[0]))
        out.writeheader()
        out.writerows(rows)


def write_certificates(run: Path, label, answer, radius, epsilon=EPSILON, semantics="real") -> None:
    write_rows(
        run / "certificates.csv",
        [
            {
                "index": k,
                "label": int(label[k]),
                "prediction": int(answer[k]) if radius[k] > epsilon else -1,
                "radius": repr(float(radius[k])),
                "certified": int(radius[k] > epsilon),
                "margin": repr(float(radius[k])),
                "semantics": semantics,
                "answer": int(answer[k]),
            }
            for k in range(len(label))
        ],
    )


def write_attack(path: Path, label, distance, epsilon=EPSILON) -> None:
    write_rows(
        path,
        [
            {
                "index": k,
                "label": int(label[k]),
                "success": int(np.isfinite(distance[k])),
                "distance": repr(float(distance[k])),
                "margin": 0.0,
                "epsilon": epsilon,
            }
            for k in range(len(label))
        ],
    )


def bare_run(run: Path, label, answer, radius, epsilon=EPSILON, **config) -> Path:
    """The least a report can be made of."""
    run.mkdir(parents=True, exist_ok=True)
    write_toml(Config(epsilon=str(epsilon), **config), run / "config.toml")
    write_certificates(run, label, answer, radius, epsilon)
    return run


def digits_run(run: Path) -> Path:
    """Every file an image run can have."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order] / 16, y[order]
    net = LogisticRegression(C=3, max_iter=300).fit(x[:1437], y[:1437])
    test, label, w = x[1437:], y[1437:], net.coef_
    logits = net.decision_function(test)
    answer = logits.argmax(1)
    # Distance to each boundary (y_j − y_i)/‖w_j − w_i‖; a bound 1.4 times too large shrinks the radius.
    spread = np.linalg.norm(w[answer][:, None] - w[None], axis=2)
    spread[np.arange(len(test)), answer] = 1
    gaps = (logits.max(1, keepdims=True) - logits) / spread
    gaps[np.arange(len(test)), answer] = np.inf
    rival, exact = gaps.argmin(1), gaps.min(1)
    bare_run(run, label, answer, exact / 1.4, data=DataConfig("digits"))

    minimal = np.where(answer == label, exact * 1.001, 0.0)
    write_attack(run / "attacks_minimal.csv", label, np.where(minimal < 1.2, minimal, np.inf), 1.2)
    write_attack(run / "attacks.csv", label, np.where(minimal < EPSILON, minimal, np.inf))

    step = w[rival] - w[answer]
    adversarial = test + (exact * 1.001)[:, None] * step / np.linalg.norm(step, axis=1, keepdims=True)
    np.savez(
        run / "gallery.npz",
        index=np.arange(0, 360, 2),
        images=np.round(255 * test[::2]).astype(np.uint8).reshape(-1, 1, 8, 8),
        adversarial=adversarial[::2].astype(np.float32).reshape(-1, 1, 8, 8),
        adversarial_distance=np.where(exact < 1.2, exact * 1.001, np.inf)[::2],
    )
    epochs = np.arange(1, 61)
    write_lines(run / "metrics.jsonl", [
        {"epoch": int(k), "loss": 0.12 + 2.2 * np.exp(-k / 9), "accuracy": 0.985 - 0.8 * np.exp(-k / 5),
         "vra_estimate": 0.93 - 0.9 * np.exp(-k / 11), "epsilon": 0.3, "lr": 1e-3, "seconds": 0.4}
        for k in epochs
    ])  # fmt: skip
    margins = 3.3 * np.linalg.norm(w[:, None] - w[None], axis=2)
    layers = [
        ("0", "conv2d", "checked block Cholesky", 1.8302, 1.83071),
        ("1", "minmax", "exact", None, 1.0),
        ("2", "conv2d", "symbols", 1.3111, 1.31842),
        ("3", "minmax", "exact", None, 1.0),
        ("4", "flatten", "exact", None, 1.0),
        ("5", "linear", "checked Cholesky", 1.3634, 1.36340001),
    ]
    (run / "bound.json").write_text(json.dumps({
        "digest": "9f2c" * 16, "norm": "l2", "form": "margin", "constant": 3.2907, "seconds": 1.74,
        "layers": [dict(zip(("name", "rule", "method", "estimate", "bound"), row, strict=True)) for row in layers],
        "margins": margins.tolist(),
    }))  # fmt: skip
    (run / "summary.json").write_text(json.dumps({
        "epsilon": EPSILON, "epsilon_text": "0.3", "semantics": "real", "classes": [str(k) for k in range(10)],
        "seconds": {"train": 24.1, "certify": 1.9, "attack": 8.0}, "data": "digits", "samples": 360,
        "version": "0.1.0", "commit": "641c529", "hardware": "2 CPU cores, torch 2.13.0",
    }))  # fmt: skip
    return run


def moons_run(run: Path) -> Path:
    """Every file a 2-D run can have, for the 1-nearest-neighbour rule of the training points."""
    x, y = make_moons(400, noise=0.06, random_state=0)
    x = (x - x.min(0)) / (x.max(0) - x.min(0))
    train, test, label, epsilon = x[:200], x[200:], y[200:], 0.03

    def signed(at: np.ndarray) -> np.ndarray:
        to = np.linalg.norm(at[:, None] - train[None], axis=2)
        return (to[:, y[:200] == 0].min(1) - to[:, y[:200] == 1].min(1)) / 2

    margin = signed(test)
    bare_run(run, label, (margin > 0).astype(int), np.abs(margin), epsilon, data=DataConfig("moons"))
    xs, ys = np.linspace(-0.15, 1.15, 260), np.linspace(-0.15, 1.15, 240)
    grid = signed(np.stack(np.meshgrid(xs, ys), -1).reshape(-1, 2)).reshape(240, 260)
    prediction = np.where(np.abs(grid) > epsilon, grid > 0, -1).astype(np.int64)
    np.savez(run / "regions.npz", xs=xs, ys=ys, prediction=prediction, points=test, labels=label, epsilon=epsilon)
    (run / "summary.json").write_text(json.dumps({"classes": ["upper moon", "lower moon"]}))
    return run


def write_lines(path: Path, entries: list[dict[str, object]]) -> None:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
