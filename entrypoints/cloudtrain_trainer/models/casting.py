"""Weights of a whole layer converted to bf16 by one kernel, and their gradients back to float32 by
another.

Autocast converts each weight by a kernel of its own, in the forward and again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Cast(torch.autograd.Function):
    """Tensors of one dtype -> copies of another; the gradients take the way back."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = weights[0].dtype
        return _convert(weights, dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return (None, *_convert(grads, ctx.dtype))


def _convert(tensors: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, tensors)
    return tuple(copies)


def weights_to_convert(layer: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The layer's parameters by name if they should be converted together; empty if something else
    does it.

    Parameters of `dtype` need it no more (FSDP gathers them in bf16), those split by tensor
    parallelism go through autocast, and a compiler makes one kernel of the conversions itself.
    """
    if torch.compiler.is_compiling():
        return {}
    weights: dict[str, Tensor] = dict(layer.named_parameters())
    kinds = {(weight.dtype, hasattr(weight, "to_local")) for weight in weights.values()}
    return weights if kinds == {(torch.float32, False)} and dtype != torch.float32 else {}


def convert_together(weights: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Copies of the tensors in `dtype` by the same names; gradients flow back to the originals, in
    their dtype.
    """
    return dict(zip(weights, _Cast.apply(dtype, *weights.values()), strict=True))  # type: ignore[no-untyped-call]
