"""What was traced is what runs: three checks made at every trace, on top of what torch.export can see.

torch.export takes every batch to hold two samples or more, and bakes in whatever Python computes on the
way: a random number, a counter. So a module is traced, run, and traced again on a single sample, and both
Programs must be the same. A module may also see that it is traced, or that no gradient is wanted, and compute
something else: so it is run both ways, against its Program. A module that a rule stands for is not read at all,
so it is run: on a batch and on a sample alone, against the rule's operator.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gloronet.errors import UnsupportedOperation
from gloronet.operators.base import Operator, Shape
from gloronet.operators.rules import evaluating
from gloronet.program.program import INPUT, Op, Program, evaluated


def require_same(module: nn.Module, first: Program, second: Program) -> None:
    """Refuses a module whose two traces differ, in an operation or in any bit of a tensor."""
    if _plain(first) == _plain(second):
        mine, others = first.live(), second.live()
        pairs = [
            (mine[a.tensors[field]], others[b.tensors[field]])
            for a, b in zip(first.ops, second.ops, strict=True)
            for field in a.tensors
        ]
        if all(_equal(a, b) for a, b in pairs):
            return
    raise UnsupportedOperation(
        f"{type(module).__name__} computes something else on a single sample, or each time it runs. "
        "Its forward must depend on nothing but its input and its own tensors."
    )


def require_true(module: nn.Module, program: Program) -> None:
    """Refuses a module that answers something else than its Program when it runs, with gradients or without."""
    x = _points(module, program.input_shape)
    for wanted in (False, True):
        eager = torch.compiler.set_stance("force_eager")  # as everything that certifies
        with evaluating(module), torch.autocast(x.device.type, enabled=False), torch.set_grad_enabled(wanted), eager:
            answer = module(x)
        with torch.no_grad():
            values = evaluated(program.ops, program.operators(), x)
            # Sums that cancel are off by what their terms are; where one overflows, nothing is certified.
            sizes = [float(v.abs().amax()) for v in values]
            alike = isinstance(answer, Tensor) and (answer.shape, answer.dtype) == (values[-1].shape, values[-1].dtype)
            near = alike and torch.allclose(answer, values[-1], 0.0, _digits(x) * max(sizes))
        if not alike or (all(map(math.isfinite, sizes)) and not near):
            raise UnsupportedOperation(
                f"{type(module).__name__} computes something else when it runs than while it is traced. "
                "Its forward must not ask how it is run."
            )


@torch.no_grad()
def require_fit(module: nn.Module, operator: Operator | None, input_shape: Shape, path: str) -> None:
    """Refuses a rule whose operator is not what the module computes, and a module that mixes samples."""
    x = _points(module, input_shape)
    with evaluating(module), torch.autocast(x.device.type, enabled=False):
        together, alone = module(x), module(x[:1])
        expected = together if operator is None else operator(x)
    what = f"{type(module).__name__} at {path or 'the top'}"
    if not _near(alone, together[:1]):
        raise UnsupportedOperation(f"No bound for {what}: it mixes the samples of a batch, or is random.")
    if not _near(together, expected):
        raise UnsupportedOperation(f"The rule for {what} answered an operator that computes something else.")


def _points(module: nn.Module, input_shape: Shape) -> Tensor:
    like = next((t for t in module.parameters()), next(module.buffers(), torch.zeros(0)))
    return torch.randn(3, *input_shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def _plain(program: Program) -> list[object]:
    place = {INPUT: -1} | {op.output: k for k, op in enumerate(program.ops)}

    def describe(op: Op) -> object:
        attributes = op.describe()["attributes"]
        return op.kind, op.input_shape, [place[name] for name in op.inputs], sorted(op.tensors), attributes

    return [describe(op) for op in program.ops]


def _equal(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, but for the sign of zero; what is not a number equals itself."""
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | (a.isnan() & b.isnan())).all())


def _near(a: Tensor, b: Tensor) -> bool:
    """Up to rounding, whatever the order of sums: half the digits, of the largest entry."""
    digits = _digits(b)
    return a.shape == b.shape and torch.allclose(a, b, digits, digits * float(b.abs().amax()), equal_nan=True)


def _digits(t: Tensor) -> float:
    return float(torch.finfo(t.dtype).eps ** 0.5)
