"""`gloronet serve`: opens the net, binds the address, and answers until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from gloronet.errors import ConfigError
from gloronet.serve.app import application
from gloronet.serve.limits import Limits
from gloronet.serve.source import open_served

SHUTDOWN = 60
"""Seconds that requests already taken have to finish."""


def serve(
    what: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    root: Path | None = None,
    version: str = "",
    note: Callable[[str], None] = print,
    limits: Limits | None = None,
) -> None:
    """Serves a run folder, `zoo:NAME` or `model.onnx`; SIGTERM and Ctrl-C let what was taken finish first.

    The address is bound before the net is opened: a port that is taken is heard of at once. Port 0 finds a free one.
    """
    with _bound(host, port) as listening:
        served = open_served(what, root)
        app = application(served, version, limits)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=SHUTDOWN, timeout_keep_alive=30, h11_max_incomplete_event_size=2**16,
        )  # fmt: skip
        about = served.engine.about
        shown = f"[{host}]" if ":" in host else host
        note(
            f"{served.name} ({about.semantics}, {about.norm}, {about.engine}) at "
            f"http://{shown}:{listening.getsockname()[1]}/ — Ctrl-C stops"
        )
        uvicorn.Server(config).run(sockets=[listening])


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"A port is a number from 0 to 65535, not {port}.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: asyncio sets TCP_NODELAY on such sockets only, and without it an answer waits for 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(1024)
        return listening
    except OSError as e:
        listening.close()
        raise ConfigError(f"Cannot listen at {host}, port {port}: {e.strerror or e}.") from None
