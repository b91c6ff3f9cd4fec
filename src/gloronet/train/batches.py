"""Where batches come from: the whole set on the device, or a stream from memory or disk.

`epoch` gives, for each batch, what a step needs to be told (small, or already on its way to the device), and
`fetch` makes images and labels of that, inside the step, so that a captured step gathers its batch itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from gloronet.data import Examples
from gloronet.data.augment import Shard
from gloronet.train.ranks import Ranks

ROOM = 0.5
"""The share of the device's free memory that a data set may take to live there."""
AHEAD = 3
"""Batches on their way while one is trained on."""

Inputs = tuple[Tensor, ...]
Shares = Generator[tuple[Inputs, Shard], None, None]
"""Ends with its last batch, or when it is closed."""


class Batches(Protocol):
    def epoch(self, order: Tensor, batch_size: int, ranks: Ranks) -> Shares:
        """This rank's share of each batch of samples in this order."""

    def fetch(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Images, as they are stored, and labels."""


def batches_of(data: Examples, place: torch.device, note: Callable[[str], None]) -> Batches:
    """Resident where the training set fits beside the training, streamed, and said once, where it does not.

    On a GPU it fits if the inputs, as they are stored (uint8 stays uint8), take at most `ROOM` of the memory
    that is free before training begins. On a CPU they are where they are needed, be it behind a memory map.
    """
    if place.type == "cuda":
        free, _ = torch.cuda.mem_get_info(place)
        if data.train_x.nbytes > ROOM * free:
            note("The training set does not fit on the GPU and is streamed.")
            return Streamed(data, place)
    return Resident(data, place)


class Resident:
    """The whole training set on the device; a batch is told by its indices."""

    def __init__(self, data: Examples, place: torch.device) -> None:
        self._x, self._y = data.train_x.to(place), data.train_y.to(place)

    def epoch(self, order: Tensor, batch_size: int, ranks: Ranks) -> Shares:
        for batch in order.split(batch_size):
            shard = ranks.shard(len(batch))
            yield (batch[shard.start : shard.stop],), shard

    def fetch(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        (index,) = inputs
        return self._x[index], self._y[index]


class Streamed:
    """The training set stays in memory, or on disk behind a memory map; batches are sent ahead of their turn.

    A thread gathers each batch into pinned memory and starts its copy on a stream of its own, `AHEAD` batches
    before it is needed: reading, copying and training go on at once. What goes wrong while reading is raised
    when the batch is due.
    """

    def __init__(self, data: Examples, place: torch.device) -> None:
        self._data, self._place = data, place
        self._copies = torch.cuda.Stream(place) if place.type == "cuda" else None

    def epoch(self, order: Tensor, batch_size: int, ranks: Ranks) -> Shares:
        waiting: deque[tuple[Future[tuple[Inputs, torch.cuda.Event | None]], Shard]] = deque()
        with ThreadPoolExecutor(1, "batches") as reader:
            try:
                for batch in order.cpu().split(batch_size):
                    shard = ranks.shard(len(batch))
                    waiting.append((reader.submit(self._send, batch[shard.start : shard.stop]), shard))
                    if len(waiting) > AHEAD:
                        yield self._receive(*waiting.popleft())
                while waiting:
                    yield self._receive(*waiting.popleft())
            finally:
                for future, _ in waiting:
                    future.cancel()

    def fetch(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        x, labels = inputs
        return x, labels

    def _send(self, index: Tensor) -> tuple[Inputs, torch.cuda.Event | None]:
        batch = self._data.train_x[index], self._data.train_y[index]
        if self._copies is None:
            return batch, None
        with torch.cuda.stream(self._copies):
            sent = tuple(t.pin_memory().to(self._place, non_blocking=True) for t in batch)
            return sent, self._copies.record_event()

    def _receive(
        self, future: Future[tuple[Inputs, torch.cuda.Event | None]], shard: Shard
    ) -> tuple[Inputs, Shard]:
        sent, there = future.result()
        if there is not None:
            trains = torch.cuda.current_stream(self._place)
            trains.wait_event(there)
            for tensor in sent:
                tensor.record_stream(trains)
        return sent, shard
