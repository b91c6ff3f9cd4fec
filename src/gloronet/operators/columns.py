"""A convolution as one matrix product: every window a column, y = W·columns.

For float64, where no library has a fast convolution: the product runs at the speed of the machine's matrix
multiplication, on either device, and its rounding is that of plain inner products.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gloronet.operators.base import Shape

COLUMNS = {"cpu": 2**19, "cuda": 2**27}
"""Numbers that lie out at a time: what stays near a core's cache, or a gigabyte on a GPU."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Shape, padding: Shape, dilation: Shape) -> Tensor:
    """F.conv2d with zeros at (top, bottom, left, right), as a matrix product over blocks of images."""
    top, bottom, left, right = padding
    if any(padding):
        x = F.pad(x, (left, right, top, bottom))
    out, channels, *kernel = weight.shape
    windows = x
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        windows = windows.unfold(2 + axis, d * (k - 1) + 1, s)[..., ::d]
    windows = windows.permute(0, 1, 4, 5, 2, 3)  # image, channel, kernel row and column, output row and column
    height, width = windows.shape[-2:]
    rows = weight.reshape(out, -1)
    at_once = max(1, COLUMNS.get(x.device.type, 2**22) // max(1, channels * kernel[0] * kernel[1] * height * width))
    parts = [rows @ block.reshape(len(block), rows.shape[1], height * width) for block in windows.split(at_once)]
    y = torch.cat(parts).reshape(len(x), out, height, width)
    return y if bias is None else y + bias.reshape(-1, 1, 1)
