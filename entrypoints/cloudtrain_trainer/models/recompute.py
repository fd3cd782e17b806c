"""Activation checkpointing: layers compute their activations again in the backward pass.

Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174;
torch/utils/checkpoint.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from cloudtrain_trainer.rules import Refused

aten = torch.ops.aten
KEPT = [
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
]
"""Costly operations whose results `selective` keeps, a part of all activations."""


def recompute(layers: Sequence[nn.Module], how: str) -> None:
    """Make each layer compute its activations again in the backward pass, in place.

    `how`: blocks or selective. Raise `Refused` without layers, or if one has batch norm, which
    would count each batch twice.
    """
    if not layers:
        raise Refused("--recompute finds no layers that this model repeats: leave it out")
    if any(isinstance(module, _BatchNorm) for layer in layers for module in layer.modules()):
        raise Refused(
            "--recompute would count each batch twice in the statistics of batch norm: leave it out"
        )
    for layer in layers:
        layer.forward = _recomputed(layer, how)


def _recomputed(layer: nn.Module, how: str) -> Callable[..., Any]:
    original = layer.forward
    options = (
        {"context_fn": partial(create_selective_checkpoint_contexts, KEPT)}
        if how == "selective"
        else {}
    )

    running = False

    def run(*inputs: Any, **named: Any) -> Any:
        nonlocal running
        running = True
        try:
            return original(*inputs, **named)
        finally:
            running = False

    def forward(*inputs: Any, **named: Any) -> Any:
        # A layer may call itself with converted weights (decoder.py).
        if running or not torch.is_grad_enabled():
            return original(*inputs, **named)
        # Compiled code converts no weights itself, and must not change `running`.
        function = original if torch.compiler.is_compiling() else run
        return checkpoint(function, *inputs, use_reentrant=False, **options, **named)  # type: ignore[arg-type]

    return forward
