"""Proofs: what is written is accepted by the checker on its own; nothing false, damaged or strange is."""

from __future__ import annotations

import ast
import contextlib
import copy
import dataclasses
import io
import json
import math
import struct
import subprocess
import sys
import time
import zipfile
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations

import gloronet as gn
from gloronet import data, models
from gloronet.errors import ConfigError, GloroError
from gloronet.layers import GroupSort, Householder, MinMax, Residual, Standardize
from gloronet.operators.symbols import symbol_bound
from gloronet.proof import checker, write

SHARED = Path(__file__).parents[2] / "shared" / "data"
quick = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# Networks of every rule


class Branches(nn.Module):
    """Sum, concatenation, permutation, pixel-unshuffle and a branch that is the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(4, 3, 1), nn.Linear(160, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.pixel_unshuffle(x, 2)
        y = self.a(x).relu() + self.b(x).abs()
        return self.head(torch.cat([y, -y, x], 1).permute(0, 2, 3, 1).flatten(1))


def image(*layers: nn.Module, size: tuple[int, ...] = (2, 6, 6)) -> tuple[nn.Module, tuple[int, ...]]:
    body = nn.Sequential(*layers, nn.Flatten()).eval()
    return nn.Sequential(body, nn.Linear(body(torch.zeros(1, *size)).shape[1], 3)), size


def vector(*layers: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(nn.Linear(5, 8), *layers, nn.Linear(8, 3)), (5,)


def circle(*arguments: Any, **options: Any) -> nn.Module:
    return nn.Conv2d(*arguments, padding_mode="circular", **options)


Conv = nn.Conv2d
NETS = {
    "one layer": lambda: (nn.Linear(5, 3), (5,)),
    "dense": lambda: vector(nn.ReLU(), nn.Linear(8, 8, bias=False), MinMax()),
    "double": lambda: (vector(nn.ReLU())[0].double(), (5,)),
    "conv": lambda: image(Conv(2, 4, 3, padding=1), MinMax(), nn.ZeroPad2d(1), nn.ReLU()),
    "stride": lambda: image(Conv(2, 4, 4, stride=2, padding=1), nn.ReLU(), Conv(4, 3, 2), nn.ReLU()),
    "asymmetric": lambda: image(nn.ZeroPad2d((1, 2, 0, 1)), Conv(2, 4, 3, stride=(2, 1)), nn.ReLU()),
    "dilation": lambda: image(Conv(2, 4, 2, padding=2, dilation=(1, 2)), nn.ReLU()),
    "groups": lambda: image(Conv(2, 4, 3, groups=2), nn.ReLU(), Conv(4, 4, 3, groups=4), nn.ReLU()),
    "circular": lambda: image(circle(2, 3, 3, padding=1), nn.ReLU(), circle(3, 3, 3, padding=2, stride=2)),
    "odd circle": lambda: image(circle(2, 3, 4, padding=2, stride=4), nn.ReLU(), size=(2, 7, 5)),
    "circular pad": lambda: image(nn.CircularPad2d((1, 1, 0, 2)), nn.ReLU()),
    "conv1d": lambda: image(nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.ReLU(),
                            nn.Conv1d(4, 4, 3, padding=1, groups=2), size=(2, 9)),
    "residual": lambda: image(Residual(Conv(2, 2, 3, padding=1)), nn.ReLU(),
                              Residual(Conv(2, 2, 3, padding=2, dilation=2, groups=2))),
    "residual circle": lambda: image(Residual(circle(2, 2, 3, padding=1)), nn.ReLU()),
    "residual dense": lambda: vector(Residual(nn.Linear(8, 8)), nn.ReLU()),
    "pooling": lambda: image(Conv(2, 4, 3), nn.AvgPool2d(3, 1, 1), nn.ReLU(), nn.AvgPool2d(2),
                             nn.MaxPool2d(2)),
    "overlap": lambda: image(Conv(2, 4, 3), nn.MaxPool2d(3, 1, 1), nn.AdaptiveAvgPool2d(1)),
    "batchnorm": lambda: image(Conv(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Conv(4, 2, 1),
                               nn.BatchNorm2d(2, affine=False)),
    "batchnorm dense": lambda: vector(nn.BatchNorm1d(8), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU()),
    "standardize": lambda: image(Standardize([0.1, 0.2], [0.5, 2.0]), Conv(2, 4, 3), nn.ReLU()),
    "chain": lambda: image(Conv(2, 3, 3, padding=1), Conv(3, 3, 3), nn.AvgPool2d(2), nn.ReLU()),
    "leakyrelu": lambda: vector(nn.LeakyReLU(0.1), nn.LeakyReLU(-2.0)),
    "groupsort": lambda: vector(GroupSort(4)),
    "householder": lambda: vector(Householder(8)),
    "sigmoid": lambda: vector(nn.Sigmoid()),
    "tanh": lambda: vector(nn.Tanh()),
    "elu": lambda: vector(nn.ELU(1.5)),
    "softplus": lambda: vector(nn.Softplus(2.0)),
    "gelu": lambda: vector(nn.GELU(), nn.GELU("tanh")),
    "branches": lambda: (Branches(), (1, 8, 8)),
    "parametrised": lambda: vector(parametrizations.orthogonal(nn.Linear(8, 8)), nn.ReLU()),
}  # fmt: skip


@cache
def make(name: str, norm: str = "l2", form: str = "margin") -> gn.GloRoNet:
    torch.manual_seed(0)
    module, size = NETS[name]()
    with torch.no_grad():
        for t in module.buffers():
            if t.is_floating_point():
                t += 0.5 * torch.rand_like(t)  # a BatchNorm that has seen something
    return gn.GloRoNet(module.eval(), "0.01", size, form=form, norm=norm).eval()


def samples(net: gn.GloRoNet, n: int = 40) -> torch.Tensor:
    x = torch.randn(n, *net.input_shape, generator=torch.Generator().manual_seed(1))
    return x.to(next(net.parameters()).dtype)


def written(net: gn.GloRoNet, folder: Path, n: int = 40, **options: Any) -> Any:
    folder.mkdir(exist_ok=True)
    gn.save(net, folder)
    return write(net, samples(net, n), None, folder, "1/100", **options)


def run(*arguments: Any) -> tuple[int, str]:
    """The checker's exit code and what it printed; an exception would be a failure."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = checker.main([str(a) for a in arguments])
    return code, out.getvalue()


