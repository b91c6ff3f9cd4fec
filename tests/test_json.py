"""`--json` of every verb: one JSON document on stdout, whatever happens, and it says what the files say."""

from __future__ import annotations

import argparse
import doctest
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.data_files import write_mnist
from tests.serving import service

from gloronet import answers, cli, data, show, verbs, voice, zoo
from gloronet.data import download
from gloronet.errors import ElsewhereError, GloroError
from gloronet.reproduce import paper

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
DOCS = (Path(__file__).parent.parent / "docs" / "command-line.md").read_text(encoding="utf-8")


class Spoken(NamedTuple):
    code: int
    answer: dict[str, Any]
    out: str
    err: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two epochs, certified, with its proof."""
    there = tmp_path_factory.mktemp("json")
    run = verbs.train("digits", there / "run", changes=["train.epochs=2"], attacked=0, device="cpu")
    assert run is not None
    verbs.certify(run, proof=True)
    return run


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to do with as one likes, named from the folder it is in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLORONET_DATA", str(tmp_path / "data"))
    return Path(shutil.copytree(made, "run"))


@pytest.fixture
def speak(capsys: pytest.CaptureFixture[str]) -> Callable[..., Spoken]:
    def speak(*arguments: str) -> Spoken:
        capsys.readouterr()
        code = cli.main([*arguments, "--json"])
        said = capsys.readouterr()
        answer = strictly(said.out)
        return Spoken(code, answer, said.out, said.err)

    return speak


def strictly(text: str) -> dict[str, Any]:
    """The one document that the text is: JSON as its standard has it, which knows no NaN."""

    def never(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    document = json.loads(text, parse_constant=never)
    assert isinstance(document, dict)
    assert text.isascii()
    assert text.count("\n") == 1
    return document


def stored(path: str) -> dict[str, Any]:
    return json.loads(Path(path).read_text())


# What each verb is asked, and whether its answer is what is there. Those that need more stand below.


def of_run(answer: dict[str, Any]) -> bool:
    there = Path(answer["run"])
    return answer["summary"] == stored(f"{there}/summary.json") and Path(answer["report"]) == there / "report.html"


def of_bound(answer: dict[str, Any]) -> bool:
    file = stored("run/bound.json")
    off = [k for i, row in enumerate(file["margins"]) for j, k in enumerate(row) if i != j]
    about = (answer["least_margin"], answer["largest_margin"], len(answer["headroom"]))
    bounds = [layer["bound"] for layer in answer["layers"]]  # estimates begin at random, anew each time
    same = all(answer[key] == file[key] for key in file.keys() - {"sha256", "layers"})
    return same and bounds == [layer["bound"] for layer in file["layers"]] and about == (min(off), max(off), 4)


def of_proof(answer: dict[str, Any]) -> bool:
    told, summary = answer["certificates"], stored("run/summary.json")
    return answer["accepted"] and told["checked"] and (told["count"], told["vra"]) == (360, summary["vra"])


CASES: dict[str, tuple[str, Callable[[dict[str, Any]], bool]]] = {
    "train": ("train digits --out new --set train.epochs=1 --attack 0", of_run),
    "certify": ("certify run --epsilon 1/10", lambda a: of_run(a) and a["summary"]["epsilon_text"] == "1/10"),
    "attack": (
        "attack run --samples 5 --steps 2 --restarts 1",
        lambda a: of_run(a) and a["attack"].items() <= a["summary"].items() and a["attack"]["pgd_samples"] == 5,
    ),
    "report": ("report run", lambda a: of_run(a) and all(Path(file).is_file() for file in a["figures"])),
    "compare": ("compare run zoo:mnist-0.3", lambda a: [r["name"] for r in a["runs"]] == ["run", "zoo:mnist-0.3"]),
    "check": ("check run/proof.json run/model.safetensors run/inputs.npz", of_proof),
    "lipschitz": ("lipschitz run --lower --steps 2", of_bound),
    "smooth": (
        "smooth run --sigma 0.25 --n0 5 --n 20 --samples 3",
        lambda a: all(stored(a["file"])[key] == a[key] for key in a.keys() - {"run", "file"}) and a["stochastic"],
    ),
    "data_list": ("data list", lambda a: [row["name"] for row in a["sets"]] == [row.name for row in data.names()]),
    "data_fetch": ("data fetch mnist", lambda a: a == {"name": "mnist", "folder": str(download.data_root() / "mnist")}),
    "zoo_list": ("zoo list", lambda a: a["nets"][1] == {"name": "zoo:mnist-0.3", **zoo.claims("mnist-0.3")}),
    "reproduce": (
        "reproduce main --rows tuned/cifar10 --results new",
        lambda a: [t["title"] for t in a["tables"]] == [d.title for d in paper.DATA] and Path(a["page"]).is_file(),
    ),
    "export": ("export run net.onnx", lambda a: Path(a["file"]).stat().st_size == a["bytes"]),
}
ELSEWHERE = {"serve", "zoo_check"}


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """That of each verb."""
    parts = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not parts:
        yield parser
    for part in parts:
        for below in part.choices.values():
            yield from parsers(below)


LEAVES = {parser.get_default("verb"): parser.prog.split()[1:] for parser in parsers(cli._parser())}


def documented() -> dict[str, list[str]]:
    """The keys of each verb's answer, as the page of the command line has them."""
    rows = re.findall(r"^\| `([a-z ]+)` \|.*\| (.*) \|$", DOCS, flags=re.M)
    # After "or", the keys of another answer.
    return {verb.replace(" ", "_"): sorted(re.findall(r"`(\w+)`", keys.partition("; or")[0])) for verb, keys in rows}


