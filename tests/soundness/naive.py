"""The code everybody writes, and that is wrong: each function is a trap that real certifiers fell into.

Nothing here is used by gloronet. Every function is short, plausible, and answers wrongly for some weights.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Map = Callable[[Tensor], Tensor]


# A norm from below, taken for a bound


def power_iteration(apply: Map, adjoint: Map, start: Tensor, iterations: int) -> float:
    """‖A‖, "converged": from below, and from wherever the start leads."""
    u = start / start.norm()
    for _ in range(iterations):
        v = adjoint(apply(u))
        if not v.any():
            return 0.0
        u = v / v.norm()
    return float(apply(u).norm())


def power_iteration_with_eps(weight: Tensor, iterations: int = 50, eps: float = 1e-12) -> float:
    """The same with F.normalize, whose eps of 1e-12 keeps zero from dividing by zero."""
    u = F.normalize(torch.ones(weight.shape[1], dtype=weight.dtype), dim=0)
    for _ in range(iterations):
        u = F.normalize(weight.T @ (weight @ u), dim=0, eps=eps)
    return float((weight @ u).norm())


def gram_iteration(weight: Tensor, iterations: int = 6) -> float:
    """‖A‖ ≤ ‖(AᵀA)^(2^k)‖_F^(1/2^(k+1)), rescaled: an upper bound on paper, float32 in the machine."""
    g, log = weight, 0.0
    for k in range(iterations):
        size = g.norm()
        g = g / size
        log = log + math.log(float(size)) * 0.5**k
        g = g.T @ g
    return float(torch.exp(torch.tensor(log)) * g.norm() ** (0.5**iterations))


def through_the_gram_matrix(weight: Tensor) -> float:
    """√‖WᵀW‖_F, at least ‖W‖ on paper, in whatever arithmetic the weights are in."""
    return float((weight.T @ weight).norm().sqrt())


def sampled_slope(module: nn.Module, x: Tensor) -> float:
    """The steepest gradient seen at the data."""
    x = x.clone().requires_grad_()
    rows = [torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for y in module(x).unbind(1)]
    return float(torch.stack([row.flatten(1).norm(dim=1) for row in rows]).max())


# Convolutions


def fft_norm(kernel: Tensor, n: int) -> float:
    """The largest Fourier coefficient on the n×n grid: exact for circular padding, so "close" for zeros."""
    return float(torch.fft.fft2(kernel, s=(n, n)).abs().max())


def kernel_matrix_norm(weight: Tensor) -> float:
    """‖W‖ of the kernel reshaped to (c_out, c_in·k·k), as if no pixel were read twice."""
    return float(torch.linalg.matrix_norm(weight.flatten(1), 2))


def transposed_power_iteration(
    weight: Tensor, stride: int, padding: int, n: int, iterations: int = 200
) -> float:
    """Power iteration with conv_transpose2d for the adjoint, whose size is left to torch."""
    y = F.conv2d(torch.ones(1, 1, n, n, dtype=weight.dtype), weight, None, stride, padding)
    for _ in range(iterations):
        x = F.conv_transpose2d(y / y.norm(), weight, None, stride, padding)
        y = F.conv2d(x, weight, None, stride, padding)
    return float(y.norm() / x.norm())


# The constant of a network


def constant(modules: Iterable[nn.Module]) -> float:
    """Layers multiply; "everything else is 1-Lipschitz"."""
    k = 1.0
    for m in modules:
        if isinstance(m, nn.Linear | nn.Conv2d):
            k *= kernel_matrix_norm(m.weight.detach())
    return k


def float32_constant(weights: Iterable[Tensor]) -> float:
    """The product of the layers' norms, everything in float32."""
    k = torch.tensor(1.0)
    for w in weights:
        k = k * (w.float() ** 2).sum().sqrt()
    return float(k)


# A radius


def radius(y: Tensor, constants: Tensor) -> float:
    """min over i ≠ j of (y_j − y_i)/K_ij: right on paper, and here in whatever arithmetic y is in."""
    j = int(y.argmax())
    others = [i for i in range(len(y)) if i != j]
    return min(float((y[j] - y[i]) / constants[j, i]) for i in others)


def radius_without_constant_pairs(y: Tensor, constants: Tensor) -> float:
    """The same, but two logits with K_ij = 0 cannot move apart, so they need no check."""
    j = int(y.argmax())
    pairs = [i for i in range(len(y)) if i != j and constants[j, i] > 0]
    return min((float((y[j] - y[i]) / constants[j, i]) for i in pairs), default=math.inf)


def radius_masked_by_value(y: Tensor, k: float) -> float:
    """The runner-up is the largest value that is not the largest value."""
    rest = y.masked_fill(y == y.max(), -math.inf)
    return float(y.max() - rest.max()) / k


def is_certified(margin: float, k: float, epsilon: float) -> bool:
    """Certified unless the margin is too small."""
    return not margin < epsilon * k


def gram_distances(rows: Tensor) -> Tensor:
    """‖w_j − w_i‖ through ‖w_j‖² + ‖w_i‖² − 2 w_j·w_i, as fast as a matrix product."""
    g = rows @ rows.T
    squares = g.diagonal()
    return (squares[:, None] + squares[None, :] - 2.0 * g).clamp_min(0.0).sqrt()


# What is kept


class Cached:
    """A bound that is computed when it is first asked for; `key` says when to compute it anew."""

    def __init__(self, compute: Callable[[], float], key: Callable[[], object] = lambda: None) -> None:
        self.compute, self.key = compute, key
        self.kept: tuple[object, float] | None = None

    def __call__(self) -> float:
        if self.kept is None or self.kept[0] != self.key():
            self.kept = (self.key(), self.compute())
        return self.kept[1]


def as_text(weight: Tensor) -> Tensor:
    """Weights through a text file with six decimals."""
    return torch.tensor([[float(f"{v:.6f}") for v in row] for row in weight.tolist()], dtype=weight.dtype)


def accepts(document: bytes) -> bool:
    """A checker that only looks whether the proof's digest is that of its content."""
    proof = json.loads(document)
    text = json.dumps(proof["content"], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest() == proof["sha256"]


def reads(proof: Path, model: Path, inputs: Path) -> bool:
    """Whether the files of a proof can be read at all: what is readable is believed."""
    try:
        json.loads(proof.read_bytes())
        safetensors.torch.load(model.read_bytes())
        with np.load(inputs) as arrays:
            arrays["x"]
    except Exception:
        return False
    return True
