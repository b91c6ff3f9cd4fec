"""What each verb of the command line answers: one dictionary of plain values.

A verb is a function here, which does the work, and one of the same name in `show`, which makes text of the answer;
`--json` writes the very same dictionary. An answer that says `accepted: False` is of a check that failed.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

from gloronet import __version__, data, folder, verbs, zoo
from gloronet import compare as comparisons
from gloronet import report as reports
from gloronet import reproduce as papers
from gloronet.errors import GloroError
from gloronet.export import OUTPUTS
from gloronet.proof import checker

Answer = dict[str, Any]


def train(recipe: str, out: Path | None, resume: Path | None, changes: list[str], **options: Any) -> Answer | None:
    """None from all processes of a torchrun but the first."""
    if resume is None:
        run = verbs.train(recipe, out, changes=changes, **options)
    elif out is not None or changes or recipe != "digits":
        raise GloroError("--resume goes on with the folder's own settings: leave out the recipe, --out and --set.")
    else:
        run = verbs.resume(resume, **options)
    return None if run is None else _run(run)


def certify(run: Path, top: int | None, affinity: list[list[str]] | None, proof: bool, **options: Any) -> Answer:
    """With `top` or `affinity`: of each relaxation its file, and what was counted in each semantics."""
    if top is None and affinity is None:
        verbs.certify(run, proof=proof, **options)
        return _run(run)
    if proof:
        raise GloroError("A proof holds plain certificates: leave out --proof, or --top and --affinity.")
    found = verbs.relax(run, top=top, affinity=affinity or (), **options)
    first = next(iter(found.values()))
    relaxed = [
        {"name": name, "file": run / f"certificates-{name}.csv"}
        | {"vra": {s: t.vra for s, t in tables.items()}, "mean_size": tables["real"].mean_size}
        for name, tables in found.items()
    ]
    plain = {semantics: table.plain_vra for semantics, table in first.items()}
    return {"run": run, "epsilon": first["real"].certificates.epsilon, "plain": plain, "relaxed": relaxed}


def attack(run: Path, **options: Any) -> Answer:
    found = verbs.attack(run, **options)
    return _run(run) | {"attack": found}


def report(run: Path) -> Answer:
    folder.require_own(run)
    reports.write(run)
    return _run(run) | {"figures": sorted((run / "figures").iterdir())}


def compare(runs: list[str], out: Path) -> Answer:
    return vars(comparisons.compare(runs, out))


def check(proof: Path, model: Path, inputs: Path | None, trust_user_rules: bool) -> Answer:
    for path in filter(None, (proof, model, inputs)):
        path.open("rb").close()  # a file that cannot be read is no proof rejected
    return checker.judge(proof, model, inputs, trust_user_rules, print)


def lipschitz(
    run: Path, lower: bool, steps: int, global_steps: int | None, local_steps: int | None, **options: Any
) -> Answer:
    """What bound.json holds; with `lower`, what was searched for below it."""
    proved, layers = verbs.lipschitz(run)
    off = proved.margins[~torch.eye(len(proved.margins), dtype=torch.bool)]
    least, largest = off.min().item(), off.max().item()
    answer: Answer = {"run": run, **vars(proved), "layers": layers, "least_margin": least, "largest_margin": largest}
    if lower:
        answer["headroom"] = verbs.headroom(run, steps=steps, **options)
        answer["tightness"] = verbs.tightness(
            run, global_steps=global_steps or steps, local_steps=local_steps or steps, **options
        )
    return answer


def smooth(run: Path, **options: Any) -> Answer:
    """All of smoothing.json but its rows."""
    found = verbs.smooth(run, **options).summary()
    del found["rows"]
    return {"run": run, "file": run / "smoothing.json", **found}


def export(run: Path, out: Path, **options: Any) -> Answer:
    file = verbs.export(run, out, **options)
    return {"file": file, "bytes": file.stat().st_size, "inputs": ("x", "epsilon"), "outputs": OUTPUTS}


def serve(what: str, host: str, port: int, root: Path | None) -> Iterator[Answer]:
    """Answers as soon as it listens, and then serves until it is told to stop."""
    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise GloroError(f'Serving needs {" and ".join(missing)}: pip install "gloronet[serve]"')
    from gloronet.serve import listening

    with listening(what, host, port, root, __version__) as service:
        yield {"name": service.name, "url": service.url, **vars(service.about)}
        service.run()


def data_list(root: Path | None) -> Answer:
    return {"sets": data.names(root)}


def data_fetch(name: str, root: Path | None) -> Answer:
    with Progress(console=folder.console, transient=True, disable=not folder.console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        return {"name": name, "folder": data.fetch(name, root, progress)}


def reproduce(what: str, results: Path, **values: Any) -> Answer:
    effort = papers.Effort(**{name: values.pop(name) for name in papers.Effort._fields})
    note = partial(print, file=sys.stderr, flush=True)
    tables = papers.reproduce(what, results=results, effort=effort, note=note, **values)
    return {"what": what, "page": results / "index.html", "tables": tables}


def zoo_list() -> Answer:
    return {"nets": [{"name": f"{zoo.PREFIX}{name}", **zoo.claims(name)} for name in zoo.names()]}


def zoo_check(name: str, **options: Any) -> Answer:
    found = verbs.zoo_check(name, **options)
    verdict = checker.judge(*found.files, False, print)
    return {"name": name, "claimed": found.claimed, "found": found.found, **verdict}


def _run(run: Path) -> Answer:
    return {"run": run, "report": run / "report.html", "summary": folder.read_summary(run)}
