"""Progress of a training run: a live line on a terminal, plain lines elsewhere, or nothing.

`Progress` itself is the silent one; `fit` calls its four methods and never prints.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

QUIET_SECONDS = 2.0
BETWEEN_MOVES = 0.1
"""Seconds: a step on a GPU is far shorter than an eye can follow."""


class Progress:
    """What `fit` reports to; this one says nothing."""

    def start(self, epochs: int, done: int) -> None:
        """Training begins, or goes on, after `done` of `epochs` epochs."""

    def step(self, t: float) -> None:
        """A step was taken; t counts epochs from 0 and may be a fraction."""

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        """An epoch ended with these metrics."""

    def note(self, text: str) -> None:
        """Something worth knowing, said once: a feature that is not to be had here."""

    def stop(self) -> None:
        """Training ended, for whatever reason."""


def progress_on(console: Console | None = None) -> Progress:
    """Live on a terminal, plain lines otherwise; on standard error unless a console is given."""
    console = console or Console(stderr=True)
    return LiveProgress(console) if console.is_terminal else LineProgress(console)


class LineProgress(Progress):
    """One line an epoch, but not more than one in two seconds; the first and the last always."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)

    def start(self, epochs: int, done: int) -> None:
        self._clock, self._printed_at = _Clock(epochs, done), -QUIET_SECONDS

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        now, epoch = time.monotonic(), metrics["epoch"]
        if now - self._printed_at >= QUIET_SECONDS or epoch == self._clock.epochs:
            self._printed_at = now
            line = f"epoch {epoch:>{len(str(self._clock.epochs))}}/{self._clock.epochs}  {_summary(metrics)}"
            self._console.print(f"{line}  {self._clock.left(epoch)}", highlight=False, soft_wrap=True)


class LiveProgress(Progress):
    """A bar that shows the epoch, the metrics of the last one, and the time left."""

    def __init__(self, console: Console) -> None:
        self._bar = Bar(
            TextColumn("epoch {task.fields[epoch]}/{task.total:.0f}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[summary]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
        )

    def start(self, epochs: int, done: int) -> None:
        self._clock, self._moved_at = _Clock(epochs, done), 0.0
        self._task = self._bar.add_task("", total=epochs, completed=done, epoch=done, summary="", left="")
        self._bar.start()

    def step(self, t: float) -> None:
        if t == int(t) or time.monotonic() - self._moved_at >= BETWEEN_MOVES:
            self._moved_at = time.monotonic()
            self._bar.update(self._task, completed=t, left=self._clock.left(t))

    def note(self, text: str) -> None:
        self._bar.console.print(text, highlight=False, soft_wrap=True)

    def epoch(self, metrics: Mapping[str, Any]) -> None:
        self._bar.update(self._task, epoch=metrics["epoch"], summary=_summary(metrics))

    def stop(self) -> None:
        self._bar.stop()


class _Clock:
    """Tells the time left from the epochs this process has done itself."""

    def __init__(self, epochs: int, done: int) -> None:
        self.epochs, self._done, self._began = epochs, done, time.monotonic()

    def left(self, t: float) -> str:
        seconds = (time.monotonic() - self._began) / max(t - self._done, 1e-9) * (self.epochs - t)
        minutes, seconds = divmod(round(seconds), 60)
        return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d} left"


def _summary(metrics: Mapping[str, Any]) -> str:
    """The two shares are of training batches as they were seen, and the VRA is an estimate."""
    return (
        f"loss {metrics['loss']:.4f}  clean {metrics['accuracy']:6.2%}  "
        f"VRA (estimate) {metrics['vra_estimate']:6.2%}"
    )
