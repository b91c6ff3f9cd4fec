"""What makes a step fast changes no result beyond rounding; what is not to be had is said once."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import gloronet as gn
from gloronet import data, losses, models
from gloronet.config import TrainConfig
from gloronet.data import Dataset
from gloronet.data.augment import augmentation
from gloronet.net import GloRoNet
from gloronet.program.estimate import in_turn
from gloronet.train import Progress, fit
from gloronet.train.fast import STRANDS, Fast, Lanes

torch.set_num_threads(1)

CONFIG = TrainConfig(
    epochs=3, batch_size=100, loss="emma", lr=2e-3, augmentation="crop-flip", power_iterations=2,
    epsilon_schedule="ramp 0.5,1.5", lr_schedule="linear",
)  # fmt: skip
COMPILER_WARNS = pytest.mark.filterwarnings("default")
"""Its own code does, of deprecations and of what it looks at; an error there would count as a failed compilation."""
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
ALL = Fast(bf16=True, channels_last=True, overlap=True, capture=True)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return data.load("digits")


def fresh(digits: Dataset, spec: str = "c(8,3,1).c(8,4,2).d(32).d(10)") -> GloRoNet:
    torch.manual_seed(0)
    return GloRoNet(models.build(spec, digits.input_shape, 10), 0.3, digits.input_shape)


class Notes(Progress):
    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_on_a_cpu_the_loop_is_these_lines_bit_for_bit(digits: Dataset) -> None:
    net, twin = fresh(digits), fresh(digits)
    history = fit(net, digits, CONFIG, device="cpu")
    twin.train()
    twin.power_iterations = 2
    optimizer = torch.optim.Adam(twin.parameters(), lr=2e-3, betas=(0.9, 0.999), eps=1e-7, fused=True)
    shuffle, jitter = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    augment, n = augmentation("crop-flip"), len(digits.train_x)
    for epoch in range(3):
        total = 0.0
        for k, batch in enumerate(torch.randperm(n, generator=shuffle).split(100)):
            t = epoch + k / 15
            x, labels = augment(data.to_unit(digits.train_x[batch]), jitter), digits.train_y[batch]
            epsilon = gn.schedules.epsilon_schedule("ramp 0.5,1.5", 0.3, 0.3, 3)(t)
            logits = twin.logits(x)
            loss = losses.emma(logits, twin.lipschitz_estimate(), labels, epsilon)
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = gn.schedules.lr_schedule("linear", 2e-3, 3)(t)
            optimizer.step()
            total += loss.item() * len(labels)
        assert history[epoch]["loss"] == pytest.approx(total / n, rel=1e-6)
    assert all(torch.equal(net.state_dict()[name], t) for name, t in twin.state_dict().items())


def batch_norm() -> nn.Module:
    module = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(384, 4))
    module[1].running_var.uniform_(0.5, 2.0)
    return module


NETS = {
    "dense": lambda: models.build("d(12).d(8).d(4)", (1, 8, 8), 4),
    "convolutions": lambda: models.build("c(6,3,1).c(6,4,2).d(8).d(4)", (1, 8, 8), 4),
    "residual": lambda: models.build("c(6,3,2).r(3).r(3).d(4)", (1, 8, 8), 4),
    "a chain with BatchNorm": batch_norm,
    "a parametrised weight": lambda: nn.Sequential(
        nn.Flatten(), weight_norm(nn.Linear(64, 6)), nn.ReLU(), nn.Linear(6, 4)
    ),
    "no hidden layer": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)),
}


@pytest.mark.parametrize("form", ["margin", "simple", "lmt"])
@pytest.mark.parametrize("name", NETS)
def test_a_split_estimate_is_the_whole_one_with_its_gradient_and_its_next_iterates(name: str, form: str) -> None:
    def gradients(split: bool) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        torch.manual_seed(1)
        net = GloRoNet(NETS[name](), 0.3, (1, 8, 8), form=form).double().train()
        weights = torch.linspace(0.1, 1.0, 16, dtype=torch.float64).reshape(4, 4)
        if split:
            apart = net.split_estimate()
            margins = apart.constant() * net.distances(apart.weight)
            apart.differentiate(3)
            (margins * weights).sum().backward()
            apart.add_gradients()
        else:
            margins = net.lipschitz_estimate(0)
            (margins * weights).sum().backward()
            net.advance(3)
        found = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
        return margins.detach(), found, dict(net.named_buffers())

    whole, apart = gradients(False), gradients(True)
    torch.testing.assert_close(apart[0], whole[0])
    assert apart[1].keys() == whole[1].keys()
    for mine, his in ((apart[1], whole[1]), (apart[2], whole[2])):
        for key in his:
            torch.testing.assert_close(mine[key], his[key], msg=key)


def test_layers_iterate_in_any_order(digits: Dataset) -> None:
    """So they may at once; and each job leaves what the others read alone."""
    moved = []
    for backwards in (False, True):
        net = fresh(digits).train()
        split = net.split_estimate()
        split.constant()
        asked: list[int] = []

        def spread(jobs: Any, backwards: bool = backwards, asked: list[int] = asked) -> list[Tensor]:
            asked.append(len(jobs))
            answers = {k: jobs[k]() for k in sorted(range(len(jobs)), reverse=backwards)}
            return [answers[k] for k in range(len(jobs))]

        split.differentiate(4, spread)
        assert asked == [3]
        moved.append(dict(net.named_buffers()))
    assert all(torch.equal(moved[1][name], u) for name, u in moved[0].items())


def test_lanes_answer_in_the_order_they_were_asked() -> None:
    lanes = Lanes(torch.device("cpu"), True, STRANDS)
    assert [int(t) for t in lanes.spread([lambda k=k: torch.tensor(k) for k in range(7)])] == list(range(7))
    assert lanes.spread([]) == []


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_beside_each_other_training_ends_where_it_ends_in_turn(digits: Dataset, norm: str) -> None:
    """The estimates are a step behind: the results differ, by little."""
    ends = []
    for overlap in (False, True):
        net = fresh(digits)
        net.norm = norm
        config = dataclasses.replace(CONFIG, epochs=10, augmentation="none", lr=5e-3)
        ends.append(fit(net, digits, config, device="cpu", fast=Fast(overlap=overlap))[-1])
    assert ends[1]["accuracy"] == pytest.approx(ends[0]["accuracy"], abs=0.05)
    assert ends[1]["loss"] == pytest.approx(ends[0]["loss"], rel=0.05)


def test_iterates_rest_between_refreshes_and_the_gradient_does_not(digits: Dataset) -> None:
    seen = []
    for every in (1, 5, 10**6):
        net = fresh(digits)
        fit(net, digits, dataclasses.replace(CONFIG, refresh_every=every), device="cpu", fast=Fast(overlap=True))
        estimate, truth = (float(net.lipschitz_estimate(n).detach().max()) for n in (0, 500))
        seen.append(estimate / truth)
    assert seen[0] > seen[2]
    assert seen[0] > 0.9
    assert all(ratio < 1 + 1e-5 for ratio in seen)


def test_bf16_leaves_logits_and_margins_in_float32(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.dtype, torch.dtype]] = []

    def watched(logits: Tensor, margins: Tensor, *rest: Any) -> Tensor:
        seen.append((logits.dtype, margins.dtype))
        return losses.ce(logits, margins, *rest)

    monkeypatch.setitem(losses.LOSSES, "emma", watched)
    inner: list[torch.dtype] = []
    net = fresh(digits)
    handle = net.module[0].register_forward_hook(lambda m, a, out: inner.append(out.dtype))
    fit(net, digits, CONFIG, device="cpu", fast=Fast(bf16=True, overlap=True))
    handle.remove()
    assert set(seen) == {(torch.float32, torch.float32)}
    assert torch.bfloat16 in inner
    assert {t.dtype for t in net.state_dict().values()} == {torch.float32}


@COMPILER_WARNS
def test_only_the_usual_batch_is_compiled_for(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """1437 digits are fourteen batches of 100 and one of 37; compiled, nothing else is computed."""
    sizes: list[int] = []

    def compiler(function: Any, **options: Any) -> Any:
        def compiled(*arguments: Any) -> Any:
            out = function(*arguments)
            sizes.append(len(out[0]) if isinstance(out, tuple) else 100)
            return out

        return compiled

    monkeypatch.setattr(torch, "compile", compiler)
    plain, net = fresh(digits), fresh(digits)
    fit(plain, digits, CONFIG, device="cpu")
    fit(net, digits, CONFIG, device="cpu", fast=Fast(compile=True))
    assert sizes == [100] * (2 * 14 * 3)
    assert all(torch.equal(net.state_dict()[name], t) for name, t in plain.state_dict().items())


@COMPILER_WARNS
def test_a_compiler_that_fails_is_said_once_and_done_without(
    digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compiler(function: Any, **options: Any) -> Any:
        def broken(*arguments: Any) -> Any:
            raise RuntimeError("no C compiler\nand much more")

        return broken

    monkeypatch.setattr(torch, "compile", compiler)
    plain, net, notes = fresh(digits), fresh(digits), Notes()
    fit(plain, digits, CONFIG, device="cpu")
    fit(net, digits, CONFIG, device="cpu", fast=Fast(compile=True), progress=notes)
    assert notes.said == ["The step cannot be compiled and runs as it is, slower: no C compiler"]
    assert all(torch.equal(net.state_dict()[name], t) for name, t in plain.state_dict().items())


@pytest.mark.slow
@COMPILER_WARNS
def test_the_real_compiler_computes_the_same(digits: Dataset) -> None:
    plain, net, notes = fresh(digits), fresh(digits), Notes()
    config = dataclasses.replace(CONFIG, epochs=1)
    expected = fit(plain, digits, config, device="cpu")
    found = fit(net, digits, config, device="cpu", fast=Fast(compile=True), progress=notes)
    assert notes.said == []
    assert found[0]["loss"] == pytest.approx(expected[0]["loss"], rel=1e-4)


def test_a_cpu_gets_none_of_it() -> None:
    assert Fast.on(torch.device("cpu"), 10**9, print) == Fast()


# On a GPU


@ON_GPU
@pytest.mark.parametrize("iterations", [1, 5])
@pytest.mark.parametrize("spec", ["c(8,3,1).c(8,4,2).d(32).d(10)", "c(16,3,2).r(3).r(3).d(512).d(512).d(10)"])
def test_captured_and_beside_each_other_the_estimates_follow_the_norms(
    digits: Dataset, spec: str, iterations: int
) -> None:
    """A race between the streams would leave the iterates behind, and the estimate far below."""
    config = dataclasses.replace(CONFIG, epochs=30, power_iterations=iterations)
    ends = {}
    for name, fast in {"eager": Fast(), "all": ALL, "eager, beside": dataclasses.replace(ALL, capture=False)}.items():
        net, notes = fresh(digits, spec), Notes()
        history = fit(net, digits, config, device="cuda", fast=fast, progress=notes)
        assert notes.said == []
        truth = float(net.lipschitz_estimate(1000).detach().max())
        assert 0.9 * truth < history[-1]["lipschitz_estimate"] < truth * 1.01, name
        ends[name] = history[-1]
    for end in ends.values():
        assert end["vra_estimate"] == pytest.approx(ends["eager"]["vra_estimate"], abs=0.05)
        assert end["loss"] == pytest.approx(ends["eager"]["loss"], rel=0.15)


@ON_GPU
def test_layers_that_iterate_at_once_end_where_they_end_in_turn(digits: Dataset) -> None:
    """Up to rounding (a fold on a GPU adds in any order), many times over: a race would show in some."""
    lanes = Lanes(torch.device("cuda", 0), True, STRANDS)
    ends = []
    for spread in (in_turn, *[lanes.spread] * 20):
        net = fresh(digits, "c(32,3,1).c(32,4,2).c(64,3,1).d(512).d(512).d(10)").train().to("cuda")
        for _ in range(5):
            split = net.split_estimate()
            split.constant()
            split.differentiate(10, spread)
        torch.cuda.synchronize()
        ends.append(dict(net.named_buffers()))
    for end in ends[1:]:
        for name, u in ends[0].items():
            torch.testing.assert_close(end[name], u, rtol=1e-3, atol=1e-4, msg=name)


@ON_GPU
def test_captured_in_float32_the_losses_are_those_of_the_eager_step(digits: Dataset) -> None:
    config = dataclasses.replace(CONFIG, epochs=6)
    slow = fit(fresh(digits), digits, config, device="cuda", fast=Fast(overlap=True))
    quick = fit(fresh(digits), digits, config, device="cuda", fast=Fast(overlap=True, capture=True))
    for a, b in zip(slow, quick, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-3)
    assert quick[-1]["preparing"] == 0


@ON_GPU
@COMPILER_WARNS
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_compiled_and_captured_it_learns(digits: Dataset, optimizer: str) -> None:
    config = dataclasses.replace(
        CONFIG, epochs=20, augmentation="none", optimizer=optimizer, lr={"adam": 5e-3, "muon": 0.02}[optimizer]
    )
    net, notes = fresh(digits), Notes()
    history = fit(net, digits, config, device="cuda", fast=dataclasses.replace(ALL, compile=True), progress=notes)
    assert notes.said == []
    assert history[-1]["vra_estimate"] > 0.6
    assert net.module[0].weight.is_contiguous()


@ON_GPU
def test_a_net_that_no_graph_can_hold_trains_eagerly_and_says_so_once(digits: Dataset) -> None:
    net, notes = fresh(digits), Notes()
    net.module[0].register_forward_pre_hook(lambda module, a: torch.cuda.synchronize() if module.training else None)
    fit(net, digits, CONFIG, device="cuda", fast=ALL, progress=notes)
    assert len(notes.said) == 1
    assert notes.said[0].startswith("The step cannot be captured as a CUDA graph and runs eagerly, slower:")


@ON_GPU
def test_a_training_gives_its_memory_back(digits: Dataset) -> None:
    import gc

    def taken() -> int:
        fit(fresh(digits), digits, CONFIG, device="cuda", fast=ALL)
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    first = taken()
    assert max(taken() for _ in range(3)) <= first + 2**20
