"""The training loop: one function that reads from top to bottom.

Every step takes a batch, the logits y = f(x) and the estimated margins K of the whole net, and lowers
loss(y, K, labels, ε, λ). ε, λ and the learning rate are schedules of t = epoch + step/steps. All that is
random comes from the seed, and everything that changes is in the checkpoint, so a run on the CPU that was
killed and resumed (with as many threads) ends with the very bits of one that was not.
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gloronet import losses, schedules
from gloronet.config import TrainConfig, parse_epsilon
from gloronet.data import Dataset, to_unit
from gloronet.data.augment import augmentation
from gloronet.errors import ConfigError, TrainingError
from gloronet.margins import certified_estimate
from gloronet.net import GloRoNet
from gloronet.train.progress import Progress
from gloronet.train.recorder import Recorder, State


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C during training. The last finished epoch is saved; the message says how to go on."""


def fit(
    net: GloRoNet,
    data: Dataset,
    config: TrainConfig,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Trains the net in place and returns the metrics of every epoch.

    The net ends up on `device` (CUDA where there is one, unless given) and in `eval()` mode. Accuracy and
    `vra_estimate` are shares of the training batches as they were seen, at the net's own ε; `epsilon`, `lam`
    and `lr` are those of the epoch's last step. With `out`, the folder gets `metrics.jsonl` and
    `checkpoint/`; `resume=True` goes on with the run in it.
    """
    place = pick_device(device)
    _require_fit(net, data)
    net.to(place)
    net.power_iterations = config.power_iterations
    target = net.epsilon if config.epsilon_train is None else parse_epsilon(config.epsilon_train)
    epsilon_at = schedules.epsilon_schedule(config.epsilon_schedule, target, net.epsilon, config.epochs)
    lam_at = schedules.lambda_schedule(config.lam)
    lr_at = schedules.lr_schedule(config.lr_schedule, config.lr, config.epochs)
    augment = augmentation(config.augmentation)
    parameters = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=config.lr, betas=(0.9, 0.999), eps=1e-7, fused=True)
    shuffle = torch.Generator().manual_seed(config.seed)
    jitter = torch.Generator(place).manual_seed(config.seed + 1)
    progress = progress or Progress()
    # A plain loss pays for no estimates: what is not known is infinite, and certifies nothing.
    unknown = torch.full((net.classes, net.classes), torch.inf, device=place).fill_diagonal_(0.0)

    # Layers with randomness of their own (dropout) draw from torch's global generators: these are seeded
    # and kept with the run, and the caller gets hers back as they were.
    with torch.random.fork_rng([place.index] if place.type == "cuda" else []):
        torch.manual_seed(config.seed)
        state = State(net, optimizer, {"shuffle": shuffle, "jitter": jitter, **_global_generators(place)})
        recorder = Recorder(None if out is None else Path(out), _settings(net, data, config, place), state)
        history = recorder.start(resume)
        try:
            progress.start(config.epochs, len(history))
            for epoch in range(len(history), config.epochs):
                began = time.perf_counter()
                net.train()
                loss_of = losses.plain if epoch < config.warmup_epochs else losses.LOSSES[config.loss]
                batches = torch.randperm(len(data.train_x), generator=shuffle).split(config.batch_size)
                tallies = []
                for step, batch in enumerate(batches):
                    t = epoch + step / len(batches)
                    epsilon, lam, lr = epsilon_at(t), lam_at(t), lr_at(t)
                    x = augment(to_unit(data.train_x[batch].to(place)), jitter)
                    labels = data.train_y[batch].to(place)

                    logits = net.logits(x)
                    margins = unknown if config.loss == "plain" else net.lipschitz_estimate()
                    loss = loss_of(logits, margins, labels, epsilon, lam)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.param_groups[0]["lr"] = lr
                    optimizer.step()

                    tallies.append(_tally(loss, logits, margins, labels, net.epsilon))
                    progress.step(t + 1 / len(batches))

                sums = torch.stack(tallies).double().cpu()  # the one moment an epoch waits for the device
                _require_finite(sums[:, 0], state, epoch, lr_at, recorder.epochs_kept())
                loss_mean, accuracy, vra = (sums.sum(0) / len(data.train_x)).tolist()
                history.append(
                    {
                        "epoch": epoch + 1,
                        "loss": loss_mean,
                        "accuracy": accuracy,
                        "vra_estimate": vra,
                        "lipschitz_estimate": None if margins is unknown else margins.max().item(),
                        "epsilon": epsilon,
                        "lam": lam,
                        "lr": lr,
                        "seconds": time.perf_counter() - began,
                    }
                )
                recorder.epoch(history)
                progress.epoch(history[-1])
        except KeyboardInterrupt:
            raise TrainingInterrupted(_how_to_go_on(recorder.epochs_kept(), config.epochs, out)) from None
        finally:
            progress.stop()
            net.eval()
            recorder.flush()
    return history


def _tally(loss: Tensor, logits: Tensor, margins: Tensor, labels: Tensor, epsilon: float) -> Tensor:
    """The batch's sums of loss, right answers and right answers certified at ε; stays on the device."""
    with torch.no_grad():
        right = logits.argmax(1) == labels
        verified = right & certified_estimate(logits, margins, epsilon)
        return torch.stack([loss * len(labels), right.sum(), verified.sum()])


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


def _how_to_go_on(kept: int, epochs: int, out: str | Path | None) -> str:
    if out is None:
        return "Stopped. Nothing was saved, as the run has no folder (out)."
    return f"Stopped. {kept} of {epochs} epochs are saved; go on with: gloronet train --resume {out}"


def _settings(net: GloRoNet, data: Dataset, config: TrainConfig, place: torch.device) -> dict[str, Any]:
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
    """The device of that name; without one, CUDA where there is one."""
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"There is no kind of device {name!r}; write cpu, cuda or cuda:1.") from None
    if place.type == "cuda":
        index = 0 if place.index is None else place.index
        if index >= torch.cuda.device_count():
            raise ConfigError(f"device {name} is not there: {torch.cuda.device_count()} CUDA devices are.")
        return torch.device("cuda", index)
    return place


def _require_fit(net: GloRoNet, data: Dataset) -> None:
    inputs, classes = tuple(data.input_shape), len(data.classes)
    if (inputs, classes) != (tuple(net.input_shape), net.classes):
        raise ConfigError(
            f"The data have input shape {inputs} and {classes} classes, "
            f"the net expects {tuple(net.input_shape)} and has {net.classes}."
        )
