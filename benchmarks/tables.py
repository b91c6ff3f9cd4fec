"""Writes the README's table of measurements from the records, so that no number is typed.

python -m benchmarks.tables
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bounds import NETS
from benchmarks.record import latest

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- measured: written by python -m benchmarks.tables -->", "<!-- end of measured -->"


def main() -> None:
    README.write_text(rendered(README.read_text()))


def rendered(readme: str) -> str:
    """The README's text with its table made anew."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{measured()}\n{END}{after}"


def measured() -> str:
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


if __name__ == "__main__":
    main()
