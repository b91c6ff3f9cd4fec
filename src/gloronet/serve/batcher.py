"""Requests that arrive together are answered together: one queue, one worker, whole requests in a batch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gloronet.serve.engine import Answer, Engine
from gloronet.serve.limits import Limits
from gloronet.serve.problems import Problem


@dataclass
class _Waiting:
    x: np.ndarray
    epsilon: float | None
    answer: asyncio.Future[Answer]


class Batcher:
    """`answer` waits in the queue; `work` takes what is there, up to `limits.batch` inputs, of one ε.

    It waits for more only while some are on their way: a lone client never waits for others that do not come.
    The engine runs in a thread of its own, so that requests are read while it computes. One whose client gave up is
    skipped; an engine that fails fails those of that batch only.
    """

    def __init__(self, engine: Engine, limits: Limits, observe: Callable[[int], None] = lambda n: None) -> None:
        self.engine, self.limits, self.observe = engine, limits, observe
        self.queue: asyncio.Queue[_Waiting] = asyncio.Queue()
        self.queued = 0
        self.arriving = 0
        self.pool = ThreadPoolExecutor(1, "engine")

    @contextmanager
    def arrival(self) -> Iterator[None]:
        """Around the reading of a request that will ask."""
        self.arriving += 1
        try:
            yield
        finally:
            self.arriving -= 1

    async def answer(self, x: np.ndarray, epsilon: float | None) -> Answer:
        if self.queued + len(x) > max(self.limits.queued, len(x)):
            raise Problem(503, "Too many inputs are waiting; try again in a moment.")
        waiting = _Waiting(x, epsilon, asyncio.get_running_loop().create_future())
        self.queued += len(x)
        self.queue.put_nowait(waiting)
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await waiting.answer
        except TimeoutError:
            raise Problem(504, f"There was no answer within {self.limits.seconds:g} seconds.") from None

    async def work(self) -> None:
        """For ever; cancelled when the service stops, after the last request was answered."""
        held: _Waiting | None = None
        while True:
            first = held or await self._next()
            batch, held = await self._gather(first)
            live = [waiting for waiting in batch if not waiting.answer.done()]
            for epsilon in dict.fromkeys(waiting.epsilon for waiting in live):
                await self._run([waiting for waiting in live if waiting.epsilon == epsilon], epsilon)

    def close(self) -> None:
        self.pool.shutdown()

    async def _next(self) -> _Waiting:
        waiting = await self.queue.get()
        self.queued -= len(waiting.x)
        return waiting

    async def _gather(self, first: _Waiting) -> tuple[list[_Waiting], _Waiting | None]:
        """The batch, and the one that no longer fitted in."""
        loop = asyncio.get_running_loop()
        batch, size, end = [first], len(first.x), loop.time() + self.limits.wait
        while size < self.limits.batch:
            if self.queue.empty():
                if not self.arriving:
                    break
                try:
                    async with asyncio.timeout_at(end):
                        waiting = await self._next()
                except TimeoutError:
                    break
            else:
                waiting = await self._next()
            if size + len(waiting.x) > self.limits.batch:
                return batch, waiting
            batch.append(waiting)
            size += len(waiting.x)
        return batch, None

    async def _run(self, batch: list[_Waiting], epsilon: float | None) -> None:
        x = np.concatenate([waiting.x for waiting in batch]) if len(batch) > 1 else batch[0].x
        self.observe(len(x))
        try:
            answer = await asyncio.get_running_loop().run_in_executor(self.pool, self.engine.answer, x, epsilon)
        except Exception as e:
            for waiting in batch:
                if not waiting.answer.done():
                    waiting.answer.set_exception(e)
            return
        start = 0
        for waiting in batch:
            end = start + len(waiting.x)
            if not waiting.answer.done():
                waiting.answer.set_result(answer.part(slice(start, end)))
            start = end
