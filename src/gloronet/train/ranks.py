"""Several processes that train one net: started by torchrun, joined through torch.distributed.

Every rank holds the same weights, iterates and random numbers, and works on its own share of each batch.
Gradients are summed over the ranks, so that all of them take the step one process would have taken with the
whole batch. (BatchNorm that trains is the exception: each rank normalises by its own share, and the running
statistics are rank 0's.) Rank 0 alone writes. With one process everything here does nothing.
"""

from __future__ import annotations

import datetime
import gc
import itertools
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gloronet.data.augment import Shard
from gloronet.errors import ConfigError, ElsewhereError, GloroError, RankLost

PATIENCE = datetime.timedelta(minutes=10)
"""How long a rank waits for the others before it gives up."""
_JOINED = itertools.count()
"""How often the processes of this torchrun were joined; as often in each of them."""


@contextmanager
def joined() -> Iterator[Ranks]:
    """Joins the processes that torchrun started, for a while; elsewhere there is one, and nothing to join.

    Needs no address: torchrun leaves it in the environment. Gloo between CPUs, NCCL between GPUs. Where ranks
    fail, the first of them raises its error and the others an `ElsewhereError`: one says why, all leave.
    """
    if not _started_by_torchrun() or dist.is_initialized():
        yield Ranks.current()
        return
    # Its functions keep the group they find when they are imported: found later, ours would outlive its end.
    import torch.distributed.nn.functional

    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    with _exchange():
        store, rank, world = next(dist.rendezvous("env://", timeout=PATIENCE))
        store = dist.PrefixStore(f"gloronet {next(_JOINED)}", store)  # or it would answer as it did last time
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)
    try:
        yield Ranks(rank, world)
    except BaseException as e:
        if _speaks(rank, e, store) or not isinstance(e, GloroError | OSError | KeyboardInterrupt):
            raise
        raise ElsewhereError("Another process failed; what it says tells why.") from e
    finally:
        _let_go(sys.exception())
        dist.destroy_process_group()


@dataclass(frozen=True)
class Ranks:
    """This process among `world` of them."""

    rank: int = 0
    world: int = 1

    @staticmethod
    def current() -> Ranks:
        """As torch.distributed has it; one process where nothing was joined."""
        if dist.is_available() and dist.is_initialized():
            return Ranks(dist.get_rank(), dist.get_world_size())
        return Ranks()

    @property
    def writes(self) -> bool:
        return self.rank == 0

    def shard(self, total: int) -> Shard:
        """This rank's share of a batch of `total`: neighbours, the first ranks one more where it does not divide.

        >>> [tuple(Ranks(r, 2).shard(5)) for r in (0, 1)]
        [(0, 3, 5), (3, 5, 5)]
        """
        each, more = divmod(total, self.world)
        start = self.rank * each + min(self.rank, more)
        return Shard(start, start + each + (self.rank < more), total)

    def require_shares(self, examples: int, batch_size: int) -> None:
        """Refuses batches that leave a rank without a sample."""
        least = min(batch_size, examples % batch_size or batch_size)
        if least < self.world:
            raise ConfigError(
                f"A batch of an epoch holds {least} samples, too few for {self.world} processes; "
                "choose another train.batch_size."
            )

    def gpu(self, asked: int | None) -> int:
        """Which GPU of its machine this process takes: the one asked for; among several processes, its own."""
        if self.world == 1:
            return asked or 0
        here, mine = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
        if asked is not None and here > 1:
            raise ConfigError(
                f"device cuda:{asked} is one GPU for {here} processes; write cuda, and each takes its own."
            )
        if here > torch.cuda.device_count():
            raise ConfigError(
                f"{here} processes need a GPU each, {torch.cuda.device_count()} are on this machine; "
                "start fewer processes (--nproc-per-node), or train on cpu."
            )
        return mine if asked is None else asked

    def meet(self) -> None:
        """Waits until every rank is here; fails where one of them has failed."""
        if self.world > 1:
            self.sum_(torch.zeros(1, device=_where()))

    def sum_(self, tensor: Tensor) -> None:
        """The sum over the ranks, in place."""
        if self.world > 1:
            with _exchange():
                dist.all_reduce(tensor)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Every gradient becomes its sum over the ranks, in one exchange."""
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        self.sum_(flat)
        parts = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        """Every rank's tensors become rank 0's, in place."""
        if self.world > 1:
            with _exchange():
                for tensor in tensors:
                    dist.broadcast(tensor, 0)

    def bytes_from_first(self, content: bytes | None) -> bytes:
        """Rank 0's bytes, on every rank; the others give None."""
        if self.world == 1:
            assert content is not None
            return content
        where = _where()
        size = torch.tensor([len(content or b"")], device=where)
        self.from_first([size])
        buffer = torch.zeros(int(size), dtype=torch.uint8, device=where)
        if content:
            buffer.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        if len(buffer):
            self.from_first([buffer])
        return buffer.cpu().numpy().tobytes()


def _started_by_torchrun() -> bool:
    """As one of several: a single process has nobody to join."""
    return dist.is_available() and dist.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def _where() -> torch.device:
    """Where small messages lie: on the CPU, unless the group was made by others and knows GPUs only."""
    on_cpu = "cpu" in dist.get_backend_config()
    return torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())


@contextmanager
def _exchange() -> Iterator[None]:
    """An exchange that fails is told as what it means: some rank is gone."""
    try:
        yield
    except RuntimeError as e:
        why = str(e).partition("\n")[0].partition(". ")[0]
        raise RankLost(f"The processes of the training lost each other ({why}); go on with --resume.") from e


def _let_go(error: BaseException | None) -> None:
    """Frees what the frames of an error, or mere cycles, hold: a captured step must end before its group does."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
    gc.collect()


def _speaks(rank: int, error: BaseException, store: dist.Store) -> bool:
    """Whether this rank tells the user: the first to fail does, and the rest is a consequence.

    Ctrl-C reaches all of them at once, and rank 0 knows what was saved.
    """
    if isinstance(error, ElsewhereError) or (isinstance(error, KeyboardInterrupt) and rank != 0):
        return False
    try:
        first = store.add("failed", 1) == 1
    except RuntimeError:  # nobody is left to ask
        return True
    return first or isinstance(error, KeyboardInterrupt)
