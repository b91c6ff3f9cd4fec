"""What the graph's float32 can lose near x, from the sizes of its own values there.

For each value z of the Program, computed as ẑ, there are constants e (for this x) and m (program/error.py) with

    ‖ẑ(x′) − z(x′)‖ ≤ e + m·r    wherever ‖x′ − x‖ ≤ r.

An operation of n roundings (nodes.py), with constant K, gain ‖|A|‖ and offset ‖f(0)‖, has κ = γ_n(2⁻²⁴) and

    e′ = K·e + κ·(gain·(‖ẑ(x)‖ + 2e) + offset) + underflow,

because ‖ẑ(x′)‖ ≤ ‖ẑ(x)‖ + ‖ẑ(x) − z(x)‖ + ‖z(x) − z(x′)‖ + ‖z(x′) − ẑ(x′)‖ ≤ ‖ẑ(x)‖ + 2e + (reach + m)·r. So e is
linear in the sizes ‖ẑ‖ of what goes into such operations: the graph takes each size once, and one product gives e. A
size counts for what its own float32 sum may be short of: √s·(1 + γ) + √underflow, s a sum of squares in any order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gloronet.export.nodes import roundings
from gloronet.operators.rounding import U32, gamma, product, root, total
from gloronet.program import Bound, FrozenProgram
from gloronet.program.error import SMALLEST, l2_constant, underflow
from gloronet.program.program import INPUT


class Linear(NamedTuple):
    """Σ_v coefficient_v·√s_v + constant, over sums s_v of the squares of values v; all rounded up.

    >>> Linear({"a": 2.0}, 1.0).times(3.0).plus(Linear({"b": 1.0}, 0.5))
    Linear(coefficients={'a': 6.000000000000001, 'b': 1.0000000000000002}, constant=3.500000000000001)
    """

    coefficients: dict[str, float]
    constant: float

    def times(self, factor: float) -> Linear:
        return Linear({v: product(factor, c) for v, c in self.coefficients.items()}, product(factor, self.constant))

    def plus(self, *others: Linear) -> Linear:
        every = (self, *others)
        values = dict.fromkeys(v for part in every for v in part.coefficients)
        sums = {v: total(*(part.coefficients.get(v, 0.0) for part in every)) for v in values}
        return Linear(sums, total(*(part.constant for part in every)))


def size(value: str, shape: tuple[int, ...]) -> Linear:
    """‖ẑ‖ of a value of that shape, from the float32 sum of its squares."""
    count = math.prod(shape)
    return Linear({value: total(1.0, gamma(count + 2, U32))}, root(count * SMALLEST[U32]))


def shapes(program: FrozenProgram) -> dict[str, tuple[int, ...]]:
    """The shape of each value, without the batch."""
    outputs = {op.output: operator.output_shape for op, operator in zip(program.ops, program.operators, strict=True)}
    return {INPUT: program.input_shape} | outputs


def losses(program: FrozenProgram, proved: Bound) -> Linear:
    """e of what goes into the head."""
    none = Linear({}, 0.0)
    found, shape = {INPUT: none}, shapes(program)
    for k, (op, operator) in enumerate(zip(program.ops[:-1], program.operators[:-1], strict=True)):
        constant, loss = l2_constant(proved, operator, k), operator.arithmetic()
        carried = none.plus(*(found[name] for name in op.inputs))
        found[op.output] = carried.times(constant)
        if loss.terms:
            kappa = gamma(roundings(operator), U32)
            sizes = _sum(size(name, shape[name]) for name in op.inputs)
            summed = sizes.plus(carried, carried).times(loss.gain).plus(Linear({}, loss.offset))
            lost = underflow(loss, operator, SMALLEST[U32])
            found[op.output] = found[op.output].plus(summed.times(kappa), Linear({}, lost))
    return found[program.ops[-1].inputs[0]]


def _sum(parts: Iterable[Linear]) -> Linear:
    return Linear({}, 0.0).plus(*parts)
