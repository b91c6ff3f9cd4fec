"""A convolution as one matrix product: every window a column, y = W·columns.

Where no library has a fast convolution. `convolve` is for float64, `convolve_one` and `transpose_one` for a
single image on a GPU (a power iterate): a product runs at the speed of the machine's matrix multiplication,
and its rounding is that of plain inner products.
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


def convolve_one(x: Tensor, weight: Tensor, stride: Shape, padding: Shape, dilation: Shape) -> Tensor:
    """W∗x for one image, (1, C, H, W)."""
    x, inner = _padded(x, padding)
    size = x.shape[-2:]
    windows = F.unfold(x, _kernel(weight), dilation, inner, stride)
    axes = zip(size, inner, weight.shape[2:], stride, dilation, strict=True)
    shape = (len(range(0, n + 2 * p - d * (k - 1), s)) for n, p, k, s, d in axes)
    return (weight.flatten(1) @ windows[0]).reshape(1, len(weight), *shape)


def transpose_one(
    y: Tensor, weight: Tensor, size: Shape, stride: Shape, padding: Shape, dilation: Shape
) -> Tensor:
    """The adjoint of `convolve_one`, to an image of this size, (H, W)."""
    top, bottom, left, right = padding
    inner = (top, left) if (top, left) == (bottom, right) else (0, 0)
    outer = (size[0] + top + bottom - 2 * inner[0], size[1] + left + right - 2 * inner[1])
    windows = weight.flatten(1).T @ y.reshape(len(weight), -1)
    x = F.fold(windows[None], outer, _kernel(weight), dilation, inner, stride)
    return x if any(inner) else x[:, :, top : top + size[0], left : left + size[1]]


def _padded(x: Tensor, padding: Shape) -> tuple[Tensor, Shape]:
    """The image and what `F.unfold` is to pad it with, which can only be alike on opposite sides."""
    top, bottom, left, right = padding
    if (top, left) == (bottom, right):
        return x, (top, left)
    return F.pad(x, (left, right, top, bottom)), (0, 0)


def _kernel(weight: Tensor) -> tuple[int, int]:
    return weight.shape[2], weight.shape[3]
