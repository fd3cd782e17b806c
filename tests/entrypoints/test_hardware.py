"""Precision, devices and compiler of a machine, and the readings of its GPU."""

from __future__ import annotations

import sys
import time
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from cloudtrain_launcher.events import Event
from cloudtrain_trainer import gpu_monitor, hardware
from cloudtrain_trainer.gpu_monitor import GpuMonitor
from cloudtrain_trainer.rules import Refused
from tests.support.limits import HANG_SECONDS

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("requested", "capability", "expected"),
    [("auto", (9, 0), "bf16"), ("auto", (8, 0), "bf16"), ("auto", (7, 5), "no"), ("fp16", (9, 0), "fp16")],
)
def test_amp_auto_is_bf16_on_gpus_that_support_it(
    requested: str, capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert hardware.resolve_precision(requested, GPU) == expected


def test_amp_auto_is_float32_on_a_cpu() -> None:
    assert [hardware.resolve_precision(requested, CPU) for requested in ("auto", "no", "bf16")] == ["no", "no", "bf16"]


def test_all_devices_has_every_gpu_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert hardware.all_devices(GPU) == [torch.device("cuda", index) for index in range(3)]
    assert hardware.all_devices(CPU) == [CPU]


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for device in (CPU, GPU):
        with pytest.raises(Refused, match=r"none is installed .*WITH_COMPILER=1"):
            hardware.check_compiler(device)


def test_peak_flops_are_looked_up_by_gpu_name() -> None:
    assert hardware.peak_flops("NVIDIA H100 PCIe", "bf16") == 756.5e12
    assert hardware.peak_flops("NVIDIA H100 80GB HBM3", "bf16") == 989.5e12
    assert hardware.peak_flops("Tesla T4", "no") == 8.1e12
    assert hardware.peak_flops("NVIDIA L40S", "bf16") == 362e12
    assert hardware.peak_flops("Some Card", "bf16") == 0


class Nvml(ModuleType):
    """A driver with one GPU, which does not report its power."""

    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: bytes) -> str:
        assert bus_id == b"00000000:3b:00.0"
        return "the one"

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=87)

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3_000_000_000, total=16_000_000_000)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 61


READINGS = {"utilization_percent": 87, "memory_used_gb": 3.0, "memory_total_gb": 16.0, "temperature_c": 61}


def test_gpu_events_have_the_values_that_the_gpu_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Event] = []
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    monkeypatch.setattr(gpu_monitor, "emit_event", sent.append)
    monitor = GpuMonitor("00000000:3b:00.0", pause=0.01)
    deadline = time.monotonic() + HANG_SECONDS
    while not sent and time.monotonic() < deadline:
        time.sleep(0.01)
    monitor.end()
    assert sent[0].to_json() == {"type": "gpu", **READINGS}


def test_without_a_driver_or_pynvml_no_gpu_events_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Nvml("pynvml")
    monkeypatch.setattr(broken, "nvmlInit", lambda: (_ for _ in ()).throw(OSError("no driver")), raising=False)
    for module in (broken, None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        GpuMonitor("00000000:3b:00.0", pause=0.01)
    gpu_monitor.watch(torch.device("cpu"))
