"""The command line: `gloronet VERB …` or `python -m gloronet VERB …`. The only place that sees argv."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gloronet.errors import ElsewhereError, GloroError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. 0: done; 2: something the user can put right, in one line; 130: stopped by Ctrl-C."""
    try:
        arguments = vars(_parser().parse_args(argv))
        run = arguments.pop("run_verb")
        return run(**arguments) or 0
    except ElsewhereError:  # of several processes one speaks
        return 2
    except GloroError as e:
        print(f"gloronet: {_one_line(e)}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as e:  # a full disk, a folder that cannot be read or written
        print(f"gloronet: {e.filename or 'a file'}: {e.strerror or e}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as e:
        print(f"\n{e or 'Stopped.'}", file=sys.stderr)
        return 130


def _train(recipe: str, out: Path | None, resume: Path | None, changes: list[str], **options: Any) -> None:
    from gloronet import verbs

    if resume is not None:
        if out is not None or changes or recipe != "digits":
            raise GloroError(
                "--resume goes on with the folder's own settings: leave out the recipe, --out and --set."
            )
        run = verbs.resume(resume, **options)
    else:
        run = verbs.train(recipe, out, changes=changes, **options)
    if run is not None:
        _show(run)


def _certify(run: Path, **options: Any) -> None:
    from gloronet import verbs

    verbs.certify(run, **options)
    _show(run)


def _attack(run: Path, **options: Any) -> None:
    from gloronet import verbs

    found = verbs.attack(run, **options)
    name, share = next(iter(found.items()))
    tool = "ART's PGD" if name == "pgd_art" else "PGD"
    print(f"{tool} left {share:.2%} of {found[f'{name}_samples']} samples right")
    _show(run)


def _check(**values: Any) -> int:
    from gloronet.proof import checker

    files = [str(values[name]) for name in ("proof", "model", "inputs") if values[name] is not None]
    trust = ["--trust-user-rules"] if values["trust_user_rules"] else []
    return checker.main([*files, *trust], "gloronet check")


def _lipschitz(
    run: Path, lower: bool, steps: int, global_steps: int | None, local_steps: int | None, **options: Any
) -> None:
    from rich.console import Console
    from rich.table import Table

    from gloronet import verbs

    print(verbs.lipschitz(run))
    if lower:
        table = Table("constants", "largest K_ij", "VRA", title="what tighter constants could buy")
        for name, constant, vra in verbs.headroom(run, steps=steps, **options):
            table.add_row(name, f"{constant:.4f}", f"{vra:.2%}")
        Console().print(table)
        found = verbs.tightness(
            run, global_steps=global_steps or steps, local_steps=local_steps or steps, **options
        )
        table = Table("constant", "largest K_ij", title="how tight the bound is, as the paper measures it")
        table.add_row("global upper bound, proved", f"{found.upper:.4f}")
        table.add_row("global lower bound, found by search", f"{found.lower:.4f}")
        table.add_row("local lower bound, mean over test points", f"{found.local:.4f}")
        Console().print(table)


def _smooth(run: Path, **options: Any) -> None:
    from gloronet import verbs

    table = verbs.smooth(run, **options)
    told = ", ".join(f"{name} = {value:g}" for name, value in table.settings.items())
    print(f"clean {table.clean:.2%}, VRA {table.vra:.2%} at ε = {table.epsilon:g}, stochastic ({told})")
    print(f"rows: {run / 'smoothing.json'}")


def _export(run: Path, out: Path, **options: Any) -> None:
    from gloronet import verbs
    from gloronet.export import OUTPUTS

    out = verbs.export(run, out, **options)
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; inputs x and, if you like, epsilon; outputs {', '.join(OUTPUTS)}")


def _serve(what: str, host: str, port: int, root: Path | None) -> None:
    from gloronet import __version__

    missing = [name for name in ("fastapi", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise GloroError(f'Serving needs {" and ".join(missing)}: pip install "gloronet[serve]"')
    from gloronet.serve import serve

    serve(what, host, port, root, __version__, note=lambda text: print(text, flush=True))


def _data_list(root: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from gloronet import data

    table = Table(box=None, header_style="bold")
    for column in ("name", "what", "shape", "classes", "on this machine"):
        table.add_column(column, no_wrap=column == "name")
    for row in data.names(root):
        shape = "×".join(map(str, row.shape)) if row.shape else "yours"
        present = (
            "–"
            if row.shape is None
            else "yes"
            if row.present
            else f"gloronet data fetch {row.name}"
            if row.download
            else "–"
        )
        table.add_row(row.name, row.about, shape, str(row.classes or "yours"), present)
    Console().print(table)


def _data_fetch(name: str, root: Path | None) -> None:
    from rich.progress import Progress

    from gloronet import data

    with Progress(transient=True) as bar:
        tasks: dict[str, Any] = {}

        def progress(file: str, done: int, total: int | None) -> None:
            if file not in tasks:
                tasks[file] = bar.add_task(file, total=total)
            bar.update(tasks[file], completed=done, total=total)

        path = data.fetch(name, root, progress)
    print(f"{name} is in {path}")


def _zoo_list() -> None:
    from rich.console import Console
    from rich.table import Table

    from gloronet import zoo

    table = Table("name", "data", "network", "ε", "clean", "VRA", "seeds' VRA", box=None, header_style="bold")
    for name in zoo.names():
        c = zoo.claims(name)
        seeds = ", ".join(f"{vra:.2%}" for vra in c["seeds_vra"])
        table.add_row(
            f"zoo:{name}", c["data"], c["network"], c["epsilon"], f"{c['clean']:.2%}", f"{c['vra']['real']:.2%}", seeds
        )
    Console().print(table)


def _zoo_check(name: str, **options: Any) -> int:
    from gloronet import verbs
    from gloronet.proof import checker

    found = verbs.zoo_check(name, **options)
    for semantics, vra in found.found.items():
        print(f"{name}: VRA {vra:.2%} ({semantics}), certified here by bounds; claimed {found.claimed[semantics]:.2%}")
    return checker.main(found.files, "gloronet zoo check")


def _reproduce(what: str, **values: Any) -> None:
    from gloronet.reproduce import Effort, reproduce

    effort = Effort(**{name: values.pop(name) for name in Effort._fields})
    print(reproduce(what, effort=effort, note=lambda text: print(text, file=sys.stderr, flush=True), **values))
    print(f"\npage: {values['results'] / 'index.html'}")


def _show(run: Path) -> None:
    from rich.console import Console

    from gloronet import verbs

    Console().print(verbs.summary_table(run))
    print(f"report: {run / 'report.html'}")


class _Parser(argparse.ArgumentParser):
    """One clear line for a bad argument, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(2)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gloronet", description="Classifiers that prove their own answers.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    p = _verb(verbs, "train", _train, "Train a recipe, certify it, attack it and write its report.",
              "gloronet train\n  gloronet train mnist --out runs/mnist --set train.epochs=5\n"
              "  gloronet train --resume runs/mnist\n"
              "  torchrun --nproc-per-node 4 -m gloronet train mnist")  # fmt: skip
    p.add_argument(
        "recipe", nargs="?", default="digits", help="a preset's name or a config.toml (default: digits)"
    )
    p.add_argument("--out", type=Path, help="the run folder, new or empty (default: runs/NAME)")
    p.add_argument("--resume", type=Path, metavar="RUN", help="go on with a training that was stopped")
    p.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE",
                   help="change a setting, such as train.seed=1 or epsilon=0.25 (repeatable)")  # fmt: skip
    p.add_argument("--attack", dest="attacked", type=_count, default=500, metavar="N",
                   help="attack the first N test samples at the end (default: 500; 0: none)")  # fmt: skip
    _placing(p)

    p = _verb(
        verbs,
        "certify",
        _certify,
        "Certify a run's test set by bounds.",
        "gloronet certify runs/digits --epsilon 0.25",
    )
    p.add_argument("run", type=Path, help="the run folder")
    p.add_argument(
        "--epsilon", help="the radius to certify at, such as 0.3 or 36/255 (default: the run's own)"
    )
    p.add_argument(
        "--per-sample", action="store_true", help="tighter float32 error, for a second forward pass"
    )
    p.add_argument("--proof", action="store_true", help="write proof.json, for gloronet check")
    _placing(p)

    p = _verb(
        verbs,
        "check",
        _check,
        "Re-derive every bound and certificate of a proof, trusting none of us.",
        "gloronet check RUN/proof.json RUN/model.safetensors RUN/inputs.npz",
    )
    p.add_argument("proof", type=Path, help="proof.json")
    p.add_argument("model", type=Path, help="model.safetensors, or the program.safetensors beside the proof")
    p.add_argument("inputs", type=Path, nargs="?", help="inputs.npz; without it certificates are not checked")
    p.add_argument("--trust-user-rules", action="store_true", help="accept constants that users vouch for")

    p = _verb(
        verbs,
        "attack",
        _attack,
        "Attack a certified run by PGD.",
        "gloronet attack runs/digits --samples 0 --restarts 20",
    )
    p.add_argument("run", type=Path, help="the run folder")
    p.add_argument(
        "--samples", type=_count, default=1000, help="how many test samples (default: 1000; 0: all)"
    )
    p.add_argument("--steps", type=_positive, default=100, help="steps a restart (default: 100)")
    p.add_argument("--restarts", type=_positive, default=10, help="restarts (default: 10)")
    p.add_argument("--with", dest="by", choices=("gloronet", "art"), default="gloronet",
                   help="whose PGD: ours, or the Adversarial Robustness Toolbox's, which the paper used "
                   "(pip install \"gloronet[attack]\")")  # fmt: skip
    p.add_argument("--no-clip", dest="clip", action="store_false", help="let the attack leave [0, 1]")
    _placing(p)

    p = _verb(
        verbs,
        "lipschitz",
        _lipschitz,
        "Show a run's per-layer and margin bounds.",
        "gloronet lipschitz runs/digits --lower",
    )
    p.add_argument("run", type=Path, help="the run folder")
    p.add_argument(
        "--lower", action="store_true", help="search for lower bounds: what tighter constants could buy"
    )
    p.add_argument("--steps", type=_positive, default=500, help="Adam steps of each search (default: 500)")
    p.add_argument("--global-steps", type=_positive, metavar="STEPS",
                   help="of the search over all inputs (default: --steps; the paper: 7500)")  # fmt: skip
    p.add_argument("--local-steps", type=_positive, metavar="STEPS",
                   help="of the search within ε of test points (default: --steps; the paper: 5000)")  # fmt: skip
    _placing(p)

    p = _verb(verbs, "smooth", _smooth, "Certify a run by randomized smoothing: the stochastic baseline.",
              "gloronet smooth runs/smoothing-cifar10 --n 10000 --samples 500")  # fmt: skip
    p.add_argument("run", type=Path, help="the run folder")
    p.add_argument("--sigma", type=float, help="standard deviation of the noise (default: as it was trained with)")
    p.add_argument("--n0", type=_positive, default=100, help="noisy copies that choose the class (default: 100)")
    p.add_argument("--n", type=_positive, default=100_000,
                   help="noisy copies that bound its probability (default: 100000)")  # fmt: skip
    p.add_argument("--alpha", type=float, default=0.001,
                   help="chance that a certificate is wrong (default: 0.001)")  # fmt: skip
    p.add_argument("--samples", type=_positive, default=1000,
                   help="test samples, evenly spaced (default: 1000)")  # fmt: skip
    _placing(p)

    p = _verb(verbs, "export", _export, "Write a net as ONNX, its certificates inside.",
              "gloronet export runs/digits digits.onnx\n  gloronet export zoo:mnist-0.3 mnist.onnx")  # fmt: skip
    p.add_argument("run", type=Path, help="the run folder, or zoo:NAME")
    p.add_argument("out", type=Path, metavar="model.onnx", help="the file to write")
    p.add_argument("--epsilon", help="the default of the input epsilon, such as 36/255 (default: the run's own)")

    p = _verb(verbs, "serve", _serve, "Answer over HTTP, with a page to try the net: labels, radii, abstentions.",
              "gloronet serve runs/digits\n  gloronet serve zoo:mnist-0.3 --port 8080")  # fmt: skip
    p.add_argument("what", metavar="RUN", help="a run folder, zoo:NAME or a file of gloronet export")
    p.add_argument("--host", default="127.0.0.1",
                   help="the address to listen at (default: 127.0.0.1: this machine only)")  # fmt: skip
    p.add_argument("--port", type=_count, default=8000, help="the port (default: 8000; 0: any that is free)")
    _rooted(p)

    p = verbs.add_parser("data", help="List and fetch data sets.", description="List and fetch data sets.")
    parts = p.add_subparsers(required=True, metavar="list|fetch")
    q = _verb(parts, "list", _data_list, "List the data sets.", "gloronet data list")
    _rooted(q)
    q = _verb(parts, "fetch", _data_fetch, "Download a data set.", "gloronet data fetch mnist")
    q.add_argument("name", help="a name of gloronet data list")
    _rooted(q)

    p = _verb(verbs, "reproduce", _reproduce, "Run the paper's rows and put ours beside its figures.",
              "gloronet reproduce main --rows 'tuned/mnist-*'\n  gloronet reproduce cost --device cuda")  # fmt: skip
    p.add_argument("what", choices=("main", "relu", "cost", "lipschitz", "tightness-vs-iterations"),
                   help="which table")  # fmt: skip
    p.add_argument("--rows", nargs="+", default=[], metavar="ROW",
                   help="only these, such as tuned/cifar10 or 'minmax/*' (default: all of the table)")  # fmt: skip
    p.add_argument("--seeds", nargs="+", type=_count, metavar="SEED",
                   help="train with these seeds (default: 0 1 2 for our own settings, 0 for the paper's)")  # fmt: skip
    p.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE",
                   help="change a setting of every row: for a quick try, with --results of its own")  # fmt: skip
    p.add_argument("--results", type=Path, default=Path("results"), help="records and tables (default: results)")
    p.add_argument("--runs", type=Path, default=Path("runs"), help="run folders, reused or resumed (default: runs)")
    for name, default, about in (
        ("attacked", 1000, "test samples to attack, evenly spaced; 0: all"),
        ("steps", 100, "PGD steps a restart"),
        ("restarts", 10, "PGD restarts"),
        ("global-steps", 7500, "Adam steps of the global lower bound"),
        ("local-steps", 5000, "Adam steps of the local lower bound"),
        ("smoothed", 1000, "test samples for randomized smoothing"),
        ("noisy", 100_000, "noisy copies a sample there"),
        ("side-by-side", 1, "how many trainings share the device: recorded, as seconds are then no measure"),
    ):
        p.add_argument(f"--{name}", type=_count if default == 1000 else _positive, default=default, metavar="N",
                       help=f"{about} (default: {default})")  # fmt: skip
    _placing(p)

    about = "Trained nets that ship with the package."
    parts = verbs.add_parser("zoo", help=about, description=about).add_subparsers(required=True, metavar="list|check")
    _verb(parts, "list", _zoo_list, "List the trained nets.", "gloronet zoo list")
    about = "Certify a net's whole test set anew and check its proof."
    q = _verb(parts, "check", _zoo_check, about, "gloronet zoo check mnist-0.3")
    q.add_argument("name", help="a name of gloronet zoo list")
    _placing(q)
    return parser


def _verb(
    verbs: Any, name: str, run: Callable[..., Any], about: str, example: str
) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run_verb=run)
    return parser


def _placing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", help="cpu, cuda or cuda:1 (default: cuda where there is one)")
    _rooted(parser)


def _rooted(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", dest="root", type=Path, metavar="FOLDER",
                        help="where the data sets are (default: $GLORONET_DATA, else ~/.cache/gloronet)")  # fmt: skip


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _one_line(error: GloroError) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    raise SystemExit(main())
