"""Measurement of a node's and its ranks' usage, in a thread of the launcher.

Standard library only, except the package that reads GPUs.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from cloudtrain_wire.cores import available_cores
from cloudtrain_wire.events import Event, RankStarted, Usage
from cloudtrain_wire.host_memory import machine_memory
from cloudtrain_wire.processes import ProcessUse, use_by_root

PAUSE_SECONDS = 5.0
"""Seconds between measurements in the first minute."""

LONG_PAUSE_SECONDS = 15.0
"""Seconds between later measurements."""

MAX_CPU_SHARE = 0.002
"""Maximum part of a core: with very many processes the pauses grow longer."""


class UsageSampler:
    """Thread that measures from `start` to `stop`. `report` is called in it."""

    def __init__(self, report: Callable[[Event], None], *, gpus: bool) -> None:
        self._report = report
        self._with_gpus = gpus
        self._gpus: Gpus | None = None
        self._pids: dict[int, int] = {}
        """Rank -> process id."""
        self._last: dict[int, tuple[float, ProcessUse]] = {}
        """Process id -> monotonic time and usage of the last measurement."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="usage", daemon=True)

    def start(self) -> None:
        """Start to measure."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def on_event(self, event: Event) -> None:
        """Process an event of a rank: its start contains its process id."""
        if isinstance(event, RankStarted) and event.pid is not None:
            self._pids[event.rank] = event.pid

    def measure(self, time_now: float) -> Usage:
        """Return current values and the CPU time since the last call. `time_now`: monotonic."""
        values: dict[str, Any] = {"cores": available_cores()}
        memory = machine_memory()

        if memory is not None:
            used, total = memory
            values["memory_gb"] = round(used / 1e9, 3)
            values["memory_total_gb"] = round(total / 1e9, 3)

        ranks = dict(self._pids)
        uses = use_by_root(ranks.values())
        gigabytes = {}
        percents = {}
        latest = {}

        for rank, pid in ranks.items():
            if pid in uses:
                gigabytes[str(rank)] = round(uses[pid].memory_bytes / 1e9, 3)
                percent = self._cpu_percent(pid, uses[pid], time_now)
                if percent is not None:
                    percents[str(rank)] = percent
                latest[pid] = (time_now, uses[pid])

        if gigabytes:
            values["rank_memory_gb"] = gigabytes
        if percents:
            values["rank_cpu_percent"] = percents
            values["cpu_percent"] = round(sum(percents.values()), 1)

        self._last = latest
        if self._gpus is not None:
            values.update(self._gpus.read())

        return Usage().replace(**values)

    def _cpu_percent(self, pid: int, use: ProcessUse, time_now: float) -> float | None:
        if pid not in self._last or time_now <= self._last[pid][0]:
            return None

        before, last = self._last[pid]
        return round(100 * max(0.0, use.cpu_seconds - last.cpu_seconds) / (time_now - before), 1)

    def _work(self) -> None:
        began = time.monotonic()
        if self._with_gpus:
            self._gpus = Gpus()

        pause = PAUSE_SECONDS

        while not self._ended.wait(pause):
            cpu = time.thread_time()
            time_now = time.monotonic()
            with suppress(ValueError):  # too many ranks for one line
                self._report(self.measure(time_now))

            shortest = PAUSE_SECONDS if time_now - began < 60 else LONG_PAUSE_SECONDS
            pause = max(shortest, (time.thread_time() - cpu) / MAX_CPU_SHARE)


class Gpus:
    """GPUs of this node that the job sees. `environ`: `CUDA_VISIBLE_DEVICES` selects some."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}

        with suppress(Exception):  # package, driver or GPU missing
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = self._visible(environ.get("CUDA_VISIBLE_DEVICES"))

    def read(self) -> dict[str, dict[str, float]]:
        """Return fields of `Usage`, each with the values by GPU; skip values that a GPU lacks."""
        nvml = self._nvml
        readings: dict[str, Callable[[Any], float]] = {
            "gpu_percent": lambda handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu_memory_gb": lambda handle: round(
                nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9, 3
            ),
            "gpu_memory_total_gb": lambda handle: round(
                nvml.nvmlDeviceGetMemoryInfo(handle).total / 1e9, 3
            ),
            "gpu_power_w": lambda handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000, 1),
            "gpu_temperature_c": lambda handle: nvml.nvmlDeviceGetTemperature(
                handle, nvml.NVML_TEMPERATURE_GPU
            ),
        }
        values: dict[str, dict[str, float]] = {}

        for name, reading in readings.items():
            for number, handle in self._handles.items():
                with suppress(Exception):  # NVMLError_NotSupported, mostly
                    values.setdefault(name, {})[str(number)] = reading(handle)

        return values

    def _visible(self, visible: str | None) -> dict[int, Any]:
        """Return the GPUs by CUDA's number in a process of the job."""
        nvml = self._nvml
        if visible is None:
            count = nvml.nvmlDeviceGetCount()
            return {number: nvml.nvmlDeviceGetHandleByIndex(number) for number in range(count)}

        handles = {}
        names = [name.strip() for name in visible.split(",")]

        for number, name in enumerate(filter(None, names)):
            with suppress(Exception):  # a part of a GPU (MIG) lacks such a handle
                by_index = name.isdecimal()
                if by_index:
                    get = nvml.nvmlDeviceGetHandleByIndex
                else:
                    get = nvml.nvmlDeviceGetHandleByUUID

                handles[number] = get(int(name) if by_index else name)

        return handles
