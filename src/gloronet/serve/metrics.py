"""Counters and histograms in the text format of Prometheus: as much of it as is needed here."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
MEDIA = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """
    >>> h = Histogram("size", "Inputs.", (1, 2))
    >>> h.observe(2)
    >>> h.text().splitlines()[2:]
    ['size_bucket{le="1"} 0', 'size_bucket{le="2"} 1', 'size_bucket{le="+Inf"} 1', 'size_sum 2', 'size_count 1']
    """

    def __init__(self, name: str, about: str, ends: Sequence[float]) -> None:
        self.name, self.about, self.ends = name, about, ends
        self.counts = [0] * (len(ends) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.ends, value)] += 1
        self.sum += value

    def text(self) -> str:
        lines, total = _head(self.name, "histogram", self.about), 0
        for end, count in zip((*map(_number, self.ends), "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{self.name}_bucket{{le="{end}"}} {total}')
        return "\n".join([*lines, f"{self.name}_sum {_number(self.sum)}", f"{self.name}_count {total}"])


class Metrics:
    """What the service counts."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.images: Counter[str] = Counter(certified=0, abstained=0)
        self.batches = Histogram("gloronet_batch_size", "Inputs answered at once.", SIZES)
        self.latency = Histogram("gloronet_request_seconds", "From request to answer.", SECONDS)

    def text(self) -> str:
        name = "gloronet_requests_total"
        lines = _head(name, "counter", "Requests answered, by path and status.")
        lines += [
            f'{name}{{path="{path}",status="{status}"}} {count}'
            for (path, status), count in sorted(self.requests.items())
        ]
        name = "gloronet_inputs_total"
        lines += _head(name, "counter", "Inputs, by whether they were certified at the radius asked for.")
        lines += [f'{name}{{outcome="{outcome}"}} {count}' for outcome, count in self.images.items()]
        return "\n".join([*lines, self.batches.text(), self.latency.text(), ""])


class Measured:
    """ASGI middleware that counts and times every request by the route it took, never by what the client wrote."""

    def __init__(self, app: Any, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, noting)
        finally:
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests[path, status] += 1
            self.metrics.latency.observe(time.perf_counter() - began)


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _number(value: float) -> str:
    return repr(int(value)) if value == int(value) else repr(value)
