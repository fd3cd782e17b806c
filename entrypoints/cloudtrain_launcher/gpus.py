"""Usage of a node's GPUs, from NVIDIA's management library (package nvidia-ml-py)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any


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
            return {
                number: nvml.nvmlDeviceGetHandleByIndex(number)
                for number in range(nvml.nvmlDeviceGetCount())
            }
        handles = {}
        for number, name in enumerate(part.strip() for part in visible.split(",") if part.strip()):
            with suppress(Exception):  # a part of a GPU (MIG) lacks such a handle
                by_index = name.isdecimal()
                get = (
                    nvml.nvmlDeviceGetHandleByIndex if by_index else nvml.nvmlDeviceGetHandleByUUID
                )
                handles[number] = get(int(name) if by_index else name)
        return handles
