"""The zoo: what ships with the package loads by name, says what it is, and its certificates hold."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

import gloronet as gn
from gloronet import cli, presets, zoo
from gloronet.config import read_toml
from gloronet.errors import ConfigError
from gloronet.proof import checker

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
NAMES = zoo.names()
MNIST = [name for name in NAMES if zoo.claims(name)["data"] == "mnist"]


def proof(name: str) -> dict:
    return json.loads((zoo.folder(name) / "proof.json").read_text())["content"]


def test_the_headline_rows_are_there_and_small() -> None:
    assert {"mnist-0.3", "mnist-1.58", "cifar10"} <= set(NAMES)
    files = [path for name in NAMES for path in zoo.folder(name).iterdir()]
    assert {path.name for path in files} == {"config.toml", "model.safetensors", "proof.json", "zoo.json"}
    assert sum(path.stat().st_size for path in files) <= 25e6


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_is_the_median_of_its_seeds_and_says_how_it_was_trained(name: str) -> None:
    claims, config = zoo.claims(name), read_toml(zoo.folder(name) / "config.toml")
    seeds = sorted(claims["seeds_vra"])
    assert claims["vra"]["real"] == pytest.approx(seeds[(len(seeds) - 1) // 2], abs=1e-9)
    assert len(seeds) >= 3
    assert claims["seed"] == config.train.seed
    assert claims["trained"]["commit"]
    assert claims["vra"]["float32"] <= claims["vra"]["real"] <= claims["clean"]
    assert config.model == presets.read(f"tuned/{name}").model
    assert config.epsilon == presets.read(f"tuned/{name}").epsilon


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_what_the_proof_says(name: str) -> None:
    claims, content = zoo.claims(name), proof(name)
    certificates, truths = content["certificates"], content["inputs"]["labels"]
    rows = zip(certificates["certified"], certificates["label"], truths, strict=True)
    right = [certified and label == truth for certified, label, truth in rows]
    assert sum(right) / len(right) == claims["vra"]["real"]
    assert sum(content["certificates"]["certified"]) == claims["certified_in_the_proof"]
    model = (zoo.folder(name) / "model.safetensors").read_bytes()
    assert content["model"]["sha256"] == hashlib.sha256(model).hexdigest()
    assert Path(content["inputs"]["file"]).name == Path(claims["inputs"]).name


@pytest.mark.parametrize("name", NAMES)
def test_a_net_loads_by_name(name: str) -> None:
    net, claims = gn.load(f"zoo:{name}"), zoo.claims(name)
    assert not net.training
    assert net.epsilon == gn.config.parse_epsilon(claims["epsilon"])
    assert net.logits(torch.rand(2, *net.input_shape)).shape == (2, net.classes)


@pytest.mark.parametrize("name", MNIST)
def test_certificates_come_out_again(name: str) -> None:
    """On a part of the real test set: the same labels, and radii equal but for the order of sums."""
    if not (SHARED / "mnist").is_dir():
        pytest.skip("the real MNIST files are not beside this checkout (../shared/data)")
    net, content = gn.load(f"zoo:{name}"), proof(name)
    data = gn.data.load("mnist", SHARED)
    c = net.certify(gn.data.to_unit(data.test_x[:200]))
    told = {key: torch.tensor(column[:200]) for key, column in content["certificates"].items() if key != "margin"}
    assert torch.equal(c.label, told["label"])
    assert torch.equal(c.certified, told["certified"])
    assert torch.allclose(c.radius, told["radius"].double(), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cifar10"])
def test_the_checker_agrees(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every bound re-derived by the file that imports nothing of ours; certificates too where the images are here."""
    folder, images = zoo.folder(name), SHARED / zoo.claims(name)["inputs"]
    files = [str(folder / "proof.json"), str(folder / "model.safetensors"), *([str(images)] if images.exists() else [])]
    assert checker.main(files, "gloronet check") == 0
    assert capsys.readouterr().out


def test_unknown_names_are_one_clear_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match=r"There is no net 'imagenet' in the zoo; there are cifar10, mnist-0\.3"):
        gn.load("zoo:imagenet")
    assert cli.main(["zoo", "check", "imagenet"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_list_names_every_net(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["zoo", "list"]) == 0
    shown = capsys.readouterr().out
    assert all(f"zoo:{name}" in shown for name in NAMES)


@pytest.mark.parametrize("verb", ["certify", "lipschitz"])
def test_a_verb_that_writes_into_its_run_leaves_the_zoo_alone(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "zoo:mnist-0.3"]) == 2
    assert "zoo:mnist-0.3 is not a run folder; see it by: gloronet zoo check mnist-0.3" in capsys.readouterr().err
