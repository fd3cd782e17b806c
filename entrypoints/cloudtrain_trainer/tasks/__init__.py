"""Tasks: model, data and loss.

A new task is a function `(seed, **options) -> Task` in a file here, with an entry in BUILDERS, and
its capabilities and options in TASKS and OPTIONS of rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from cloudtrain_trainer.rules import Capabilities

if TYPE_CHECKING:  # the command line imports rules.py, without torch
    from torch import Tensor, nn


BUILDERS = {
    "digits": "digits:build_digits",
    "mnist": "digits:build_mnist",
    "keras-mnist": "keras_mnist:build",
    "gpt": "gpt:build",
}
"""Values of `--task`, and their functions here as module:function."""


class Draw(NamedTuple):
    """The samples of one batch, and their epoch.

    Augmentation drawn from (seed, epoch, an index) is the same on any number of workers, and after
    a resume; from each sample's own index, also on any number of ranks.
    """

    epoch: int
    indices: list[int]
    """Indices of the samples in the data set, from 0."""


class Data(Protocol):
    """A data set that returns a batch at a time."""

    def __len__(self) -> int: ...

    def __getitem__(self, draw: Draw) -> tuple[Any, Any]:
        """Return inputs (batch, ...) and targets (batch, ...), or a whole batch and None.

        They are on the CPU. Several are read ahead: return new tensors each time.
        """
        ...


def call(model: nn.Module, inputs: Any, training: bool) -> Any:  # noqa: ARG001
    """Return the outputs (batch, ...) of a model that follows torch's `train()` and `eval()`."""
    return model(inputs)


def default_loss(outputs: Any, targets: Any) -> Tensor:
    """Return the model's own loss, or one by the type of the targets.

    Raise `Refused` if none fits.
    """
    from cloudtrain_trainer import own_losses

    return own_losses.default_loss(outputs, targets)


@dataclass(frozen=True, kw_only=True)
class Task:
    """Model, data and loss. A user's task needs a model and training data.

    The loop needs all fields of the built-in tasks; own_task.py completes a user's task. Numbers
    are defaults that the command line may override.
    """

    model: Callable[[], nn.Module]
    """Creates the model on the current default device, with weights from torch's generator."""
    loss: Callable[[Any, Any], Tensor] = default_loss
    """(outputs, targets) -> the MEAN over the samples, shape ().

    If samples are dicts, `targets` is the whole batch.
    """
    weight: Callable[[Any], Any] | None = None
    """(targets) -> the weight of the loss of a batch, such as its number of labels, shape ().

    The step takes the weighted mean over all micro-batches and ranks, and so does val_loss; padding
    then counts nowhere. None: the number of samples; for the default loss and several labels per
    sample, that of labels other than -100. If samples are dicts, `targets` is the whole batch.
    """
    correct: Callable[[Any, Any], Tensor] | None = None
    """(outputs, targets) -> the sum over the samples of their correct share (0 to 1), shape ()."""
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict)
    """Per name, (outputs, targets) -> a number per sample, shape (batch,), or their mean.

    Reported as `val_<name>`.
    """
    step: Callable[[nn.Module, Any], Any] | None = None
    """(model, batch) -> the mean loss, or a dict with `loss` and metrics.

    It replaces the call of the model and the loss.
    """
    collate: Callable[[list[Any]], Any] | None = None
    """A list of samples -> a batch; None: torch's default, which stacks them."""
    train: Any
    """`Data`; in a user's task a data set or an iterable of samples.

    See data/samples.py and data/streams.py.
    """
    validation: Any = None
    """The same; None: no evaluation."""
    epochs: int = 1
    batch_size: int = 32
    """Samples per step over all ranks."""
    lr: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 1e-2
    workers: int | None = None
    """Data loader processes per rank; None: as many as idle cores if reading takes time.

    An iterable is read by the rank itself unless a number is given.
    """
    unit: str = "samples"
    """The name of a sample in reported rates: images, sequences."""
    tokens: int = 0
    """Tokens per sample; 0 if it has none."""
    flops: float = 0.0
    """FLOPs per sample, forward and backward, the numerator of MFU; 0: unknown."""
    channels_last: bool = False
    """True if inputs are images (batch, channels, height, width).

    GPUs convolve them faster with channels last.
    """
    on_device: Callable[[Any], Any] | None = None
    """Inputs -> inputs of the model, on the device; for example uint8 images to floats."""
    compiles: bool = True
    """True if `--compile auto` may compile the model."""
    call: Callable[[nn.Module, Any, bool], Any] = call
    """(model, inputs, training) -> outputs."""
    statistics: Callable[[nn.Module], Sequence[Tensor]] = lambda model: ()  # noqa: ARG005
    """Tensors that depend on the data, other than buffers; they are averaged over ranks."""
    layers: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """The modules that FSDP shards one by one, in order; None: the repeated blocks.

    See partition.py.
    """
    tensor_plan: Callable[[nn.Module], Mapping[str, Any]] | None = None
    """The `ParallelStyle` of each named module; None: no tensor parallelism."""
    tensor_limit: int = 0
    """The number of tensor-parallel ranks must divide this, for example the number of heads."""
    stages: Callable[[nn.Module, int], Sequence[nn.Module]] | None = None
    """(model, count) -> modules that together do the same as the model, one after the other.

    Each takes and returns one tensor. Their parameters keep their names, so that checkpoints do not
    depend on stages. None: the model cannot be split.
    """
    max_stages: int = 1
    """Maximum number of stages."""
    measures: Callable[[Any, Any], Mapping[str, Tensor]] | None = None
    """(outputs, targets) -> per metric the sum over the samples, shape ().

    None: `correct` as accuracy.
    """


def build(name: str, seed: int, **options: Any) -> Task:
    """Return a built-in task by name. `seed`: of the data split and noise.

    `options`: of this task (rules.py). Raise `Refused` if its data or a package is missing.
    KeyError for an unknown name.
    """
    module, _, function = BUILDERS[name].partition(":")
    task: Task = getattr(import_module(f"{__name__}.{module}"), function)(seed, **options)
    return task


def capabilities(task: Task) -> Capabilities:
    """Return the capabilities of a task; rules.py has the built-in tasks only.

    `fsdp` is always true.
    """
    tensor_limit = task.tensor_limit if task.tensor_plan is not None else 0
    max_stages = task.max_stages if task.stages is not None else 1
    return Capabilities(task.batch_size, tensor_limit, max_stages)
