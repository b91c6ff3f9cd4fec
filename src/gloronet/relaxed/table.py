"""Net + data → relaxed certificates of a whole set, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gloronet.certify import in_batches, write_csv
from gloronet.net import BOTTOM, GloRoNet
from gloronet.relaxed.certify import RelaxedCertificates, certify_relaxed
from gloronet.relaxed.sets import Relaxation

COLUMNS = ("index", "label", "set", "prediction", "k", "radius", "certified", "epsilon", "semantics")


@dataclass(frozen=True)
class RelaxedTable:
    """Relaxed certificates of a labelled set, on the CPU."""

    label: Tensor
    certificates: RelaxedCertificates

    @property
    def right(self) -> Tensor:
        """Whether the label is in the set, certified or not."""
        return self.certificates.members.gather(1, self.label[:, None]).squeeze(1)

    @property
    def vra(self) -> float:
        """Share of points whose label is in a set certified at ε. Read it beside `mean_size`."""
        return float((self.right & self.certificates.certified).double().mean())

    @property
    def plain_vra(self) -> float:
        """The VRA of single classes, k = 1: what `net.certify` counts."""
        c = self.certificates
        return float(((c.order[:, 0] == self.label) & (c.radii[:, 0] > c.epsilon)).double().mean())

    @property
    def mean_size(self) -> float:
        """Mean number of classes in the certified sets; NaN where there is none."""
        return float(self.certificates.k[self.certificates.certified].double().mean())

    def write(self, path: Path) -> None:
        """One row a sample, sets as "3 5", ⊥ as -1; whole or not at all."""
        c = self.certificates
        rows = []
        for i, (label, k, radius, certified) in enumerate(
            zip(self.label.tolist(), c.k.tolist(), c.radius.tolist(), c.certified.tolist(), strict=True)
        ):
            named = " ".join(map(str, c.order[i, :k].tolist()))
            told = named if certified else BOTTOM
            rows.append((i, label, named, told, k, repr(radius), int(certified), repr(c.epsilon), c.semantics))
        write_csv(path, COLUMNS, rows)


def certify_relaxed_set(
    net: GloRoNet,
    x: Tensor,
    labels: Tensor,
    relaxation: Relaxation,
    epsilon: float | str | None = None,
    semantics: str = "real",
    per_sample: bool = False,
    batch_size: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> RelaxedTable:
    """Certifies every sample of a set (uint8 images or floats in [0, 1]) by the bound."""

    def certify(part: Tensor) -> RelaxedCertificates:
        return certify_relaxed(net, part, relaxation, epsilon, semantics, per_sample)

    parts = in_batches(certify, x, next(net.parameters()).device, batch_size, progress)
    order, radii = (torch.cat([getattr(p, name) for p in parts]).cpu() for name in ("order", "radii"))
    return RelaxedTable(labels.cpu(), RelaxedCertificates(order, radii, parts[0].epsilon, parts[0].semantics))