# What is written is accepted


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", NETS)
def test_every_rule_makes_a_proof_that_holds(name: str, norm: str, tmp_path: Path) -> None:
    net = make(name, norm)
    for semantics in ("real", "float32"):
        if semantics == "float32" and (name == "double" or not net.speaks_of(semantics)):
            continue
        proof = written(net, tmp_path, semantics=semantics)
        code, output = run(proof.proof, proof.model, proof.inputs)
        assert code == 0, output
        ours = net.certify(samples(net), "1/100", semantics)
        content = json.loads(proof.proof.read_text())["content"]
        radii = np.array([math.inf if r == "inf" else r for r in content["certificates"]["radius"]])
        assert (radii <= ours.radius.numpy()).all()
        np.testing.assert_allclose(radii, ours.radius.numpy(), rtol=1e-6, atol=1e-6)
        assert content["certificates"]["label"] == ours.label.tolist()
        assert np.mean(content["certificates"]["certified"] == ours.certified.numpy()) > 0.95


@pytest.mark.parametrize("form", ["simple", "lmt"])
def test_every_form_of_margins(form: str, tmp_path: Path) -> None:
    proof = written(make("conv", form=form), tmp_path)
    assert run(proof.proof, proof.model, proof.inputs)[0] == 0


def test_the_real_thing_runs_alone(tmp_path: Path) -> None:
    """A digits run; the checker as a process in which neither gloronet nor torch can be imported."""
    dataset = data.load("digits")
    torch.manual_seed(0)
    net = gn.GloRoNet(models.build("2C2F", dataset.input_shape, 10, "minmax", "orthogonal"), "0.3", (1, 8, 8))
    gn.fit(net, dataset, gn.TrainConfig(epochs=2, batch_size=64), progress=None)
    gn.save(net.eval(), tmp_path)
    proof = write(net, dataset.test_x, dataset.test_y, tmp_path, "1/50", "float32")
    assert proof.certified > 100
    alone = tmp_path / "elsewhere" / "checker.py"
    alone.parent.mkdir()
    alone.write_bytes(Path(checker.__file__).read_bytes())
    done = by_itself(alone, proof.proof, proof.model, proof.inputs)
    assert done.returncode == 0, done.stdout + done.stderr
    table = net.certify(data.to_unit(dataset.test_x), "1/50", "float32")
    right = float((table.certified & (table.label == dataset.test_y)).float().mean())
    assert f"VRA {100 * right:.2f} %" in done.stdout
    assert by_itself(alone).returncode == 2
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(proof.proof.read_bytes().replace(b"true", b"tru", 1))
    refused = by_itself(alone, damaged, proof.model, proof.inputs)
    assert (refused.returncode, refused.stderr) == (1, "")
    assert refused.stdout.startswith("REJECTED: the proof is not valid JSON")


def test_a_terminal_without_unicode_gets_the_answer(small: Any) -> None:
    command = [sys.executable, checker.__file__, small.proof, small.model, small.inputs]
    done = subprocess.run(command, capture_output=True, env={"PYTHONIOENCODING": "ascii"}, check=False)
    assert done.returncode == 0, done.stdout
    assert done.stdout.decode("ascii").count("OK: 40 certificates hold") == 1


