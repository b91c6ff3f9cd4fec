"""An ONNX graph as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor


class Graph:
    """An ONNX graph as it grows: each node answers the name of its output, which begins with `path`."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []
        self.path = ""

    def add(self, kind: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or self._name(kind.lower())
        self.nodes.append(self.onnx.helper.make_node(kind, inputs, [output], name=f"{output}:node", **attributes))
        return output

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        outputs = [self._name("part") + f".{k}" for k in range(len(sizes))]
        inputs = [x, self.whole(sizes)]
        name = f"{outputs[0]}:node"
        self.nodes.append(self.onnx.helper.make_node("Split", inputs, outputs, name=name, axis=axis))
        return outputs

    def constant(self, value: Any, dtype: Any, name: str = "") -> str:
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        name = name or self._name("constant")
        self.tensors.append(self.onnx.numpy_helper.from_array(np.asarray(array, dtype, order="C"), name))
        return name

    def single(self, value: Any) -> str:
        return self.constant(value, np.float32)

    def double(self, value: Any) -> str:
        return self.constant(value, np.float64)

    def whole(self, value: Any) -> str:
        return self.constant(value, np.int64)

    def _name(self, what: str) -> str:
        return f"{self.path}/{what}.{len(self.nodes)}.{len(self.tensors)}"
