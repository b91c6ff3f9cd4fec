"""The HTTP face: `/v1/certify`, `/v1/attack`, `/v1/model`, `/v1/samples/{i}`, `/healthz`, `/metrics`; a page at `/`."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from gloronet.data import to_unit
from gloronet.net import BOTTOM
from gloronet.serve import metrics as counted
from gloronet.serve import problems, schema
from gloronet.serve.adversary import nearest
from gloronet.serve.batcher import Batcher
from gloronet.serve.engine import Answer
from gloronet.serve.inputs import Inputs, parse
from gloronet.serve.limits import Limits
from gloronet.serve.problems import Problem
from gloronet.serve.source import Served

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
SMALL = 2**16
"""Bytes of a body that is parsed where it was read; a larger one would hold up the others."""


def application(served: Served, version: str = "", limits: Limits | None = None) -> FastAPI:
    """The service for one net. Nothing a client sends can stop it."""
    limits = limits or Limits()
    about, samples = served.engine.about, served.samples
    metrics = counted.Metrics()
    batcher = Batcher(served.engine, limits, metrics.batches.observe)
    attackers = ThreadPoolExecutor(1, "attack")
    attacking = 0

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        worker = asyncio.create_task(batcher.work())
        yield
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker
        batcher.close()
        attackers.shutdown(cancel_futures=True)

    # No /docs: those pages fetch their scripts from elsewhere.
    app = FastAPI(
        title="gloronet", version=version or "0", docs_url=None, redoc_url=None, lifespan=lifespan,
        description="A classifier that proves its own answers: every label with a certified radius, or ⊥ (−1).",
    )  # fmt: skip
    app.add_middleware(counted.Measured, metrics=metrics)
    problems.install(app)
    wrong = schema.problems(400, 408, 413, 415, 422, 503, 504)

    async def inputs_of(request: Request) -> Inputs:
        with batcher.arrival():
            body = await _body(request, limits)
            query, kind = request.query_params, request.headers.get("content-type", "")
            if len(query) < len(query.multi_items()):
                raise Problem(422, "A parameter is given twice; leave one out.")
            arguments = body, kind, dict(query)
            if len(body) <= SMALL and not kind.lower().startswith("image/"):  # a small image may be of many pixels
                return parse(*arguments, about.input_shape, limits)
            return await asyncio.to_thread(parse, *arguments, about.input_shape, limits)

    @app.post(
        "/v1/certify", response_model=schema.Certified, responses=wrong, openapi_extra=schema.request_body(about, True)
    )
    async def certify(request: Request) -> Response:
        """Labels with certified radii for one input or many."""
        x, epsilon = await inputs_of(request)
        answer = await batcher.answer(x, epsilon)
        proved = int(answer.certified.sum())
        metrics.images["certified"] += proved
        metrics.images["abstained"] += len(answer) - proved
        shown = about.epsilon if epsilon is None else epsilon
        results = _results(answer, about.classes)
        return JSONResponse(
            {"results": results, "epsilon": shown, "norm": about.norm, "semantics": about.semantics}
        )

    @app.post(
        "/v1/attack",
        response_model=schema.Attacked,
        responses=wrong | schema.problems(404),
        openapi_extra=schema.request_body(about, False),
    )
    async def attack(request: Request) -> Response:
        """The nearest adversarial input a bounded search finds, beside the certified radius."""
        nonlocal attacking
        net = served.net
        if net is None or not served.attackable:
            raise Problem(404, "This model cannot be attacked: that needs a run folder or a zoo net, in the l2 norm.")
        x, _ = await inputs_of(request)
        if len(x) != 1:
            raise Problem(422, f"An attack takes one input, not {len(x)}.")
        if attacking > limits.attacks:
            raise Problem(503, "Other attacks are running; try again in a moment.")
        attacking += 1
        try:
            answer = await batcher.answer(x, None)
            label, radius = int(answer.label[0]), float(answer.radius[0])
            work = partial(nearest, served.engine, net, x, label, radius, limits.attack_seconds)
            found = await asyncio.get_running_loop().run_in_executor(attackers, work)
        finally:
            attacking -= 1
        adversarial = found and {
            "label": found.label,
            "class": about.classes[found.label],
            "distance": found.distance,
            "input": found.x.tolist(),
        }
        told = {"label": label, "class": about.classes[label], "radius": _finite(radius), "adversarial": adversarial}
        return JSONResponse(told)

    @app.get("/v1/model", response_model=schema.Model)
    async def model() -> Response:
        """What is served, and what its certificates are about."""
        return JSONResponse({
            "name": served.name, "input_shape": about.input_shape, "input_range": [0.0, 1.0],
            "classes": about.classes, "epsilon": about.epsilon, "norm": about.norm, "semantics": about.semantics,
            "digest": about.digest, "engine": about.engine, "version": version, "attack": served.attackable,
            "samples": 0 if samples is None else len(samples.test_y),
        })  # fmt: skip

    @app.get("/v1/samples/{index}", response_model=schema.Sample, responses=schema.problems(404))
    async def sample(index: str) -> Response:
        """An input of the test set the net was measured on, with its true label."""
        if samples is None:
            why = "the data set of this net is not on the server's machine, or the net, an .onnx file, names none"
            raise Problem(404, f"There are no test samples: {why}.")
        count = len(samples.test_y)
        if not (index.isascii() and index.isdecimal() and len(index) < 10 and int(index) < count):
            raise Problem(404, f"Test samples are numbered 0 to {count - 1}.")
        i = int(index)
        label = int(samples.test_y[i])
        x = to_unit(samples.test_x[i : i + 1])[0].tolist()
        return JSONResponse(
            {"index": i, "count": count, "label": label, "class": samples.classes[label], "input": x}
        )

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """200 while the service lives."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def prometheus() -> Response:
        """Counters and histograms in Prometheus' text format."""
        return Response(metrics.text(), headers={"Content-Type": counted.MEDIA})

    _add_page(app)
    return app


