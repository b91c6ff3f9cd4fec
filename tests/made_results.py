"""Made-up records of `gloronet reproduce`: whole, partial, empty. No number of them was measured anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

EPSILON = {"mnist-0.3": "0.3", "mnist-1.58": "1.58", "cifar10": "36/255", "tiny-imagenet": "36/255"}
NETS = {"mnist-0.3": "2C2F", "mnist-1.58": "4C3F", "cifar10": "6C2F", "tiny-imagenet": "8C2F"}
RADIUS = {"mnist-0.3": 0.3, "mnist-1.58": 1.58, "cifar10": 36 / 255, "tiny-imagenet": 36 / 255}


def config(row: str) -> dict[str, Any]:
    family, _, data = row.rpartition("/")
    return {
        "epsilon": EPSILON.get(data, "0.5"),
        "data": {"name": data.rpartition("-")[0] if data.startswith("mnist") else data},
        "model": {"architecture": NETS.get(data, "3C1F"), "activation": "relu" if "relu" in family else "minmax"},
        "train": {"epochs": 300, "loss": "emma"},
    }


def seed(
    number: int, vra: float, clean: float, radius: float = 0.3, seconds: float = 42.1, **changed: Any
) -> dict[str, Any]:
    """Everything that one training can have measured, in proportion to its VRA and clean accuracy."""
    certified = [round(clean * float(np.exp(-(r**1.3) * np.log(max(clean, 0.01) / max(vra, 1e-9)))), 6)
                 for r in np.linspace(0, 4, 81)]  # fmt: skip
    place = {"commit": "abc1234", "hardware": "NVIDIA H200, 16 cores", "version": "0.1.0"}
    groups = {
        "training": {"epochs": 300, "seconds": seconds, "seconds_per_epoch": seconds / 300, "side_by_side": 1, **place},
        "accuracy": {
            "clean": clean,
            "vra": {"real": vra, "float32": round(max(vra - 0.0021, 0), 4)},
            "vra_at": {"0.141": round(vra + 0.0001, 4)},
            "vra_paper_protocol": round(vra + 0.0004, 4),
            "mean_radius": 0.2,
            "disjoint_ball_gap": 0.01,
            "curve": {"radius": [round(radius * r, 6) for r in np.linspace(0, 4, 81)], "certified": certified},
            "bound_seconds": 1.9,
            **place,
        },
        "attack": {"pgd": round(0.4 * vra + 0.6 * clean, 4), "pgd_art": round(0.4 * vra + 0.6 * clean + 0.001, 4),
                   "samples": 10000, "steps": 100, "restarts": 10, **place},
        "cost": {"memory_per_instance": 551000, "certify_seconds": 0.0846, "certify_memory_per_instance": 210000,
                 **place},
        "lipschitz": {"upper": 15.2 + number, "lower_global": 11.0 + number, "lower_local": 3.7, **place},
    }  # fmt: skip
    return {"seed": number, **groups, **changed}


def record(row: str, *seeds: dict[str, Any], **changed: Any) -> dict[str, Any]:
    chosen = "on 5,000 held-out training images"
    return {"row": row, "config": config(row), "chosen": chosen, "seeds": list(seeds), **changed}


def put(folder: Path, *records: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for made in records:
        (folder / f"{made['row'].replace('/', '-')}.json").write_text(json.dumps(made), encoding="utf-8")
    return folder


def tightness() -> dict[str, Any]:
    rows = [
        {"power_iterations": k, "upper": 16 + 4 / k + s, "lower_global": 11.0,
         "vra": round(0.58 + 0.02 * (1 - 1 / k), 4), "vra_estimate": 0.61,
         "seconds_per_epoch": 0.14 + 0.02 * k, "seed": s}
        for k in (1, 2, 5, 10) for s in (0, 1)
    ]  # fmt: skip
    return {"config": config("tuned/cifar10"), "rows": rows, "commit": "abc1234", "hardware": "NVIDIA H200"}


def whole(folder: Path) -> Path:
    """A record for every row of the paper, three seeds of ours, randomized smoothing and averaged logits."""
    rng = np.random.default_rng(0)
    levels = {"mnist-0.3": (0.957, 0.99), "mnist-1.58": (0.628, 0.97), "cifar10": (0.584, 0.77),
              "tiny-imagenet": (0.224, 0.355)}  # fmt: skip
    gains = {"minmax": (-0.01, 180.0), "tuned": (0.025, 44.0), "relu-ce": (-0.08, 130.0), "relu-trades": (-0.07, 140.0),
             "tuned-relu": (-0.03, 40.0), "standard": (-2.0, 12.0)}  # fmt: skip
    made = []
    for data, (vra, clean) in levels.items():
        for family, (gain, seconds) in gains.items():
            level = vra + (gain if vra < 0.9 else gain / 4)
            seeds = [
                seed(n, max(round(level + 0.003 * float(rng.normal()), 4), 0.0), round(clean - 0.002 * n, 4),
                     RADIUS[data], seconds * (8 if data.startswith("tiny") else 1))
                for n in range(3 if family.startswith("tuned") else 1)
            ]  # fmt: skip
            for s in seeds:
                shape = {"standard": (54000.0, 140.0, 17.1), "tuned": (14.2, 11.0, 3.1)}.get(family, (17.4, 12.0, 4.0))
                s["lipschitz"].update(zip(("upper", "lower_global", "lower_local"), shape, strict=True))
            if family == "tuned" and data == "cifar10":
                for s in seeds:
                    vra = round(s["accuracy"]["vra"]["real"] + 0.006, 4)
                    s["mirrored"] = {"clean": s["accuracy"]["clean"], "vra": vra}
            made.append(record(f"{family}/{data}", *seeds))
    smoothing = {"clean": 0.755, "vra": 0.639, "samples": 1000, "sigma": 0.25, "n": 100000, "n0": 100, "alpha": 0.001}
    made.append(record("smoothing/cifar10", {"seed": 0, "smoothing": smoothing}))
    made.append(record("averaged/cifar10", seed(0, 0.6217, 0.779, RADIUS["cifar10"])))
    put(folder, *made)
    (folder / "tightness-vs-iterations.json").write_text(json.dumps(tightness()), encoding="utf-8")
    return folder
