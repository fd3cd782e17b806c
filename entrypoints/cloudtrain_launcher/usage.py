"""Measures what a node and its ranks use, in a thread of the launcher: the ranks themselves do
nothing for it.

Standard library only, but for the package that reads GPUs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cloudtrain_launcher.events import Event, RankStarted, Usage
from cloudtrain_launcher.gpus import Gpus
from cloudtrain_launcher.host import available_cores
from cloudtrain_launcher.processes import ProcessUse, machine_memory, use_by_root

PAUSE_SECONDS = 5.0
"""Between two measurements in the first minute."""

LONG_PAUSE_SECONDS = 15.0
"""Between two measurements after it."""

MAX_CPU_SHARE = 0.002
"""Of one core, at most: on a machine with very many processes the pauses grow longer."""


class UsageSampler:
    """Reports what the node uses from `start` to `stop`. `report` is called in a thread of its own."""

    def __init__(self, report: Callable[[Event], None], *, gpus: bool) -> None:
        self._report = report
        self._with_gpus = gpus
        self._gpus: Gpus | None = None
        self._pids: dict[int, int] = {}
        """Rank -> process id."""
        self._last: dict[int, tuple[float, ProcessUse]] = {}
        """Process id -> when it was measured last, by the monotonic clock, and what it had used."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="usage", daemon=True)

    def start(self) -> None:
        """Begin to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def on_event(self, event: Event) -> None:
        """Take in an event of a rank: its start has its process id."""
        if isinstance(event, RankStarted) and event.pid is not None:
            self._pids[event.rank] = event.pid

    def measure(self, now: float) -> Usage:
        """What is used now, and the CPU time since the measurement before. `now`: monotonic, in
        seconds.
        """
        values: dict[str, Any] = {"cores": available_cores()}
        memory = machine_memory()
        if memory is not None:
            values["memory_gb"], values["memory_total_gb"] = (
                round(size / 1e9, 3) for size in memory
            )
        ranks = dict(self._pids)
        uses = use_by_root(ranks.values())
        present = {rank: uses[pid] for rank, pid in ranks.items() if pid in uses}
        if present:
            values["rank_memory_gb"] = {
                str(rank): round(use.memory_bytes / 1e9, 3) for rank, use in present.items()
            }
        percents = {
            str(rank): self._cpu_percent(ranks[rank], use, now) for rank, use in present.items()
        }
        known = {rank: percent for rank, percent in percents.items() if percent is not None}
        if known:
            values["rank_cpu_percent"] = known
            values["cpu_percent"] = round(sum(known.values()), 1)
        self._last = {ranks[rank]: (now, use) for rank, use in present.items()}
        if self._gpus is not None:
            values.update(self._gpus.read())
        return Usage().replace(**values)

    def _cpu_percent(self, pid: int, use: ProcessUse, now: float) -> float | None:
        if pid not in self._last or now <= self._last[pid][0]:
            return None
        before, last = self._last[pid]
        return round(100 * max(0.0, use.cpu_seconds - last.cpu_seconds) / (now - before), 1)

    def _work(self) -> None:
        began = time.monotonic()
        if self._with_gpus:
            self._gpus = Gpus()
        pause = PAUSE_SECONDS
        while not self._ended.wait(pause):
            cpu = time.thread_time()
            now = time.monotonic()
            with suppress(ValueError):  # more ranks than one line holds
                self._report(self.measure(now))
            shortest = PAUSE_SECONDS if now - began < 60 else LONG_PAUSE_SECONDS
            pause = max(shortest, (time.thread_time() - cpu) / MAX_CPU_SHARE)
