"""Time that a rank's passes wait for messages: communication that nothing hides."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

SAMPLE_SECONDS = 0.005
"""Shortest time between two reads of DDP's own measurement, 12 microseconds each."""


class Waiting:
    """A rank that is alone and never waits; the base of the other kinds."""

    def begin(self) -> None:
        """Begin a forward and backward pass, in this thread."""

    def end(self) -> None:
        """End the pass."""

    def take(self, steps: int) -> float | None:  # noqa: ARG002
        """Return seconds waited in `steps` steps since the last call; None if unknown."""
        return 0.0


class Unknown(Waiting):
    """A strategy that is not measured, as most on GPUs: waits are part of the compute."""

    def take(self, steps: int) -> float | None:  # noqa: ARG002
        return None


class DdpWaiting(Waiting):
    """Time from this rank's last gradient to the end of the backward pass, measured by DDP.

    On a CPU all backward passes are measured, and some are read; on a GPU, where a measurement
    makes the host wait, only the few that torch measures anyway (the first ten, then each
    hundredth).

    Source: torch/csrc/distributed/c10d/{logger,reducer_timer}.*
    """

    def __init__(
        self, ddp: DistributedDataParallel, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._logger: Any = ddp.logger
        self._clock = clock
        self._looked = 0.0
        self._samples = 0
        self._sum = 0.0
        if ddp.device_type == "cpu":
            ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]

    def end(self) -> None:
        time_now = self._clock()
        if time_now - self._looked >= SAMPLE_SECONDS:
            self._looked = time_now
            self._samples += 1
            self._sum += self.latest()

    def latest(self) -> float:
        """Return the seconds of the latest backward pass that was measured."""
        nanoseconds = self._logger._get_ddp_logging_data().ints_map
        waited = nanoseconds.get("backward_comm_time", 0) - nanoseconds.get(
            "backward_compute_comm_overlap_time", 0
        )
        return max(0.0, float(waited) / 1e9)

    def take(self, steps: int) -> float | None:
        mean = self._sum / self._samples if self._samples else 0.0
        self._samples = 0
        self._sum = 0.0
        return mean * steps


class BlockedWaiting(Waiting):
    """Time that this thread neither computed nor was ready to run, in passes on a CPU.

    For strategies that communicate throughout a pass. Other blocks of a pass, such as a `sleep`,
    count as well.
    """

    def __init__(self) -> None:
        self._blocked = self._began = self._used = 0.0

    def begin(self) -> None:
        self._began = time.perf_counter()
        self._used = runnable_seconds()

    def end(self) -> None:
        self._blocked += max(
            0.0, time.perf_counter() - self._began - (runnable_seconds() - self._used)
        )

    def take(self, steps: int) -> float | None:  # noqa: ARG002
        blocked = self._blocked
        self._blocked = 0.0
        return blocked


def runnable_seconds() -> float:
    """Return seconds that this thread ran or waited for a core, as known."""
    times = schedule_seconds()
    return time.thread_time() if times is None else sum(times)


def schedule_seconds() -> tuple[float, float] | None:
    """Return seconds that this thread has run, and that it was ready without a core.

    None on systems other than Linux. Source: Documentation/scheduler/sched-stats.rst of Linux.
    """
    with suppress(OSError, ValueError, IndexError):
        ran, waited = (
            Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes().split()[:2]
        )
        return int(ran) / 1e9, int(waited) / 1e9
    return None


def blocked_or_unknown(device: torch.device) -> Waiting:
    """Return `BlockedWaiting` on a CPU with one thread, else `Unknown`."""
    return BlockedWaiting() if device.type == "cpu" and torch.get_num_threads() == 1 else Unknown()
