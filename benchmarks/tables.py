"""Writes every table of measurements in README.md and docs/performance.md from the records: no number is typed.

python -m benchmarks.tables
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.bounds import NETS
from benchmarks.record import latest

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BLOCK = re.compile(
    r"(<!-- measured ([a-z0-9-]+): written by python -m benchmarks.tables -->\n).*?(\n<!-- end -->)", re.S
)


def main() -> None:
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
    draw_growth()


def rendered(page: str) -> str:
    """The page's text with its tables made anew."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def summary() -> str:
    digits, mnist = latest("digits-cpu"), latest("mnist-cpu")
    runs = digits["runs"]
    vras = ", ".join(f"{run['vra']:.1%}" for run in runs)
    rows = [
        (
            "digits, ε = 0.3, three seeds",
            f"clean {digits['median']['clean']:.1%}, PGD {digits['median']['pgd']:.1%}, "
            f"VRA {digits['median']['vra']:.1%} (median; {vras}), "
            f"{max(run['wall_seconds'] for run in runs):.0f} s at most from start to report",
            "`python -m benchmarks.digits`",
        ),
        (
            f"MNIST, ε = {mnist['epsilon']}, 2C2F, {mnist['config']['train']['epochs']} epochs",
            f"clean {mnist['clean']:.2%}, VRA {mnist['vra']:.2%}, "
            f"trained in {mnist['training_seconds']:.0f} s, bound proved in {mnist['bound_seconds']:.2f} s",
            "`python -m benchmarks.mnist`",
        ),
        (
            "MNIST, an epoch, certified / plain",
            f"{_median(mnist, 'certified'):.2f} s / {_median(mnist, 'plain'):.2f} s "
            f"= {mnist['epoch_ratio']:.2f}×",
            "the same",
        ),
        (
            "MNIST, 10,000 images: certificates in float64 / plain float32 inference",
            f"{mnist['certify_seconds']:.2f} s / {mnist['plain_inference_seconds']:.2f} s "
            f"= {mnist['certify_ratio']:.1f}×",
            "the same",
        ),
        (
            "MNIST, VRA by semantics",
            ", ".join(f"{name} {value:.2%}" for name, value in mnist["vra_by_semantics"].items()),
            "the same",
        ),
        (
            "MNIST, proof of 10,000 certificates",
            f"written in {mnist['proof_seconds']:.1f} s, checked in {mnist['check_seconds']:.1f} s",
            "the same",
        ),
        *(
            (
                f"bound of {r['net']} ({'×'.join(map(str, NETS[r['net']][0]))}), slack",
                f"{r['seconds']:.1f} s; {_slack(r, 'checked Cholesky')} exact, "
                f"{_slack(r, 'polyphase symbols')} symbols",
                "`python -m benchmarks.bounds`",
            )
            for r in latest("bounds-cpu")["results"]
        ),
    ]
    head = ["| what | measured | command |", "|---|---|---|"]
    where = f'On {mnist["cpu"]}, {mnist["threads"]} threads, torch {mnist["torch"]}; VRA by bounds, `"real"`.'
    return "\n".join([*head, *(f"| {a} | {b} | {c} |" for a, b, c in rows), "", where])


def _slack(result: dict[str, Any], method: str) -> str:
    """The largest relative slack of the layers bounded in that way."""
    slacks = [row["slack"] for row in result["layers"] if row["method"] == method]
    return f"{max(slacks):.0e}" if slacks else "none"