def by_itself(script: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """`python -I script …` with an import system that has never heard of us."""
    code = (
        "import runpy, sys\n"
        "class Never:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('gloronet', 'torch', 'safetensors', 'scipy'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Never())\n"
        "sys.argv = sys.argv[1:]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    command = [sys.executable, "-I", "-W", "error", "-c", code, str(script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_the_checker_imports_numpy_and_the_standard_library_only() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    names |= {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert {name.split(".")[0] for name in names} <= {*sys.stdlib_module_names, "numpy"}


def test_mnist_with_ten_thousand_certificates(tmp_path: Path) -> None:
    if not (SHARED / "unpack.py").exists():
        pytest.skip("the real MNIST is not here")
    root = tmp_path / "data"
    subprocess.run([sys.executable, SHARED / "unpack.py", root, "mnist"], check=True, capture_output=True)
    dataset = data.load("mnist", root)
    part = dataclasses.replace(dataset, train_x=dataset.train_x[:2000], train_y=dataset.train_y[:2000])
    torch.manual_seed(0)
    net = gn.GloRoNet(models.build("2C2F", (1, 28, 28), 10, "minmax", "orthogonal"), "0.3", (1, 28, 28))
    gn.fit(net, part, gn.TrainConfig(epochs=1, batch_size=64), progress=None)
    run_folder = tmp_path / "run"
    run_folder.mkdir()
    gn.save(net.eval(), run_folder)
    official = root / "mnist" / "t10k-images-idx3-ubyte.gz"
    proof = write(net, dataset.test_x, dataset.test_y, run_folder, "1/10", inputs=official)
    assert proof.inputs == official
    assert 1000 < proof.certified < 10_000
    began = time.perf_counter()
    done = by_itself(Path(checker.__file__), proof.proof, proof.model, official)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK: 10000 certificates hold" in done.stdout
    assert time.perf_counter() - began < 60


def test_inputs_may_be_an_official_cifar_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = gn.GloRoNet(nn.Sequential(nn.Flatten(), nn.Linear(3072, 4)), "0.01", (3, 32, 32)).eval()
    rows = np.random.default_rng(0).integers(0, 256, (7, 3073), np.uint8)
    official = tmp_path / "test_batch.bin"
    official.write_bytes(rows.tobytes())
    x = torch.from_numpy(rows[:, 1:].reshape(7, 3, 32, 32).copy())
    proof = write(net, x, None, tmp_path, inputs=official)
    assert proof.model.name == "program.safetensors"  # the folder holds no model
    assert run(proof.proof, proof.model, official)[0] == 0
    with pytest.raises(ConfigError, match="does not hold the inputs"):
        write(net, x.flip(0), None, tmp_path, inputs=official)
    with pytest.raises(ConfigError, match="cannot stand for"):
        write(net, x[:5], None, tmp_path, inputs=official)
    with pytest.raises(ConfigError, match="no file"):
        write(net, x, None, tmp_path, inputs=tmp_path / "nowhere.bin")


def test_without_inputs_it_says_what_it_did_not_check(tmp_path: Path) -> None:
    proof = written(make("conv"), tmp_path)
    code, output = run(proof.proof, proof.model)
    assert code == 0
    assert "NOT CHECKED, because no inputs were given: the labels, margins and radii of 40" in output


def test_a_users_word_is_an_assumption(tmp_path: Path) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x)

    gn.rule(Odd)(lambda module, input_shape, norm: 1.0)
    net = gn.GloRoNet(nn.Sequential(nn.Linear(5, 8), Odd(), nn.Linear(8, 3)), "0.01", (5,)).eval()
    proof = written(net, tmp_path)
    files = (proof.proof, proof.model, proof.inputs)
    code, output = run(*files)
    assert code == 1
    assert "rest on a user's word" in output
    code, output = run("--trust-user-rules", *files)
    assert code == 0
    assert "ASSUMED: operation 1 (user rule at 1)" in output
    assert "NOT CHECKED, because a user rule cannot be evaluated" in output


def test_what_has_no_finite_bound_gets_no_proof(tmp_path: Path) -> None:
    net = gn.GloRoNet(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "0.1", (2,)).eval()
    with torch.no_grad():
        net.module[0].weight.fill_(3e38)
        net.module[0].weight[0, 0] = math.inf
    with pytest.raises(GloroError):
        write(net, torch.rand(3, 2), None, tmp_path)


def test_equal_rows_give_an_infinite_radius_and_ties_none(tmp_path: Path) -> None:
    layer = nn.Linear(2, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
        layer.bias.copy_(torch.tensor([0.5, 0.0]))
    proof = written(gn.GloRoNet(layer, "0.1", (2,)).eval(), tmp_path / "lead")
    assert '"inf"' in proof.proof.read_text()
    assert run(proof.proof, proof.model, proof.inputs)[0] == 0
    with torch.no_grad():
        layer.bias.zero_()
    proof = written(gn.GloRoNet(layer, "0.1", (2,)).eval(), tmp_path / "tie")
    assert proof.certified == 0
    assert run(proof.proof, proof.model, proof.inputs)[0] == 0


@pytest.mark.parametrize("weights", [1e-42, 1e-30, 1e-12, 1.0, 1e12, 1e18])
@pytest.mark.parametrize("inputs", [1e-30, 1.0, 1e15])
def test_numbers_at_the_ends_of_float32(weights: float, inputs: float, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, size = image(Conv(2, 4, 3), nn.ReLU())
    with torch.no_grad():
        module[0][0].weight *= weights
        module[0][0].bias *= 1e6
    net = gn.GloRoNet(module, "0", size).eval()
    gn.save(net, tmp_path)
    for semantics in ("real", "float32"):
        proof = write(net, samples(net, 5) * inputs, None, tmp_path, "0", semantics)
        code, output = run(proof.proof, proof.model, proof.inputs)
        assert code == 0, output


def test_numbers_at_the_ends_of_float64(tmp_path: Path) -> None:
    for k, (weights, inputs) in enumerate([(1e-200, 1.0), (1e-200, 1e150), (1e200, 1.0), (1e200, 1e150)]):
        torch.manual_seed(0)
        module, size = image(Conv(2, 4, 3), nn.ReLU())
        module = module.double()
        with torch.no_grad():
            module[0][0].weight *= weights
            module[1].weight *= min(weights, 1.0)
        net = gn.GloRoNet(module, "0", size).eval()
        proof = write(net, samples(net, 5) * inputs, None, tmp_path, "0")
        code, output = run(proof.proof, proof.model, proof.inputs)
        assert code == 0, output
        assert (proof.certified == 0) == (k == 3)  # there the evaluation overflows: nothing is claimed


# Damage is found


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A proof about strides, padding, a chain, a residual block; some answers certified, some not."""
    net = make("chain")
    folder = tmp_path_factory.mktemp("small")
    gn.save(net, folder)
    epsilon = f"{net.certify(samples(net)).radius.median():.4f}"
    proof = write(net, samples(net), torch.zeros(40, dtype=torch.long), folder, epsilon)
    assert 10 < proof.certified < 30
    assert run(proof.proof, proof.model, proof.inputs)[0] == 0
    return proof


@quick
@given(data=st.data())
def test_any_changed_bit_of_any_file_is_found(small: Any, tmp_path: Path, data: Any) -> None:
    files = [small.proof, small.model, small.inputs]
    k = data.draw(st.integers(0, 2))
    content = bytearray(files[k].read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    files[k] = tmp_path / "changed"
    files[k].write_bytes(content)
    code, output = run(*files)
    assert code == 1
    assert output.splitlines()[-1].startswith("REJECTED: ")
    assert "could not be checked" not in output


@quick
@given(data=st.data())
def test_truncated_and_longer_files_are_found(small: Any, tmp_path: Path, data: Any) -> None:
    files = [small.proof, small.model, small.inputs]
    k = data.draw(st.integers(0, 2))
    content = files[k].read_bytes()
    longer = data.draw(st.booleans())
    content = content + b"\n" if longer else content[: data.draw(st.integers(0, len(content) - 1))]
    files[k] = tmp_path / "changed"
    files[k].write_bytes(content)
    code, output = run(*files)
    assert code == 1
    assert "could not be checked" not in output


def test_missing_files_and_bad_usage(small: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "no.json", small.model)[0] == 1
    assert run(tmp_path, small.model)[0] == 1
    assert run(small.proof, small.inputs, small.inputs)[0] == 1
    assert checker.main([]) == 2
    assert checker.main(["--nonsense"]) == 2
    assert checker.main(["--help"]) == 0
    capsys.readouterr()


# Lies are found, whoever computes the digest


def forged(proof: Any, folder: Path, change: Any, **files: Path) -> tuple[int, str]:
    """The checker's answer to the proof with its content changed and digested anew."""
    content = json.loads(proof.proof.read_text())["content"]
    change(content)
    path = folder / "forged.json"
    path.write_bytes(digested(content))
    return run(path, files.get("model", proof.model), files.get("inputs", proof.inputs))


def digested(content: Any) -> bytes:
    document = {"content": content, "sha256": checker.sha256(checker.canonical(content))}
    return checker.canonical(document) + b"\n"


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("name", NETS)
def test_no_bound_too_small_by_a_millionth(name: str, norm: str, tmp_path: Path) -> None:
    net = make(name, norm)
    proof = written(net, tmp_path, 2)
    content = json.loads(proof.proof.read_text())["content"]
    places = [("operations", k) for k in range(len(content["bounds"]["operations"]))]
    places += [("chains", k) for k in range(len(content["bounds"]["chains"]))]
    for part, k in places:

        def shrink(content: Any, part: str = part, k: int = k) -> None:
            content["bounds"][part][k]["value"] *= 1 - 1e-6

        code, output = forged(proof, tmp_path, shrink)
        if code == 0:  # then it was not too small: a looser method had made it
            assert "symbols" in content["bounds"][part][k]["method"] or part == "chains"
        else:
            assert "the claimed bound" in output
    for i, j in ((0, 1), (2, 0)):

        def narrow(content: Any, i: int = i, j: int = j) -> None:
            content["bounds"]["margins"][i][j] *= 1 - 1e-6

        code, output = forged(proof, tmp_path, narrow)
        assert code == 1
        assert f"margin ({i}, {j})" in output


def exactly(rows: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=bias is not None, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows, dtype=torch.float64))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float64))
    return layer


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


