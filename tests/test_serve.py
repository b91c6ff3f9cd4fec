"""The service as its clients meet it: a real process on loopback, what it answers, and everything it must survive."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gloronet as gn
from gloronet import answers, cli

httpx = pytest.importorskip("httpx")
uvicorn = pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")
pytest.importorskip("fastapi", reason="the extra [serve] is not installed")

from PIL import Image  # noqa: E402
from tests import pages  # noqa: E402
from tests.serving import Service, service, small_run  # noqa: E402

from gloronet.serve import About, Answer, Limits, OnnxEngine, Served, TorchEngine, application  # noqa: E402
from gloronet.serve.adversary import BrokenCertificate, nearest  # noqa: E402
from gloronet.serve.batcher import Batcher  # noqa: E402
from gloronet.serve.problems import Problem  # noqa: E402
from gloronet.serve.server import listening  # noqa: E402
from gloronet.serve.source import engine_of  # noqa: E402

JSON, NPY = {"Content-Type": "application/json"}, {"Content-Type": "application/x-npy"}
DOCS = pages.ROOT / "docs" / "serve.md"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def served(run: Path) -> Iterator[Service]:
    with service(run) as running:
        yield running


@pytest.fixture(scope="module")
def client(served: Service) -> Iterator[Any]:
    with httpx.Client(base_url=served.url, trust_env=False, timeout=60) as c:
        yield c


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return gn.data.load("digits").test_x


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def picture(pixels: np.ndarray, kind: str = "PNG", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(file, kind)
    return file.getvalue()


def values(text: str) -> dict[str, float]:
    """Prometheus' text format, read strictly."""
    rows = [line for line in text.splitlines() if not line.startswith("# ")]
    assert all(re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+', row) for row in rows), rows
    return {name: float(value) for name, value in (row.rsplit(" ", 1) for row in rows)}


# What it answers


def test_its_certificates_are_those_of_the_net(client: Any, run: Path, images: torch.Tensor) -> None:
    ours = gn.load(run).certify(images, semantics="float32")
    results = []
    for part in images.split(120):
        told = client.post("v1/certify", content=npy(part.numpy()), headers=NPY).json()
        assert (told["semantics"], told["norm"], told["epsilon"]) == ("float32", "l2", ours.epsilon)
        results += told["results"]
    assert [r["label"] for r in results] == ours.label.tolist()
    radius = np.array([r["radius"] for r in results])
    assert (radius <= ours.radius.numpy()).all()
    assert radius == pytest.approx(ours.radius.numpy(), abs=1e-3)
    assert all(r["certified"] == (r["radius"] > ours.epsilon) for r in results)
    assert all(r["prediction"] == (r["label"] if r["certified"] else gn.BOTTOM) for r in results)
    assert {r["certified"] for r in results} == {True, False}
    assert all(len(r["logits"]) == 10 and r["class"] == str(r["label"]) for r in results)


def test_json_nested_or_flat_one_or_many_and_another_epsilon(client: Any, images: torch.Tensor) -> None:
    one = images[0]
    bodies = [one.tolist(), one.flatten().tolist(), [one.tolist()], [one.flatten().tolist()]]
    answers = [client.post("v1/certify", json={"inputs": body}).json() for body in bodies]
    assert all(answer == answers[0] for answer in answers)
    told = client.post("v1/certify", json={"inputs": images[:3].tolist(), "epsilon": "360/255"}).json()
    assert len(told["results"]) == 3
    assert told["epsilon"] == gn.config.parse_epsilon("360/255")
    assert all(r["prediction"] == gn.BOTTOM for r in told["results"])
    free = client.post("v1/certify?epsilon=0", content=npy(images[:3].numpy()), headers=NPY).json()
    assert all(r["certified"] for r in free["results"])


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", None), ("PNG", "RGB"), ("PNG", "RGBA"), ("PNG", "P"), ("JPEG", None)]
)
def test_an_image_is_read_as_it_is_stored(client: Any, images: torch.Tensor, kind: str, mode: str | None) -> None:
    pixels = (images[5, 0].numpy() * 255).astype(np.uint8)
    body = picture(pixels, kind, mode)
    told = client.post("v1/certify", content=body, headers={"Content-Type": f"image/{kind.lower()}"}).json()
    stored = np.asarray(Image.open(io.BytesIO(body)).convert("L"), np.float32) / np.float32(255)
    same = client.post("v1/certify", json={"inputs": stored.flatten().tolist()}).json()
    assert told == same


