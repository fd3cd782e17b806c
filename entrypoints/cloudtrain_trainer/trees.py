"""Batches of any structure: tensors in tuples, lists and dicts; count and move them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from cloudtrain_trainer.rules import Refused


def sample_count(batch: Any) -> int:
    """Return the number of samples: the first dimension of the batch's first tensor.

    Raise `Refused` if it has none.
    """
    if isinstance(batch, Tensor):
        return len(batch)

    first = next(tensors(batch), None)

    if first is None or not first.ndim:
        raise Refused(
            f"a batch is a {type(batch).__name__} without a tensor of shape (batch, ...): "
            "let the samples contain tensors, arrays or numbers"
        )

    return len(first)


def tensors(batch: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, in order."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, (list, tuple)):
        for value in batch:
            yield from tensors(value)


def has_tensor(batch: Any) -> bool:
    """Return whether a batch contains a tensor."""
    return next(tensors(batch), None) is not None


def map_tensors(change: Callable[[Tensor], Tensor], batch: Any) -> Any:
    """Return the structure with each tensor changed; dicts become plain ones.

    Other values stay.
    """
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {name: map_tensors(change, value) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(map_tensors(change, value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(map_tensors(change, value) for value in batch)

    return batch


def to_device(
    batch: Any, device: torch.device, image_format: Mapping[str, Any] | None = None
) -> Any:
    """Return the batch on a device, without waiting for it.

    `image_format`: arguments of `Tensor.to` for images alone.
    """

    def move(tensor: Tensor) -> Tensor:
        options = image_format if image_format and tensor.ndim == 4 else {}
        return tensor.to(device, non_blocking=True, **options)

    return map_tensors(move, batch)
