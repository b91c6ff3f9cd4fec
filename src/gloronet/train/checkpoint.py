"""Checkpoints: all a run needs to go on bit for bit, as safetensors and JSON, without pickle.

A checkpoint folder holds `state.json` and the tensors file it names, with that file's SHA-256. Writing
one puts the new tensors beside the old, then replaces `state.json`: that one atomic rename is the
commit, so a kill at any moment leaves the old checkpoint or the new one, whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from gloronet.errors import ConfigError

FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """A run after `len(history)` epochs."""

    settings: dict[str, Any]
    """What the run was started with, flat; resuming needs the same."""
    history: list[dict[str, Any]]
    """One entry of metrics for each epoch done."""
    tensors: dict[str, Tensor]


def write_checkpoint(folder: Path, checkpoint: Checkpoint) -> None:
    """Replaces the checkpoint in `folder` by this one, atomically."""
    tensors = folder / f"epoch-{len(checkpoint.history):06d}.safetensors"
    content = tensors_to_bytes(checkpoint.tensors)
    state = {
        "format": FORMAT,
        "tensors": tensors.name,
        "sha256": hashlib.sha256(content).hexdigest(),
        "settings": checkpoint.settings,
        "history": checkpoint.history,
    }
    write_atomically(tensors, content)
    write_atomically(folder / "state.json", json.dumps(state, indent=1).encode())
    for old in folder.glob("epoch-*"):
        if old != tensors:
            old.unlink()


def read_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder`; anything missing from it or changed in it is a `ConfigError`."""
    damaged = f"The checkpoint {folder} is damaged ({{}}); it cannot be resumed. Train into another folder."
    try:
        state = json.loads((folder / "state.json").read_bytes())
        version, tensors, sha256 = state["format"], folder / state["tensors"], state["sha256"]
        settings, history = dict(state["settings"]), list(state["history"])
    except FileNotFoundError:
        raise ConfigError(f"There is no checkpoint in {folder}: nothing to resume.") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(damaged.format("state.json is not as it was written")) from None
    if version != FORMAT:
        raise ConfigError(f"The checkpoint {folder} has format {version}, this gloronet reads {FORMAT}.")
    if not tensors.is_file():
        raise ConfigError(damaged.format(f"{tensors.name} is missing"))
    with tensors.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise ConfigError(damaged.format(f"{tensors.name} does not have the SHA-256 it was written with"))
    return Checkpoint(settings, history, read_tensors(tensors)[0])


def tensors_to_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The safetensors file of these tensors: equal tensors give equal bytes."""
    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(on_cpu, metadata)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a safetensors file."""
    try:
        with safe_open(path, framework="pt") as file:
            # Cloned, so that no tensor lives in a memory map of a file that may be replaced.
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise ConfigError(f"There is no file {path}.") from None
    except (SafetensorError, OSError) as e:
        raise ConfigError(f"{path} is not a whole safetensors file: {e}.") from None


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copies the tensors into the module, or says which one is missing, unknown or of another shape."""
    own = module.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors:
            problem = f"it has no tensor {name}"
        elif name not in own:
            problem = f"the network has no tensor {name}"
        elif (own[name].shape, own[name].dtype) != (tensors[name].shape, tensors[name].dtype):
            problem = f"{name} is {_kind(tensors[name])} in it but {_kind(own[name])} in the network"
        else:
            continue
        raise ConfigError(f"{source} belongs to another network: {problem}.")
    module.load_state_dict(dict(tensors))


def write_atomically(path: Path, content: bytes) -> None:
    """Writes the file so that at every moment `path` is what it was or all of the new content."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as e:
        raise ConfigError(f"Cannot write {path}: {e.strerror}.") from None


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, on systems where a folder can be opened."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
