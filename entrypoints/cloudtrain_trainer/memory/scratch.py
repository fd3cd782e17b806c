"""What kernels of a CPU, and gloo, take for themselves meanwhile, which operations on tensors do not show.

Measured with torch 2.13 and oneDNN: the largest of what was seen, as bench_memory.py repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

FLOAT = 4
"""Bytes of a number in float32, in which narrower ones are summed."""


def scratch(name: str, args: Any, result: Any, *, gloo: bool) -> int:
    """Bytes that an operation takes until it has its result. `name`: such as aten::convolution.

    `gloo`: whether ranks send their messages by it; NCCL's buffers are of one size, whatever it sends.
    """
    rule = _RULES.get(name) or (_GLOO.get(name) if gloo else None)
    return 0 if rule is None else rule([x for x in args if isinstance(x, Tensor)], result)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _convolution(given: list[Tensor], result: Any) -> int:
    """Copies of images in the layout of oneDNN's kernels."""
    return max(_bytes(given[0]), _bytes(result))


def _convolution_backward(given: list[Tensor], result: Any) -> int:
    """Copies of both inputs; and of the gradient of the images, where there is one."""
    made = _bytes(result[0]) if isinstance(result[0], Tensor) else 0
    return sum(_bytes(tensor) for tensor in given[:2]) + made


def _same_again(given: list[Tensor], _: Any) -> int:
    return _bytes(given[0])


def _in_float32(given: list[Tensor], _: Any) -> int:
    """A copy of numbers in bf16 or fp16."""
    return given[0].numel() * FLOAT if given[0].element_size() < FLOAT and given[0].is_floating_point() else 0


def _sum(given: list[Tensor], result: Any) -> int:
    """A copy in the type of the sum."""
    return given[0].numel() * result.element_size() if result.dtype != given[0].dtype else 0


def _gathered(given: list[Tensor], _: Any) -> int:
    """Gathered into memory of its own, and then copied into the output (torch's ProcessGroupGloo.cpp)."""
    return _bytes(given[0])


def _reduced(given: list[Tensor], _: Any) -> int:
    """A copy of the input, which is reduced."""
    return _bytes(given[1])


_RULES: dict[str, Callable[[list[Tensor], Any], int]] = {
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::native_batch_norm_backward": _same_again,
    "aten::scatter_": _in_float32,
    "aten::scatter_add_": _in_float32,
    "aten::sum": _sum,
}
_GLOO: dict[str, Callable[[list[Tensor], Any], int]] = {
    "c10d::_allgather_base_": _gathered,
    "c10d::_reduce_scatter_base_": _reduced,
}
