"""Loss and metrics of a user's task: its own, its model's, or defaults by the targets' type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer.factories import describe, place
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.trees import sample_count

IGNORED = -100
"""The label that torch's cross-entropy leaves out."""
LABELS = ("labels", "label", "targets", "target", "y")
"""Keys of the targets in a batch that is a dict; the first that exists counts."""


def default_loss(outputs: Any, targets: Any) -> Tensor:
    """Return the mean loss of outputs (batch, ...), shape (): the model's own if it has one.

    Else the cross-entropy with targets that are whole numbers, or the mean squared error from other
    targets. Raise `Refused` if neither fits the shapes.
    """
    model_loss = loss_in(outputs)
    if model_loss is not None:
        return scalar(model_loss, "the model's loss")

    predicted = predictions(outputs)
    expected = labels(targets)

    if predicted is None or expected is None:
        labels_missing = ""
        if expected is None:
            names = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"
            labels_missing = f" and a batch without {names}"

        raise Refused(
            f"there is no loss for a model that returns {describe(outputs)}{labels_missing}:"
            " return a tensor of predictions or a dict with `loss`, or a Task with a loss or a step"
        )

    return _compare(predicted, expected)


def loss_in(outputs: Any) -> Tensor | None:
    """Return the loss of outputs: a scalar, or `loss` of a dict or object as in Hugging Face's."""
    if isinstance(outputs, Tensor):
        return outputs if outputs.ndim == 0 else None

    if isinstance(outputs, Mapping):
        loss = outputs.get("loss")
    else:
        loss = getattr(outputs, "loss", None)

    return loss if isinstance(loss, Tensor) else None


def predictions(outputs: Any) -> Tensor | None:
    """Return the predictions (batch, ...): the outputs, or their `logits`, or None."""
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    elif not isinstance(outputs, Tensor):
        outputs = getattr(outputs, "logits", None)

    return outputs if isinstance(outputs, Tensor) else None


def labels(targets: Any) -> Tensor | None:
    """Return the targets (batch, ...): a tensor, or the one in a dict by `LABELS`, or None."""
    if isinstance(targets, Mapping):
        names = [name for name in LABELS if name in targets]
        targets = targets[names[0]] if names else None

    return targets if isinstance(targets, Tensor) else None


def label_count(targets: Any, *, shifted: bool) -> Tensor | int:
    """Return the number of labels that are not `IGNORED`, shape (); of other targets the samples.

    `shifted`: without the first one of each sequence, which no position predicts.
    """
    expected = labels(targets)
    if expected is None or expected.is_floating_point():
        return sample_count(targets)
    if shifted and expected.ndim > 1:
        expected = expected[:, 1:]

    return (expected != IGNORED).sum()


def own_weight(weight: Callable[[Any], Any]) -> Callable[[Any], Tensor]:
    """Wrap the user's weight: it raises `Refused` with its place if it returns no number."""

    def call(targets: Any) -> Tensor:
        value = weight(targets)
        if isinstance(value, (int, float)):
            number = torch.tensor(value)
        else:
            number = value

        return scalar(number, "the weight", weight, "a number of 0 or more")

    return call


def scalar(
    value: Any, name: str, source: Any = None, meaning: str = "the mean over the samples"
) -> Tensor:
    """Return the value. Raise `Refused` if it is not a scalar tensor.

    `source`: the user's function that returned it.
    """
    if isinstance(value, Tensor) and value.ndim == 0:
        return value

    if isinstance(value, Tensor):
        description = f"a tensor of shape {tuple(value.shape)}"
    else:
        description = describe(value)

    if source is not None:
        name = f"{place(source)}: {name}"

    raise Refused(f"{name} is {description}: it must be {meaning}, a tensor of shape ()")


def checked(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """Wrap the user's loss: it raises `Refused` with its place if it returns no scalar."""

    def call(outputs: Any, targets: Any) -> Tensor:
        return scalar(loss(outputs, targets), "the loss", loss)

    return call


def default_measures(outputs: Any, targets: Any) -> dict[str, Tensor]:
    """Return `accuracy` as a sum, of outputs (batch, classes) and targets (batch,).

    Empty for other shapes, or targets that are not whole numbers.
    """
    predicted = predictions(outputs)
    expected = labels(targets)

    if (
        predicted is None
        or expected is None
        or expected.is_floating_point()
        or (predicted.ndim, expected.ndim) != (2, 1)
    ):
        return {}

    return {"accuracy": (predicted.argmax(1) == expected).sum()}


def own_measures(
    metrics: Mapping[str, Callable[[Any, Any], Any]],
) -> Callable[[Any, Any], dict[str, Tensor]]:
    """Return a function (outputs, targets) -> sum over the samples per metric, shape ().

    It raises `Refused`.
    """

    def measure(outputs: Any, targets: Any) -> dict[str, Tensor]:
        count = sample_count(targets)
        return {
            name: total(metric(outputs, targets), count, metric, name)
            for name, metric in metrics.items()
        }

    return measure


def total(value: Any, count: int, source: Any, name: str) -> Tensor:
    """Return the sum over `count` samples of a metric: their mean, or a number per sample.

    A mean has the shape (), numbers per sample (count,). `source`: the user's function that
    returned it.
    """
    values = torch.as_tensor(value) if isinstance(value, (Tensor, float, int)) else None
    if values is None or tuple(values.shape) not in ((), (count,)):
        if values is not None:
            description = f"a tensor of shape {tuple(values.shape)}"
        else:
            description = describe(value)

        raise Refused(
            f"{place(source)}: the metric {name} returned {description}: return one number per"
            f" sample, shape ({count},), or their mean"
        )

    if values.ndim:
        return values.double().sum()

    return values.double() * count


def _compare(outputs: Tensor, targets: Tensor) -> Tensor:
    shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
    if targets.is_floating_point():
        if outputs.shape == (*targets.shape, 1):
            outputs = outputs.squeeze(-1)  # otherwise torch would compare each with each

        if outputs.shape != targets.shape:
            raise Refused(
                f"the default loss, the mean squared error, does not fit {shapes}: make the shapes"
                " equal"
            )

        return F.mse_loss(outputs.float(), targets.float())

    classes = _classes_dimension(outputs, targets)

    if classes is None:
        raise Refused(
            f"the default loss, the cross-entropy, does not fit {shapes}: return outputs (batch,"
            " classes), make targets that are not classes floats, or give the task a loss"
        )

    return F.cross_entropy(outputs.float().movedim(classes, 1), targets.long())


def _classes_dimension(outputs: Tensor, targets: Tensor) -> int | None:
    """Return the dimension of the classes: the last, or the second in (batch, classes, ...)."""
    if outputs.ndim != targets.ndim + 1 or outputs.ndim < 2:
        return None

    last = outputs.shape[:-1] == targets.shape
    second = (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape)
    if last and not (second and outputs.ndim > 3):
        return outputs.ndim - 1

    return 1 if second else None