def _add_page(app: FastAPI) -> None:
    for path, (name, media) in PAGE.items():
        content = (files("gloronet.serve") / "page" / name).read_bytes()
        reply = Response(content, media_type=media, headers=SAFE | {"Cache-Control": "no-cache"})
        app.router.add_route(path, _fixed(reply), methods=["GET"], include_in_schema=False)


def _fixed(reply: Response) -> Any:
    async def endpoint(request: Request) -> Response:
        return reply

    return endpoint


async def _body(request: Request, limits: Limits) -> bytes:
    """The whole body, within bytes and time. One that is too large is read and dropped for a while: a client that
    is still sending would not hear why it was refused."""
    declared = request.headers.get("content-length", "")
    refused = declared.isdecimal() and int(declared) > limits.body
    if refused and "100-continue" in request.headers.get("expect", "").lower():
        raise _oversize(limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limits.body:
                    refused, parts = True, []
                if size > 4 * limits.body:
                    break
                if not refused:
                    parts.append(chunk)
    except TimeoutError:
        if not refused:
            raise Problem(408, f"The body did not arrive within {limits.seconds:g} seconds.") from None
    if refused:
        raise _oversize(limits)
    return b"".join(parts)


def _oversize(limits: Limits) -> Problem:
    return Problem(413, f"The body is larger than {limits.body:,} bytes; send fewer inputs at once.")


def _results(answer: Answer, classes: tuple[str, ...]) -> list[dict[str, Any]]:
    logits = answer.logits.astype(object)
    logits[~np.isfinite(answer.logits)] = None
    return [
        {
            "label": label,
            "class": classes[label],
            "prediction": label if certified else BOTTOM,
            "radius": _finite(radius),
            "certified": certified,
            "logits": row,
        }
        for label, radius, certified, row in zip(
            answer.label.tolist(), answer.radius.tolist(), answer.certified.tolist(), logits.tolist(), strict=True
        )
    ]


def _finite(radius: float) -> float:
    """JSON knows no infinity; a smaller radius is proved too."""
    return sys.float_info.max if math.isinf(radius) else radius
