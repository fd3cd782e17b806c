"""Whether losses and gradients are finite numbers: noted on the device at every step, read between steps.

A GPU is never waited for at a step. Steps note what they find in a small tensor on the device; the host looks at a copy
of it that was ordered when ranks last asked each other (`Agreement`, ranks.py), so a bad step is known half a second
later at most. Where it must be known exactly, before a checkpoint and at the end of an epoch, the host waits anyhow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

EXIT = 33
"""The exit code of a training that is stopped for a number that is not finite: EDOM's number."""
MOST_SKIPPED = 10
"""Steps left out in a row under `--on-nan skip`, after which nothing is learnt any more: training stops."""
LEAST_SCALE = 1.0
"""Of fp16's loss scaler: gradients that overflow at this scale or below overflow without it, too."""


class NotFinite(Exception):
    """A loss, a gradient or a weight is not a finite number: where, and the way out. Raised by all ranks together."""


class FiniteWatch:
    """The bad steps of this rank, or of all ranks where they have agreed (`--on-nan skip`)."""

    def __init__(self, device: torch.device, skips: bool, asynchronous: bool) -> None:
        """`asynchronous`: the device computes behind the host, which does not wait to learn what it found."""
        self.skips, self._asynchronous, self._runs = skips, asynchronous, False
        # Of the last run of bad steps: its first step, loss and gradients' norm there, its length; all bad steps.
        self._record = torch.tensor([-1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64, device=device)
        self._seen = torch.zeros(5, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._copied: Any = None

    def note(self, step: int, loss: Tensor, norm: Tensor, bad: Tensor) -> None:
        """One step is done, counted from 1. `bad`: whether it is one, a bool on the device."""
        if not self._asynchronous:
            found = bool(bad)
            if not found and not self._runs:
                return
            self._runs = found or not self.skips
        run = self._record[3]
        loss, norm = loss.to(self._record.dtype), norm.to(self._record.dtype)
        new = torch.stack((torch.full_like(loss, step), loss, norm))
        self._record[:3] = torch.where(bad & (run == 0), new, self._record[:3])
        run.copy_((run + 1) * bad if self.skips else run + bad)
        self._record[4] += bad

    def glance(self) -> bool:
        """Whether training must stop, as far as is known without waiting for a GPU."""
        if self._record.device.type != "cuda":
            return self.is_over()
        if self._copied is not None and not self._copied.query():
            return False
        known = self._copied is not None and self._ends(self._seen.tolist())
        self._seen.copy_(self._record, non_blocking=True)
        self._copied = torch.cuda.current_stream().record_event()
        return known

    def is_over(self) -> bool:
        """Whether training must stop. Waits for the device."""
        return self._ends(self.record())

    def record(self) -> list[float]:
        """First step, loss, norm, length of the last run of bad steps; the number of all. Waits for the device."""
        return [float(x) for x in self._record.tolist()]

    @property
    def count(self) -> int:
        """Bad steps so far. Waits for the device."""
        return int(self.record()[4])

    def restore(self, count: int) -> None:
        self._record[4] = count

    def _ends(self, record: Sequence[float]) -> bool:
        return record[3] >= (MOST_SKIPPED if self.skips else 1)


def told(record: Sequence[float]) -> str:
    """`step 17: the loss is nan`."""
    step, loss, norm, *_ = record
    what = f"the loss is {loss:g}" if not math.isfinite(loss) else f"the norm of the gradients is {norm:g}"
    if math.isfinite(loss) and math.isfinite(norm):  # on a rank whose own numbers were good
        what = "a loss or a gradient of another rank is not a finite number"
    return f"step {int(step)}: {what}"


def reason(records: Sequence[Sequence[float]], skips: bool) -> str:
    """Why all ranks stop, from everybody's record: the earliest bad step, and on which rank."""
    bad = [(record[0], rank) for rank, record in enumerate(records) if record[3]]
    # Where ranks have agreed on the step, the one whose own numbers are bad tells more.
    own = [(step, rank) for step, rank in bad if not all(math.isfinite(x) for x in records[rank][1:3])]
    _, rank = min(own or bad)
    where = f" (rank {rank})" if len(records) > 1 else ""
    often = f", and so it went on for {int(records[rank][3])} steps in a row" if skips else ""
    return f"{told(records[rank])}{where}{often}"


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether this rank's parts of all of them are finite numbers. Waits for their devices."""
    by_device: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.is_floating_point():
            by_device.setdefault(local.device, []).append(torch.isfinite(local.detach()).all())
    return all(bool(torch.stack(found).all()) for found in by_device.values())
