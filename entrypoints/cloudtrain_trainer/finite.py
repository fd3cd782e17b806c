"""Detect losses, gradients and weights that are NaN or infinite, without waiting for a GPU.

Each step writes its loss and gradient norm into a small tensor on the device. The host reads a copy
of it that it requested at the last exchange of flags (`CollectiveFlags`, ranks.py), so a bad step
is known about half a second later. Before a checkpoint and at the end of an epoch the host waits
for the device and knows exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

EXIT = 33
"""The exit code after a loss, gradient or weight that is not finite: the number of EDOM."""
MIN_LOSS_SCALE = 1.0
"""Gradients that overflow at this fp16 loss scale would overflow without scaling, too."""


MAX_NOTES = 1024
"""Maximum steps whose numbers are on the device at once.

A host runs ahead of its GPU by fewer, since CUDA queues 1,024 kernels at most and a step has
several.
"""


class NotFinite(Exception):
    """A loss, gradient or weight is NaN or infinite. Raised by all ranks together.

    The message says where.
    """


class BadStep(NamedTuple):
    """A step with a loss or gradients that are not finite."""

    step: int
    """From 1."""
    loss: float
    norm: float

    def __str__(self) -> str:
        """Return a line such as `step 17: the loss is nan`."""
        if not math.isfinite(self.loss):
            return f"step {self.step}: the loss is {self.loss:g}"
        return f"step {self.step}: the norm of the gradients is {self.norm:g}"


class FiniteWatch:
    """Finds the first bad step of this rank."""

    def __init__(self, device: torch.device) -> None:
        self._notes = torch.zeros(MAX_NOTES, 2, device=device)
        """Loss and gradient norm of each step, at its number modulo the length."""
        self._host_notes = torch.zeros(MAX_NOTES, 2, pin_memory=device.type == "cuda")
        self._noted = 0
        """The last step that was noted; the next two: copied to the host, and judged."""
        self._copied = 0
        self._judged = 0
        self._first_bad: BadStep | None = None
        self._copy_done: Any = None

    def note_step(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Note a step, counted from 1, for the host to judge.

        `loss`, `norm`: float scalars on the device.
        """
        self._noted = step
        self._judged = min(self._judged, step - 1)
        torch.stack((loss.float(), norm.float()), out=self._notes[step % MAX_NOTES])

    def poll(self) -> bool:
        """Return whether a step was bad, without waiting for a GPU.

        The answer may be about half a second old.
        """
        if self._notes.device.type != "cuda":
            return self.first_bad() is not None
        if self._copy_done is not None:
            if not self._copy_done.query():
                return False
            self._judge(self._host_notes)
        self._host_notes.copy_(self._notes, non_blocking=True)
        self._copied = self._noted
        self._copy_done = torch.cuda.current_stream().record_event()
        return self._first_bad is not None

    def first_bad(self) -> BadStep | None:
        """Return the first bad step, or None. Waits for the device."""
        self._copied = self._noted
        self._judge(self._notes)
        return self._first_bad

    def _judge(self, notes: Tensor) -> None:
        """Judge the steps up to `_copied`, whose numbers this tensor has."""
        if self._judged >= self._copied or self._first_bad is not None:
            return
        numbers = notes.tolist()
        for step in range(max(self._judged, self._copied - MAX_NOTES) + 1, self._copied + 1):
            loss, norm = numbers[step % MAX_NOTES]
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self._first_bad = BadStep(step, loss, norm)
                break
        self._judged = self._copied


def reason(bad_steps: Sequence[BadStep | None]) -> str:
    """Return the message of `NotFinite`: the earliest bad step of all ranks, and its rank."""
    _, rank = min((bad.step, rank) for rank, bad in enumerate(bad_steps) if bad is not None)
    where = f" (rank {rank})" if len(bad_steps) > 1 else ""
    return f"{bad_steps[rank]}{where}"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Return whether all elements of this rank's shards are finite; integers always are.

    Waits for their devices.
    """
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.is_floating_point():
            by_device.setdefault(local.device, []).append(torch.isfinite(local.detach()).all())
    return all(bool(torch.stack(flags).all()) for flags in by_device.values())
