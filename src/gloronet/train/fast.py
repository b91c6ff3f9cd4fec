"""What makes a step fast on a GPU: kernels side by side, compiled functions, a step captured and replayed.

Each does nothing where it is switched off, and what turns out not to work is said once and done without.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

WARM = 3
"""Steps taken eagerly before one is captured: libraries choose their kernels, the optimiser makes its state."""
LONG = 5000
"""Steps from which on compiling the step, some seconds, is repaid."""
WORKSPACE = ":4096:1"
"""cuBLAS keeps one of these, 4 MiB, for every stream in every thread that multiplies matrices, and a certified step has
more streams than a plain one. Its own choice on a Hopper is 32 MiB."""

BESIDE, STRANDS = slice(0, 2), slice(2, 6)
"""Which streams are the step's two lanes, and which take the layers' power iterations, as none waits for another."""

Note = Callable[[str], None]
Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class Fast:
    """What a step makes use of; all off is the plain step of the CPU."""

    bf16: bool = False
    channels_last: bool = False
    overlap: bool = False
    capture: bool = False
    compile: bool = False

    @staticmethod
    def on(place: torch.device, steps: int, note: Note) -> Fast:
        """All that the device offers for a training of so many steps; what it lacks is said once."""
        if place.type != "cuda":
            return Fast()
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", WORKSPACE)  # read when a stream first needs one
        bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if not bf16:
            note("This GPU has no bfloat16: the forward pass runs in float32.")
        triton = importlib.util.find_spec("triton") is not None
        if steps >= LONG and not triton:
            note("Triton is not installed: the step is not compiled, and slower.")
        return Fast(bf16=bf16, channels_last=True, overlap=True, capture=True, compile=steps >= LONG and triton)


class Lanes:
    """Streams beside the current one. On a CPU, or switched off, all comes in turn.

    Memory that a lane's work gives back may be taken by later work of that lane at once, even while another lane
    still reads it. So what one lane frees must be read by itself alone, or by others before they `join`.
    """

    def __init__(self, place: torch.device, on: bool, which: slice) -> None:
        self._place = place
        self._streams = _streams(place)[which] if on and place.type == "cuda" else []

    def fork(self) -> None:
        """From here on, what is `beside` may run at the same time as the rest, until `join`."""
        for stream in self._streams:
            stream.wait_stream(torch.cuda.current_stream(self._place))

    @contextlib.contextmanager
    def beside(self, which: int) -> Iterator[None]:
        if not self._streams:
            yield
            return
        with torch.cuda.stream(self._streams[which]):
            yield

    def join(self) -> None:
        for stream in self._streams:
            torch.cuda.current_stream(self._place).wait_stream(stream)

    def spread(self, jobs: Sequence[Callable[[], Tensor]]) -> list[Tensor]:
        """What the jobs answer, none of which needs another: each is beside the rest, and all are joined."""
        self.fork()
        answers = []
        for k, job in enumerate(jobs):
            with self.beside(k % max(1, len(self._streams))):
                answers.append(job())
        self.join()
        return answers


class Compiler:
    """Compiles functions for the shapes of the usual batch; any other, rare, is not worth compiling for."""

    def __init__(self, on: bool, note: Note) -> None:
        self._on, self._note = on, note
        self._compiled: dict[str, Callable[..., Any]] = {}

    def __call__(self, name: str, function: Callable[..., Any], usual: bool, *arguments: Any) -> Any:
        if not self._on or not usual:
            return function(*arguments)
        if name not in self._compiled:
            self._compiled[name] = torch.compile(function, dynamic=False)
        try:
            return self._compiled[name](*arguments)
        except Exception as e:  # a compiler can fail in any way; what is wrong with the network shows without it
            self._on = False
            self._note(f"The step cannot be compiled and runs as it is, slower: {_first_line(e)}")
            return function(*arguments)

    def close(self) -> None:
        """Gives the compiled code back, which holds on to the tensors it was made for."""
        if self._compiled:
            self._compiled.clear()
            torch.compiler.reset()


class Graphs:
    """Captures a function of tensors as a CUDA graph, one a key, and replays it with other tensors in their place."""

    def __init__(self, place: torch.device, note: Note) -> None:
        self._place, self._note = place, note
        self._graphs: dict[Hashable, _Captured] = {}
        self._seen: Counter[Hashable] = Counter()
        self._works = True
        self.preparing = 0.0
        """Seconds that compiling, choosing kernels and capturing took, so far."""

    def __call__(self, key: Hashable, function: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """function(*inputs): eager the first few times of a key, then by its graph; the results are copies."""
        if not self._works:
            return function(*inputs)
        captured = self._graphs.get(key)
        if captured is None:
            self._seen[key] += 1
            began = self._now()
            if self._seen[key] > WARM:
                captured = self._capture(key, function, inputs)
            result = self._aside(function, inputs) if captured is None else ()
            self.preparing += self._now() - began
            if captured is None:
                return result
        for mine, given in zip(captured.inputs, inputs, strict=True):
            mine.copy_(given)
        captured.graph.replay()
        return tuple(t.clone() for t in captured.outputs)

    def _capture(self, key: Hashable, function: Callable[..., Tensors], inputs: Tensors) -> _Captured | None:
        """The graph; None, said once, where the function does something that no graph can hold."""
        mine = tuple(t.clone() for t in inputs)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
        try:
            # Of this thread alone: another may be sending the next batches.
            with torch.cuda.graph(graph, pool, _streams(self._place)[-1], capture_error_mode="thread_local"):
                outputs = function(*mine)
        except RuntimeError as e:
            torch.cuda.synchronize(self._place)
            self._works = False
            self._note(f"The step cannot be captured as a CUDA graph and runs eagerly, slower: {_first_line(e)}")
            return None
        self._graphs[key] = _Captured(graph, mine, outputs)
        return self._graphs[key]

    def _aside(self, function: Callable[..., Tensors], inputs: Tensors) -> Tensors:
        """On the stream that capturing will use, as what prepares it must be."""
        outer, own = torch.cuda.current_stream(self._place), _streams(self._place)[-1]
        own.wait_stream(outer)
        with torch.cuda.stream(own):
            result = function(*inputs)
        outer.wait_stream(own)
        return result

    def _now(self) -> float:
        torch.cuda.synchronize(self._place)
        return time.perf_counter()

    def close(self) -> None:
        self._graphs.clear()


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: Tensors
    outputs: Tensors


@functools.cache
def _streams(place: torch.device) -> list[torch.cuda.Stream]:
    """The lanes', then the one that captures. The same for every training: cuBLAS keeps a workspace for each it saw."""
    return [torch.cuda.Stream(place) for _ in range(STRANDS.stop + 1)]


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
