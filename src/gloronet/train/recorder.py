"""What a run leaves behind while it trains: `metrics.jsonl` and `checkpoint/` in its folder."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from gloronet.config import TrainConfig
from gloronet.errors import ConfigError, ElsewhereError
from gloronet.train.checkpoint import (
    Checkpoint,
    load_tensors,
    read_checkpoint,
    tensors_to_bytes,
    write_atomically,
    write_checkpoint,
)
from gloronet.train.ranks import Ranks

SECONDS_BETWEEN = 2.0
"""Epochs shorter than this share a checkpoint, so that small runs stay fast."""
SHARE = 50.0
"""A checkpoint that took long to write is not written again before this many times as long."""


class State:
    """Everything of a run that changes while it trains, as tensors under fixed names."""

    def __init__(
        self, net: nn.Module, optimizer: torch.optim.Optimizer, generators: Mapping[str, torch.Generator]
    ) -> None:
        self._net, self._optimizer, self._generators = net, optimizer, generators

    def tensors(self) -> dict[str, Tensor]:
        """The live tensors, not copies: `net.*`, `optimizer.INDEX.*` and `rng.*`."""
        found = {f"net.{name}": tensor for name, tensor in self._net.state_dict().items()}
        for index, values in self._optimizer.state_dict()["state"].items():
            found |= {f"optimizer.{index}.{name}": tensor for name, tensor in values.items()}
        return found | {f"rng.{name}": generator.get_state() for name, generator in self._generators.items()}

    def is_finite(self) -> bool:
        floats = [tensor for tensor in self.tensors().values() if tensor.is_floating_point() and tensor.numel()]
        by_device: dict[torch.device, list[Tensor]] = {}
        for tensor in floats:
            by_device.setdefault(tensor.device, []).append(tensor)
        largest = [torch.stack([n.double() for n in torch._foreach_norm(t, torch.inf)]) for t in by_device.values()]
        return all(bool(sizes.isfinite().all()) for sizes in largest)

    def restore(self, tensors: Mapping[str, Tensor], source: Path) -> None:
        """The inverse of `tensors`."""
        parts: dict[str, dict[str, Tensor]] = {"net": {}, "optimizer": {}, "rng": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = tensor
        load_tensors(self._net, parts["net"], source)
        moments: dict[int, dict[str, Tensor]] = {}
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        for name, tensor in parts["optimizer"].items():
            index, _, rest = name.partition(".")
            like = parameters[int(index)]
            # A moment lies in memory as its parameter does: the fused optimiser takes both for flat arrays.
            same = tensor.shape == like.shape
            moments.setdefault(int(index), {})[rest] = torch.empty_like(like).copy_(tensor) if same else tensor
        groups = self._optimizer.state_dict()["param_groups"]
        self._optimizer.load_state_dict({"state": moments, "param_groups": groups})
        for name, generator in self._generators.items():
            generator.set_state(parts["rng"][name])


class Recorder:
    """Keeps the folder of a run, or nothing when `out` is None.

    The last finished epoch is always at hand as a copy: `flush` can write it at any later moment, also
    from the middle of the next epoch, and a run resumed from it goes on as if it had never stopped.
    """

    def __init__(self, out: Path | None, settings: dict[str, Any], state: State) -> None:
        self.settings = settings
        self._out, self._state = out, state
        self._last: Checkpoint | None = None
        self._written, self._written_at, self._writing = -1, 0.0, 0.0

    def start(self, resume: bool) -> list[dict[str, Any]]:
        """The metrics of the epochs already done: none for a new run, which must not touch an old one."""
        if self._out is None:
            if resume:
                raise ConfigError("resume needs out, the folder of the run to go on with.")
            return []
        history: list[dict[str, Any]] = []
        if resume and not self._out.is_dir():
            raise ConfigError(f"There is no run folder {self._out} to resume.")
        if resume and not is_new(self._out):
            checkpoint = read_checkpoint(self._out / "checkpoint")
            # A run older than a setting had its default: that is what a new setting's default must mean.
            saved = dataclasses.asdict(TrainConfig()) | checkpoint.settings
            _require_same(saved, self.settings, self._out)
            self._state.restore(checkpoint.tensors, self._out / "checkpoint")
            history, self._written = checkpoint.history, len(checkpoint.history)
        else:
            require_new(self._out)
        self._keep(history)
        self.flush()
        lines = "".join(json.dumps(metrics) + "\n" for metrics in history)
        write_atomically(self._out / "metrics.jsonl", lines.encode())
        return history

    def epoch(self, history: list[dict[str, Any]]) -> None:
        """An epoch ended: a line of metrics now, a checkpoint unless the last one is very young."""
        if self._out is None:
            return
        self._keep(history)
        path = self._out / "metrics.jsonl"
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(history[-1]) + "\n")
        except OSError as e:
            raise ConfigError(f"Cannot write {path}: {e.strerror}.") from None
        if time.monotonic() - self._written_at >= max(SECONDS_BETWEEN, SHARE * self._writing):
            self.flush()

    def flush(self) -> None:
        """Writes the checkpoint of the last finished epoch if that is not yet done."""
        if self._out is not None and self._last is not None and self._written != len(self._last.history):
            began = time.monotonic()
            write_checkpoint(self._out / "checkpoint", self._last)
            self._written, self._written_at = len(self._last.history), time.monotonic()
            self._writing = self._written_at - began

    def epochs_kept(self) -> int:
        return 0 if self._last is None else len(self._last.history)

    def _keep(self, history: list[dict[str, Any]]) -> None:
        copies = {name: tensor.detach().clone() for name, tensor in self._state.tensors().items()}
        self._last = Checkpoint(self.settings, list(history), copies)


def is_new(out: Path) -> bool:
    """Whether the folder holds no work: at most `config.toml` and the torso of a first checkpoint."""
    if not out.exists():
        return True
    return {path.name for path in out.iterdir()} <= {"config.toml", "checkpoint"} and not (
        out / "checkpoint" / "state.json"
    ).exists()


def require_new(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is a file; choose another folder for the run.")
    if not is_new(out):
        raise ConfigError(f"{out} is not empty: go on with it by --resume {out}, or choose another folder.")


def _require_same(saved: Mapping[str, Any], now: Mapping[str, Any], out: Path) -> None:
    if was_and_is := _differences(saved, now):
        was, given = was_and_is
        raise ConfigError(
            f"{out} was started with {was} and cannot be resumed with {given}; train into another folder."
        )


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> tuple[str, str] | None:
    """What each has where they differ."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    first, second = (", ".join(f"{n} = {values.get(n)!r}" for n in names) for values in (one, other))
    return (first, second) if names else None


def start_together(recorder: Recorder, state: State, resume: bool, ranks: Ranks) -> list[dict[str, Any]]:
    """`Recorder.start`, by rank 0 for all: every rank goes on from rank 0's weights, moments and epochs."""
    if ranks.world == 1:
        return recorder.start(resume)
    if not ranks.writes:
        content = ranks.bytes_from_first(None)
        if not content:
            raise ElsewhereError("Rank 0 could not start; what it says tells why.")
        size = int.from_bytes(content[:8], "big")
        settings, history = json.loads(content[8 : 8 + size])
        if rank_0_and_mine := _differences(settings, recorder.settings):
            theirs, mine = rank_0_and_mine
            raise ConfigError(f"Rank {ranks.rank} has {mine} where rank 0 has {theirs}; give all the same.")
        state.restore(safetensors.torch.load(content[8 + size :]), Path("rank 0"))
        return history
    try:
        history = recorder.start(resume)
    except BaseException:
        ranks.bytes_from_first(b"")
        raise
    said = json.dumps([recorder.settings, history]).encode()
    ranks.bytes_from_first(len(said).to_bytes(8, "big") + said + tensors_to_bytes(state.tensors()))
    return history
