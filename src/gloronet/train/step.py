"""One step of training: batch, forward, estimates, loss, backward, optimiser.

On a CPU it is called as it is written. On a GPU the same lines run with the features of `Fast`: bf16 in the
forward pass (logits, margins and estimates stay float32), channels last, the estimate beside the forward
pass and its derivative beside the backward pass, long trainings compiled, and the whole of it captured once
as a CUDA graph and replayed. ε, λ and the learning rate are then scalars on the device, so nothing of a step
waits for Python.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gloronet import losses
from gloronet.data import to_unit
from gloronet.data.augment import Augmentation, Shard
from gloronet.margins import certified_estimate
from gloronet.net import GloRoNet
from gloronet.train.batches import Batches, Inputs
from gloronet.train.ranks import Ranks

WARM = 3
"""Steps taken eagerly before one is captured: libraries choose their kernels, the optimiser makes its state."""
LONG = 5000
"""Steps from which on compiling the step, some seconds, is repaid."""


@dataclass(frozen=True)
class Fast:
    """What makes a step fast on a GPU; all off is the plain step of the CPU."""

    bf16: bool = False
    channels_last: bool = False
    overlap: bool = False
    capture: bool = False
    compile: bool = False

    @staticmethod
    def on(place: torch.device, steps: int, note: Callable[[str], None]) -> Fast:
        """All that the device offers for a training of so many steps; what it lacks is said once."""
        if place.type != "cuda":
            return Fast()
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if not bf16:
            note("This GPU has no bfloat16: the forward pass runs in float32.")
        triton = importlib.util.find_spec("triton") is not None
        if steps >= LONG and not triton:
            note("Triton is not installed: the step is not compiled, and slower.")
        return Fast(bf16=bf16, channels_last=True, overlap=True, capture=True, compile=steps >= LONG and triton)


class Settings(NamedTuple):
    """What schedules decide, at one step."""

    epsilon: float
    lam: float
    lr: float


class Step:
    """Called once a batch: takes the step and answers its sums of loss, right and verified answers."""

    def __init__(
        self,
        net: GloRoNet,
        optimizer: torch.optim.Optimizer,
        batches: Batches,
        augment: Augmentation,
        jitter: torch.Generator,
        ranks: Ranks,
        fast: Fast,
        refresh_every: int,
        note: Callable[[str], None],
    ) -> None:
        self._net, self._optimizer = net, optimizer
        self._augment, self._jitter, self._ranks = augment, jitter, ranks
        self._fast, self._refresh_every, self._note = fast, refresh_every, note
        self._forward = _forward(net, batches, augment, fast)
        self._usual: int | None = None
        self._compiled: dict[str, Callable[..., Any]] = {}
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._place = self._parameters[0].device
        # A plain loss pays for no estimates: what is not known is infinite, and certifies nothing.
        unknown = torch.full((net.classes, net.classes), torch.inf, device=self._place)
        self.margins = self._unknown = unknown.fill_diagonal_(0.0)
        self.preparing = 0.0
        """Seconds that compiling, choosing kernels and capturing took, so far."""
        self._streams: list[torch.cuda.Stream] = []  # none on a CPU, where what is beside comes in turn
        if self._place.type == "cuda":
            self._streams = [torch.cuda.Stream(self._place) for _ in range(3)]
        self._graphs: dict[Hashable, _Captured] = {}
        self._seen: Counter[Hashable] = Counter()
        self._scalars: Tensor | None = None
        if self._place.type == "cuda":
            self._scalars = torch.zeros(3, device=self._place)
            optimizer.param_groups[0]["lr"] = self._scalars[2]

    def plan(self, settings: list[Settings]) -> None:
        """What the schedules say for each step of the epoch that begins."""
        self._plan = settings
        if self._scalars is not None:
            self._table = torch.tensor(settings, dtype=torch.float32).to(self._place)

    def close(self) -> None:
        """Gives back what was captured and compiled: neither is of use to another training."""
        self._graphs.clear()
        if self._compiled:
            self._compiled.clear()
            torch.compiler.reset()

    def __call__(self, loss: str, certified: bool, inputs: Inputs, shard: Shard, k: int) -> Tensor:
        """The k-th step of the epoch; `certified` says whether margins are estimated at all."""
        work = _Work(loss, certified, shard, refresh=k % self._refresh_every == 0)
        if self._scalars is None:
            epsilon, lam, self._optimizer.param_groups[0]["lr"] = self._plan[k]
            return self._take(work, inputs, epsilon, lam)
        self._scalars.copy_(self._table[k])
        if self._fast.capture:
            return self._replayed(work, inputs)
        return self._take(work, inputs, self._scalars[0], self._scalars[1])

    def _take(self, work: _Work, inputs: Inputs, epsilon: float | Tensor, lam: float | Tensor) -> Tensor:
        net, beside = self._net, self._fast.overlap
        numbers = self._augment.numbers(work.shard, self._jitter)
        split = net.split_estimate() if work.certified and beside else None
        iterations = net.power_iterations if work.refresh else 0

        # Stream 0 has K and its derivative, stream 1 the head's distances, with their backward, and the tally: so
        # memory that a stream's work gives back is only ever overwritten by its own later work.
        self._fork(0, 1)
        logits, labels = self._run("forward", self._forward, work, inputs, numbers)
        margins = self._unknown
        if split is not None:
            with self._beside(0):
                constant = split.constant()
            with self._beside(1):
                distances = net.distances(split.weight)
            self._join(0, 1)
            margins = constant * distances
        elif work.certified:
            margins = net.lipschitz_estimate(iterations)
        loss = self._run(work.loss, losses.LOSSES[work.loss], work, logits, margins, labels, epsilon, lam)
        share = len(labels) / work.shard.total  # of the whole batch's mean, over all ranks

        self._fork(0, 1)
        if split is not None:
            with self._beside(0):
                split.differentiate(iterations)
        self.margins = margins.detach()
        with self._beside(1):
            tally = _tally(loss.detach(), logits.detach(), self.margins, labels, net.epsilon)
        self._optimizer.zero_grad()
        (loss if share == 1 else loss * share).backward()
        self._join(0, 1)
        if split is not None:
            split.add_gradients()
        self._ranks.sum_gradients(self._parameters)
        self._optimizer.step()
        return tally

    # The GPU's part

    def _run(self, name: str, function: Callable[..., Any], work: _Work, *arguments: Any) -> Any:
        """The function, compiled for the usual size of a batch; any other, rare, is not worth compiling for."""
        if self._usual is None:
            self._usual = work.shard.stop - work.shard.start
        if not self._fast.compile or work.shard.stop - work.shard.start != self._usual:
            return function(*arguments)
        if name not in self._compiled:
            self._compiled[name] = torch.compile(function, dynamic=False)
        try:
            return self._compiled[name](*arguments)
        except Exception as e:  # a compiler can fail in any way; what is wrong with the network shows without it
            self._fast = replace(self._fast, compile=False)
            why = str(e).partition("\n")[0]
            self._note(f"The step cannot be compiled and runs as it is, slower: {why}")
            return function(*arguments)

    def _replayed(self, work: _Work, inputs: Inputs) -> Tensor:
        """The step by its captured graph; eager the first few times, which are steps of the training too."""
        key = (work, *(tuple(t.shape) for t in inputs))
        captured = self._graphs.get(key)
        if captured is None:
            self._seen[key] += 1
            if self._seen[key] > WARM:
                captured = self._capture(key, work, inputs)
        if captured is None:
            torch.cuda.synchronize(self._place)
            began = time.perf_counter()
            tally = self._on_own_stream(work, inputs)
            torch.cuda.synchronize(self._place)
            self.preparing += time.perf_counter() - began
            return tally
        for mine, given in zip(captured.inputs, inputs, strict=True):
            mine.copy_(given)
        captured.graph.replay()
        self.margins = captured.margins
        return captured.tally.clone()

    def _on_own_stream(self, work: _Work, inputs: Inputs) -> Tensor:
        """An eager step on the stream that capturing will use, as its preparation must be."""
        assert self._scalars is not None
        outer = torch.cuda.current_stream(self._place)
        self._streams[2].wait_stream(outer)
        with torch.cuda.stream(self._streams[2]):
            tally = self._take(work, inputs, self._scalars[0], self._scalars[1])
        outer.wait_stream(self._streams[2])
        return tally

    def _capture(self, key: Hashable, work: _Work, inputs: Inputs) -> _Captured | None:
        """The graph of one step; None, said once, where the network does something no graph can hold."""
        assert self._scalars is not None
        began = time.perf_counter()
        mine = tuple(t.clone() for t in inputs)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self._jitter)
        self._optimizer.zero_grad()
        pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
        try:
            with torch.cuda.graph(graph, pool=pool, stream=self._streams[2]):
                tally = self._take(work, mine, self._scalars[0], self._scalars[1])
        except RuntimeError as e:
            torch.cuda.synchronize(self._place)
            self._optimizer.zero_grad()
            self._fast = replace(self._fast, capture=False)
            why = str(e).partition("\n")[0]
            self._note(f"The step cannot be captured as a CUDA graph and runs eagerly, slower: {why}")
            return None
        self._graphs[key] = _Captured(graph, mine, tally, self.margins)
        self.preparing += time.perf_counter() - began
        return self._graphs[key]

    def _fork(self, *which: int) -> None:
        """From here on, what is `_beside` may run at the same time as the rest, until `_join`."""
        for stream in self._beside_streams(which):
            stream.wait_stream(torch.cuda.current_stream(self._place))

    @contextlib.contextmanager
    def _beside(self, which: int) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for stream in self._beside_streams((which,)):
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def _join(self, *which: int) -> None:
        for stream in self._beside_streams(which):
            torch.cuda.current_stream(self._place).wait_stream(stream)

    def _beside_streams(self, which: tuple[int, ...]) -> list[torch.cuda.Stream]:
        """None where nothing runs beside anything: then all comes in turn."""
        return [self._streams[k] for k in which] if self._fast.overlap and self._streams else []


class _Work(NamedTuple):
    """What kind of step it is: each kind has a graph of its own."""

    loss: str
    certified: bool
    shard: Shard
    refresh: bool


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    tally: Tensor
    margins: Tensor


def _forward(
    net: GloRoNet, batches: Batches, augment: Augmentation, fast: Fast
) -> Callable[[Inputs, tuple[Tensor, ...]], tuple[Tensor, Tensor]]:
    """(a batch as it is told, random numbers) → logits, in float32 at least, and labels."""

    def forward(inputs: Inputs, numbers: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        x, labels = batches.fetch(*inputs)
        x = augment.apply(to_unit(x), *numbers)
        if fast.channels_last and x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(x.device.type, torch.bfloat16, enabled=fast.bf16, cache_enabled=False):
            logits = net.logits(x)
        return logits.to(torch.promote_types(logits.dtype, torch.float32)), labels

    return forward


def _tally(loss: Tensor, logits: Tensor, margins: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """The batch's sums of loss, right answers and right answers certified at ε; stays on the device."""
    right = logits.argmax(1) == labels
    verified = right & certified_estimate(logits, margins, epsilon)
    return torch.stack([loss * len(labels), right.sum(), verified.sum()])