def test_an_image_is_resized_only_when_the_request_says_so(client: Any) -> None:
    body, kind = picture(np.full((20, 30), 128, np.uint8)), {"Content-Type": "image/png"}
    refused = client.post("v1/certify", content=body, headers=kind)
    assert refused.status_code == 422
    assert "30×20" in refused.json()["detail"]
    assert client.post("v1/certify?resize=true", content=body, headers=kind).status_code == 200
    assert client.post("v1/certify?resize=yes", content=body, headers=kind).status_code == 422


def test_the_model_describes_itself(client: Any, run: Path) -> None:
    told, net = client.get("v1/model").json(), gn.load(run)
    assert told["digest"] == net.bound().digest
    assert told["input_shape"] == [1, 8, 8]
    assert told["classes"] == list("0123456789")
    assert (told["name"], told["engine"], told["attack"], told["samples"]) == ("digits", "onnxruntime", True, 360)
    assert told["version"] == gn.__version__


def test_samples_are_the_test_set(client: Any, images: torch.Tensor) -> None:
    told = client.get("v1/samples/7").json()
    assert torch.equal(torch.tensor(told["input"]), images[7])
    assert told["class"] == str(int(gn.data.load("digits").test_y[7]))


def test_no_attack_comes_inside_the_radius(client: Any, run: Path, images: torch.Tensor) -> None:
    net = gn.load(run)
    for x in images[:5]:
        told = client.post("v1/attack", json={"inputs": x.tolist()}).json()
        found = told["adversarial"]
        there = torch.tensor(found["input"])
        assert found["distance"] >= told["radius"] > 0
        assert float((there.double() - x.double()).norm()) == pytest.approx(found["distance"], rel=1e-9)
        assert int(net.logits(there[None]).argmax()) == found["label"] != told["label"]
        assert 0 <= float(there.min()) <= float(there.max()) <= 1
    assert client.post("v1/attack", json={"inputs": images[:2].tolist()}).status_code == 422


