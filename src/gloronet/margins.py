"""⊥, the radius and the margins they are made of: pure functions of logits and one m×m matrix.

`margins[j, i]` is K_ji, a Lipschitz constant of y_j − y_i, with 0 on the diagonal. If j leads every
other class i by more than ε·K_ji, no change of the input of size ε makes i overtake j.

Nothing here depends on data for its shapes or waits for the device, so a CUDA graph can hold it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gloronet.errors import ConfigError
from gloronet.operators.rounding import U64

SMALL_HEAD = 2**20
"""Numbers in all differences of a head's rows, up to which they are formed on a GPU."""


def bottom_logit(logits: Tensor, margins: Tensor, epsilon: float | Tensor) -> Tensor:
    """y_⊥ = max_{i≠j} (y_i + ε·K_ji) with j = argmax y: (B, m), (m, m) → (B,).

    j is an index, the first on ties, and it is masked as an index: with a tie y_⊥ ≥ y_j, so ties never
    certify.

    >>> bottom_logit(torch.tensor([[3.0, 1.0, 2.0]]), torch.ones(3, 3), 0.5)
    tensor([2.5000])
    """
    top = logits.argmax(dim=1)
    others = logits + epsilon * margins.index_select(0, top)
    return others.scatter(1, top.unsqueeze(1), -math.inf).amax(dim=1)


def certified_estimate(logits: Tensor, margins: Tensor, epsilon: float | Tensor) -> Tensor:
    """Which samples the net would not answer with ⊥: y_j > y_⊥, strictly. Proves nothing with estimates."""
    return logits.amax(dim=1) > bottom_logit(logits, margins, epsilon)


def lead_down(logits: Tensor, label: Tensor, lost: Tensor) -> Tensor:
    """(B, m): where positive, at most the exact y_j − y_i, j = label; float64 logits have it off by `lost` or less.

    2u of the computed difference is a whole unit in its last place or more: half of one for its own
    rounding, and half for that of the last subtraction.
    """
    lead = logits.gather(1, label[:, None]) - logits
    return lead - lead.abs() * (2.0 * U64) - lost


def reach_down(lead: Tensor, margins: Tensor) -> Tensor:
    """How far the input must move before a class catches up: lead/K, rounded down, entry by entry.

    With leads from below and margins from above. K = 0: the two logits move together, so any positive lead
    lasts for ever. 0 where a lead is not positive, or unknown.

    >>> reach_down(torch.tensor([2.0, 3.0, 0.0]), torch.tensor([4.0, 0.0, 0.0]))
    tensor([0.5000,    inf, 0.0000])
    """
    reach = torch.nextafter(lead / margins, torch.zeros_like(lead))
    reach = torch.where(margins == 0, torch.inf, reach)
    return torch.where(lead > 0, reach, 0.0)


def radius_down(lead: Tensor, margins: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """r = min_{i≠j} lead_i/K_ji rounded down, j = label, and the least lead: (B, m), (B, m), (B,) → two (B,).

    Nearer than r no class i overtakes j.

    >>> lead, margins = torch.tensor([[0.0, 2.0, 3.0]]), torch.tensor([[0.0, 4.0, 0.0]])
    >>> radius_down(lead, margins, torch.tensor([0]))
    (tensor([0.5000]), tensor([2.]))
    """
    reach = reach_down(lead, margins)
    own = torch.arange(lead.shape[1], device=lead.device) == label[:, None]
    return reach.masked_fill(own, torch.inf).amin(1), lead.masked_fill(own, torch.inf).amin(1)


def pairwise_margins(constant: float | Tensor, weight: Tensor, form: str, norm: str = "l2") -> Tensor:
    """The m×m margins of y = W z + b, where z has Lipschitz constant K: differentiable, 0 on the diagonal.

    - `"margin"`: K·‖w_j − w_i‖
    - `"simple"`: K·(‖w_i‖ + ‖w_j‖)
    - `"lmt"`: √2·K·‖W‖₂ (ℓ2 only)

    where w_i are the rows of W, and ‖·‖ is ℓ2 for `norm="l2"` and ℓ1 for `norm="linf"`. These are
    estimates for training, in the weight's precision. Gradients are finite everywhere.

    >>> pairwise_margins(2.0, torch.tensor([[3.0, 0.0], [0.0, 4.0]]), "margin")
    tensor([[ 0., 10.],
            [10.,  0.]])
    """
    if norm not in ("l2", "linf"):
        raise ConfigError(f"norm must be one of l2, linf, not {norm!r}.")
    with torch.autocast(weight.device.type, enabled=False):  # a distance does not survive bf16 products
        if form == "margin":
            return constant * (_distances(weight) if norm == "l2" else torch.cdist(weight, weight, p=1.0))
        off_diagonal = 1 - torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        if form == "simple":
            size = torch.linalg.vector_norm(weight, ord=2 if norm == "l2" else 1, dim=1)
            return constant * (size.unsqueeze(0) + size.unsqueeze(1)) * off_diagonal
        if form == "lmt" and norm == "l2":
            return constant * math.sqrt(2) * _spectral_norm(weight) * off_diagonal
    if form == "lmt":
        raise ConfigError("form 'lmt' is for the l2 norm; use form 'margin' or 'simple' with linf.")
    raise ConfigError(f"form must be one of margin, simple, lmt, not {form!r}.")


def _distances(rows: Tensor) -> Tensor:
    """‖w_j − w_i‖₂ through the m×m Gram matrix; the (m, m, n) differences are never formed.

    Rows are centred first, which changes no difference and loses fewer digits. What the Gram matrix
    cannot tell from 0 is 0, with gradient 0: the root's own gradient there is infinite.
    """
    if rows.is_cuda and len(rows) * rows.numel() <= SMALL_HEAD:
        return _differences(rows)
    rows = rows - rows.mean(dim=0)
    gram = rows @ rows.T
    squares = gram.diagonal()
    both = squares.unsqueeze(0) + squares.unsqueeze(1)
    return _root(both - gram - gram.T, floor=8 * torch.finfo(rows.dtype).eps * both)


def _differences(rows: Tensor) -> Tensor:
    """‖w_j − w_i‖₂ from the differences themselves: on a GPU half the kernels, and no workspace for a product."""
    squares = (rows.unsqueeze(1) - rows).square().sum(dim=2)
    return _root(squares, floor=torch.zeros_like(squares))


def _spectral_norm(weight: Tensor) -> Tensor:
    """‖W‖₂ from below, within 0.1 % for up to a thousand classes; an SVD could not be in a CUDA graph.

    σ² = tr(G·P) with G = W Wᵀ and P = G^4096 / tr(G^4096) held fixed: an average of G's eigenvalues in
    which only the largest have any weight. Twelve squarings of an m×m matrix give P.
    """
    gram = weight @ weight.T
    with torch.no_grad():
        power = _trace_one(gram)
        for _ in range(12):
            power = _trace_one(power @ power)
    return _root((gram * power).sum(), floor=torch.zeros_like(gram[0, 0]))


def _trace_one(matrix: Tensor) -> Tensor:
    return matrix / matrix.diagonal().sum().clamp_min(torch.finfo(matrix.dtype).tiny)


def _root(squares: Tensor, floor: Tensor) -> Tensor:
    """√, but 0 with gradient 0 for squares of at most `floor`; NaN stays NaN."""
    positive = ~(squares <= floor)
    return torch.where(positive, squares, 1.0).sqrt() * positive