@pytest.mark.parametrize("way", ["joint", "folded"])
def test_a_chain_whose_product_rounds_to_zero_is_no_zero(way: str, tmp_path: Path) -> None:
    """(1 + t)² − (1 + 2t) = t² is 0 in float64, and so is 1e-200·1e-200; what comes after makes them large."""
    t = 2.0**-30
    links = {
        "joint": [exactly([[1 + t], [1.0]]), exactly([[1 + t, -(1 + 2 * t)]])],
        "folded": [Times(1e-200), exactly([[1e-200]])],
    }[way]
    # A rectifier keeps what follows out of the chain.
    module = nn.Sequential(*links, nn.ReLU(), exactly([[2.0**70]]), exactly([[0.0], [1.0]], [1e6, 0.0]))
    net = gn.GloRoNet(module, "1e-12", (1,)).eval()
    proof = write(net, torch.zeros(1, 1, dtype=torch.float64), None, tmp_path)
    assert run(proof.proof, proof.model, proof.inputs)[0] == 0

    def nothing(content: Any) -> None:
        bounds, table = content["bounds"], content["certificates"]
        bounds["chains"] = [{"first": 0, "last": 1, "method": way, "value": 0.0}]
        bounds["margins"] = [[0.0, 0.0], [0.0, 0.0]]
        table["margin"], table["radius"] = [1e6 * (1 - 1e-9)], ["inf"]
        content["error"]["float64"] = {"constant": [[1e-6] * 2] * 2, "slope": [[1e7] * 2] * 2}

    code, output = forged(proof, tmp_path, nothing)
    assert code == 1
    assert "below what rounding may hide" in output


