"""How long bounds take, and how far they are above the converged float64 estimate.

    python -m benchmarks.bounds [2C2F 4C3F 6C2F 8C2F] [--device cuda]

Each network is trained for no time at all but with weights as training leaves them: orthogonal layers plus
noise, so that no spectrum is degenerate.
"""

from __future__ import annotations

import argparse
import math
import time
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import gloronet as gn
from benchmarks import record
from gloronet.operators.norms import largest_ritz_value

NETS = {"2C2F": ((1, 28, 28), 10), "4C3F": ((1, 28, 28), 10), "6C2F": ((3, 32, 32), 10), "8C2F": ((3, 64, 64), 200)}
LIMITS = {"2C2F": 3, "4C3F": 20, "6C2F": 60, "8C2F": 240}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", help=f"which networks (default: {' '.join(NETS)})")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    results = [measure(name, options.device) for name in options.nets or NETS]
    shown = Table("net", "seconds", "limit", "exact layers", "largest slack, exact", "largest slack, symbols")
    for r in results:
        exact = [row for row in r["layers"] if row["method"] == "checked Cholesky"]
        symbols = [row for row in r["layers"] if row["method"] == "polyphase symbols"]
        shown.add_row(
            r["net"], f"{r['seconds']:.2f}", str(LIMITS[r["net"]]), f"{len(exact)} of {len(r['layers'])}",
            _largest(exact), _largest(symbols),
        )  # fmt: skip
    Console().print(shown)
    print(f"record: {record.append(f'bounds-{options.device}', {'results': results})}")


def measure(name: str, device: str) -> dict[str, Any]:
    shape, classes = NETS[name]
    torch.manual_seed(0)
    module = gn.models.build(name, shape, classes)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(torch.randn_like(p) * p.std().nan_to_num(0.1) * 0.5)
    net = gn.GloRoNet(module, 0.1, shape).to(device).eval()
    began = time.perf_counter()
    proved = net.bound()
    seconds = time.perf_counter() - began
    rows = []
    for operator, layer in zip(net.program().freeze().operators, proved.layers, strict=True):
        start = operator.start()
        if start is not None:
            sigma = converged(operator, start.double().to(device))
            rows.append({"name": layer.name, "method": layer.method, "bound": layer.value, "estimate": sigma,
                         "slack": layer.value / sigma - 1})  # fmt: skip
    return {"net": name, "device": device, "seconds": seconds, "layers": rows}


def converged(operator: Any, u: torch.Tensor) -> float:
    """The norm from below, in float64: Lanczos until it stands, which power iteration takes far longer to do."""
    shape = u.shape

    def gram(v: torch.Tensor) -> torch.Tensor:
        return operator.adjoint(operator.apply(v.reshape(shape))).reshape(-1)

    steps = 1000 if u.numel() < 40_000 else 60  # the basis must fit; there, symbols are off by far more
    return math.sqrt(largest_ritz_value(gram, u.numel(), u, steps, tolerance=1e-12))


def _largest(rows: list[dict[str, Any]]) -> str:
    return f"{max(row['slack'] for row in rows):.1e}" if rows else "–"


if __name__ == "__main__":
    main()
