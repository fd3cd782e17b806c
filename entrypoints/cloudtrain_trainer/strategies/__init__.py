"""How a model is distributed over ranks.

A new strategy is a subclass of `Strategy` in a file here with `build(ranks, options) -> Strategy`,
and an entry in STRATEGIES of rules.py, which has the options that it works with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cloudtrain_trainer import hardware, partition, rules
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.tasks import Task


class Step(Protocol):
    """The training step (training/step.py), as strategies and reports use it."""

    task: Task
    strategy: Strategy
    options: Options
    device: torch.device
    amp: str
    """no, bf16 or fp16."""
    compiles: bool
    """True if `--compile` is on and works here."""
    model: nn.Module
    """The rank's part of the model."""
    wrapped: nn.Module
    """The module that training calls."""
    optimizer: torch.optim.Optimizer

    def precision(self) -> AbstractContextManager[Any]:
        """Return the context for forward passes."""
        ...

    def to_device(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return a batch on the device, as the task prepares it."""
        ...

    def weigh(self, inputs: Any, targets: Any) -> float:
        """Return the weight of a micro-batch's mean loss, from the batch in host memory."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the current micro-batch. `loss`: its mean, shape ()."""

    def add_loss(self, loss: Tensor) -> None:
        """Add the current micro-batch's mean loss to the reported training loss."""

    def share_of(self, targets: Any) -> float | Tensor:
        """Return the factor of the mean loss of these targets in the loss of the step."""
        ...


class Strategy:
    """One process with the whole model on one device; the base of the other strategies."""

    communicates_in_forward = False
    """True if ranks communicate inside the forward pass: no rank can run it alone."""
    oom_hint = "use --strategy fsdp, which shares the model out over the ranks, or larger machines"
    """Hint for the user if even the smallest micro-batch does not fit into memory."""
    compiles_whole = True
    """True if `--compile` compiles model and loss as one graph, False if layer by layer."""
    shards_parameters = False
    """True if parameters are sharded along their first dimension."""

    def __init__(self, ranks: Ranks, options: Options) -> None:
        self.ranks = ranks
        self.options = options
        self.data_rank = ranks.rank
        self.data_ranks = ranks.size
        """This rank's share of each global batch, and the number of shares.

        Ranks that split one model train on the same share.
        """
        self.reports_metrics = True
        """True if this rank adds its loss and accuracy to the metrics.

        It is one of the ranks that see the same samples.
        """
        self.shard_group_size = 1
        """Number of consecutive ranks that hold one complete model together."""
        self.n_microbatches = 1
        """Number of micro-batches that the strategy itself makes of a batch (pipelines)."""

    @property
    def devices(self) -> list[torch.device]:
        """Return the devices that this rank computes on; the first is `ranks.device`."""
        return [self.ranks.device]

    def start(self) -> None:
        """Join the process group first. Raise `Refused` if the backend does not work here."""

    def wrap(self, model: nn.Module, step: Step) -> tuple[nn.Module, nn.Module]:
        """Return (this rank's part of the model, the module to call in training), on the device.

        `model` is on the CPU and has the same weights on all ranks. In the part, parameters keep
        their names, so that any strategy can read a checkpoint of any other.
        """
        model.to(step.device)
        return model, self.with_loss(model, step)

    def with_loss(self, model: nn.Module, step: Step) -> nn.Module:
        """Return a module (inputs, targets) -> mean loss of shape (), compiled by `--compile`."""
        module = ModelWithLoss(model, step.task)
        if step.compiles and self.compiles_whole:
            hardware.compile_whole(module)

        return module

    def forward_backward(self, step: Step, inputs: Any, targets: Any) -> None:
        """Run the forward and backward pass of one micro-batch on the device.

        Inputs and targets: (batch, ...).
        """
        self._run(step, step.wrapped, inputs, targets)

    def forward_backward_alone(self, step: Step, inputs: Any, targets: Any) -> None:
        """Do the same without peers. Impossible if `communicates_in_forward`."""
        self.forward_backward(step, inputs, targets)

    def _run(self, step: Step, module: nn.Module, inputs: Any, targets: Any) -> None:
        with step.precision():
            loss = module(inputs, targets)
        step.backward(loss)

    def outputs(self, step: Step, inputs: Any) -> Any:
        """Return the model's outputs (batch, ...), or None on a rank without them."""
        with step.precision():
            return step.task.call(step.model, inputs, False)

    def accumulation_context(self, wrapped: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Return the context of all micro-batches of a step except the last.

        Gradients are accumulated, not all-reduced. `wrapped`: the second module that `wrap`
        returned.
        """
        return nullcontext()

    def sync_buffers(self, model: nn.Module) -> None:
        """Make buffers, such as batch norm's statistics, equal on all ranks, in place.

        Called before an evaluation. Rank 0's are broadcast, as DDP does before a forward pass.
        """
        for buffer in model.buffers() if self.ranks.size > 1 else ():
            dist.broadcast(buffer, src=0)

    def average_statistics(self, statistics: Sequence[Tensor]) -> None:
        """Replace tensors that depend on the data by their mean over all ranks."""

    def finish_gradients(self, model: nn.Module) -> None:
        """Send what backward passes left to send, before gradients are used.

        Called by all ranks.
        """

    def total_norm(self, norm: Tensor) -> Tensor:
        """Return the norm of all ranks' gradients from this rank's, both of shape ()."""
        return norm

    def full_state_dict(
        self, model: nn.Module, left_out: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Return the state dict of the whole model on rank 0, in host memory. Called by all ranks.

        `left_out`: names of this rank's weights to leave out. Sharded tensors are gathered one at a
        time, since no GPU may have memory for all. The other ranks then get an empty dict.
        """
        state = {name: value for name, value in model.state_dict().items() if name not in left_out}
        if not any(hasattr(value, "full_tensor") for value in state.values()):
            return state

        gathered = {}

        for name, value in state.items():
            tensor = full_tensor(value)  # a collective of all ranks
            if self.ranks.rank == 0:
                gathered[name] = tensor.cpu()
            del tensor  # free it before the next is gathered

        return gathered


class ModelWithLoss(nn.Module):
    """A model and its loss as one module: one graph to compile, one module to wrap."""

    def __init__(self, model: nn.Module, task: Task) -> None:
        super().__init__()
        self.model = model
        self._call = task.call
        self._loss = task.loss

    def forward(self, inputs: Any, targets: Any) -> Tensor:
        """Return the mean loss over the samples, shape (). Arguments: (batch, ...)."""
        return self._loss(self._call(self.model, inputs, True), targets)


def layers_of(model: nn.Module, step: Step) -> Sequence[nn.Module]:
    """Return the modules that are sharded or compiled one by one.

    These are the task's layers, or else the repeated blocks.
    """
    return step.task.layers(model) if step.task.layers else partition.repeated_blocks(model)


class AutocastModule(nn.Module):
    """A module that runs under autocast with `--amp` in whatever thread calls it.

    Autocast's precision is set per thread, and a new thread has fp16 on GPUs (`autocast_dtype`,
    thread_local in torch's aten/src/ATen/autocast_mode.cpp; torch/nn/parallel/parallel_apply.py
    only passes on that it is enabled).
    """

    def __init__(self, part: nn.Module, step: Step) -> None:
        super().__init__()
        self.part = part
        self._precision = step.precision

    def forward(self, *inputs: Any, **named: Any) -> Any:
        with self._precision():
            return self.part(*inputs, **named)


def full_tensor(value: Tensor) -> Tensor:
    """Return a sharded tensor gathered to its full shape, other tensors unchanged.

    Called by all ranks.
    """
    full = getattr(value, "full_tensor", None)
    with torch.no_grad():
        return value if full is None else full()


def build(ranks: Ranks, options: Options) -> Strategy:
    """Return the strategy of `--strategy`; hybrid is one around `tp` or `pipeline`."""
    name = rules.STRATEGIES[options.strategy]
    if name == "hybrid":
        name = "tp" if options.tensor else "pipeline"

    module = import_module(f"{__name__}.{name}")
    strategy: Strategy = module.build(ranks, options)

    return strategy
