"""Detect losses, gradients and weights that are NaN or infinite, without waiting for a GPU.

Each step keeps its loss on the device, and the norm of its gradients if that is computed anyway:
other bad gradients make the weights bad, and so the next loss. The host reads a copy that it
requested at the last exchange of flags (`CollectiveFlags`, ranks.py), so a bad step is known about
half a second later. Before a checkpoint and at the end of an epoch the host waits for the device
and knows exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

EXIT = 33
"""The exit code after a loss, gradient or weight that is not finite: the number of EDOM."""
MIN_LOSS_SCALE = 1.0
"""Gradients that overflow at this fp16 loss scale would overflow without scaling, too."""

NUMBERS = "the loss", "the norm of the gradients"
"""Names of the noted numbers."""

BadStep = tuple[int, str]
"""A step, from 1, and a sentence about it."""


class NotFinite(Exception):
    """A loss, gradient or weight is NaN or infinite. Raised by all ranks together.

    The message says where.
    """


class FiniteWatch:
    """Finds the first bad step of this rank."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._notes: list[tuple[int, Tensor]] = []
        """Step, and its loss and norm on the device, until they are copied to the host."""
        self._copied: list[tuple[int, Tensor]] = []
        self._copy_done: Any = None
        self._first_bad: BadStep | None = None

    def note_step(self, step: int, loss: Tensor, norm: Tensor | None = None) -> None:
        """Note a step, counted from 1. `loss`, `norm`: float scalars on the device."""
        if norm is None:
            numbers = loss
        else:
            numbers = torch.stack((loss.float(), norm.float()))

        self._notes.append((step, numbers))

    def poll(self) -> bool:
        """Return whether a step was bad, without waiting for a GPU.

        The answer may be about half a second old.
        """
        if not self._on_gpu:
            return self.first_bad() is not None

        if self._copy_done is None or self._copy_done.query():
            self._judge()
            self._copied = [(step, x.to("cpu", non_blocking=True)) for step, x in self._notes]
            self._notes = []
            self._copy_done = torch.cuda.current_stream().record_event()

        return self._first_bad is not None

    def first_bad(self) -> BadStep | None:
        """Return the first bad step, or None. Waits for the device."""
        if self._copy_done is not None:
            self._copy_done.synchronize()

        self._copied += self._notes
        self._notes = []
        self._judge()

        return self._first_bad

    def _judge(self) -> None:
        for step, numbers in self._copied:
            for name, value in zip(NUMBERS, numbers.reshape(-1).tolist()):  # noqa: B905  (without a norm)
                if self._first_bad is None and not math.isfinite(value):
                    self._first_bad = step, f"{name} is {value:g}"

        self._copied = []


def reason(bad_steps: Sequence[BadStep | None]) -> str:
    """Return the message of `NotFinite`: the earliest bad step of all ranks, and its rank."""
    (step, problem), rank = min((bad, rank) for rank, bad in enumerate(bad_steps) if bad)
    where = ""
    if len(bad_steps) > 1:
        where = f" (rank {rank})"

    return f"step {step}: {problem}{where}"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all elements are finite; integers always are.

    Waits for their devices.
    """
    by_device: dict[torch.device, list[Tensor]] = {}

    for tensor in tensors:
        if tensor.is_floating_point():
            by_device.setdefault(tensor.device, []).append(torch.isfinite(tensor.detach()).all())

    return all(bool(torch.stack(flags).all()) for flags in by_device.values())
