"""What one request may ask of the service, and how requests are put together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body: int = 16 * 2**20
    """Bytes of a request."""
    images: int = 256
    """Inputs of a request."""
    pixels: int = 4096 * 4096
    """Of an uploaded image that is to be resized."""
    seconds: float = 10.0
    """To send a request, and to wait for its answer."""
    attack_seconds: float = 30.0
    attacks: int = 4
    """That may wait for their turn; one runs at a time."""
    batch: int = 64
    """Inputs the engine answers at once; a single request may be larger."""
    wait: float = 0.002
    """Seconds the first request of a batch waits for others that are on their way."""
    queued: int = 4096
    """Inputs that may wait for the engine; beyond, the service says it is busy."""
