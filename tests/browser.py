"""A real browser, driven over its DevTools protocol: as much of it as the tests of the page need."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `evaluate` runs JavaScript and answers its value; `until` waits for an expression to be true."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket, self.count, self.problems = socket, 0, list[str]()
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": parameters}))
        while True:
            told = json.loads(self.socket.recv(timeout=30))
            if told.get("method") == "Runtime.exceptionThrown":
                details = told["params"]["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description", details["text"]))
            if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.problems.append(told["params"]["entry"]["text"])
            if told.get("id") == self.count:
                assert "error" not in told, told["error"]
                return told["result"]

    def evaluate(self, expression: str) -> Any:
        told = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, expression: str, seconds: float = 15) -> None:
        end = time.monotonic() + seconds
        while not self.evaluate(expression):
            assert time.monotonic() < end, f"never true: {expression}; {self.problems}"
            time.sleep(0.03)

    def open(self, address: str, width: int = 1000, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)
        self.until(f"location.href === {json.dumps(address)} && document.body?.dataset.ready === 'true'")

    def text(self, name: str) -> str:
        return self.evaluate(f"document.getElementById({json.dumps(name)}).innerText")

    def click(self, name: str) -> None:
        self.evaluate(f"document.getElementById({json.dumps(name)}).click()")

    def drag(self, *points: tuple[float, float]) -> None:
        """The mouse goes down at the first point, through the others, and up; in pixels of the window."""
        kinds = ["mousePressed", *["mouseMoved"] * (len(points) - 1)]
        for kind, (x, y) in zip(kinds, points, strict=True):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        x, y = points[-1]
        self.call("Input.dispatchMouseEvent", type="mouseReleased", x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, text: str = "", modifiers: int = 0) -> None:
        for kind in ("keyDown", "keyUp"):
            told = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, modifiers=modifiers, **told)

    def screenshot(self, path: Path, clip: dict[str, float] | None = None) -> None:
        """The whole page, or a rectangle of it: x, y, width, height."""
        clip = {**(clip or self.call("Page.getLayoutMetrics")["cssContentSize"]), "scale": 1}
        told = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(told["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A headless Chromium with an empty profile; it may talk to this machine only."""
    path = executable()
    assert path is not None
    with tempfile.TemporaryDirectory(prefix="gloronet-browser-", ignore_cleanup_errors=True) as profile:
        command = [
            path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--hide-scrollbars",
            f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
        ]  # fmt: skip
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                with connect(_target(Path(profile), process), max_size=None, compression=None, proxy=None) as socket:
                    yield Page(socket)
            finally:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()


def _target(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The socket of the first tab; the browser writes its port into the profile."""
    import httpx

    port, end = profile / "DevToolsActivePort", time.monotonic() + 30
    while not (port.exists() and re.match(r"\d+\n/", port.read_text())):
        assert process.poll() is None, f"{process.args[0]} left with {process.returncode}"
        assert time.monotonic() < end, "the browser did not start"
        time.sleep(0.05)
    address = f"http://127.0.0.1:{port.read_text().split()[0]}/json/list"
    while time.monotonic() < end:
        tabs = [tab for tab in httpx.get(address, trust_env=False).json() if tab["type"] == "page"]
        if tabs:
            return tabs[0]["webSocketDebuggerUrl"]
        time.sleep(0.05)
    raise AssertionError("the browser has no tab")


THREE = ((0.32, 0.24), (0.45, 0.17), (0.6, 0.2), (0.66, 0.32), (0.58, 0.43), (0.47, 0.47), (0.6, 0.52), (0.68, 0.64),
         (0.6, 0.78), (0.44, 0.82), (0.31, 0.75))  # fmt: skip
"""A hand's 3, in parts of the drawing area."""


def draw(page: Page, points: tuple[tuple[float, float], ...] = THREE) -> None:
    box = page.evaluate(
        "(() => { const b = document.getElementById('draw').getBoundingClientRect(); return [b.x, b.y, b.width]; })()"
    )
    fine = [
        (a[0] + (b[0] - a[0]) * k / 4, a[1] + (b[1] - a[1]) * k / 4)
        for a, b in pairwise(points)
        for k in range(4)
    ]
    page.drag(*[(box[0] + box[2] * u, box[1] + box[2] * v) for u, v in (*fine, points[-1])])


def main(address: str, path: str) -> None:
    """The picture of docs/: python -m tests.browser http://127.0.0.1:8000/ docs/page.png, beside gloronet serve."""
    with browser() as page:
        page.open(address)
        page.click("clear")
        draw(page)
        page.until("document.getElementById('verdict').getAttribute('aria-busy') === 'false'")
        page.click("attack")
        page.until("!document.getElementById('attacked').hidden", 60)
        time.sleep(0.5)  # the rings have stopped moving
        page.screenshot(Path(path))


if __name__ == "__main__":
    main(*sys.argv[1:])
