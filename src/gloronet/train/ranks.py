"""Several processes that train one net: started by torchrun, joined through torch.distributed.

Every rank holds the same weights, iterates and random numbers, and works on its own share of each batch.
Gradients are summed over the ranks, so that all of them take the step one process would have taken with the
whole batch. Rank 0 alone writes. With one process everything here does nothing.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from gloronet.data.augment import Shard
from gloronet.errors import ConfigError

PATIENCE = datetime.timedelta(minutes=10)
"""How long a rank waits for the others before it gives up."""


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

    def sum_(self, tensor: Tensor) -> None:
        """The sum over the ranks, in place."""
        if self.world > 1:
            dist.all_reduce(tensor)

    def sum_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Every gradient becomes its sum over the ranks, in one exchange."""
        if self.world == 1:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        parts = flat.split([g.numel() for g in gradients])
        torch._foreach_copy_(gradients, [part.view_as(g) for part, g in zip(parts, gradients, strict=True)])

    def from_first(self, tensors: Iterable[Tensor]) -> None:
        """Every rank's tensors become rank 0's, in place."""
        if self.world > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def bytes_from_first(self, content: bytes | None, place: torch.device) -> bytes:
        """Rank 0's bytes, on every rank; the others give None."""
        if self.world == 1:
            assert content is not None
            return content
        where = place if dist.get_backend() == "nccl" else torch.device("cpu")
        size = torch.tensor([len(content or b"")], device=where)
        dist.broadcast(size, 0)
        if content is not None:
            buffer = torch.frombuffer(bytearray(content or b"\0"), dtype=torch.uint8).to(where)
        else:
            buffer = torch.zeros(max(int(size), 1), dtype=torch.uint8, device=where)
        dist.broadcast(buffer, 0)
        return buffer.cpu().numpy().tobytes()[: int(size)]


@contextmanager
def joined(device: str | None) -> Iterator[Ranks]:
    """Joins the processes that torchrun started, for a while; elsewhere there is one, and nothing to join.

    Needs no address: torchrun leaves it in the environment. NCCL between GPUs, gloo between CPUs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield Ranks.current()
        return
    on_gpu = (device or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
    dist.init_process_group("nccl" if on_gpu else "gloo", timeout=PATIENCE)
    try:
        yield Ranks.current()
    finally:
        dist.destroy_process_group()
