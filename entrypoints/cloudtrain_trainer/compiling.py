"""`--compile`: what goes through torch.compile as one piece, and what must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from cloudtrain_trainer import hardware

BACKEND: str | Callable[..., Any] = "inductor"
"""torch's own, which needs a compiler of the system's."""


def check(device: torch.device) -> None:
    """Raise `Refused` where it cannot work."""
    if BACKEND == "inductor":
        hardware.check_compiler(device)


def compile_whole(module: nn.Module) -> None:
    """As one graph, in place: the names in its state stay.

    To be of a class of ours: torch passes over its own, and so would compile nothing of a model that is an
    `nn.Sequential` of torch's layers.
    """
    module.compile(backend=BACKEND)


def compile_each(layers: Sequence[nn.Module]) -> None:
    """Each as a graph of its own, for strategies that gather one after the other: no graph reaches across two.

    Layers of one kind share their code, and torch counts all graphs of one code against a limit, past which they run
    as they were written: there must be room for every layer, and again for parts of a batch that differ in size.
    """
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 2 * len(layers))
    for layer in layers:
        layer.forward = _compiled_in_training(layer)


def _compiled_in_training(layer: nn.Module) -> Callable[..., Any]:
    """Evaluation is not worth graphs of its own: its last batch has another size."""
    plain, fast = layer.forward, torch.compile(layer.forward, backend=BACKEND)

    def forward(*inputs: Any, **named: Any) -> Any:
        return (fast if layer.training else plain)(*inputs, **named)

    return forward


def eager() -> AbstractContextManager[None]:
    """The context of passes as if nothing had been compiled."""
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance
