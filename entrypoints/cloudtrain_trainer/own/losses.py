"""The loss and metrics of a user's task: its own, those that its model returns, or defaults by the
targets' type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cloudtrain_trainer.factories import describe, place
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.trees import sample_count

LABELS = ("labels", "label", "targets", "target", "y")
"""Where a batch that is a dict has its targets, if the model does not return its loss. The first
that exists counts.
"""


def default_loss(outputs: Any, targets: Any) -> Tensor:
    """The mean loss of outputs (batch, ...), shape (): the model's own if it returns one.

    Else the cross-entropy with targets that are whole numbers, or the mean squared error from
    targets that are not. Raises `Refused` if neither fits the shapes.
    """
    own = loss_in(outputs)
    if own is not None:
        return scalar(own, "the model's loss")
    found = predictions(outputs)
    wanted = labels(targets)
    if found is None or wanted is None:
        labels_missing = ""
        if wanted is None:
            names = f"{', '.join(LABELS[:-1])} or {LABELS[-1]}"
            labels_missing = f" and a batch without {names}"
        raise Refused(
            f"there is no loss for a model that returns {describe(outputs)}{labels_missing}:"
            " return a tensor of predictions or a dict with `loss`, or a Task with a loss or a step"
        )
    return _compare(found, wanted)


def loss_in(outputs: Any) -> Tensor | None:
    """The loss that a model or step returns: a scalar, or `loss` of a dict or object, as Hugging
    Face's models have.
    """
    if isinstance(outputs, Tensor):
        return outputs if outputs.ndim == 0 else None
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    return found if isinstance(found, Tensor) else None


def predictions(outputs: Any) -> Tensor | None:
    """The tensor of predictions (batch, ...): the outputs themselves, or their `logits`; None if
    there is none.
    """
    if isinstance(outputs, Mapping):
        outputs = outputs.get("logits")
    elif not isinstance(outputs, Tensor):
        outputs = getattr(outputs, "logits", None)
    return outputs if isinstance(outputs, Tensor) else None


def labels(targets: Any) -> Tensor | None:
    """The tensor of targets (batch, ...): the targets themselves, or what a dict has in `LABELS`;
    None without.
    """
    if isinstance(targets, Mapping):
        targets = next((targets[name] for name in LABELS if name in targets), None)
    return targets if isinstance(targets, Tensor) else None


def scalar(loss: Any, name: str) -> Tensor:
    """The loss itself. Raises `Refused` if it is not a scalar tensor; nn.DataParallel's, one per
    GPU, are averaged.
    """
    if isinstance(loss, Tensor) and loss.ndim == 0:
        return loss
    found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else describe(loss)
    raise Refused(f"{name} is {found}: it must be the mean over the samples, a tensor of shape ()")


def checked(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Tensor]:
    """The user's loss, which raises `Refused` with its place if it does not return a scalar."""

    def call(outputs: Any, targets: Any) -> Tensor:
        found = loss(outputs, targets)
        return (
            found
            if isinstance(found, Tensor) and found.ndim == 0
            else scalar(found, f"{place(loss)}: the loss")
        )

    return call


def default_measures(outputs: Any, targets: Any) -> dict[str, Tensor]:
    """`accuracy` of outputs (batch, classes) and targets (batch,) that are whole numbers, as a sum;
    else nothing.
    """
    found = predictions(outputs)
    wanted = labels(targets)
    if (
        found is None
        or wanted is None
        or wanted.is_floating_point()
        or (found.ndim, wanted.ndim) != (2, 1)
    ):
        return {}
    return {"accuracy": (found.argmax(1) == wanted).sum()}


def own_measures(
    metrics: Mapping[str, Callable[[Any, Any], Any]],
) -> Callable[[Any, Any], dict[str, Tensor]]:
    """A function (outputs, targets) -> per metric its sum over the samples, shape (). It raises
    `Refused`.
    """

    def measure(outputs: Any, targets: Any) -> dict[str, Tensor]:
        count = sample_count(targets)
        return {
            name: total(metric(outputs, targets), count, place(metric), name)
            for name, metric in metrics.items()
        }

    return measure


def total(value: Any, count: int, at: str, name: str) -> Tensor:
    """The sum over `count` samples of a metric that is their mean, shape (), or a number per
    sample, shape (count,).
    """
    found = torch.as_tensor(value) if isinstance(value, (Tensor, float, int)) else None
    if found is None or tuple(found.shape) not in ((), (count,)):
        what = f"a tensor of shape {tuple(found.shape)}" if found is not None else describe(value)
        raise Refused(
            f"{at}: the metric {name} returned {what}: return one number per sample, shape"
            f" ({count},), or their mean"
        )
    return found.double().sum() if found.ndim else found.double() * count


def _compare(outputs: Tensor, targets: Tensor) -> Tensor:
    given = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)} of {targets.dtype}"
    if targets.is_floating_point():
        if outputs.shape == (*targets.shape, 1):
            outputs = outputs.squeeze(-1)  # otherwise torch would compare each with each
        if outputs.shape != targets.shape:
            raise Refused(
                f"the default loss, the mean squared error, does not fit {given}: make the shapes"
                " equal"
            )
        return F.mse_loss(outputs.float(), targets.float())
    classes = _classes_dimension(outputs, targets)
    if classes is None:
        raise Refused(
            f"the default loss, the cross-entropy, does not fit {given}: return outputs (batch,"
            " classes), make targets that are not classes floats, or give the task a loss"
        )
    return F.cross_entropy(outputs.float().movedim(classes, 1), targets.long())


def _classes_dimension(outputs: Tensor, targets: Tensor) -> int | None:
    """The last dimension, or the second where the shapes say so, as in images (batch, classes,
    height, width).
    """
    if outputs.ndim != targets.ndim + 1 or outputs.ndim < 2:
        return None
    last = outputs.shape[:-1] == targets.shape
    second = (outputs.shape[0], *outputs.shape[2:]) == tuple(targets.shape)
    if last and not (second and outputs.ndim > 3):
        return outputs.ndim - 1
    return 1 if second else None
