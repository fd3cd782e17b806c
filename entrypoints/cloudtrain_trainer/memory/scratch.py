"""What kernels of a CPU, and gloo, take for themselves meanwhile, which operations on tensors do
not show.

Measured with torch 2.13 and oneDNN: the largest of what was seen, as bench_memory.py repeats it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

FLOAT = 4
"""Bytes of a number in float32, in which narrower ones are summed."""

_LINE = 16
_PAGE = 4096
"""Numbers of a cache line, and bytes of a page: what oneDNN aligns rows and parts of its workspace
to.
"""


def scratch(name: str, args: Any, result: Any, *, gloo: bool) -> int:
    """Bytes that an operation takes until it has its result. `name`: such as aten::convolution.

    `gloo`: whether ranks send their messages by it; NCCL's buffers are of one size, whatever it
    sends.
    """
    rule = _RULES.get(name) or (_GLOO.get(name) if gloo else None)
    return 0 if rule is None else rule([x for x in args if isinstance(x, Tensor)], result)


def with_workspace(name: str, args: Any, result: Any) -> Any:
    """The result of an operation with what its kernel keeps for the backward pass where torch does
    not say it.
    """
    if name != "aten::mkldnn_rnn_layer" or not args[-1]:  # not in training
        return result
    steps, batch, width = args[0].shape
    kept = lstm_workspace(steps, batch, width, result[0].shape[-1])
    return [*result[:3], result[0].new_empty(kept // FLOAT)]


def lstm_workspace(steps: int, batch: int, width: int, hidden: int) -> int:
    """Bytes that oneDNN keeps of one layer and direction of an LSTM in float32; torch's shape of it
    is empty.

    States of the layer, its steps and their gradients, each also of what came before; states of the
    cells; gates; and outputs: `set_workspace_sizes` of oneDNN's rnn_utils.cpp. As
    `mkldnn_rnn_layer` returned it in 60 shapes of 60.
    """
    numbers = [2 * (steps + 1) * batch * _row(max(width, hidden))] * 3
    numbers += [2 * (steps + 1) * batch * hidden] * 2
    numbers += [steps * batch * _row(4 * hidden), steps * batch * _row(hidden)]
    return sum(-(-FLOAT * count // _PAGE) * _PAGE for count in numbers)


def _row(numbers: int) -> int:
    """The length of a row: whole cache lines, and not a multiple of 256, for which caches have few
    places.
    """
    whole = -(-numbers // _LINE) * _LINE
    return whole if whole % 256 else whole + _LINE


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
    return (
        given[0].numel() * FLOAT
        if given[0].element_size() < FLOAT and given[0].is_floating_point()
        else 0
    )


def _sum(given: list[Tensor], result: Any) -> int:
    """A copy in the type of the sum."""
    return given[0].numel() * result.element_size() if result.dtype != given[0].dtype else 0


def _lstm_backward(given: list[Tensor], _: Any) -> int:
    """Gradients of gates and states: about 5 outputs."""
    steps, batch, _width = given[0].shape
    hidden = given[1].shape[0] // 4  # of the weights of four gates
    return 5 * FLOAT * steps * batch * hidden


def _gathered(given: list[Tensor], _: Any) -> int:
    """Gathered into memory of its own, and then copied into the output (torch's
    ProcessGroupGloo.cpp).
    """
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
