"""Program → Bound: Lipschitz constants from above, operation by operation, along the graph."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from gloronet.errors import ConfigError, UnsupportedOperation
from gloronet.operators.base import Operator
from gloronet.operators.dense import Dense
from gloronet.operators.norms import dense_bound
from gloronet.operators.rounding import U64, norms_up, product, root, up
from gloronet.program.chains import Chain, groups
from gloronet.program.program import INPUT, FrozenProgram, Op, Program


@dataclass(frozen=True)
class LayerBound:
    """One operation's constant from above."""

    name: str
    rule: str
    method: str
    value: float


@dataclass(frozen=True)
class ChainBound:
    """Operations `first` to `last` (counted from 0) as one linear operator, where that is tighter."""

    first: int
    last: int
    method: str
    value: float


@dataclass(frozen=True)
class Bound:
    """|(y_j − y_i)(x) − (y_j − y_i)(x′)| ≤ margins[i, j]·‖x − x′‖ for all x, x′: the only thing that certifies."""

    margins: Tensor
    """m×m, float64, rounded up; symmetric, zero on the diagonal."""
    constant: float
    """K up to the last hidden layer."""
    layers: tuple[LayerBound, ...]
    digest: str
    norm: str
    form: str
    seconds: float
    chains: tuple[ChainBound, ...] = ()

    def to_json(self) -> str:
        table = asdict(self) | {"margins": self.margins.tolist()}
        return json.dumps(table, indent=1)

    @staticmethod
    def from_json(text: str) -> Bound:
        table = json.loads(text)
        layers = tuple(LayerBound(**layer) for layer in table.pop("layers"))
        chains = tuple(ChainBound(**chain) for chain in table.pop("chains", ()))
        margins = torch.tensor(table.pop("margins"), dtype=torch.float64)
        return Bound(margins=margins, layers=layers, chains=chains, **table)


def head(program: Program | FrozenProgram) -> Op:
    """The last operation, which must be a dense layer of two classes or more: margins need its rows."""
    last = program.ops[-1] if program.ops else None
    if last is None or last.kind is not Dense or last.attributes.get("skip"):
        what = f"{last.kind.rule} at {last.path or 'the top'}" if last else "nothing"
        raise UnsupportedOperation(
            f"The last operation must be a linear layer (nn.Linear), whose rows give the margins; it is {what}. "
            "Leave out a final softmax or activation."
        )
    return last


def bound(
    program: FrozenProgram, form: str, norm: str, progress: Callable[[str], None] | None = None
) -> Bound:
    """Proves the margins of a frozen Program. `progress` hears the path of each operation before its turn."""
    began = time.perf_counter()
    last = head(program)
    operators = program.operators
    proved = []
    for op, operator in zip(program.ops, operators, strict=True):
        if progress is not None:
            progress(op.path)
        proved.append(operator.bound(norm))
    joint = []
    for group in groups(program.ops, operators):
        if len(group) > 1:
            chain = as_one(program.ops, operators, group)
            together = chain.bound_from([proved[k] for k in group], norm)
            if together.method != "product":
                joint.append(ChainBound(group[0], group[-1], together.method, together.value))
    layers = tuple(
        LayerBound(op.path, operator.rule, p.method, p.value)
        for op, operator, p in zip(program.ops, operators, proved, strict=True)
    )
    constant = propagate(program, layers, joint, norm)[last.inputs[0]]
    margins = prove_margins(constant, _weight(operators[-1]), form, norm)
    seconds = time.perf_counter() - began
    return Bound(margins, constant, layers, program.digest, norm, form, seconds, tuple(joint))


def propagate(
    program: FrozenProgram, layers: Sequence[LayerBound], joint: Sequence[ChainBound], norm: str
) -> dict[str, float]:
    """The constant of every value as a function of the input, along the graph, rounded up."""
    ends = {chain.last: chain for chain in joint}
    constants: dict[str, float] = {INPUT: 1.0}
    for k, (op, operator) in enumerate(zip(program.ops, program.operators, strict=True)):
        incoming = up(operator.combine([constants[name] for name in op.inputs], norm), len(op.inputs))
        constants[op.output] = product(incoming, layers[k].value)
        if k in ends:
            before = constants[program.ops[ends[k].first].inputs[0]]
            constants[op.output] = min(constants[op.output], product(before, ends[k].value))
    return constants


def prove_margins(constant: float, weight: Tensor, form: str, norm: str) -> Tensor:
    """margins[i, j] ≥ K·‖w_j − w_i‖ (`margin`), K(‖w_i‖ + ‖w_j‖) (`simple`), √2·K·‖W‖ (`lmt`), rounded up.

    The dual norm measures a row: ℓ2 for ℓ2, ℓ1 for ℓ∞. Zero only for rows that are equal, or K = 0.
    """
    weight = weight.double()
    m = weight.shape[0]
    order = 1 if norm == "linf" else 2
    if form == "margin":
        # A difference is off by one rounding, relatively; `norms_up` covers everything after it.
        rows = [norms_up(weight - weight[j], order) * (1.0 + 4.0 * U64) for j in range(m)]
        distance = torch.stack(rows)
        distance = torch.maximum(distance, distance.T)
    elif form == "simple":
        size = norms_up(weight, order)
        distance = (size[:, None] + size[None, :]) * (1.0 + 4.0 * U64)
    elif form == "lmt":
        if norm != "l2":
            raise ConfigError('form "lmt" is defined for norm "l2" only.')
        distance = torch.full((m, m), product(root(2.0), dense_bound(weight)), dtype=torch.float64)
    else:
        raise ConfigError(f'form must be "margin", "simple" or "lmt", not {form!r}.')
    distance = distance.cpu()
    margins = torch.tensor(
        [[product(constant, float(d)) for d in row] for row in distance], dtype=torch.float64
    )
    margins.fill_diagonal_(0.0)
    return margins


def steps(program: Program, operators: Sequence[Operator]) -> Iterator[tuple[Op, Operator]]:
    """The operations before the head, each chain as one operation from its first input to its last output."""
    for group in groups(program.ops, operators):
        first, last = program.ops[group[0]], program.ops[group[-1]]
        if len(group) == 1:
            yield first, operators[group[0]]
        else:
            yield replace(first, output=last.output), as_one(program.ops, operators, group)


def as_one(ops: Sequence[Op], operators: Sequence[Operator], group: range) -> Chain:
    """The chain of these operations."""
    return Chain(ops[group[0]].input_shape, tuple(operators[k] for k in group))


def _weight(operator: Operator) -> Tensor:
    assert isinstance(operator, Dense)
    return operator.weight
