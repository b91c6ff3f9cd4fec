"""What certificates cost a service: the same net behind the same HTTP, with them and without.

    python -m benchmarks.serve [zoo:mnist-0.3 zoo:cifar10] [--seconds 2] [--rounds 9] [--clients 1 16]

Of each net two services run on loopback, in processes of their own: the graph of `gloronet export`, and that of the
same weights with logits as its only output, no sum split and nothing added. Clients that wait for each answer post
one picture after another as `.npy`. Rounds of the two take turns, and the machine's moods fall on both; of each the
median round counts. The engines are timed without HTTP as well. Adds a line to `records/serve-cpu.jsonl`.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnxruntime
import uvicorn

import gloronet as gn
from benchmarks import record
from gloronet.export import OUTPUTS, nodes
from gloronet.serve.app import application
from gloronet.serve.engine import Answer, OnnxEngine, session
from gloronet.serve.source import Served

KINDS = ("plain", "certified")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("nets", nargs="*", default=["zoo:mnist-0.3", "zoo:cifar10"], help="zoo nets or run folders")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--plain", type=Path, help="serve this graph, which has only logits, at any free port")
    options = parser.parse_args()
    if options.plain:
        serve_plain(options.plain)
        return
    for what in options.nets:
        with tempfile.TemporaryDirectory() as there:
            found = measured(what, Path(there), options.clients, options.seconds, options.rounds)
        record.append("serve-cpu", found)
        print(found)


def measured(what: str, there: Path, clients: list[int], seconds: float, rounds: int) -> dict[str, Any]:
    net = gn.load(what)
    files = {kind: there / f"{kind}.onnx" for kind in KINDS}
    gn.export_onnx(net, files["certified"])
    write_plain(net, files["plain"])
    x = np.random.RandomState(0).random_sample((32, *net.input_shape)).astype(np.float32)
    engine = {str(n): of_engines(files, x[:n], seconds / 4, rounds) for n in (1, 32)}
    started = {
        "certified": ["-m", "gloronet", "serve", str(files["certified"]), "--port", "0"],
        "plain": ["-m", "benchmarks.serve", "--plain", str(files["plain"])],
    }
    http = {}
    with service(started["plain"]) as plain, service(started["certified"]) as certified:
        ports = {"plain": plain, "certified": certified}
        for count in clients:
            http[str(count)] = of_services(ports, x[:1], count, seconds, rounds)
    return {"net": what, "seconds": seconds, "rounds": rounds, "engine_microseconds": engine, "http": http}


def write_plain(net: gn.GloRoNet, path: Path) -> None:
    """The same weights without certificates, as anyone would export them: no sum split, no size taken."""
    import onnx
    import onnx.utils

    whole = path.with_suffix(".whole.onnx")
    with mock.patch.object(nodes, "LONGEST", 2**31):
        gn.export_onnx(net, whole)
    onnx.utils.extract_model(str(whole), str(path), ["x"], ["logits"])


# Without HTTP


def of_engines(files: dict[str, Path], x: np.ndarray, seconds: float, rounds: int) -> dict[str, float]:
    """Microseconds a call, each the median round, and their ratio."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    names = {"plain": ["logits"], "certified": list(OUTPUTS)}
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    sessions = {kind: onnxruntime.InferenceSession(files[kind], options) for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            began, calls = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                sessions[kind].run(names[kind], {"x": x})
                calls += 1
            times[kind].append((time.perf_counter() - began) / calls * 1e6)
    return _compared(times)


def _compared(values: dict[str, list[float]]) -> dict[str, float]:
    """The median round of each kind, and the median of the ratios of neighbouring rounds."""
    middle = {kind: statistics.median(values[kind]) for kind in KINDS}
    ratios = [b / a for a, b in zip(values["plain"], values["certified"], strict=True)]
    return {**middle, "ratio": statistics.median(ratios)}


# Over HTTP


class PlainEngine:
    """Logits alone; nothing is certified."""

    def __init__(self, path: Path) -> None:
        whole = OnnxEngine(path.with_suffix(".whole.onnx"))
        self.about, self.session = whole.about, session(path)  # as `gloronet serve` has it

    def answer(self, x: np.ndarray, epsilon: float | None) -> Answer:
        (logits,) = self.session.run(["logits"], {"x": x})
        none = np.zeros(len(x))
        return Answer(logits, logits.argmax(1), none, none > 0)


def serve_plain(path: Path) -> None:
    import socket

    # As in serve/server.py: the protocol is named, so that asyncio sets TCP_NODELAY.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{bound.getsockname()[1]}/", flush=True)
    app = application(Served("plain", PlainEngine(path)))
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False)
    uvicorn.Server(config).run(sockets=[bound])


@contextmanager
def service(arguments: list[str]) -> Iterator[int]:
    """The port at which it listens."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([sys.executable, *arguments], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", process.stdout.readline())
            assert found, "the service did not start"
            yield int(found[1])
        finally:
            process.terminate()


def of_services(ports: dict[str, int], x: np.ndarray, clients: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Requests a second, and milliseconds at the 50th and 99th percentile."""
    stream = io.BytesIO()
    np.save(stream, x[0])
    body = stream.getvalue()
    asyncio.run(_load(ports["plain"], body, clients, 0.5))  # both are warm before the first round
    asyncio.run(_load(ports["certified"], body, clients, 0.5))
    kept: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in ("rps", "p50", "p99")}
    for _ in range(rounds):
        for kind in KINDS:
            taken = sorted(asyncio.run(_load(ports[kind], body, clients, seconds)))
            kept["rps"][kind].append(len(taken) / seconds)
            for name, share in (("p50", 0.50), ("p99", 0.99)):
                kept[name][kind].append(1e3 * taken[min(len(taken) - 1, int(share * len(taken)))])
    return {name: _compared(values) for name, values in kept.items()}


async def _load(port: int, body: bytes, clients: int, seconds: float) -> list[float]:
    """Seconds that each answer took, of clients that ask again as soon as they are answered."""
    head = (
        f"POST /v1/certify HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/x-npy\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()
    taken: list[float] = []
    end = time.perf_counter() + seconds

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (began := time.perf_counter()) < end:
            writer.write(head + body)
            told = await reader.readuntil(b"\r\n\r\n")
            assert told.startswith(b"HTTP/1.1 200"), told
            found = re.search(rb"content-length: (\d+)", told, re.I)
            assert found, told
            await reader.readexactly(int(found[1]))
            taken.append(time.perf_counter() - began)
        writer.close()

    await asyncio.gather(*(ask() for _ in range(clients)))
    return taken


if __name__ == "__main__":
    main()
