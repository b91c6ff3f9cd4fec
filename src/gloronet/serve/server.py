"""`gloronet serve`: opens the net, binds the address, and answers until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import uvicorn

from gloronet.errors import ConfigError
from gloronet.serve.app import application
from gloronet.serve.engine import About
from gloronet.serve.limits import Limits
from gloronet.serve.source import open_served

SHUTDOWN = 60
"""Seconds that requests already taken have to finish."""


class Service(NamedTuple):
    """A net with an address; nobody is answered before `run`."""

    name: str
    url: str
    about: About
    run: Callable[[], None]
    """Answers until SIGTERM or Ctrl-C, which let what was taken finish first."""


@contextmanager
def listening(
    what: str,
    host: str = "127.0.0.1",
    port: int = 8000,
    root: Path | None = None,
    version: str = "",
    limits: Limits | None = None,
) -> Iterator[Service]:
    """A service of a run folder, `zoo:NAME` or `model.onnx`.

    The address is bound before the net is opened: a port that is taken is heard of at once. Port 0 finds a free one.
    """
    with _bound(host, port) as bound:
        served = open_served(what, root)
        app = application(served, version, limits)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False,
            timeout_graceful_shutdown=SHUTDOWN, timeout_keep_alive=30, h11_max_incomplete_event_size=2**16,
        )  # fmt: skip
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{bound.getsockname()[1]}/"
        yield Service(served.name, url, served.engine.about, lambda: uvicorn.Server(config).run(sockets=[bound]))


def _bound(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise ConfigError(f"A port is a number from 0 to 65535, not {port}.")
    if not host:
        raise ConfigError("A host is an address to listen at, such as 127.0.0.1; nothing would mean all of them.")
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
