"""How one model is spread over ranks: one small file per strategy.

A new strategy is a new file here with `build(ranks, options) -> Strategy`; its file name is the value of `--strategy`.
What can work with what is told by rules.py, before anything starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from cloudtrain_trainer import hardware
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks

if TYPE_CHECKING:
    from cloudtrain_trainer.step import Step
    from cloudtrain_trainer.tasks import Task


class Strategy:
    """One process with the whole model on one device. A strategy overrides what it does differently."""

    communicates = False
    """Whether ranks meet inside a forward pass, so that one of them cannot run it alone."""
    more_room = "use --strategy fsdp, which shares the model out over the ranks, or larger machines"
    """What to do when not even the smallest part of a batch fits."""
    slices = False
    """Whether parameters are cut along their first dimension, as they lie in memory."""

    def __init__(self, ranks: Ranks, options: Options) -> None:
        self.ranks, self.options = ranks, options
        self.data_rank, self.data_ranks = ranks.rank, ranks.size
        """Which share of every global batch is this rank's; ranks that split one model see the same share."""
        self.counts = True
        """Whether the figures of that share are counted on this rank: on one only of those that see it."""
        self.holders = 1
        """How many ranks, counted from one whose number this divides, hold one whole model together."""
        self.cuts = 1
        """Into how many micro-batches the strategy itself cuts what it is given."""

    @property
    def devices(self) -> list[torch.device]:
        """Those that this rank computes on."""
        return [self.ranks.device]

    def start(self) -> None:
        """Join the peers; nothing has been built yet."""

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        """(this rank's part of the model, the module to call in training), on the device.

        `model` is on the CPU and equal on all ranks. In the part, parameters keep the names that they have in the
        model, so that any strategy can read any other's checkpoint.
        """
        model = model.to(self.ranks.device)
        return model, self.with_loss(model, step)

    def with_loss(self, model: nn.Module, step: Step) -> nn.Module:
        """(inputs, targets) -> the mean loss, as one module: what `--compile` compiles, in place."""
        whole = WithLoss(model, step.task)
        if self.options.compile:
            hardware.compile_whole(whole)
        return whole

    def learn(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        """Forward and backward pass of one part of a batch."""
        self._through(step, step.wrapped, inputs, targets)

    def learn_alone(self, step: Step, inputs: Tensor, targets: Tensor) -> None:
        """The same without the peers, where that is possible: `communicates` says so."""
        self.learn(step, inputs, targets)

    def _through(self, step: Step, whole: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        with step.precision():
            loss = whole(inputs, targets)
        step.backward(loss, len(targets))

    def outputs(self, step: Step, inputs: Tensor) -> Tensor | None:
        """The model's answers, for evaluation; None on a rank that does not get them."""
        with step.precision():
            return step.task.call(step.model, inputs, False)

    def accumulating(self, wrapped: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """The context of every part of a step but the last: gradients stay on this rank."""
        return nullcontext()

    def sync_buffers(self, model: nn.Module) -> None:
        """Make batch norm statistics equal on all ranks, before evaluation and export."""

    def average(self, statistics: Sequence[Tensor]) -> None:
        """Make other statistics of the data equal on all ranks: their mean."""

    def square_sum(self, norm: Tensor) -> Tensor:
        """The square of the norm of all gradients, from that of this rank's."""
        return norm.square()

    def whole_state(self, model: nn.Module) -> dict[str, Tensor]:
        """The state dict of the whole model, on rank 0 at least; called by all ranks.

        What is spread comes together tensor by tensor, and only rank 0 keeps it, in host memory: no GPU may have room
        for all of it. The other ranks get nothing then.
        """
        state = model.state_dict()
        if not any(hasattr(value, "full_tensor") for value in state.values()):
            return state
        found = {}
        for name, value in state.items():
            one = whole(value)  # by all ranks
            if self.ranks.rank == 0:
                found[name] = one.cpu()
            del one  # before the next comes
        return found


class WithLoss(nn.Module):
    """A model and the loss of its task: in training, one graph for the compiler and one module for wrappers."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self._call, self._loss = task.call, task.loss

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self._call(self.model, inputs, True), targets)


class Precise(nn.Module):
    """A part of a model that computes in the precision of `--amp`, whoever calls it, in whatever thread.

    Autocast's precision is each thread's own, and another thread has fp16 on a GPU (`autocast_dtype`, thread_local in
    torch's aten/src/ATen/autocast_mode.cpp; torch/nn/parallel/parallel_apply.py passes on only that it is enabled).
    """

    def __init__(self, part: nn.Module, step: Step) -> None:
        super().__init__()
        self.part = part
        self._precision = step.precision

    def forward(self, inputs: Tensor, **named: Any) -> Tensor:
        with self._precision():
            outputs: Tensor = self.part(inputs, **named)
        return outputs


def whole(value: Tensor) -> Tensor:
    """A sharded tensor as one; another as it is."""
    full = getattr(value, "full_tensor", None)
    with torch.no_grad():
        return value if full is None else full()


def build(ranks: Ranks, options: Options) -> Strategy:
    """The strategy that was asked for."""
    module = import_module(f"{__name__}.{options.strategy.replace('-', '_')}")
    strategy: Strategy = module.build(ranks, options)
    return strategy