def lies() -> dict[str, Any]:
    """Changes of the content of `small`, each of them a false claim or another function."""

    def first(content: Any, certified: bool) -> int:
        return content["certificates"]["certified"].index(certified)

    def certify(content: Any) -> None:
        table, k = content["certificates"], first(content, False)
        table["certified"][k], table["radius"][k] = True, 2 * content["epsilon"]["value"]
        table["margin"][k] = max(table["margin"][k], 1e-3)

    def verdict(content: Any, old: bool) -> None:
        content["certificates"]["certified"][first(content, old)] = not old

    def label(content: Any) -> None:
        k = first(content, True)
        content["certificates"]["label"][k] = (content["certificates"]["label"][k] + 1) % 3

    def radius(content: Any) -> None:
        content["certificates"]["radius"][first(content, True)] *= 1 + 1e-6

    def endless(content: Any) -> None:
        content["certificates"]["radius"][first(content, True)] = "inf"

    def margin(content: Any) -> None:
        content["certificates"]["margin"][first(content, True)] *= 1 + 1e-6

    def reorder(content: Any) -> None:
        for column in content["certificates"].values():
            column.append(column.pop(0))

    def smaller_epsilon(content: Any) -> None:
        value = content["epsilon"]["value"] * (1 - 1e-9)
        content["epsilon"]["value"] = value
        table = content["certificates"]
        table["certified"] = [r > value for r in table["radius"]]

    def larger_text(content: Any) -> None:
        content["epsilon"]["text"] += "0001"

    def forget_rounding(content: Any) -> None:
        content["error"]["float64"]["constant"] = [[0.0] * 3] * 3

    def operation(k: int, **changes: Any) -> Any:
        def change(content: Any) -> None:
            entry = content["program"]["operations"][k]
            entry["attributes"] |= changes

        return change

    def drop_relu(content: Any) -> None:
        ops = content["program"]["operations"]
        (k,) = (k for k, op in enumerate(ops) if op["rule"] == "relu")
        gone = ops.pop(k)
        content["bounds"]["operations"].pop(k)
        for op in ops:
            op["inputs"] = [gone["inputs"][0] if name == gone["output"] else name for name in op["inputs"]]

    def drop_layer(content: Any) -> None:
        content["program"]["operations"].pop(1)
        content["bounds"]["operations"].pop(1)
        content["bounds"]["chains"] = []

    def swap_biases(content: Any) -> None:
        ops = content["program"]["operations"]
        a, b = ops[0]["tensors"], ops[1]["tensors"]
        a["bias"], b["bias"] = b["bias"], a["bias"]

    def no_bias(content: Any) -> None:
        name = content["program"]["operations"][-1]["tensors"].pop("bias")
        del content["program"]["tensors"][name]

    def longer_chain(content: Any) -> None:
        content["bounds"]["chains"][0]["last"] += 1

    def put(*path: Any) -> Any:
        *where, value = path

        def change(content: Any) -> None:
            for key in where[:-1]:
                content = content[key]
            content[where[-1]] = value

        return change

    return {
        "an answer certified that is not": certify,
        "a verdict without its radius": lambda c: verdict(c, False),
        "a verdict that hides one": lambda c: verdict(c, True),
        "a wrong label": label,
        "a radius too large": radius,
        "an endless radius": endless,
        "a margin too large": margin,
        "samples in another order": reorder,
        "ε below its text": smaller_epsilon,
        "a text above ε": larger_text,
        "no rounding error": forget_rounding,
        "another padding": operation(0, padding=[0, 2, 1, 1]),
        "another stride": operation(0, stride=[1, 2]),
        "x + Wx": operation(1, skip=True),
        "a padding that wraps": operation(0, circular=True),
        "pooling with overlap": operation(2, stride=[1, 1]),
        "a dropped ReLU": drop_relu,
        "a dropped layer": drop_layer,
        "swapped biases": swap_biases,
        "a bias left out": no_bias,
        "a chain through a nonlinearity": longer_chain,
        "another norm": put("norm", "linf"),
        "another form": put("form", "simple"),
        "another arithmetic": put("semantics", "float32"),
        "an unknown rule": put("program", "operations", 3, "rule", "sin"),
        "another input's meaning": put("inputs", "meaning", "as stored!"),
        "another format": put("format", "gloronet proof 2"),
        "fewer inputs": put("inputs", "count", 39),
        "a key too many": put("program", "operations", 0, "note", ""),
    }