def test_health_metrics_page_and_openapi(client: Any, images: torch.Tensor) -> None:
    assert client.get("healthz").json() == {"status": "ok"}
    before = values(client.get("metrics").text)
    client.post("v1/certify", content=npy(images[:50].numpy()), headers=NPY)
    client.get("no/such/path")
    text = client.get("metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    after = values(text.text)
    name = 'gloronet_requests_total{path="/v1/certify",status="200"}'
    assert after[name] == before.get(name, 0) + 1
    assert after['gloronet_requests_total{path="other",status="404"}'] >= 1
    assert sum(after[k] - before[k] for k in after if k.startswith("gloronet_inputs_total")) == 50
    assert after["gloronet_batch_size_sum"] == before["gloronet_batch_size_sum"] + 50
    assert after['gloronet_request_seconds_bucket{le="+Inf"}'] == after["gloronet_request_seconds_count"]
    told = client.get("openapi.json").json()
    paths = {"/v1/certify", "/v1/attack", "/v1/model", "/v1/samples/{index}", "/healthz", "/metrics"}
    assert paths <= told["paths"].keys()
    content = told["paths"]["/v1/certify"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "image/png", "image/jpeg", "application/x-npy"}
    for example in content["application/json"]["examples"].values():
        assert client.post("v1/certify", json=example["value"]).status_code == 200
    for path in ("", "page.css", "page.js"):
        page = client.get(path)
        assert page.status_code == 200
        assert "http://" not in page.text.replace("http://www.w3.org", "")
        assert "https://" not in page.text
        assert "default-src 'none'" in page.headers["content-security-policy"]


# What it survives

FLAT = [0.5] * 64
MAGIC = b"\x93NUMPY\x01\x00v\x00"
HUGE = MAGIC + b"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 64), }".ljust(117) + b"\n"
PNG, JPEG = {"Content-Type": "image/png"}, {"Content-Type": "image/jpeg"}
GREY = picture(np.zeros((8, 8), np.uint8))
LONG = json.dumps({"inputs": ["x" * 4_000_000] + [0] * 300_000}).encode()
"""Small as it is, an array as wide as its longest word would take terabytes."""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


DEEP = b"".join((
    b"\x89PNG\r\n\x1a\n",
    chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 16, 2, 0, 0, 0)),
    chunk(b"IDAT", zlib.compress((b"\0" + b"\x12\xff" * 24) * 8)),
    chunk(b"IEND", b""),
))  # fmt: skip
"""RGB with 16 bits a channel, which Pillow opens as RGB with 8."""
BAD: dict[str, tuple[bytes, dict[str, str], int, str]] = {
    "wrong shape": (json.dumps({"inputs": [[0.5] * 63]}).encode(), JSON, 422, "[1, 8, 8]"),
    "a number": (b'{"inputs": 0.5}', JSON, 422, "shape"),
    "no inputs": (b'{"inputs": []}', JSON, 422, "shape"),
    "ragged": (b'{"inputs": [[0.1, 0.2], [0.3]]}', JSON, 422, "different lengths"),
    "words": (json.dumps({"inputs": ["a"] * 64}).encode(), JSON, 422, "numbers only"),
    "a long word": (LONG, JSON, 422, "numbers only"),
    "true and false": (json.dumps({"inputs": [True] * 64}).encode(), JSON, 422, "numbers only"),
    "nothing": (json.dumps({"inputs": [None] * 64}).encode(), JSON, 422, "numbers only"),
    "a giant number": (json.dumps({"inputs": [10**400] * 64}).encode(), JSON, 422, "numbers only"),
    "NaN": (json.dumps({"inputs": [float("nan")] * 64}).encode(), JSON, 422, "NaN"),
    "infinity": (json.dumps({"inputs": [float("inf")] * 64}).encode(), JSON, 422, "infinite"),
    "below 0": (json.dumps({"inputs": [-1e-9] * 64}).encode(), JSON, 422, "[0, 1]"),
    "above 1": (json.dumps({"inputs": [255] * 64}).encode(), JSON, 422, "[0, 1]"),
    "just above 1": (npy(np.full(64, 1 + 1e-12)), NPY, 422, "[0, 1]"),
    "too many": (npy(np.zeros((257, 64), np.float32)), NPY, 413, "256"),
    "too large": (b" " * (16 * 2**20 + 1), JSON, 413, "bytes"),
    "no JSON": (b"{", JSON, 400, "not JSON"),
    "no text": (b"\xff\xfe\x00", JSON, 400, "not JSON"),
    "a deep hole": (b"[" * 200_000, JSON, 400, "deep"),
    "a list": (b"[]", JSON, 422, "object"),
    "an unknown field": (json.dumps({"inputs": FLAT, "eps": 1}).encode(), JSON, 422, "eps"),
    "a negative epsilon": (json.dumps({"inputs": FLAT, "epsilon": -1}).encode(), JSON, 422, "epsilon"),
    "a wordy epsilon": (json.dumps({"inputs": FLAT, "epsilon": "much"}).encode(), JSON, 422, "epsilon"),
    "a false epsilon": (json.dumps({"inputs": FLAT, "epsilon": True}).encode(), JSON, 422, "epsilon"),
    "an endless epsilon": (json.dumps({"inputs": FLAT, "epsilon": float("inf")}).encode(), JSON, 422, "epsilon"),
    "empty": (b"", JSON, 400, "empty"),
    "unknown type": (b"0.5", {"Content-Type": "text/csv"}, 415, "text/csv"),
    "no type": (b"0.5", {}, 415, "Content-Type"),
    "pixels in an npy": (npy(np.zeros((8, 8), np.uint8)), NPY, 422, "255"),
    "objects in an npy": (MAGIC + b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117)
                          + b"\ncos\nsystem\n", NPY, 422, "dtype"),
    "a promising npy": (HUGE, NPY, 400, "cut off"),
    "a cut npy": (npy(np.zeros(64, np.float32))[:-4], NPY, 400, "cut off"),
    "an unclosed header": (MAGIC + b"{'descr': '<f4', 'shape': (9,".ljust(117) + b"\n", NPY, 400, ".npy"),
    "no npy": (b"nope", NPY, 400, ".npy"),
    "no image": (b"nope", PNG, 400, "PNG"),
    "a cut image": (GREY[: len(GREY) // 2 + 8], PNG, 400, "PNG"),
    "another kind of image": (GREY, JPEG, 400, "JPEG"),
    "a transparent image": (picture(np.zeros((8, 8, 4), np.uint8)), PNG, 422, "transparent"),
    "a deep colour image": (DEEP, PNG, 422, "8 bits"),
    "a deep image": (picture(np.zeros((8, 8), np.uint16)), PNG, 422, "8 bits"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_told_what_is_wrong(client: Any, what: str) -> None:
    body, headers, status, words = BAD[what]
    told = client.post("v1/certify", content=body, headers=headers)
    assert told.status_code == status, told.text
    assert told.headers["content-type"] == "application/problem+json"
    problem = told.json()
    assert problem["status"] == status
    assert words in problem["detail"]
    assert client.post("v1/certify", json={"inputs": FLAT}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "nope", 404), ("GET", "v1/certify", 405), ("GET", "v1/samples/360", 404), ("GET", "v1/samples/-1", 404),
     ("GET", "v1/samples/x", 404), ("GET", "page/../../engine.py", 404), ("DELETE", "", 405)],
)  # fmt: skip
def test_an_unknown_path_or_method_too(client: Any, method: str, path: str, status: int) -> None:
    told = client.request(method, path)
    assert told.status_code == status
    assert told.headers["content-type"] == "application/problem+json"


def test_a_parameter_with_a_typo_is_not_ignored(client: Any) -> None:
    for query in ("epsilonn=0.2", "Epsilon=9", "epsilon=0.1&resized=1"):
        told = client.post(f"v1/certify?{query}", json={"inputs": FLAT})
        assert told.status_code == 422
        assert "There is no parameter" in told.json()["detail"]


def test_a_parameter_given_twice_is_not_chosen_from(client: Any) -> None:
    told = client.post("v1/certify?epsilon=0.1&epsilon=0.9", json={"inputs": FLAT})
    assert told.status_code == 422
    assert "twice" in told.json()["detail"]


def test_no_host_is_not_every_host(run: Path) -> None:
    with pytest.raises(gn.ConfigError, match=r"such as 127\.0\.0\.1"), listening(str(run), host=""):
        pass


def test_a_probe_may_ask_by_head(client: Any) -> None:
    assert client.head("healthz").status_code == 200


def test_garbage_on_the_wire_and_clients_that_leave_do_no_harm(served: Service, client: Any) -> None:
    half = b"POST /v1/certify HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{"
    for bytes_ in (b"\x00\x01\x02\r\n\r\n", half, b""):
        with socket.create_connection(("127.0.0.1", served.port), 5) as s:
            s.sendall(bytes_)
    assert client.post("v1/certify", json={"inputs": FLAT}).status_code == 200


def test_dozens_at_once_are_answered_each_its_own_in_fewer_batches(client: Any, images: torch.Tensor) -> None:
    alone = [client.post("v1/certify", json={"inputs": x.tolist()}).json()["results"][0] for x in images[:48]]
    before = values(client.get("metrics").text)

    def ask(k: int) -> dict[str, Any]:
        body = {"inputs": images[k].tolist()} | ({"epsilon": 0.1} if k % 3 == 0 else {})
        return client.post("v1/certify", json=body).json()["results"][0]

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(48)))
    after = values(client.get("metrics").text)
    assert after["gloronet_batch_size_sum"] - before["gloronet_batch_size_sum"] == 48
    assert after["gloronet_batch_size_count"] - before["gloronet_batch_size_count"] < 48
    for k, (a, b) in enumerate(zip(alone, together, strict=True)):
        assert a["label"] == b["label"]
        assert a["radius"] == pytest.approx(b["radius"], abs=1e-5)  # sums in another order
        assert b["certified"] == (b["radius"] > (0.1 if k % 3 == 0 else 0.30000000000000004))


