"""Puts a net into the zoo: of a row's seeds in `results/`, the one of median VRA.

    python -m benchmarks.zoo mnist-1.58 --inputs mnist/t10k-images-idx3-ubyte.gz --data FOLDER

The row is `tuned/NAME`, its runs were made by `gloronet reproduce`. The proof speaks about the official test images,
named by their hash; `--inputs` is where they lie under FOLDER. What is claimed is certified here, on this machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import gloronet as gn
from gloronet.certify import certify_set
from gloronet.config import read_toml
from gloronet.data import data_root
from gloronet.proof import write as write_proof
from gloronet.reproduce.runner import record_path

ZOO = Path(gn.__file__).parent / "zoo"
RESULTS = Path(__file__).parents[1] / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--inputs", required=True, help="the official test images, relative to the data folder")
    parser.add_argument("--data", type=Path, help="where the data sets are")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="run folders")
    options = parser.parse_args()
    row = f"tuned/{options.name}"
    seeds = [s for s in json.loads(record_path(RESULTS, row).read_text())["seeds"] if "accuracy" in s]
    median = sorted(seeds, key=_vra)[(len(seeds) - 1) // 2]
    run = options.runs / f"{row.replace('/', '-')}-seed{median['seed']}"
    place = ZOO / options.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    for file in ("config.toml", "model.safetensors"):
        shutil.copy(run / file, place)
    config, net = read_toml(place / "config.toml"), gn.load(place)
    data = gn.data.load(config.data.name, options.data)
    tables = {s: certify_set(net, data.test_x, data.test_y, config.epsilon, s) for s in ("real", "float32")}
    images = data_root(options.data) / options.inputs
    proof = write_proof(net, data.test_x, data.test_y, place, config.epsilon, inputs=images)
    claims = {
        "data": config.data.name,
        "network": f"{config.model.architecture}, {config.model.activation}",
        "epsilon": config.epsilon,
        "clean": tables["real"].clean,
        "vra": {semantics: table.vra for semantics, table in tables.items()},
        "certified_in_the_proof": proof.certified,
        "samples": proof.samples,
        "inputs": options.inputs,
        "seed": config.train.seed,
        "seeds_vra": [_vra(seed) for seed in seeds],
        "chosen": "the median VRA of these seeds",
        "trained": median["training"],
    }
    (place / "zoo.json").write_text(json.dumps(claims, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(claims, indent=1, ensure_ascii=False))


def _vra(seed: dict[str, Any]) -> float:
    return seed["accuracy"]["vra"]["real"]


if __name__ == "__main__":
    main()
