"""Precision, devices and compiler of a machine."""

from __future__ import annotations

import pytest
import torch

from cloudtrain_trainer import hardware
from cloudtrain_trainer.rules import Refused

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