@pytest.mark.parametrize("lie", lies())
def test_lies_are_found(small: Any, tmp_path: Path, lie: str) -> None:
    code, output = forged(small, tmp_path, lies()[lie])
    assert code == 1, output
    assert "could not be checked" not in output


def test_another_weight_is_another_network(small: Any, tmp_path: Path) -> None:
    """One weight changed by a bit, with every hash made anew: the old certificates do not fit."""
    content = json.loads(small.proof.read_text())["content"]
    stored = bytearray(small.model.read_bytes())
    tensors = checker.read_tensors(bytes(stored), checker.sha256(bytes(stored)))
    name = content["program"]["operations"][-1]["tensors"]["weight"]
    old = tensors[content["program"]["tensors"][name]["sha256"]]
    changed = np.frombuffer(old.data, "<f4").copy()
    changed[0] *= 1.5
    place = bytes(stored).index(old.data)
    stored[place : place + len(old.data)] = changed.tobytes()
    model = tmp_path / "model.safetensors"
    model.write_bytes(stored)

    def rename(content: Any) -> None:
        content["model"]["sha256"] = checker.sha256(bytes(stored))

    code, output = forged(small, tmp_path, rename, model=model)
    assert code == 1
    assert f"no tensor with the SHA-256 of {name}" in output

    def adopt(content: Any) -> None:
        rename(content)
        digest = checker.tensor_sha256(old.dtype, old.shape, changed.tobytes())
        content["program"]["tensors"][name]["sha256"] = digest

    assert forged(small, tmp_path, adopt, model=model)[0] == 1


def test_other_inputs_are_found(small: Any, tmp_path: Path) -> None:
    x = np.load(small.inputs)["x"]
    others = [x[::-1], x.astype(np.float64), np.asfortranarray(x), x[:, :1], np.full_like(x, np.nan)]
    for k, arrays in enumerate([*({"x": other} for other in others), {"x": x, "y": x}, {"z": x}]):
        path = tmp_path / f"{k}.npz"
        np.savez(path, **arrays)
        digest = checker.sha256(path.read_bytes())
        code, output = forged(small, tmp_path, lambda c, d=digest: c["inputs"].update(sha256=d), inputs=path)
        assert code == 1
        assert "could not be checked" not in output


def test_an_archive_that_unpacks_to_far_more_is_refused(small: Any, tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.npz"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as file:
        for _ in range(100):
            file.write(bytes(2**20))
    digest = checker.sha256(bomb.read_bytes())
    code, output = forged(small, tmp_path, lambda c: c["inputs"].update(sha256=digest), inputs=bomb)
    assert code == 1
    assert "damaged" in output


# Nonsense is refused without a traceback


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.integers(-(10**30), 10**30), st.text(max_size=3),
    st.floats(allow_nan=False, allow_infinity=False), st.just([]), st.just({}), st.just([[[]]]),
    st.lists(st.integers(-2, 9), max_size=4), st.just("inf"), st.just(2**24), st.just([2**24] * 4),
)  # fmt: skip


def paths(value: Any, here: tuple[Any, ...] = ()) -> Any:
    """Every place in a JSON value; of long lists the first two."""
    items = enumerate(value[:2]) if isinstance(value, list) else getattr(value, "items", tuple)()
    for key, inner in items:
        yield (*here, key)
        yield from paths(inner, (*here, key))


def logits(content: Any, proof: Any) -> np.ndarray:
    tensors = checker.read_tensors(proof.model.read_bytes(), content["model"]["sha256"])
    return checker.evaluate(checker.read_program(content["program"], tensors), np.load(proof.inputs)["x"])[0]


@pytest.fixture(scope="module")
def all_proofs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {name: written(make(name), tmp_path_factory.mktemp("net"), 3) for name in NETS}


