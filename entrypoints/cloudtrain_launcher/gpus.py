"""What the GPUs of a node do, by NVIDIA's management library. Needs the package nvidia-ml-py, else
there is nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any


class Gpus:
    """The GPUs of this node that the job sees. `environ`: `CUDA_VISIBLE_DEVICES` may leave some
    out.
    """

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._nvml: Any = None
        self._handles: dict[int, Any] = {}
        with suppress(Exception):  # no package, no driver, no GPU
            self._nvml = import_module("pynvml")
            self._nvml.nvmlInit()
            self._handles = self._visible(environ.get("CUDA_VISIBLE_DEVICES"))

    def read(self) -> dict[str, dict[str, float]]:
        """Fields of `Usage`, each with the values by GPU; values that a GPU does not report are
        left out.
        """
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
        found: dict[str, dict[str, float]] = {}
        for name, reading in readings.items():
            for number, handle in self._handles.items():
                with suppress(Exception):  # NVMLError_NotSupported, mostly
                    found.setdefault(name, {})[str(number)] = reading(handle)
        return found

    def _visible(self, visible: str | None) -> dict[int, Any]:
        """By the number that CUDA gives them in a process of the job."""
        nvml = self._nvml
        if visible is None:
            return {
                number: nvml.nvmlDeviceGetHandleByIndex(number)
                for number in range(nvml.nvmlDeviceGetCount())
            }
        handles = {}
        for number, name in enumerate(part.strip() for part in visible.split(",") if part.strip()):
            with suppress(Exception):  # a part of a GPU (MIG) has no handle of this kind
                by_index = name.isdecimal()
                get = (
                    nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
                )
                handles[number] = get(int(name) if by_index else name)
        return handles