def test_what_was_taken_is_finished_before_it_stops(run: Path, tmp_path: Path) -> None:
    onnx = gn.export_onnx(gn.load(run), tmp_path / "model.onnx")
    body = json.dumps({"inputs": FLAT}).encode()
    head = "POST /v1/certify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    with service(onnx) as running, socket.create_connection(("127.0.0.1", running.port), 10) as s:
        told = httpx.get(f"{running.url}v1/model", trust_env=False).json()
        assert (told["name"], told["attack"], told["samples"]) == ("model.onnx", False, 0)
        refused = httpx.post(f"{running.url}v1/attack", json={"inputs": FLAT}, trust_env=False)
        assert refused.status_code == 404
        assert httpx.get(f"{running.url}v1/samples/0", trust_env=False).status_code == 404
        s.sendall(head.encode() + body[:10])
        time.sleep(0.3)
        running.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert running.process.poll() is None
        s.sendall(body[10:])
        reply = b""
        while part := s.recv(4096):
            reply += part
        assert reply.startswith(b"HTTP/1.1 200")
        assert b'"results"' in reply
        assert running.process.wait(10) in (0, -signal.SIGTERM)


# Its parts


class Odd:
    """An engine that is slow, or fails, when the input says so."""

    about = About((2,), ("a", "b"), 0.1, "l2", "real", "0" * 64, "odd")

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def answer(self, x: np.ndarray, epsilon: float | None) -> Answer:
        self.sizes.append(len(x))
        if (x == 0.25).any():
            raise RuntimeError("a bug")
        time.sleep(0.5 if (x == 0.75).any() else 0.02)
        return Answer(x, x.argmax(1), x[:, 0].astype(np.float64), x[:, 0] > (epsilon or 0.1))


