"""Writes every table of measurements in README.md and docs/ from the records: no number is typed.

Blocks named `results-…` come from `results/`, the paper's rows; all others from `benchmarks/records/`.

python -m benchmarks.tables
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.bounds import NETS
from benchmarks.record import latest
from gloronet.reproduce import figures as drawn
from gloronet.reproduce import page as results_page
from gloronet.reproduce import tables as rows_of_the_paper
from gloronet.reproduce.table import Table, markdown

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
PAGES = (ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("performance", "results", "serve")))
BLOCK = re.compile(
    r"(<!-- measured ([a-z0-9-]+): written by python -m benchmarks.tables -->\n).*?(\n<!-- end -->)", re.S
)


def main() -> None:
    for page in PAGES:
        page.write_text(rendered(page.read_text()))
    draw_growth()
    if RESULTS.is_dir():
        results_page.write(RESULTS)


def rendered(page: str) -> str:
    """The page's text with its tables made anew."""
    return BLOCK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], page)


def summary() -> str:
    digits, mnist, quick = latest("digits-cpu"), latest("mnist-cpu"), latest("speedrun")
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
        (
            f"CIFAR-10, ε = {quick['config']['epsilon']}, 6C2F on one H200, three seeds",
            f"clean {quick['mean']['clean']:.1%}, VRA {quick['mean']['vra']:.1%} (mean; "
            f"{', '.join(format(run['vra'], '.1%') for run in quick['runs'])}), "
            f"trained in {quick['mean']['training_seconds']:.0f} s",
            "`python -m benchmarks.speedrun`",
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
    cpu = f"{mnist['cpu']}, {mnist['threads']} threads, torch {mnist['torch']}"
    where = f'On {cpu}, unless the row says otherwise; VRA by bounds, `"real"`.'
    return "\n".join([*head, *(f"| {a} | {b} | {c} |" for a, b, c in rows), "", where])


def _slack(result: dict[str, Any], method: str) -> str:
    """The largest relative slack of the layers bounded in that way."""
    slacks = [row["slack"] for row in result["layers"] if row["method"] == method]
    return f"{max(slacks):.0e}" if slacks else "none"


def _median(mnist: dict[str, Any], kind: str) -> float:
    times = sorted(mnist["epoch_seconds"][kind])
    return times[len(times) // 2]


def training(device: str) -> str:
    """Seconds an epoch, certified beside plain."""
    r = latest(f"train-{device}")
    rows = (
        (name, f"{_epoch(n['certified']):.3f} s", f"{_epoch(n['plain']):.3f} s", f"{n['ratio']:.2f}×")
        for name, n in r["results"].items()
    )
    return _table(("net", "an epoch, certified", "plain", "ratio"), rows) + _where(r)


def iterations() -> str:
    """Seconds an epoch with five power iterations a step: layers beside each other, and in turn."""
    records = record.every("train-cuda-5-iterations")
    rows = (
        (name, r["settings"]["layers"], f"{_epoch(n['certified']):.3f} s", f"{_epoch(n['plain']):.3f} s",
         f"{n['ratio']:.2f}×")
        for r in records
        for name, n in r["results"].items()
    )  # fmt: skip
    head = ("net", "the layers' iterations", "an epoch, certified", "plain", "ratio")
    return _table(head, rows) + _where(*records)


def memory(device: str) -> str:
    """Peak bytes an instance, certified beside plain."""
    r = latest(f"memory-{device}")
    rows = (
        (name, *(f"{n[kind] / 1024:.0f} KiB" for kind in ("certified", "plain")), f"{n['ratio']:.2f}×")
        for name, n in r["results"].items()
    )
    return _table(("net", "memory an instance, certified", "plain", "ratio"), rows) + _where(r)


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


def serving() -> str:
    """Requests a second and latencies over HTTP, of the last record of each net on each processor."""
    found = {(r["cpu"], r["net"]): r for r in record.every("serve-cpu")}

    def measured(v: dict[str, float], plain: str) -> tuple[str, str]:
        return plain, f"{v['ratio'] - 1:+.1%}".replace("-", "−")

    rows = (
        (
            net,
            cpu,
            clients,
            *measured(v["rps"], f"{v['rps']['plain']:,.0f}"),
            *measured(v["p50"], f"{v['p50']['plain']:.2f} ms"),
            *measured(v["p99"], f"{v['p99']['plain']:.2f} ms"),
        )
        for (cpu, net), r in sorted(found.items())
        for clients, v in r["http"].items()
    )
    plain = ("requests a second, plain", "p50, plain", "p99, plain")
    head = ("net", "processor", "clients", *(name for p in plain for name in (p, "with certificates")))
    return _table(head, rows) + _where(*found.values())


def peers() -> str:
    r = latest("peers-cpu")
    shares = r["epoch_ratio"]["to ours, 1 iteration"]
    rows = (
        (kind, r["power_iterations"][kind] or "–", f"{s:.2f} s", f"{shares[kind]:.2f}×")
        for kind, s in r["epoch_seconds_median"].items()
    )
    head = ("an epoch of 2C2F on MNIST, batch 512", "power iterations a step", "seconds", "÷ ours, 1 iteration")
    return _table(head, rows) + _where(r)


def same_settings() -> str:
    """Ours and the original package with the same settings; the bound has a column of its own."""
    found = record.every("same-settings-cpu")
    rows = []
    for r in found:
        what = (f"`{r['config']['model']['architecture']}`", f"{r['config']['train']['epochs']} epochs")
        settings = f"`{r['preset']}`: " + ", ".join(what)
        for name, run in (("ours", r["ours"]), (f"gloro {r['gloro']['versions']['gloro']}", r["gloro"])):
            bound = f"{run['vra']:.2%}" if "vra" in run else "–"
            rows.append((settings, name, f"{run['clean']:.2%}", f"{run['vra_estimate']:.2%}", bound))
    head = ("settings", "trained by", "clean", "VRA, estimate, the paper's protocol", "VRA by bounds")
    return _table(head, rows) + _where(*found)


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


def trials(data: str, epsilon: str) -> str:
    """What was tried for a row by bounds, on held-out training images, best first."""
    every = record.every("trials")
    found = [r for r in every if (r["config"]["data"]["name"], r["config"]["epsilon"]) == (data, epsilon)]
    rows = [(r["config"], r["clean"], r["vra"], "; ".join(r.get("patched", []))) for r in found]
    return _trials(rows, "VRA by bounds") + _where(*found)


def earlier_trials() -> str:
    """For the speedrun, with estimates, before Muon pulled."""
    found = record.every("speedrun-trials")
    flat = [({"train": r["config"], "model": r["config"]}, r["clean"], r["vra"]["36/255"], "") for r in found]
    return _trials(flat, "VRA, estimated") + _where(found[0])


def _trials(found: list[tuple[dict[str, Any], float, float, str]], vra_is: str) -> str:
    names = ("optimizer", "lr", "loss", "lam", "epsilon_train", "epsilon_schedule")
    names += ("augmentation", "batch_size", "epochs")
    told = {name: [_told(c["train"], name) for c, *_ in found] for name in names}
    for name in ("activation", "init"):
        told[name] = [c["model"].get(name, "–") for c, *_ in found]
    told = {"network": [f"`{c['model']['architecture']}`" for c, *_ in found], **told}
    told["besides"] = [patch or "–" for *_, patch in found]
    shown = {name: values for name, values in told.items() if len(set(values)) > 1 or name in ("optimizer", "epochs")}
    order = sorted(range(len(found)), key=lambda k: -found[k][2])
    rows = [(*(shown[n][k] for n in shown), f"{found[k][1]:.1%}", f"{found[k][2]:.1%}") for k in order]
    return _table((*(n.replace("_", " ") for n in shown), "clean", vra_is), rows)


def _told(train: dict[str, Any], name: str) -> str:
    """A setting as a table shows it; one that plays no part in that training is a dash."""
    idle = {
        "lam": not train["loss"].startswith("trades"),
        "epsilon_train": train["epsilon_schedule"].startswith("ramp"),
    }
    return "–" if idle.get(name) else str(train.get(name, "–"))


def speedrun() -> str:
    r = latest("speedrun")
    rows = (
        (
            run["seed"],
            *(f"{run[k]:.2f} s" for k in ("training_seconds", "preparing_seconds", "bound_seconds")),
            f"{run['clean']:.2%}",
            f"{run['vra']:.2%}",
        )
        for run in r["runs"]
    )
    head = ("seed", "training", "compiling and capturing, besides", "bound, besides", "clean", "VRA by bounds")
    return _table(head, rows) + _where(r)


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
    ("6C2F, CIFAR-10, batch 512: an epoch", "train-cuda", ("results", "6C2F", *EPOCH), 0.20, 0.12, " s"),
    ("6C2F: certified step ÷ plain step", "train-cuda", ("results", "6C2F", "ratio"), 1.25, 1.10, "×"),
    ("6C2F: memory an instance ÷ plain", "memory-cuda", ("results", "6C2F", "ratio"), 1.15, 1.05, "×"),
    ("8C2F, 100,000 images of 64×64: an epoch", "train-cuda", ("results", "8C2F", *EPOCH), 1.5, 1.0, " s"),
    ("4C3F, MNIST: an epoch", "train-cuda", ("results", "4C3F", *EPOCH), 0.15, 0.08, " s"),
    ("2C2F, MNIST: an epoch", "train-cuda", ("results", "2C2F", *EPOCH), 0.05, 0.03, " s"),
    ("10,000 images of 6C2F certified", "certify-cuda", ("seconds_median", "certified"), 0.15, 0.05, " s"),
    ("speedrun to 58.4 % VRA: training", "speedrun", ("mean", "training_seconds"), 25, 10, " s"),
    ("two CPU cores, 2C2F: certified step ÷ plain step", "train-cpu", ("results", "2C2F", "ratio"), 1.2, None, "×"),
)
"""What → the record, the way to its number, the limit to reach and the one beyond."""


def targets() -> str:
    rows = []
    for what, name, path, reach, beyond, unit in TARGETS:
        value: Any = latest(name)
        for key in path:
            value = value[key]
        verdict = "beyond" if beyond and value <= beyond else "reached" if value <= reach else "**not reached**"
        limits = [f"≤ {limit:g}{unit}" if limit else "–" for limit in (reach, beyond)]
        rows.append((what, *limits, f"{value:.3g}{unit}", verdict))
    return _table(("what", "to reach", "beyond", "measured", ""), rows)


def results(make: Callable[[Path], list[Table]], figure: str = "") -> str:
    """A table of the paper's rows, below its figure where enough is measured to draw it."""
    pictures = [d for d in drawn.drawings(RESULTS) if d.name == figure]
    above = [
        f"![{d.title}](../results/figures/{d.name}.png)\n\n{d.caption}" if d.rows else f"Not drawn: {d.lacking}."
        for d in pictures
    ]
    return "\n\n".join([*above, markdown(make(RESULTS))])


TABLES = {
    "results-summary": lambda: results(rows_of_the_paper.summary),
    "results-main": lambda: results(rows_of_the_paper.main, "certified_accuracy"),
    "results-relu": lambda: results(rows_of_the_paper.relu),
    "results-cost": lambda: results(rows_of_the_paper.cost, "vra_against_seconds"),
    "results-lipschitz": lambda: results(rows_of_the_paper.lipschitz, "lipschitz"),
    "results-tightness": lambda: results(rows_of_the_paper.tightness),
    "targets": targets,
    "summary": summary,
    "train-cuda": lambda: training("cuda"),
    "train-cpu": lambda: training("cpu"),
    "train-cuda-5": iterations,
    "memory-cuda": lambda: memory("cuda"),
    "memory-cpu": lambda: memory("cpu"),
    "growth-cuda": lambda: growth("cuda"),
    "growth-cpu": lambda: growth("cpu"),
    "certify-cuda": lambda: certifying("cuda"),
    "certify-cpu": lambda: certifying("cpu"),
    "serve": serving,
    "peers": peers,
    "same-settings": same_settings,
    "estimates-cuda": lambda: estimates("cuda"),
    "estimates-cpu": lambda: estimates("cpu"),
    "speedrun": speedrun,
    "trials": lambda: trials("cifar10", "36/255"),
    "trials-mnist-small": lambda: trials("mnist", "0.3"),
    "trials-mnist-large": lambda: trials("mnist", "1.58"),
    "trials-tiny-imagenet": lambda: trials("tiny-imagenet", "36/255"),
    "earlier-trials": earlier_trials,
    "optimisers": optimisers,
}


def draw_growth() -> None:
    """docs/cost_growth.png: the ratio certified / plain against what grows, a row of pictures a device."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    devices = {"cuda": "one H200", "cpu": "two CPU cores"}
    figure, grid = plt.subplots(2, 3, figsize=(10, 5.6), sharey=True, layout="constrained")
    for line, (device, name) in zip(grid, devices.items(), strict=True):
        for axis, (what, rows) in zip(line, latest(f"growth-{device}")["results"].items(), strict=True):
            sizes = [row["size"] for row in rows]
            axis.plot(sizes, [row["ratio"] for row in rows], "o-", color="#1f6fb2")
            axis.axhline(1, color="#999999", linewidth=1)
            axis.set_xscale("log", base=2)
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
            axis.set_xlabel(what)
            axis.set_ylim(0.9, 1.5)
            axis.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel(f"certified step ÷ plain step\n{name}")
    figure.savefig(ROOT / "docs" / "cost_growth.png", dpi=130)
    plt.close(figure)


def _table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _where(*records: dict[str, Any]) -> str:
    def every(name: str) -> str:
        return ", ".join(dict.fromkeys(r[name] for r in records))

    chips = dict.fromkeys(f"{r['gpu'] or _cpu(r)}, torch {r['torch']}" for r in records)
    return f"\n\nOn {'; '.join(chips)}; commit {every('commit')}, {every('date')}."


def _cpu(r: dict[str, Any]) -> str:
    return f"{r['cpu']}, {r['threads']} thread{'s' if r['threads'] > 1 else ''}"


if __name__ == "__main__":
    main()
