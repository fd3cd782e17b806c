"""How long a rank's forward and backward passes wait for messages of its peers: communication that
nothing hides.
"""

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
"""Shortest time between two looks at DDP's own measurement, each of which costs about 12
microseconds.
"""


class Waiting:
    """Of a rank that is alone, which waits for nobody. Others override what they do differently."""

    def begin(self) -> None:
        """A forward and backward pass begins, in this thread."""

    def end(self) -> None:
        """It has ended."""

    def take(self, steps: int) -> float | None:  # noqa: ARG002
        """Seconds waited in `steps` steps, all those since the last call; None where that is not
        known.
        """
        return 0.0


class Unknown(Waiting):
    """Of a strategy that is not measured, as most are on GPUs: waiting there is part of the
    compute.
    """

    def take(self, steps: int) -> float | None:  # noqa: ARG002
        return None


class DdpWaiting(Waiting):
    """From the last gradient that this rank has computed to the end of the backward pass, as DDP
    itself measures it.

    On a CPU all backward passes are measured, of which some are looked at; on a GPU, where a
    measurement makes the host wait, only the few that torch measures anyway (the first ten, then
    each hundredth).

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
        now = self._clock()
        if now - self._looked >= SAMPLE_SECONDS:
            self._looked = now
            self._samples += 1
            self._sum += self.latest()

    def latest(self) -> float:
        """Seconds, of the latest backward pass that was measured."""
        found = self._logger._get_ddp_logging_data().ints_map
        waited = found.get("backward_comm_time", 0) - found.get(
            "backward_compute_comm_overlap_time", 0
        )
        return max(0.0, float(waited) / 1e9)

    def take(self, steps: int) -> float | None:
        mean = self._sum / self._samples if self._samples else 0.0
        self._samples = 0
        self._sum = 0.0
        return mean * steps


class BlockedWaiting(Waiting):
    """The time in which this thread could not go on, in passes on a CPU: neither computing nor
    ready to be run.

    For strategies that communicate in all of a pass. What else blocks a pass, such as a `sleep`,
    counts as well.
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
    """Seconds in which this thread has run or waited for a core; on systems that do not tell, those
    that it has run.
    """
    found = schedule_seconds()
    return time.thread_time() if found is None else sum(found)


def schedule_seconds() -> tuple[float, float] | None:
    """Seconds in which this thread has run, and in which it could have run and had no core: other
    work had them.

    None where the system does not tell, as only Linux does. Source:
    Documentation/scheduler/sched-stats.rst of Linux.
    """
    with suppress(OSError, ValueError, IndexError):
        ran, waited = (
            Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_bytes().split()[:2]
        )
        return int(ran) / 1e9, int(waited) / 1e9
    return None


def blocked_or_unknown(device: torch.device) -> Waiting:
    """For a strategy that is not measured by itself: on a CPU with one thread, which then is all
    that computes.
    """
    return BlockedWaiting() if device.type == "cpu" and torch.get_num_threads() == 1 else Unknown()
