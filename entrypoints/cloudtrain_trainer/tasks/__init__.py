"""Tasks: model, data and loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn


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


def call(model: nn.Module, inputs: Any) -> Any:
    """Return the outputs (batch, ...) of a model."""
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

    own_task.py completes it. Numbers are defaults that the command line may override.
    """

    model: Callable[[], nn.Module]
    """Creates the model, with weights from torch's generator."""
    loss: Callable[[Any, Any], Tensor] = default_loss
    """(outputs, targets) -> the MEAN over the samples, shape ().

    If samples are dicts, `targets` is the whole batch.
    """
    weight: Callable[[Any], Any] | None = None
    """(targets) -> the weight of the loss of a batch, such as its number of labels, shape ().

    The step takes the weighted mean over all micro-batches and ranks, and so does val_loss; padding
    then counts nowhere. None: the number of samples; for the default loss and several labels per
    sample, the number of labels other than -100. If samples are dicts, `targets` is the whole batch.
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
    call: Callable[[nn.Module, Any], Any] = call
    """(model, inputs) -> outputs."""
    layers: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    """The modules that `--recompute` computes twice; None: the repeated blocks (recompute.py)."""
    measures: Callable[[Any, Any], Mapping[str, Tensor]] | None = None
    """(outputs, targets) -> per metric the sum over the samples, shape ().

    None: `correct` as accuracy.
    """
