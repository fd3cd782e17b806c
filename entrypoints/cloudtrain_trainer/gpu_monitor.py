"""Reports what a rank's GPU does as events: utilisation, memory, power, temperature. Needs the package nvidia-ml-py.

Without the package or without a GPU nothing happens. Values that a GPU does not report are left out of the event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch

from cloudtrain_job import emit_event
from cloudtrain_launcher.events import Gpu

PAUSE_SECONDS = 30.0
"""Between two events."""


def watch(device: torch.device) -> None:
    """Start to monitor this rank's GPU, every 30 seconds; nothing happens on a CPU."""
    if device.type == "cuda":
        about: Any = torch.cuda.get_device_properties(device)
        with suppress(AttributeError):  # an older torch does not report the PCI address
            GpuMonitor(f"{about.pci_domain_id:08x}:{about.pci_bus_id:02x}:{about.pci_device_id:02x}.0")


class GpuMonitor:
    """Reads one GPU every `pause` seconds, in a thread that ends with the process."""

    def __init__(self, bus_id: str, pause: float = PAUSE_SECONDS) -> None:
        """`bus_id`: the PCI address, since CUDA and the driver may number GPUs differently."""
        self._pause, self._ended = pause, threading.Event()
        nvml = _nvml()
        self._handle: Any = None
        if nvml is None:
            return
        with suppress(Exception):
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByPciBusId(bus_id.encode())
        if self._handle is not None:
            self._nvml = nvml
            threading.Thread(target=self._work, name="gpu monitor", daemon=True).start()

    def read(self) -> dict[str, float]:
        """The values that the GPU reports, by name: percent, GB (1e9 bytes), W and degrees Celsius; empty if none."""
        nvml, handle = self._nvml, self._handle
        readings: dict[str, Callable[[], float]] = {
            "utilization_percent": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_used_gb": lambda: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / 1e9, 3),
            "memory_total_gb": lambda: round(nvml.nvmlDeviceGetMemoryInfo(handle).total / 1e9, 3),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        values = {}
        for name, reading in readings.items():
            with suppress(Exception):  # NVMLError_NotSupported, mostly
                values[name] = reading()
        return values

    def end(self) -> None:
        """Stop the thread."""
        self._ended.set()

    def _work(self) -> None:
        while not self._ended.wait(self._pause):
            values = self.read()
            if values:
                emit_event(Gpu().replace(**values))


def _nvml() -> Any:
    """The module pynvml, or None if it is not installed."""
    try:
        return import_module("pynvml")
    except ImportError:
        return None