@settings(quick, max_examples=400)
@given(data=st.data())
def test_strange_content_is_refused_or_still_true(all_proofs: Any, tmp_path: Path, data: Any) -> None:
    proof = all_proofs[data.draw(st.sampled_from(list(NETS)))]
    truth = json.loads(proof.proof.read_text())["content"]
    content = copy.deepcopy(truth)
    *where, last = data.draw(st.sampled_from(sorted(paths(content), key=str)))
    inner = content
    for key in where:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[last] = data.draw(JUNK)
    else:
        del inner[last]
    path = tmp_path / "strange.json"
    path.write_bytes(digested(content))
    began = time.perf_counter()
    code, output = run(path, proof.model, proof.inputs)
    assert time.perf_counter() - began < 20
    assert "could not be checked" not in output
    if code == 0:
        said, known = content["certificates"], truth["certificates"]
        assert said["label"] == known["label"]
        assert all(a <= b for a, b in zip(said["radius"], known["radius"], strict=True))
        assert Fraction(content["epsilon"]["text"]) <= content["epsilon"]["value"]
        np.testing.assert_array_equal(logits(content, proof), logits(truth, proof))


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", "[" * 100_000, '{"a":' * 100_000, '{"content":NaN,"sha256":""}',
     '{"content":1e999,"sha256":""}', '{"content":{},"content":{},"sha256":""}', "9" * 10_000, "\x00"],
)  # fmt: skip
def test_texts_that_are_no_proof(small: Any, tmp_path: Path, text: str) -> None:
    path = tmp_path / "text.json"
    path.write_text(text, encoding="utf-8")
    code, output = run(path, small.model, small.inputs)
    assert code == 1
    assert "could not be checked" not in output


def test_bytes_that_are_no_text(small: Any, tmp_path: Path) -> None:
    path = tmp_path / "bytes.json"
    path.write_bytes(b"\xff\xfe{}")
    assert run(path, small.model, small.inputs)[0] == 1


def model_file(header: Any, body: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


GOOD = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"\x00" * 7, struct.pack("<Q", 2**63) + b"{}", struct.pack("<Q", 100) + b"{}", model_file([]),
        model_file(b"{"), model_file({"a": 1}), model_file({"a": GOOD}), model_file({"a": GOOD}, b"\x00" * 9),
        model_file({"a": GOOD, "b": GOOD}, b"\x00" * 8),
        model_file({"a": GOOD, "b": GOOD | {"data_offsets": [4, 12]}}, b"\x00" * 12),
        model_file({"a": GOOD, "b": GOOD | {"data_offsets": [12, 20]}}, b"\x00" * 20),
        model_file({"a": GOOD | {"dtype": "F99"}}, b"\x00" * 8),
        model_file({"a": GOOD | {"shape": [-2]}}, b"\x00" * 8),
        model_file({"a": GOOD | {"shape": [3]}}, b"\x00" * 8),
        model_file({"a": GOOD | {"dtype": ["F32"]}}, b"\x00" * 8),
        model_file({"a": GOOD | {"data_offsets": [8, 0]}}, b"\x00" * 8),
        model_file(b'{"a":%s,"a":%s}' % ((json.dumps(GOOD).encode(),) * 2), b"\x00" * 8),
    ],
)  # fmt: skip
def test_files_that_are_no_safetensors(content: bytes) -> None:
    with pytest.raises(checker.Rejected):
        checker.read_tensors(content, checker.sha256(content))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_every_type_of_weight_is_read_exactly(dtype: torch.dtype) -> None:
    from safetensors.torch import save

    t = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    content = save({"a": t, "b": torch.arange(3), "c": torch.zeros(0)}, {"who": "me"})
    stored = checker.read_tensors(content, checker.sha256(content))
    (found,) = (s for s in stored.values() if s.shape == (3, 4))
    np.testing.assert_array_equal(checker.to_float64(found, "a"), t.double().numpy())


# The mathematics: nothing below the norm is proved, everything a little above it is


def dense_matrix(a: checker.Map) -> np.ndarray:
    c = a.kernel.shape[1] * a.groups
    n = c * math.prod(a.grid.size)
    return a.apply(np.eye(n).reshape(n, c, *a.grid.size)).reshape(n, -1).T


