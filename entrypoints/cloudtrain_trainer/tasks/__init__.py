"""What is learnt: model, data and loss. One small file per task.

A new task is a new file here with `build(seed, **options) -> Task`, an entry in OPTIONS of options.py beside it, the
options that it has of its own, and one in TASKS of rules.py: what it can. Its file name is the value of `--task`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cloudtrain_trainer.rules import USERS, Ability

if TYPE_CHECKING:  # the command line reads options.py, and needs no torch for it
    from torch import Tensor, nn

    from cloudtrain_trainer.options import Options


class Draw(NamedTuple):
    """Which samples of a data set make a batch, and in which epoch.

    Noise drawn from (seed, epoch, index) is the same on any number of ranks and workers, and after a resume.
    """

    epoch: int
    indices: list[int]


class Data(Protocol):
    """Samples that are fetched a batch at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Inputs (n, ...) and targets (n, ...) on the CPU."""
        ...


def call(model: nn.Module, inputs: Tensor, training: bool) -> Tensor:  # noqa: ARG001
    """The outputs of a model that knows by itself, from `train()` and `eval()`, whether it is training."""
    outputs: Tensor = model(inputs)
    return outputs


@dataclass(frozen=True)
class Task:
    """All that the loop needs to know. The numbers are defaults that the command line may override."""

    model: Callable[[], nn.Module]
    """Builds the model on the current default device with fresh weights from torch's generator."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> the MEAN over the samples."""
    correct: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> the sum over the samples of each one's share of right answers, a scalar."""
    train: Data
    """Of a task of one's own also an ordinary `torch.utils.data.Dataset` of pairs (input, target): samples.py."""
    validation: Data
    epochs: int
    batch_size: int
    """Samples per step over all ranks."""
    lr: float
    weight_decay: float
    workers: int | None = 0
    """Loader processes per rank; 0 where samples lie in memory; None: chosen from the machine."""
    unit: str = "samples"
    """What a sample is in the rates that are told: images, sequences."""
    tokens: int = 0
    """Tokens per sample; 0 where there are none."""
    flops: float = 0.0
    """Floating-point operations of one sample, forward and backward; 0: not known. The numerator of MFU."""
    channels_last: bool = False
    """Whether the inputs are images (n, c, h, w) that convolutions like with their channels last."""
    call: Callable[[nn.Module, Tensor, bool], Tensor] = call
    """(model, inputs, training) -> outputs."""
    statistics: Callable[[nn.Module], Sequence[Tensor]] = lambda model: ()  # noqa: ARG005
    """Tensors that follow the data and that no gradient or buffer sync makes equal: averaged over ranks."""
    layers: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """The parts that FSDP shards one by one, in order of use; None: the blocks that repeat (models/partition.py)."""
    tensor_plan: Callable[[nn.Module], Mapping[str, Any]] | None = None
    """How each named module is split over ranks (`ParallelStyle`s of torch); None: tensor parallelism cannot be had."""
    tensor_limit: Callable[[nn.Module], int] | None = None
    """What the number of tensor-parallel ranks must divide, such as the number of heads."""
    stages: Callable[[nn.Module, int], Sequence[nn.Module]] | None = None
    """(model, count) -> modules that in sequence do what the model does, each from one tensor to one tensor.

    Their parameters keep the names that they have in the model, so that a checkpoint knows no stages. None: it cannot
    be split.
    """
    most_stages: int = 1
    """Into how many stages it can be split."""


def build(name: str, seed: int, **options: Any) -> Task:
    """The task of that name; the seed fixes the split and the noise, `options` are its own (options.py)."""
    task: Task = import_module(f"{__name__}.{name.replace('-', '_')}").build(seed, **options)
    return task


def chosen(options: Options) -> Task:
    """What the command line asks for: a task of ours, a user's model on its data, or a task that is a user's own."""
    ours = build(options.task, options.seed, **options.task_options) if options.task != USERS else None
    if options.model is None:
        assert ours is not None  # noqa: S101  (it has a name)
        return ours
    from_factory = import_module(f"{__name__}.from_factory")
    task: Task = from_factory.build(options.model, options.seed, ours)
    return task


def ability(task: Task) -> Ability:
    """What the rules must know of a task: of ours, rules.py has it in a table that needs no torch."""
    import torch

    cuts = 0
    if task.tensor_plan is not None and task.tensor_limit is not None:
        with torch.device("meta"):
            cuts = task.tensor_limit(task.model())
    return Ability(task.batch_size, cuts, task.most_stages if task.stages is not None else 1)
