"""One step of training: batch, forward, estimates, loss, backward, optimiser.

On a CPU it is called as it is written. On a GPU the same lines run with the features of `Fast`: bf16 in the
forward pass (logits, margins and estimates stay float32), channels last, the estimate beside the forward
pass and its derivative beside the backward pass, long trainings compiled, and the whole of it captured once
as a CUDA graph and replayed. ε, λ and the learning rate are then scalars on the device, so nothing of a step
waits for Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gloronet import losses
from gloronet.data import to_unit
from gloronet.data.augment import Augmentation, Shard
from gloronet.margins import certified_estimate
from gloronet.net import GloRoNet
from gloronet.train.batches import Batches, Inputs
from gloronet.train.fast import BESIDE, STRANDS, Compiler, Fast, Graphs, Lanes, Note
from gloronet.train.ranks import Ranks


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
        note: Note,
    ) -> None:
        self._net, self._optimizer, self._ranks = net, optimizer, ranks
        self._augment, self._jitter = augment, jitter
        self._fast, self._refresh_every = fast, refresh_every
        self._forward = _forward(net, batches, augment, fast)
        self._usual: int | None = None
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        place = self._parameters[0].device
        # A plain loss pays for no estimates: what is not known is infinite, and certifies nothing.
        unknown = torch.full((net.classes, net.classes), torch.inf, device=place)
        self.margins = self._unknown = unknown.fill_diagonal_(0.0)
        self._lanes, self._strands = (Lanes(place, fast.overlap, which) for which in (BESIDE, STRANDS))
        self._compiler = Compiler(fast.compile, note)
        self._graphs = Graphs(place, note) if fast.capture else None
        self._scalars: Tensor | None = None
        if place.type == "cuda":
            self._scalars = torch.zeros(3, device=place)
            optimizer.param_groups[0]["lr"] = self._scalars[2]

    @property
    def preparing(self) -> float:
        """Seconds that compiling, choosing kernels and capturing took, so far."""
        return self._graphs.preparing if self._graphs else 0.0

    def plan(self, settings: list[Settings]) -> None:
        """What the schedules say for each step of the epoch that begins."""
        self._plan = settings
        if self._scalars is not None:
            self._table = torch.tensor(settings, dtype=torch.float32).to(self._scalars.device)

    def __call__(self, loss: str, certified: bool, inputs: Inputs, shard: Shard, k: int) -> Tensor:
        """The k-th step of the epoch; `certified` says whether margins are estimated at all."""
        work = _Work(loss, certified, shard, len(inputs), refresh=k % self._refresh_every == 0)
        if self._usual is None:
            self._usual = work.size
        told = (*inputs, *self._augment.numbers(shard, self._net.input_shape, self._jitter))
        if self._scalars is None:
            epsilon, lam, self._optimizer.param_groups[0]["lr"] = self._plan[k]
            tally, self.margins = self._take(work, told, epsilon, lam)
            return tally
        self._scalars.copy_(self._table[k])
        epsilon_now, lam_now, _ = self._scalars.unbind()

        def take(*told: Tensor) -> tuple[Tensor, ...]:
            return self._take(work, told, epsilon_now, lam_now)

        key = (work, *(t.shape for t in told))
        tally, self.margins = self._graphs(key, take, told) if self._graphs else take(*told)
        return tally

    def _take(
        self, work: _Work, told: tuple[Tensor, ...], epsilon: float | Tensor, lam: float | Tensor
    ) -> tuple[Tensor, Tensor]:
        """One step on a batch as it is told, with the random numbers for it: (tally, margins)."""
        net, lanes, usual = self._net, self._lanes, work.size == self._usual
        split = net.split_estimate() if work.certified and self._fast.overlap else None
        iterations = net.power_iterations if work.refresh else 0

        # Lane 0 has K and its derivative, lane 1 the head's distances, with their backward, and the tally.
        lanes.fork()
        inputs, numbers = told[: work.inputs], told[work.inputs :]
        logits, labels = self._compiler("forward", self._forward, usual, inputs, numbers)
        margins = self._unknown
        if split is not None:
            with lanes.beside(0):
                constant = split.constant()
            with lanes.beside(1):
                distances = net.distances(split.weight)
            lanes.join()
            margins = constant * distances
        elif work.certified:
            margins = net.lipschitz_estimate(iterations)
        loss = self._compiler(
            work.loss, losses.LOSSES[work.loss], usual, logits, margins, labels, epsilon, lam
        )
        share = len(labels) / work.shard.total  # of the whole batch's mean, over all ranks

        lanes.fork()
        if split is not None:
            with lanes.beside(0):
                split.differentiate(iterations, self._strands.spread)
        with lanes.beside(1):
            tally = _tally(loss.detach(), logits.detach(), margins.detach(), labels, net.epsilon)
        self._optimizer.zero_grad()
        (loss if share == 1 else loss * share).backward()
        lanes.join()
        if split is not None:
            split.add_gradients()
        self._ranks.sum_gradients(self._parameters)
        self._optimizer.step()
        return tally, margins.detach()

    def close(self) -> None:
        """Gives back what was captured and compiled: neither is of use to another training."""
        if self._graphs:
            self._graphs.close()
        self._compiler.close()


class _Work(NamedTuple):
    """What kind of step it is: each kind has a graph of its own."""

    loss: str
    certified: bool
    shard: Shard
    inputs: int
    """How many tensors tell the batch; what is told beyond them is random numbers."""
    refresh: bool

    @property
    def size(self) -> int:
        return self.shard.stop - self.shard.start


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
