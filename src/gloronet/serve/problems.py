"""What went wrong, as `application/problem+json` (RFC 9457): a title, a status, and a sentence that says what to do."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

MEDIA = "application/problem+json"
TITLES = {
    400: "The body cannot be read",
    404: "Not found",
    405: "Method not allowed",
    408: "The request took too long to arrive",
    413: "Too large",
    415: "Unknown content type",
    422: "The input cannot be used",
    500: "The service failed",
    503: "Busy",
    504: "No answer in time",
}
log = logging.getLogger("gloronet.serve")


class Problem(Exception):
    """A request that cannot be answered; `detail` says why and what to do."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def document(status: int, detail: str, headers: dict[str, str] | None = None) -> JSONResponse:
    title = TITLES.get(status, "The request failed")
    content = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return JSONResponse(content, status, headers, MEDIA)


def install(app: FastAPI) -> None:
    """Every way a request can fail ends in a problem document."""

    @app.exception_handler(Problem)
    async def ours(request: Request, problem: Problem) -> Response:
        retry = {"Retry-After": "1"} if problem.status == 503 else None
        return document(problem.status, problem.detail, retry)

    @app.exception_handler(HTTPException)
    async def routing(request: Request, e: HTTPException) -> Response:
        path = request.url.path
        detail = {
            404: f"There is nothing at {path}; /openapi.json lists what there is.",
            405: f"{path} does not take {request.method}.",
        }.get(e.status_code, str(e.detail))
        return document(e.status_code, detail, dict(e.headers) if e.headers else None)

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, e: ClientDisconnect) -> Response:
        return document(400, "The client left before its request was whole.")

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, e: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=e)
        return document(500, "Something unforeseen happened; the service's log says what.")
