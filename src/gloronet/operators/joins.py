"""Where branches meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from gloronet.operators.base import Arithmetic, Operator, Proved, Shape


@dataclass(frozen=True, eq=False)
class Sum(Operator):
    """x + y: constants add. A linear branch around its own input is no Sum: see `skip` of Dense and Conv2d."""

    rule: ClassVar[str] = "sum"

    @property
    def output_shape(self) -> Shape:
        return self.input_shape

    def __call__(self, *inputs: Tensor) -> Tensor:
        x, y = inputs
        return x + y

    def combine(self, constants: Sequence[Any]) -> Any:
        return constants[0] + constants[1]

    def bound(self, norm: str) -> Proved:
        return Proved(1.0, "constants add")

    def arithmetic(self) -> Arithmetic:
        return Arithmetic(terms=1, gain=1.0)
