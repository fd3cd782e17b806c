"""How one model is spread over ranks: one small file per strategy.

A new strategy is a new file here with `build(ranks) -> Strategy`; its file name is the value of `--strategy`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module

from torch import nn

from ranks import Ranks


class Strategy:
    """One process with the whole model on one device. A strategy overrides what it does differently."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.data_rank, self.data_ranks = ranks.rank, ranks.size
        """Which share of every global batch is this rank's; ranks that split one model see the same share."""

    def start(self) -> None:
        """Join the peers; nothing has been built yet."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The module to call in training. `model` is already on the device and equal on all ranks."""
        return model

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """The context of every part of a step but the last: gradients stay on this rank."""
        return nullcontext()

    def sync_buffers(self, model: nn.Module) -> None:
        """Make batch norm statistics equal on all ranks, before evaluation and export."""


def build(name: str, ranks: Ranks) -> Strategy:
    """The strategy of that name; raises `Refused` when it cannot work with these ranks."""
    strategy: Strategy = import_module("strategies." + name.replace("-", "_")).build(ranks)
    return strategy
