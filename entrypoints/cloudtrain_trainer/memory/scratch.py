"""What kernels of a CPU, and gloo, take for themselves meanwhile, which operations on tensors do not show.

Measured with torch 2.13 and oneDNN: the largest of what was seen, as bench_memory.py repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

FLOAT = 4
"""Bytes of a number in float32, in which narrower ones are summed."""


LSTM_KEEPS, LSTM_WIDTH = 16, 16
"""So many outputs, of a width that is a multiple of this, are kept."""


def scratch(name: str, args: Any, result: Any, *, gloo: bool) -> int:
    """Bytes that an operation takes until it has its result. `name`: such as aten::convolution.

    `gloo`: whether ranks send their messages by it; NCCL's buffers are of one size, whatever it sends.
    """
    rule = _RULES.get(name) or (_GLOO.get(name) if gloo else None)
    return 0 if rule is None else rule([x for x in args if isinstance(x, Tensor)], result)


def with_workspace(name: str, result: Any) -> Any:
    """The result of an operation with what its kernel keeps for the backward pass, where torch does not say how much.

    oneDNN's LSTM keeps about 16 times its output, and torch's shape of that is empty. Fitted to four models (15.2 to
    15.6); too little for bidirectional ones (docs/guides/memory.md).
    """
    if name != "aten::mkldnn_rnn_layer":
        return result
    output = result[0]
    width = -(-output.shape[-1] // LSTM_WIDTH) * LSTM_WIDTH
    kept = output.new_empty(LSTM_KEEPS * output.numel() // output.shape[-1] * width)
    return [*result[:3], kept]


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


def _lstm_backward(given: list[Tensor], _: Any) -> int:
    """Gradients of gates and states: about 5 outputs, where 16 are kept."""
    return max(map(_bytes, given)) * 5 // LSTM_KEEPS


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
    "aten::mkldnn_rnn_layer_backward": _lstm_backward,
    "aten::scatter_": _in_float32,
    "aten::scatter_add_": _in_float32,
    "aten::sum": _sum,
}
_GLOO: dict[str, Callable[[list[Tensor], Any], int]] = {
    "c10d::_allgather_base_": _gathered,
    "c10d::_reduce_scatter_base_": _reduced,
}
