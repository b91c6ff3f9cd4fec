"""The training loop: one function that reads from top to bottom.

Every step takes a batch, the logits y = f(x) and the estimated margins K of the whole net, and lowers
loss(y, K, labels, ε, λ). ε, λ and the learning rate are schedules of t = epoch + step/steps. All that is
random comes from the seed, and everything that changes is in the checkpoint, so a run on the CPU that was
killed and resumed (with as many threads) ends with the very bits of one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gloronet import schedules
from gloronet.config import TrainConfig, parse_epsilon
from gloronet.data import Examples
from gloronet.data.augment import augmentation
from gloronet.errors import ConfigError, TrainingError
from gloronet.net import GloRoNet
from gloronet.train.batches import batches_of
from gloronet.train.fast import Fast
from gloronet.train.muon import Muon
from gloronet.train.progress import Progress
from gloronet.train.ranks import Ranks
from gloronet.train.recorder import Recorder, State, start_together
from gloronet.train.step import Settings, Step


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. The last finished epoch is saved; the message says how to go on."""


def fit(
    net: GloRoNet,
    data: Examples,
    config: TrainConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    fast: Fast | None = None,
) -> list[dict[str, Any]]:
    """Trains the net in place and returns the metrics of every epoch.

    The net ends up on `device` (CUDA where there is one, unless given) and in `eval()` mode. Accuracy and
    `vra_estimate` are shares of the training batches as they were seen, at the net's own ε; `epsilon`, `lam`
    and `lr` are those of the epoch's last step; of its `seconds`, `preparing` went into compiling and
    capturing. With `out`, the folder gets `metrics.jsonl` and
    `checkpoint/`; `resume=True` goes on with the run in it. With `config.patience`, a run that has settled ends
    there, and resuming it adds nothing. `fast` is what speeds up a step: all that the device offers, unless given.

    Where torch.distributed is joined (torchrun), each process takes its share of every batch; the result is
    that of one process, up to rounding, and rank 0 alone reports and writes.
    """
    ranks = Ranks.current()
    place = pick_device(device)
    _require_fit(net, data)
    ranks.require_shares(len(data.train_x), config.batch_size)
    progress = (progress if ranks.writes else None) or Progress()
    steps = -(-len(data.train_x) // config.batch_size)
    fast = Fast.on(place, config.epochs * steps, progress.note) if fast is None else fast
    net.to(place)
    net.power_iterations = config.power_iterations
    target = net.epsilon if config.epsilon_train is None else parse_epsilon(config.epsilon_train)
    epsilon_at = schedules.epsilon_schedule(config.epsilon_schedule, target, net.epsilon, config.epochs)
    lam_at = schedules.lambda_schedule(config.lam)
    lr_at = schedules.lr_schedule(config.lr_schedule, config.lr, config.epochs)
    batches = batches_of(data, place, progress.note)
    shuffle = torch.Generator(place).manual_seed(config.seed)
    jitter = torch.Generator(place).manual_seed(config.seed + 1)
    certified = config.loss != "plain"

    with _kernels(place), _layout(net, fast), _own_random_numbers(place, config.seed):
        optimizer = _optimizer(net, config, place)
        state = State(net, optimizer, {"shuffle": shuffle, "jitter": jitter, **_global_generators(place)})
        folder = Path(out) if out is not None and ranks.writes else None
        recorder = Recorder(folder, _settings(net, data, config, place), state)
        history = start_together(recorder, state, resume, ranks)
        step = Step(
            net, optimizer, batches, augmentation(config.augmentation), jitter, ranks, fast,
            config.refresh_every, progress.note,
        )  # fmt: skip
        try:
            progress.start(config.epochs, len(history))
            for epoch in range(len(history), config.epochs):
                # Before an epoch, not after one, so that a resumed run asks too; ranks have the same losses.
                if _settled(history[config.warmup_epochs :], config.patience):
                    progress.note(_where_it_settled(epoch, config))
                    break
                began, prepared = time.perf_counter(), step.preparing
                net.train()
                loss = "plain" if epoch < config.warmup_epochs else config.loss
                order = torch.randperm(len(data.train_x), generator=shuffle, device=place)
                times = [epoch + k / steps for k in range(steps)]
                plan = [Settings(epsilon_at(t), lam_at(t), lr_at(t)) for t in times]
                tallies = []
                step.plan(plan)
                with contextlib.closing(batches.epoch(order, config.batch_size, ranks)) as shares:
                    for k, (inputs, shard) in enumerate(shares):
                        tallies.append(step(loss, certified, inputs, shard, k))
                        progress.step(times[k] + 1 / steps)

                sums = torch.stack(tallies).double()
                ranks.sum_(sums)
                sums = sums.cpu()  # the one moment an epoch waits for the device
                ranks.from_first(net.buffers())
                _require_finite(sums[:, 0], state, epoch, lr_at, recorder.epochs_kept())
                loss_mean, accuracy, vra = (sums.sum(0) / len(data.train_x)).tolist()
                history.append(
                    {
                        "epoch": epoch + 1,
                        "loss": loss_mean,
                        "accuracy": accuracy,
                        "vra_estimate": vra,
                        "lipschitz_estimate": step.margins.max().item() if certified else None,
                        **plan[-1]._asdict(),
                        "seconds": time.perf_counter() - began,
                        "preparing": step.preparing - prepared,
                    }
                )
                recorder.epoch(history)
                progress.epoch(history[-1])
        except KeyboardInterrupt:
            raise TrainingInterrupted(_how_to_go_on(recorder.epochs_kept(), config.epochs, out)) from None
        finally:
            progress.stop()
            net.eval()
            step.close()
            recorder.flush()
    return history


def _optimizer(net: GloRoNet, config: TrainConfig, place: torch.device) -> torch.optim.Optimizer:
    """Muon, or the paper's Adam; on a GPU all that changes lives there, so that a graph can hold a step."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    if config.optimizer == "muon":
        return Muon(parameters, config.lr, net.hidden_weights())
    capturable = place.type == "cuda"
    return torch.optim.Adam(
        parameters, lr=config.lr, betas=(0.9, 0.999), eps=1e-7, fused=True, capturable=capturable
    )


@contextlib.contextmanager
def _kernels(place: torch.device) -> Iterator[None]:
    """cuDNN chooses its kernels by trying them, and float32 means float32: estimates do not see TF32.

    What asks for no device gets this one, not the first of the machine.
    """
    if place.type != "cuda":
        yield
        return
    tried = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False)
    with torch.cuda.device(place), tried, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # the compiler recommends them
        yield


@contextlib.contextmanager
def _layout(net: GloRoNet, fast: Fast) -> Iterator[None]:
    """Weights of convolutions lie channels last while they train, and as they lay before afterwards."""
    if not fast.channels_last:
        yield
        return
    net.module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        net.module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@contextlib.contextmanager
def _own_random_numbers(place: torch.device, seed: int) -> Iterator[None]:
    """Layers with randomness of their own (dropout) draw from torch's global generators: these are seeded
    and kept with the run, and the caller gets hers back as they were."""
    with torch.random.fork_rng([place.index] if place.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _require_finite(
    batch_losses: Tensor, state: State, epoch: int, lr_at: schedules.Schedule, epochs_kept: int
) -> None:
    bad = (~batch_losses.isfinite()).nonzero()
    if len(bad) == 0 and state.is_finite():
        return
    step = int(bad[0]) if len(bad) else len(batch_losses) - 1
    what = "loss is" if len(bad) else "weights are"
    raise TrainingError(
        f"The {what} no longer finite in epoch {epoch + 1}, step {step + 1}, at learning rate "
        f"{lr_at(epoch + step / len(batch_losses)):g}. Lower lr, or raise warmup_epochs. "
        f"The checkpoint, if the run has a folder, stays at epoch {epochs_kept}."
    )


def _settled(history: Sequence[Mapping[str, Any]], patience: int) -> bool:
    """Whether none of the last `patience` epochs had a loss below the least before them; never when it is 0.

    >>> [_settled([{"loss": loss} for loss in losses], 2) for losses in ([3, 1, 1], [3, 1, 1, 2], [3, 1, 2, 0.9])]
    [False, True, False]
    """
    losses = [metrics["loss"] for metrics in history]
    return 0 < patience < len(losses) and min(losses[-patience:]) >= min(losses[:-patience])


def _where_it_settled(epochs: int, config: TrainConfig) -> str:
    return f"Settled after {epochs} of {config.epochs} epochs: the loss has not fallen for {config.patience}."


def _how_to_go_on(kept: int, epochs: int, out: str | Path | None) -> str:
    if out is None:
        return "Stopped. Nothing was saved, as the run has no folder (out)."
    return f"Stopped. {kept} of {epochs} epochs are saved; go on with: gloronet train --resume {out}"


def _settings(net: GloRoNet, data: Examples, config: TrainConfig, place: torch.device) -> dict[str, Any]:
    """All that decides the result and is not in the checkpoint's tensors: what resuming compares."""
    return {
        **dataclasses.asdict(config),
        "net.epsilon": net.epsilon,
        "net.form": net.form,
        "net.norm": net.norm,
        "data.examples": len(data.train_x),
        "device": place.type,
    }


def _global_generators(place: torch.device) -> dict[str, torch.Generator]:
    cpu = {"cpu": torch.default_generator}
    return cpu | ({"cuda": torch.cuda.default_generators[place.index]} if place.type == "cuda" else {})


def pick_device(name: str | None) -> torch.device:
    """The device of that name; without one, CUDA where there is one, and for each of several processes its own."""
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"There is no kind of device {name!r}; write cpu, cuda or cuda:1.") from None
    if place.type == "cuda":
        index = Ranks.current().gpu(place.index)
        if index >= torch.cuda.device_count():
            raise ConfigError(f"device {name} is not there: {torch.cuda.device_count()} CUDA devices are.")
        return torch.device("cuda", index)
    return place


def _require_fit(net: GloRoNet, data: Examples) -> None:
    inputs, classes = tuple(data.train_x.shape[1:]), len(data.classes)
    if (inputs, classes) != (tuple(net.input_shape), net.classes):
        raise ConfigError(
            f"The data have input shape {inputs} and {classes} classes, "
            f"the net expects {tuple(net.input_shape)} and has {net.classes}."
        )