def test_the_page_of_the_command_line_has_every_verb_and_commands_that_parse() -> None:
    assert set(documented()) == set(LEAVES)
    commands = re.findall(r"^gloronet .*$", DOCS, flags=re.M)
    assert len(commands) >= 4
    for command in commands:
        cli._parser().parse_args(shlex.split(command)[1:])


def test_every_verb_is_here_and_has_an_answer_and_a_text() -> None:
    assert set(LEAVES) == {*CASES, *ELSEWHERE}
    for verb in LEAVES:
        assert callable(getattr(answers, verb))
        assert callable(getattr(show, verb))


@pytest.mark.parametrize("verb", LEAVES)
def test_every_verb_has_help_with_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([*LEAVES[verb], "--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    examples = re.findall(r"^  (gloronet .*)$", shown.partition("example:\n")[2], flags=re.M)
    assert examples
    for example in examples:
        assert cli._parser().parse_args(shlex.split(example)[1:]).verb == verb


@pytest.mark.parametrize("verb", CASES)
def test_the_answer_is_one_document_that_says_what_is_there(
    verb: str, run: Path, speak: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb == "export":
        pytest.importorskip("onnx")
    if verb == "data_fetch":  # what is there already is not downloaded
        folder = download.data_root() / "mnist"
        files = {name: f"bytes:{(folder / name).stat().st_size}" for name in write_mnist(folder)}
        monkeypatch.setitem(download.REMOTES, "mnist", replace(download.REMOTES["mnist"], files=files))
    command, right = CASES[verb]
    said = speak(*command.split())
    assert said.code == 0, said.err
    assert right(said.answer)
    assert documented()[verb] == sorted(said.answer)


def test_relaxed_certificates_answer_with_keys_of_their_own(run: Path, speak: Callable[..., Spoken]) -> None:
    before = (run / "certificates.csv").read_bytes()
    answer = speak(*["certify", "run", "--top", "2", "--affinity", "3,5;4,9"]).answer
    (row,) = re.findall(r"^\| `certify` .*; or .*?affinity` (.*) \|$", DOCS, flags=re.M)
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(answer)
    assert answer["plain"]["real"] == stored("run/summary.json")["vra"]
    for found in answer["relaxed"]:
        assert Path(found["file"]).read_text().count("\n") == 361
        assert found["vra"]["real"] >= answer["plain"]["real"]
        assert 1 <= found["mean_size"] <= 2
    assert (run / "certificates.csv").read_bytes() == before


@pytest.mark.parametrize("verb", LEAVES)
def test_a_failure_is_an_error_in_json_and_a_line_on_stderr(
    verb: str, run: Path, speak: Callable[..., Spoken]
) -> None:
    said = speak(*LEAVES[verb], "--nonsense")
    assert said.code == 2
    assert list(said.answer) == ["error"]
    assert said.err == f"gloronet: {said.answer['error']}\n"
    assert "--help" in said.err


FAILING = {
    "no such run": ("certify nowhere", "nowhere holds no model.safetensors"),
    "no certificates": ("attack nowhere", "nowhere has no certificates yet"),
    "no verb at all": ("", "required"),
    "a folder that is a file": ("train --out run/bound.json/x --set train.epochs=1", "run/bound.json"),
    "not fetched": ("zoo check cifar10", "gloronet data fetch cifar10"),
    "a report of the zoo": ("report zoo:cifar10", "gloronet zoo check cifar10"),
    "served from nowhere": ("serve nowhere --port 0", "not a run folder"),
    "a torn summary": ("certify torn", "torn/summary.json is damaged"),
    "a summary of another kind": ("attack list", "list/summary.json is damaged"),
}


@pytest.mark.parametrize("case", FAILING)
def test_what_the_user_can_put_right(case: str, run: Path, speak: Callable[..., Spoken]) -> None:
    for name, content in (("torn", b"\xff{"), ("list", b"[1]")):
        shutil.copytree(run, name)
        (Path(name) / "summary.json").write_bytes(content)
    command, words = FAILING[case]
    said = speak(*command.split())
    assert said.code == 2
    assert words in said.answer["error"]
    assert said.err.count("\n") == 1


def test_a_rejected_proof_is_an_answer_and_exit_code_1(run: Path, speak: Callable[..., Spoken]) -> None:
    weights = bytearray((run / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (run / "model.safetensors").write_bytes(weights)
    said = speak("check", "run/proof.json", "run/model.safetensors", "run/inputs.npz")
    assert said.code == 1
    assert said.answer == {"accepted": False, "reason": "the model file does not have the SHA-256 the proof states"}
    assert "REJECTED" in said.err


def test_certificates_that_were_not_checked_are_not_said_to_be(run: Path, speak: Callable[..., Spoken]) -> None:
    told = speak("check", "run/proof.json", "run/model.safetensors").answer["certificates"]
    assert told["checked"] is False


def test_a_net_of_the_zoo_is_certified_anew(
    run: Path, speak: Callable[..., Spoken], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (SHARED / "mnist").is_dir():
        pytest.skip("the real MNIST files are not beside this checkout (../shared/data)")
    said = speak("zoo", "check", "mnist-0.3", "--data", str(SHARED))
    assert said.code == 0, said.err
    assert said.answer["found"] == said.answer["claimed"] == zoo.claims("mnist-0.3")["vra"]
    assert said.answer["accepted"]
    assert said.answer["certificates"]["vra"] == said.answer["found"]["real"]
    assert sorted(said.answer) == sorted({"name", "claimed", "found", *documented()["check"]})


def test_a_service_answers_when_it_listens(made: Path) -> None:
    pytest.importorskip("uvicorn")
    with service(made, "--json") as running:
        assert running.said["url"] == running.url
        assert running.said["input_shape"] == [1, 8, 8]
        assert documented()["serve"] == sorted(running.said)
        running.process.terminate()
        assert running.process.wait(30) in (0, -15)
        assert running.process.stdout is not None
        assert "{" not in running.process.stdout.read()


# The voice itself


def test_what_a_verb_prints_goes_to_stderr(
    monkeypatch: pytest.MonkeyPatch, speak: Callable[..., Spoken]
) -> None:
    def chatty(root: Path | None) -> dict[str, Any]:
        print("a library has something to say")
        return {"sets": []}

    monkeypatch.setattr(answers, "data_list", chatty)
    said = speak("data", "list")
    assert said.answer == {"sets": []}
    assert said.err == "a library has something to say\n"


@pytest.mark.parametrize("stop", [KeyboardInterrupt("Stopped."), GloroError("Too late."), OSError(28, "full")])
def test_there_is_never_a_second_document(
    stop: BaseException, monkeypatch: pytest.MonkeyPatch, speak: Callable[..., Spoken]
) -> None:
    def answers_and_fails(**_: Any) -> Iterator[dict[str, Any]]:
        yield {"url": "here"}
        raise stop

    monkeypatch.setattr(answers, "serve", answers_and_fails)
    said = speak("serve", "run")
    assert said.answer == {"url": "here"}
    assert said.code == (130 if isinstance(stop, KeyboardInterrupt) else 2)
    assert said.err.strip()


def test_ctrl_c_is_an_error_too(monkeypatch: pytest.MonkeyPatch, speak: Callable[..., Spoken]) -> None:
    def stopped(**_: Any) -> dict[str, Any]:
        raise KeyboardInterrupt("Stopped; go on with: gloronet train --resume r")

    monkeypatch.setattr(answers, "train", stopped)
    said = speak("train")
    assert (said.code, said.answer) == (130, {"error": "Stopped; go on with: gloronet train --resume r"})


def test_of_several_processes_one_speaks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for found, code in ((None, 0), (ElsewhereError(), 2)):

        def train(found: Any = found, **_: Any) -> None:
            if found is not None:
                raise found

        monkeypatch.setattr(answers, "train", train)
        assert cli.main(["train", "--json"]) == code
        assert capsys.readouterr() == ("", "")


def test_everything_a_verb_can_answer_with_has_a_word_in_json() -> None:
    answer = {
        "infinite": math.inf,
        "least": np.float64(-math.inf),
        "none": math.nan,
        "torch": torch.tensor([[1.5, math.inf]]),
        "count": np.int64(3),
        "yes": np.True_,
        "path": Path("a/ü"),
        "row": data.names()[0],
        "told": Spoken(1, {}, "", ""),
        "name": "\udcff\n",
        7: (),
    }
    found = strictly(voice.as_json(answer) + "\n")
    assert (found["infinite"], found["least"], found["none"]) == ("inf", "-inf", None)
    assert found["torch"] == [[1.5, "inf"]]
    assert (found["count"], found["yes"], found["path"], found["name"], found["7"]) == (3, True, "a/ü", "\udcff\n", [])
    assert found["row"]["name"] == "digits"
    assert found["told"] == {"code": 1, "answer": {}, "out": "", "err": ""}
    assert math.isinf(float(found["infinite"]))


def test_doctests() -> None:
    found = doctest.testmod(voice)
    assert found.attempted > 0
    assert found.failed == 0
