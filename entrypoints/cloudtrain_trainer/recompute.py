"""Save memory: layers compute their activations again in the backward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from cloudtrain_trainer.rules import Refused

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
"""Modules that only contain others."""


def recompute(layers: Sequence[nn.Module]) -> None:
    """Make each layer compute its activations again in the backward pass, in place.

    Raise `Refused` without layers, or if one has batch norm, which would count each batch twice.
    """
    if not layers:
        raise Refused("--recompute finds no layers that this model repeats: leave it out")

    for layer in layers:
        if any(isinstance(module, _BatchNorm) for module in layer.modules()):
            raise Refused(
                "--recompute would count each batch twice in the statistics of batch norm: leave it"
                " out"
            )

    for layer in layers:
        layer.forward = _recomputed(layer)


def repeated_blocks(model: nn.Module) -> Sequence[nn.Module]:
    """Return the blocks that a model repeats: outermost siblings of one class with parameters.

    A block that is used twice is returned once.
    """
    return list(dict.fromkeys(_blocks(model)))


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    is_container = isinstance(module, CONTAINERS)
    kinds = Counter(type(child) for child in module.children() if is_container)

    for child in module.children():
        is_repeated = kinds[type(child)] > 1 and not isinstance(child, CONTAINERS)
        if is_repeated and any(True for _ in child.parameters()):
            yield child
        else:
            yield from _blocks(child)


def _recomputed(layer: nn.Module) -> Callable[..., Any]:
    original = layer.forward

    def forward(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return original(*inputs, **named)
        return checkpoint(original, *inputs, use_reentrant=False, **named)

    return forward