def points(*values: float) -> np.ndarray:
    return np.array([[v, 0.0] for v in values], np.float32)


def test_the_batcher_batches_and_gives_each_its_own() -> None:
    engine, limits = Odd(), Limits(batch=8, wait=0.02)

    async def go() -> list[Answer]:
        batcher = Batcher(engine, limits)
        worker = asyncio.create_task(batcher.work())
        asked = [batcher.answer(points(k / 100, k / 100), None) for k in range(10)]
        asked.append(batcher.answer(points(*[0.9] * 20), 0.5))
        found = await asyncio.gather(*asked)
        worker.cancel()
        batcher.close()
        return found

    found = asyncio.run(go())
    assert [float(a.radius[0]) for a in found[:10]] == pytest.approx([k / 100 for k in range(10)])
    assert [len(a) for a in found] == [2] * 10 + [20]
    assert engine.sizes == [8, 8, 4, 20]


def test_a_full_queue_is_busy_and_one_that_gave_up_is_skipped() -> None:
    engine, limits = Odd(), Limits(batch=1, wait=0.0, queued=2, seconds=0.2)

    async def go() -> list[Answer | BaseException]:
        batcher = Batcher(engine, limits)
        worker = asyncio.create_task(batcher.work())
        slow = asyncio.create_task(batcher.answer(points(0.75), None))
        await asyncio.sleep(0.05)
        rest = [batcher.answer(points(0.5), None) for _ in range(3)]
        found = await asyncio.gather(slow, *rest, return_exceptions=True)
        await asyncio.sleep(0.5)
        assert len(await batcher.answer(points(0.5), None)) == 1
        worker.cancel()
        batcher.close()
        return found

    found = asyncio.run(go())
    assert [e.status for e in found if isinstance(e, Problem)] == [504, 504, 504, 503]
    assert engine.sizes == [1, 1]


@pytest.fixture(scope="module")
def odd() -> Iterator[str]:
    limits = Limits(seconds=0.3, body=1000)
    config = uvicorn.Config(application(Served("odd", Odd()), "1", limits), port=0, log_level="critical")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(10)
    assert not thread.is_alive()


def test_a_failing_or_slow_engine_fails_its_own_request_only(odd: str) -> None:
    for value, status in ((0.25, 500), (0.75, 504), (0.5, 200)):
        time.sleep(0.6 if status == 200 else 0)
        told = httpx.post(f"http://{odd}/v1/certify", json={"inputs": [value, 0.0]}, trust_env=False)
        assert told.status_code == status
        assert "bug" not in told.text