def _median(mnist: dict[str, Any], kind: str) -> float:
    times = sorted(mnist["epoch_seconds"][kind])
    return times[len(times) // 2]


def training(device: str) -> str:
    """Seconds an epoch and memory an instance, certified beside plain."""
    r = latest(f"train-{device}")
    rows = (
        (
            name,
            f"{_epoch(n['certified']):.3f} s",
            f"{_epoch(n['plain']):.3f} s",
            f"{n['ratio']:.2f}×",
            f"{n['certified']['bytes_per_instance'] / 1024:.0f} KiB",
            f"{n['plain']['bytes_per_instance'] / 1024:.0f} KiB",
            f"{n['memory_ratio']:.2f}×",
        )
        for name, n in r["results"].items()
    )
    head = ("net", "an epoch, certified", "plain", "ratio", "memory an instance, certified", "plain", "ratio")
    return _table(head, rows) + _where(r)


def _epoch(kind: dict[str, Any]) -> float:
    return kind.get("epoch_seconds_typical", kind["epoch_seconds_median"])


def growth(device: str) -> str:
    r = latest(f"growth-{device}")
    rows = (
        (what, row["size"], f"{1e3 * row['certified']:.2f} ms", f"{1e3 * row['plain']:.2f} ms", f"{row['ratio']:.2f}×")
        for what, found in r["results"].items()
        for row in found
    )
    return _table(("what grows", "size", "a step, certified", "plain", "ratio"), rows) + _where(r)


def certifying(device: str) -> str:
    r = latest(f"certify-{device}")
    medians = r["seconds_median"]
    rows = ((kind, f"{s:.3f} s", f"{s / medians['plain']:.2f}×") for kind, s in medians.items())
    return _table((f"{r['images']:,} images, {r['net']}", "seconds", "÷ plain"), rows) + _where(r)


def peers() -> str:
    r = latest("peers-cpu")
    shares = r["epoch_ratio"]["to ours, 1 iteration"]
    rows = (
        (kind, r["power_iterations"][kind] or "–", f"{s:.2f} s", f"{shares[kind]:.2f}×")
        for kind, s in r["epoch_seconds_median"].items()
    )
    head = ("an epoch of 2C2F on MNIST, batch 512", "power iterations a step", "seconds", "÷ ours, 1 iteration")
    return _table(head, rows) + _where(r)


def estimates(device: str) -> str:
    r = latest(f"estimates-{device}")
    rows = (
        (
            name,
            f"{1e3 * v['step_seconds']:.2f} ms",
            *(f"{v[gap]:.2%}" if v[gap] is not None else "–" for gap in ("gap_half_way", "gap_at_the_end")),
            f"{v['clean']:.2%}",
            f"{v['vra']:.2%}",
        )
        for name, v in r["results"].items()
    )
    head = ("variant", "a step", "estimate below the bound, half-way", "at the end", "clean", "VRA by bounds")
    return _table(head, rows) + _where(r)


def trials() -> str:
    """What was tried on the way to the speedrun, best first."""
    found = sorted(record.every("speedrun-trials"), key=lambda r: -r["vra"]["36/255"])
    rows = (
        (
            f"`{r['config']['architecture']}`",
            r["config"]["optimizer"],
            r["config"]["lr"],
            r["config"]["loss"],
            r["config"]["epsilon_schedule"],
            r["config"]["batch_size"],
            r["config"]["epochs"],
            f"{r['clean']:.1%}",
            f"{r['vra']['36/255']:.1%}",
        )
        for r in found
    )
    head = ("network", "optimiser", "lr", "loss", "ε schedule", "batch", "epochs", "clean", "VRA, estimated")
    return _table(head, rows) + _where(found[0])


def optimisers() -> str:
    """Adam, Muon and Muon with the pull, on a small network, best first."""
    found = sorted(record.every("optimiser-trials"), key=lambda r: (-r["config"]["epochs"], -r["vra"]))
    rows = (
        (
            r["config"]["optimizer"],
            r["config"]["lr"],
            r["config"].get("pull", "–"),
            r["config"]["batch_size"],
            r["config"]["epochs"],
            f"{r['clean']:.1%}",
            f"{r['vra']:.1%}",
        )
        for r in found
    )
    return _table(("optimiser", "lr", "pull", "batch", "epochs", "clean", "VRA, estimated"), rows) + _where(found[0])


EPOCH = ("certified", "epoch_seconds_median")
TARGETS = (
    ("6C2F, CIFAR-10, batch 512: an epoch", "train-cuda", ("6C2F", *EPOCH), 0.20, 0.12, " s"),
    ("6C2F: certified step ÷ plain step", "train-cuda", ("6C2F", "ratio"), 1.25, 1.10, "×"),
    ("6C2F: memory an instance ÷ plain", "train-cuda", ("6C2F", "memory_ratio"), 1.15, 1.05, "×"),
    ("8C2F, 100,000 images of 64×64: an epoch", "train-cuda", ("8C2F", *EPOCH), 1.5, 1.0, " s"),
    ("4C3F, MNIST: an epoch", "train-cuda", ("4C3F", *EPOCH), 0.15, 0.08, " s"),
    ("2C2F, MNIST: an epoch", "train-cuda", ("2C2F", *EPOCH), 0.05, 0.03, " s"),
    ("two CPU cores, 2C2F: certified step ÷ plain step", "train-cpu", ("2C2F", "ratio"), 1.2, None, "×"),
)
"""What → the record, the way to its number, the limit to reach and the one beyond."""


def targets() -> str:
    rows = []
    for what, name, path, reach, beyond, unit in TARGETS:
        value: Any = latest(name)["results"]
        for key in path:
            value = value[key]
        verdict = "beyond" if beyond and value <= beyond else "reached" if value <= reach else "**not reached**"
        limits = [f"≤ {limit:g}{unit}" if limit else "–" for limit in (reach, beyond)]
        rows.append((what, *limits, f"{value:.3g}{unit}", verdict))
    return _table(("what", "to reach", "beyond", "measured", ""), rows)


TABLES = {
    "targets": targets,
    "summary": summary,
    "train-cuda": lambda: training("cuda"),
    "train-cpu": lambda: training("cpu"),
    "growth-cpu": lambda: growth("cpu"),
    "certify-cpu": lambda: certifying("cpu"),
    "peers": peers,
    "estimates-cpu": lambda: estimates("cpu"),
    "trials": trials,
    "optimisers": optimisers,
}


def draw_growth(device: str = "cpu") -> None:
    """docs/cost_growth.png: the ratio certified / plain against what grows."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    results = latest(f"growth-{device}")["results"]
    figure, axes = plt.subplots(1, len(results), figsize=(10, 3), sharey=True, layout="constrained")
    for axis, (what, rows) in zip(axes, results.items(), strict=True):
        sizes = [row["size"] for row in rows]
        axis.plot(sizes, [row["ratio"] for row in rows], "o-", color="#1f6fb2")
        axis.axhline(1, color="#999999", linewidth=1)
        axis.set_xscale("log", base=2)
        axis.set_xticks(sizes, [str(size) for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel(what)
        axis.set_ylim(bottom=0.9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("certified step ÷ plain step")
    figure.savefig(ROOT / "docs" / "cost_growth.png", dpi=130)
    plt.close(figure)


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _where(r: dict[str, Any]) -> str:
    chip = r["gpu"] or f"{r['cpu']}, {r['threads']} threads"
    return f"\n\nOn {chip}, torch {r['torch']}; commit {r['commit']}, {r['date']}."


if __name__ == "__main__":
    main()
