"""What is trained: model, data and loss. One file per task.

A new task is a new file here with `build(seed, **options) -> Task`, an entry in OPTIONS of options.py with the options
that only it has, and an entry in TASKS of rules.py with its capabilities. Its file name is the value of `--task`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cloudtrain_trainer.rules import USER_TASK, Capabilities

if TYPE_CHECKING:  # the command line imports options.py, without torch
    from torch import Tensor, nn

    from cloudtrain_trainer.options import Options


class Draw(NamedTuple):
    """The samples of one batch, and the epoch they belong to.

    Augmentation drawn from (seed, epoch, index) is the same on any number of ranks and workers, and after a resume.
    """

    epoch: int
    indices: list[int]
    """Of the samples in the data set, from 0."""


class Data(Protocol):
    """A data set that returns a batch at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> tuple[Tensor, Tensor]:
        """Inputs (batch, ...) and targets (batch, ...) on the CPU."""
        ...


def call(model: nn.Module, inputs: Tensor, training: bool) -> Tensor:  # noqa: ARG001
    """Outputs (batch, ...) of a model that follows torch's `train()` and `eval()`, so that `training` is not needed."""
    outputs: Tensor = model(inputs)
    return outputs


@dataclass(frozen=True)
class Task:
    """All that the training loop needs. The numbers are defaults that the command line may override."""

    model: Callable[[], nn.Module]
    """Creates the model on the current default device, with initial weights from torch's generator."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> the MEAN over the samples."""
    correct: Callable[[Tensor, Tensor], Tensor]
    """(outputs, targets) -> a scalar, the sum over the samples of their share of correct answers (0 to 1 each)."""
    train: Data
    """In a user's task this may also be a `torch.utils.data.Dataset` of (input, target) pairs (samples.py)."""
    validation: Data
    epochs: int
    batch_size: int
    """Samples per step over all ranks."""
    lr: float
    """Peak learning rate."""
    weight_decay: float
    workers: int | None = 0
    """Data loader processes per rank; 0 if samples are in memory; None: by the machine's cores."""
    unit: str = "samples"
    """The name of a sample in reported rates: images, sequences."""
    tokens: int = 0
    """Tokens per sample; 0 if it has none."""
    flops: float = 0.0
    """Floating-point operations per sample, forward and backward; 0: unknown. The numerator of MFU."""
    channels_last: bool = False
    """Whether the inputs are images (batch, channels, height, width): GPUs convolve them faster with channels last."""
    call: Callable[[nn.Module, Tensor, bool], Tensor] = call
    """(model, inputs, training) -> outputs."""
    statistics: Callable[[nn.Module], Sequence[Tensor]] = lambda model: ()  # noqa: ARG005
    """Tensors that depend on the data and that neither gradients nor buffers make equal: they are averaged over
    ranks.
    """
    layers: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """The modules that FSDP shards one by one, in order of use; None: the repeated blocks (models/partition.py)."""
    tensor_plan: Callable[[nn.Module], Mapping[str, Any]] | None = None
    """How each named module is split over ranks (`ParallelStyle`s of torch); None: no tensor parallelism."""
    tensor_limit: Callable[[nn.Module], int] | None = None
    """The number of tensor-parallel ranks must divide this, for example the number of heads."""
    stages: Callable[[nn.Module, int], Sequence[nn.Module]] | None = None
    """(model, count) -> modules that, one after the other, do what the model does, from one tensor to one tensor.

    Their parameters keep the names that they have in the model, so that checkpoints do not depend on stages. None: the
    model cannot be split.
    """
    max_stages: int = 1
    """The largest number of stages."""


def build(name: str, seed: int, **options: Any) -> Task:
    """A built-in task by name. `seed`: of the data split and noise. `options`: those of this task (options.py).

    Raises `Refused` if its data or a package is missing. ModuleNotFoundError for an unknown name.
    """
    task: Task = import_module(f"{__name__}.{name.replace('-', '_')}").build(seed, **options)
    return task


def from_options(options: Options) -> Task:
    """The task of the command line: a built-in one, a user's model on the data of one, or a user's task.

    Raises `Refused` if it cannot be built.
    """
    base = build(options.task, options.seed, **options.task_options) if options.task != USER_TASK else None
    if options.model is None:
        assert base is not None  # noqa: S101  (only --model goes without a task)
        return base
    from_factory = import_module(f"{__name__}.from_factory")
    task: Task = from_factory.build(options.model, options.seed, base)
    return task


def capabilities(task: Task) -> Capabilities:
    """What a task supports, from the task itself: the table in rules.py has built-in tasks only.

    The model is created on the meta device, so that it takes no memory. `fsdp` is always true.
    """
    import torch

    tensor_limit = 0
    if task.tensor_plan is not None and task.tensor_limit is not None:
        with torch.device("meta"):
            tensor_limit = task.tensor_limit(task.model())
    return Capabilities(task.batch_size, tensor_limit, task.max_stages if task.stages is not None else 1)
