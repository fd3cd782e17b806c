"""Detect losses, gradients and weights that are NaN or infinite, without waiting for a GPU.

Each step writes its numbers into a small tensor on the device. The host reads a copy of it that it
requested at the last exchange of flags (`CollectiveFlags`, ranks.py), so a bad step is known about
half a second later. Before a checkpoint and at the end of an epoch the host waits for the device
and knows exactly. If bad steps end the training, a step costs one small kernel: the host judges the
numbers (`note_step`). If they are skipped, the device does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

EXIT = 33
"""The exit code after a loss, gradient or weight that is not finite: the number of EDOM."""
MAX_CONSECUTIVE_SKIPS = 10
"""Under `--on-nan skip`, training stops after this many skipped steps in a row."""
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


class FiniteWatch:
    """Records the bad steps of this rank; with `skips_bad_steps`, the bad steps of any rank."""

    def __init__(self, device: torch.device, skips_bad_steps: bool, asynchronous: bool) -> None:
        """`asynchronous`: the device computes behind the host, which does not wait for it."""
        self.skips_bad_steps = skips_bad_steps
        self._asynchronous = asynchronous
        self._in_bad_run = False
        # The last run of bad steps: first step, its loss and gradient norm, length; all bad steps.
        self._record = torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64, device=device)
        self._judged_record = [-1.0, 0.0, 0.0, 0.0, 0.0]
        """The same for the steps that the host has judged."""
        self._notes = torch.zeros(MAX_NOTES if asynchronous else 0, 2, device=device)
        """Loss and gradient norm of each step, at its number modulo the length."""
        self._noted = self._copied = self._judged = 0
        """The last step that was noted, copied to the host, and judged."""
        self._host_record, self._host_notes = (
            torch.zeros(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda")
            for tensor in (self._record, self._notes)
        )
        self._copy_done: Any = None

    def note_step(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Note a step, counted from 1, for the host to judge.

        `loss`, `norm`: float scalars on the device.
        """
        self._noted, self._judged = step, min(self._judged, step - 1)
        torch.stack((loss.float(), norm.float()), out=self._notes[step % MAX_NOTES])

    def record_step(self, step: int, loss: Tensor, norm: Tensor, bad: Tensor) -> None:
        """Record one step, counted from 1.

        `loss`, `norm` (of the gradients) and `bad`: scalar tensors on the device.
        """
        if not self._asynchronous:
            is_bad = bool(bad)
            if not is_bad and not self._in_bad_run:
                return
            self._in_bad_run = is_bad or not self.skips_bad_steps
        run = self._record[3]
        loss = loss.to(self._record.dtype)
        norm = norm.to(self._record.dtype)
        new = torch.stack((torch.full_like(loss, step), loss, norm))
        self._record[:3] = torch.where(bad & (run == 0), new, self._record[:3])
        run.copy_((run + 1) * bad if self.skips_bad_steps else run + bad)
        self._record[4] += bad

    def poll(self) -> bool:
        """Return whether training must stop, without waiting for a GPU.

        The answer may be about half a second old.
        """
        if self._record.device.type != "cuda":
            return self.must_stop()
        if self._copy_done is not None and not self._copy_done.query():
            return False
        must_stop = self._copy_done is not None and self._exceeds_limit(
            self._read(self._host_record, self._host_notes)
        )
        self._host_record.copy_(self._record, non_blocking=True)
        self._host_notes.copy_(self._notes, non_blocking=True)
        self._copied = self._noted
        self._copy_done = torch.cuda.current_stream().record_event()
        return must_stop

    def must_stop(self) -> bool:
        """Return whether training must stop. Waits for the device."""
        return self._exceeds_limit(self.read_record())

    def read_record(self) -> list[float]:
        """Return the last run of bad steps, and the count of all bad steps.

        Five numbers: the run's first step, its loss, its gradient norm, the run's length; the
        count. Steps count from 1; the first is -1 without a bad step. Waits for the device.
        """
        self._copied = self._noted
        return self._read(self._record, self._notes)

    def _read(self, record: Tensor, notes: Tensor) -> list[float]:
        """Return the record after the steps up to `_copied`, whose numbers these tensors hold."""
        if not self._noted:
            return [float(x) for x in record.tolist()]
        numbers = notes.tolist()
        for step in range(max(self._judged, self._copied - MAX_NOTES) + 1, self._copied + 1):
            loss, norm = numbers[step % MAX_NOTES]
            if not (math.isfinite(loss) and math.isfinite(norm)):
                *first, run, count = self._judged_record
                self._judged_record = [
                    *(first if run else (float(step), loss, norm)),
                    run + 1,
                    count + 1,
                ]
        self._judged = max(self._judged, self._copied)
        return list(self._judged_record)

    @property
    def skipped_steps(self) -> int:
        """Number of bad steps, including earlier starts. Waits for the device."""
        return int(self.read_record()[4])

    def restore(self, skipped_steps: int) -> None:
        """Continue with the count of bad steps from a checkpoint."""
        self._record[4] = skipped_steps

    def _exceeds_limit(self, record: Sequence[float]) -> bool:
        return record[3] >= (MAX_CONSECUTIVE_SKIPS if self.skips_bad_steps else 1)


def describe(record: Sequence[float]) -> str:
    """Describe the first step of a record in a line, such as `step 17: the loss is nan`."""
    step, loss, norm, *_ = record
    problem = (
        f"the loss is {loss:g}"
        if not math.isfinite(loss)
        else f"the norm of the gradients is {norm:g}"
    )
    if math.isfinite(loss) and math.isfinite(norm):  # this rank's own numbers are fine
        problem = "a loss or a gradient of another rank is not finite"
    return f"step {int(step)}: {problem}"


def reason(records: Sequence[Sequence[float]], skips_bad_steps: bool) -> str:
    """Return the message of `NotFinite`: the earliest bad step of all ranks, and its rank."""
    bad = [(record[0], rank) for rank, record in enumerate(records) if record[3]]
    # All ranks may skip the same steps: name the rank whose numbers are bad.
    own_bad = [
        (step, rank) for step, rank in bad if not all(math.isfinite(x) for x in records[rank][1:3])
    ]
    _, rank = min(own_bad or bad)
    where = f" (rank {rank})" if len(records) > 1 else ""
    often = f", and so on for {int(records[rank][3])} steps in a row" if skips_bad_steps else ""
    return f"{describe(records[rank])}{where}{often}"


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
