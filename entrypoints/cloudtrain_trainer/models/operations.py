"""Recorded operations on tensors, and how they are done again: what `deferred.py` keeps of a
model's making.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass(frozen=True)
class View:
    """A view of recorded memory."""

    memory: int
    """The number of the memory."""
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Operation(NamedTuple):
    """What was done to tensors. In its arguments there are `View`s, and copies of tensors that are
    not recorded.
    """

    number: int
    function: Any
    arguments: Any
    named: dict[str, Any]
    generator: Tensor | None
    """The state of the random generator before it; None if it draws no numbers."""
    before: list[Operation]
    """What has to be done first."""
    makes: list[View | None]
    """Each of its results, if its memory is new."""


def view_of(number: int, tensor: Tensor) -> View:
    """What a tensor is of the memory with that number."""
    return View(
        number, tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset())
    )


def tensor_of(memories: dict[int, torch.UntypedStorage], view: View) -> Tensor:
    """The tensor that is this view of the memories, which are given by number."""
    made = torch.empty(0, dtype=view.dtype)
    return made.set_(memories[view.memory], view.offset, view.size, view.stride)


def history(last: Operation) -> list[Operation]:
    """An operation and all that come before it, in order."""
    found = {last.number: last}
    left = [last]
    while left:
        for operation in left.pop().before:
            if operation.number not in found:
                found[operation.number] = operation
                left.append(operation)
    return [found[number] for number in sorted(found)]


def repeat(operation: Operation, memories: dict[int, torch.UntypedStorage]) -> None:
    """Do it on the CPU, in these memories; new ones are added."""
    args, named = tree_map_only(
        View, lambda view: tensor_of(memories, view), (operation.arguments, operation.named)
    )
    if "device" in named:
        named = {**named, "device": "cpu"}
    if operation.generator is not None:
        if named.get("generator") is not None:
            named = {**named, "generator": torch.Generator()}
        (named.get("generator") or torch.default_generator).set_state(operation.generator)
    results = [
        leaf for leaf in tree_leaves(operation.function(*args, **named)) if isinstance(leaf, Tensor)
    ]
    for made, result in zip(operation.makes, results, strict=True):
        if made is not None:
            if result.stride() != made.stride or result.storage_offset() != made.offset:
                result = torch.empty_strided(made.size, made.stride, dtype=made.dtype).copy_(result)
            memories[made.memory] = result.untyped_storage()
