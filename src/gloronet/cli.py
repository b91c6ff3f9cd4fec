"""The command line: `gloronet VERB …` or `python -m gloronet VERB …`. The only place that sees argv.

A verb is parsed here, answered by the function of its name in `answers`, and the answer is told by a `voice`: as
text, or with --json as one JSON document.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gloronet import answers
from gloronet.errors import ElsewhereError, GloroError
from gloronet.voice import Document, Text


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one verb. 0: done; 1: a proof was rejected; 2: something the user can put right; 130: stopped by Ctrl-C."""
    given = sys.argv[1:] if argv is None else argv
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that cannot write ε still gets the answer
    try:
        return _answered(given, Document() if "--json" in given else Text())
    except BrokenPipeError:
        sys.stderr.close()
        return 0


def _answered(argv: Sequence[str], voice: Text) -> int:
    try:
        arguments = vars(_parser().parse_args(argv))
        del arguments["json"]  # which chose the voice before anything was parsed, as that may fail too
        with voice.at_work():
            return _run(voice, **arguments)
    except ElsewhereError:  # of several processes one speaks
        return 2
    except GloroError as e:
        voice.failure(_one_line(e))
        return 2
    except BrokenPipeError:
        raise
    except OSError as e:  # a full disk, a folder that cannot be read or written
        voice.failure(f"{e.filename or 'a file'}: {e.strerror or e}")
        return 2
    except KeyboardInterrupt as e:
        voice.failure(str(e) or "Stopped.", mark="\n")
        return 130


def _run(voice: Text, verb: str, **arguments: Any) -> int:
    found, accepted = getattr(answers, verb)(**arguments), True
    for answer in found if isinstance(found, Iterator) else (found,):  # `serve` answers, and then goes on
        if answer is not None:
            voice.answer(verb, answer)
            accepted = answer.get("accepted", True)
    return 0 if accepted else 1


class _Parser(argparse.ArgumentParser):
    """One clear line for a bad argument, instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        raise GloroError(f"{message}. See {self.prog} --help.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="gloronet", description="Classifiers that prove their own answers.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    p = _verb(verbs, "train", "Train a recipe, certify it, attack it and write its report.",
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
        "Certify a run's test set by bounds.",
        "gloronet certify runs/digits --epsilon 0.25\n  gloronet certify runs/digits --top 3 --affinity '3,5;4,9'",
    )
    p.add_argument("run", type=Path, help="the run folder")
    p.add_argument(
        "--epsilon", help="the radius to certify at, such as 0.3 or 36/255 (default: the run's own)"
    )
    p.add_argument(
        "--per-sample", action="store_true", help="tighter float32 error, for a second forward pass"
    )
    p.add_argument("--proof", action="store_true", help="write proof.json, for gloronet check")
    p.add_argument("--top", type=_positive, metavar="K",
                   help="certify sets instead: the K likeliest classes or fewer (certificates-topK.csv)")  # fmt: skip
    p.add_argument("--affinity", type=_sets, metavar="SETS",
                   help="… or sets within one of these, by name or index: 'cat,dog;3,5' (certificates-affinity.csv)"
                   )  # fmt: skip
    _placing(p)

    p = _verb(
        verbs,
        "check",
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

    about = "Draw a run's figures and report.html anew from its rows."
    p = _verb(verbs, "report", about, "gloronet report runs/digits")
    p.add_argument("run", type=Path, help="the run folder")

    p = _verb(verbs, "compare", "Put runs side by side: a table, what differs in their settings, their curves.",
              "gloronet compare runs/digits runs/digits-2 zoo:mnist-0.3 --out compare")  # fmt: skip
    p.add_argument("runs", nargs="+", metavar="RUN", help="a run folder or zoo:NAME")
    p.add_argument("--out", type=Path, default=Path("compare"), metavar="FOLDER",
                   help="where compare.html goes: new, empty or an earlier comparison (default: compare)")  # fmt: skip

    p = _verb(verbs, "smooth", "Certify a run by randomized smoothing: the stochastic baseline.",
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

    p = _verb(verbs, "export", "Write a net as ONNX, its certificates inside.",
              "gloronet export runs/digits digits.onnx\n  gloronet export zoo:mnist-0.3 mnist.onnx")  # fmt: skip
    p.add_argument("run", type=Path, help="the run folder, or zoo:NAME")
    p.add_argument("out", type=Path, metavar="model.onnx", help="the file to write")
    p.add_argument("--epsilon", help="the default of the input epsilon, such as 36/255 (default: the run's own)")

    p = _verb(verbs, "serve", "Answer over HTTP, with a page to try the net: labels, radii, abstentions.",
              "gloronet serve runs/digits\n  gloronet serve zoo:mnist-0.3 --port 8080")  # fmt: skip
    p.add_argument("what", metavar="RUN", help="a run folder, zoo:NAME or a file of gloronet export")
    p.add_argument("--host", default="127.0.0.1",
                   help="the address to listen at (default: 127.0.0.1: this machine only)")  # fmt: skip
    p.add_argument("--port", type=_count, default=8000, help="the port (default: 8000; 0: any that is free)")
    _rooted(p)

    p = verbs.add_parser("data", help="List and fetch data sets.", description="List and fetch data sets.")
    parts = p.add_subparsers(required=True, metavar="list|fetch")
    q = _verb(parts, "list", "List the data sets.", "gloronet data list")
    _rooted(q)
    q = _verb(parts, "fetch", "Download a data set.", "gloronet data fetch mnist")
    q.add_argument("name", help="a name of gloronet data list")
    _rooted(q)

    p = _verb(verbs, "reproduce", "Run the paper's rows and put ours beside its figures.",
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
    _verb(parts, "list", "List the trained nets.", "gloronet zoo list")
    about = "Certify a net's whole test set anew and check its proof."
    q = _verb(parts, "check", about, "gloronet zoo check mnist-0.3")
    q.add_argument("name", help="a name of gloronet zoo list")
    _placing(q)
    return parser


def _verb(verbs: Any, name: str, about: str, example: str) -> argparse.ArgumentParser:
    parser = verbs.add_parser(
        name,
        help=about,
        description=about,
        epilog=f"example:\n  {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="answer in one JSON document; all else goes to stderr")
    parser.set_defaults(verb="_".join(parser.prog.split()[1:]))
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


def _sets(text: str) -> list[list[str]]:
    sets = [[name.strip() for name in members.split(",")] for members in text.split(";")]
    if not all(name for members in sets for name in members):
        raise argparse.ArgumentTypeError(f"must be classes such as 3,5;4,9, not {text!r}")
    return sets


def _one_line(error: GloroError) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    raise SystemExit(main())