def test_a_body_that_does_not_come_or_does_not_end(odd: str) -> None:
    host, port = odd.split(":")
    head = b"POST /v1/certify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection((host, int(port)), 5) as s:
        s.sendall(head + b"Content-Length: 50\r\n\r\n{")
        assert s.recv(100).startswith(b"HTTP/1.1 408")
    with socket.create_connection((host, int(port)), 5) as s:
        s.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n" + b"400\r\n" + b" " * 1024 + b"\r\n")
        s.sendall((b"400\r\n" + b" " * 1024 + b"\r\n") * 4)
        assert s.recv(100).startswith(b"HTTP/1.1 413")


def test_an_attack_inside_a_radius_would_be_heard_of(run: Path, images: torch.Tensor) -> None:
    net = gn.load(run)
    engine = OnnxEngine(gn.export_onnx(net, run / "again.onnx"))
    x = images[:1].numpy()
    found = nearest(engine, net, x, int(engine.answer(x, None).label[0]), 0.0, 30)
    assert found is not None
    with pytest.raises(BrokenCertificate):
        nearest(engine, net, x, int(engine.answer(x, None).label[0]), found.distance + 1, 30)
    with pytest.raises(Problem, match="not done"):
        nearest(engine, net, x, 0, 0.1, 0.0)


@pytest.mark.parametrize(("layer", "norm"), [(nn.Tanh(), "l2"), (gn.MinMax(), "linf")])
def test_a_net_that_is_not_exported_is_served_by_torch(layer: nn.Module, norm: str) -> None:
    torch.manual_seed(0)
    net = gn.GloRoNet(nn.Sequential(nn.Linear(4, 8), layer, nn.Linear(8, 3)), 0.01, (4,), norm=norm).eval()
    engine = engine_of(net, ("a", "b", "c"))
    assert isinstance(engine, TorchEngine)
    assert (engine.about.semantics, engine.about.norm) == ("real", norm)
    x = torch.rand(20, 4)
    answer, ours = engine.answer(x.numpy(), None), net.certify(x)
    assert np.array_equal(answer.radius, ours.radius.numpy())
    assert np.array_equal(answer.certified, ours.certified.numpy())
    assert Served("net", engine, net).attackable == (norm == "l2")


def test_a_deep_net_of_which_the_graph_proves_too_little_too(images: torch.Tensor) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(20) for layer in (nn.Linear(256, 256), gn.MinMax())]
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), gn.MinMax(), *layers, nn.Linear(256, 3))
    net = gn.GloRoNet(module, 0.01, (1, 8, 8)).eval()
    engine = engine_of(net)
    assert (engine.about.engine, engine.about.semantics) == ("torch", "float32")
    ours = net.certify(images[:20], semantics="float32", per_sample=True)
    assert np.array_equal(engine.answer(images[:20].numpy(), None).radius, ours.radius.numpy())


# The command line


def test_mistakes_on_the_command_line_are_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"nope")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        cases = {
            (str(run), "--port", port): "Cannot listen",
            (str(run), "--port", "70000"): "0 to 65535",
            (str(tmp_path / "no.onnx"), "--port", "0"): "no file",
            (str(tmp_path / "bad.onnx"), "--port", "0"): "cannot read",
            (str(tmp_path), "--port", "0"): "not a run folder",
            ("zoo:nope", "--port", "0"): "zoo",
        }
        for arguments, words in cases.items():
            assert cli.main(["serve", *arguments]) == 2
            error = capsys.readouterr().err
            assert words in error
            assert error.count("\n") == 1
    monkeypatch.setattr(answers.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["serve", str(run)]) == 2
    assert capsys.readouterr().err.strip().endswith('pip install "gloronet[serve]"')


def test_the_rest_works_without_the_extra() -> None:
    code = (
        "import sys\nfor name in ('fastapi', 'uvicorn', 'starlette', 'pydantic'): sys.modules[name] = None\n"
        "import gloronet, gloronet.cli, gloronet.verbs\n"
        "assert gloronet.cli.main(['zoo', 'list']) == 0"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


# The documentation


def test_the_curl_examples_of_the_docs_work(
    served: Service, images: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "batch.npy", images[:5].numpy())
    (tmp_path / "digit.png").write_bytes(picture((images[0, 0].numpy() * 255).astype(np.uint8)))
    monkeypatch.chdir(tmp_path)
    examples = [block.text for block in pages.blocks(DOCS) if block.language == "sh" and "curl" in block.text]
    assert len(examples) >= 5
    assert all(pages.curl(example, served.url).strip() for example in examples)