@st.composite
def maps(draw: Any) -> checker.Map:
    size = (draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    groups = draw(st.integers(1, 2))
    circular_padding = draw(st.booleans())
    pads = [draw(st.integers(0, min(2, size[a // 2]))) for a in range(4)]
    stride = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    grid = checker.Grid(size, kernel, stride, tuple(pads), dilation, circular_padding)
    if min(grid.out) < 1:
        grid = checker.Grid(size, (1, 1), stride, tuple(pads), (1, 1), circular_padding)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    shape = (groups * draw(st.integers(1, 3)), draw(st.integers(1, 3)), *grid.kernel)
    scale = 2.0 ** draw(st.sampled_from([0, -30, 30, -500, 400]))
    return checker.Map(random.standard_normal(shape) * scale, grid, groups)


@settings(quick, max_examples=150)
@given(maps())
def test_claims_are_proved_just_above_the_norm_and_never_below(a: checker.Map) -> None:
    full = dense_matrix(a)
    with np.errstate(all="raise"):
        scale = np.abs(full).max() or 1.0
        sigma = float(np.linalg.norm(full / scale, 2)) * scale
        row_sum = float(np.abs(full).sum(1).max())
    if sigma > 0:
        for norm, value in (("l2", sigma), ("linf", row_sum)):
            if norm == "l2" or not a.grid.circular:  # a wrapped kernel's taps are taken one by one in ℓ∞
                checker.prove(a, Fraction(value * (1 + 1e-9)), norm, "", "it")
            for method in ("", "symbols"):
                with pytest.raises(checker.Rejected):
                    checker.prove(a, Fraction(value * (1 - 1e-9)), norm, method, "it")
    rows, columns = a.sums()
    assert rows >= Fraction(row_sum) * (1 - Fraction(1, 2**40))
    assert columns >= Fraction(float(np.abs(full).sum(0).max())) * (1 - Fraction(1, 2**40))
    assert float(a.magnitude()) >= np.linalg.norm(np.abs(full) / scale, 2) * scale * (1 - 1e-12)


@settings(quick, max_examples=60)
@given(maps())
def test_symbols_prove_what_the_library_proves_with_them(a: checker.Map) -> None:
    if a.groups > 1 or a.grid.circular:
        a = checker.Map(a.kernel, a.grid._replace(circular=False))
    grid = a.grid
    claim = symbol_bound(torch.from_numpy(a.kernel), grid.size, grid.stride, grid.padding, grid.dilation)
    inside = all(min(grid.padding[2 * k : 2 * k + 2]) <= grid.reach[k] for k in (0, 1))
    if claim > 0 and inside:
        checker.prove_by_symbols(a, Fraction(claim * (1 + 2**-30)))
        with pytest.raises((checker.Unproved, np.linalg.LinAlgError)):
            checker.prove_by_symbols(a, Fraction(claim * (1 - 1e-6)))


@pytest.mark.parametrize("size", [(2**22, 1), (1, 2**22), (2**11, 2**11)])
def test_what_is_too_large_is_refused_at_once(size: tuple[int, int]) -> None:
    kernel = np.random.default_rng(0).standard_normal((2, 1, 3, 3))
    a = checker.Map(kernel, checker.Grid(size, (3, 3), padding=(1, 1, 1, 1)))
    began = time.process_time()  # what it costs, however busy the machine
    with pytest.raises(checker.Rejected, match="too large; symbols: there are too many"):
        checker.prove(a, a.magnitude() / 2, "l2", "", "it")
    assert time.process_time() - began < 10


def test_a_norm_that_is_a_number_is_never_undercut() -> None:
    """‖[[3, 0], [4, 0]]‖ = 5 exactly: the float below 5 is refused, however close."""
    a = checker.Map(np.array([[3.0, 0.0], [4.0, 0.0]])[:, :, None, None], checker.Grid((1, 1), (1, 1)))
    checker.prove(a, Fraction(5.0 * (1 + 2**-40)), "l2", "", "it")
    with pytest.raises(checker.Rejected):
        checker.prove(a, Fraction(math.nextafter(5.0, 0.0)), "l2", "", "it")


SMOOTH = ("sigmoid", "tanh", "elu", "softplus", "gelu")


@pytest.mark.parametrize("name", [name for name in NETS if name not in ("double", *SMOOTH)])
def test_the_float32_network_stays_within_delta(name: str, tmp_path: Path) -> None:
    net = make(name)
    proof = written(net, tmp_path, semantics="float32")
    content = json.loads(proof.proof.read_text())["content"]
    tensors = checker.read_tensors(proof.model.read_bytes(), content["model"]["sha256"])
    program = checker.read_program(content["program"], tensors)
    claims = checker.read_claims(content["bounds"], program)
    x = samples(net)
    exact, sound, lengths = checker.evaluate(program, x.double().numpy())
    assert sound.all()
    double, single = net._proof().program(x), net.logits(x).detach()
    for u, y in ((checker.U32, single.double().numpy()), (checker.U64, double.numpy())):
        delta = checker.logit_error(program, claims, "l2", u)
        size = np.linalg.norm(x.flatten(1).double().numpy(), axis=1)[:, None, None]
        off = (y[:, :, None] - y[:, None, :]) - (exact[:, :, None] - exact[:, None, :])
        assert (np.abs(off) <= delta.constant + delta.slope * size).all()
    ours, label = checker.logit_error(program, claims, "l2", checker.U64), exact.argmax(1)
    measured = checker.error_at(program, claims, ours, lengths, label, checker.U32)
    off = single.double().numpy() - exact
    assert (np.abs(np.take_along_axis(off, label[:, None], 1) - off) <= measured).all()
    through_x = checker.logit_error(program, claims, "l2", checker.U32).rows(label, lengths["input"])
    assert (measured <= through_x * (1 + 1e-6)).all()


@quick
@given(st.fractions(0, 10**20))
def test_roots_and_rounding_go_up(q: Fraction) -> None:
    assert checker.up(q) >= q
    assert checker.root(q) ** 2 >= q
    assert float(checker.root(q)) == pytest.approx(math.sqrt(q), rel=1e-12)
    v = np.array([[float(q), 1e-300, -3e10]])
    for order in (1, 2):
        (n,) = checker.norms(v, order)
        exact = sum(abs(Fraction(t)) ** order for t in v[0].tolist())
        assert (n if order == 1 else n * n) >= exact
        assert float(n) == pytest.approx(float(exact) ** (1 / order), rel=1e-12)
