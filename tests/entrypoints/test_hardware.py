"""Precision, devices and compiler of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cloudtrain_trainer import hardware
from cloudtrain_trainer.rules import Refused
from train import use_expandable_segments

ROOT = Path(__file__).resolve().parents[2]

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("requested", "capability", "expected"),
    [
        ("auto", (9, 0), "bf16"),
        ("auto", (8, 0), "bf16"),
        ("auto", (7, 5), "no"),
        ("fp16", (9, 0), "fp16"),
    ],
)
def test_amp_auto_is_bf16_on_gpus_that_support_it(
    requested: str, capability: tuple[int, int], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert hardware.resolve_precision(requested, GPU) == expected


@pytest.mark.parametrize("device", [CPU, GPU])
def test_compile_without_a_compiler_is_refused(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Refused, match="no compiler is installed"):
        hardware.resolve_compile("yes", device, True, print)


@pytest.mark.parametrize(
    ("device", "capability", "triton", "compiler", "possible", "expected", "logged"),
    [
        (GPU, (8, 0), True, True, True, True, ""),
        (GPU, (6, 1), True, True, True, False, "V100"),
        (GPU, (8, 0), False, True, True, False, "triton"),
        (GPU, (8, 0), True, False, True, False, "no compiler"),
        (GPU, (8, 0), True, True, False, False, "strategy"),
        (CPU, (0, 0), True, True, True, False, ""),
    ],
    ids=["gpu", "old gpu", "no triton", "no compiler", "other strategy", "cpu"],
)
def test_compile_auto_is_for_gpus_and_logs_what_is_missing(
    device: torch.device,
    capability: tuple[int, int],
    triton: bool,
    compiler: bool,
    possible: bool,
    expected: bool,
    logged: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(hardware, "find_spec", lambda _: object() if triton else None)
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/cc" if compiler else None)
    lines: list[str] = []
    with torch._dynamo.config.patch(suppress_errors=False):
        assert hardware.resolve_compile("auto", device, possible, lines.append) is expected
        assert torch._dynamo.config.suppress_errors is expected, (
            "what cannot be compiled runs as it is"
        )
    assert len(lines) == (1 if logged else 0)
    assert all(logged in line for line in lines)
    assert hardware.resolve_compile("no", device, possible, lines.append) is False


@pytest.mark.parametrize(
    "name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"]
)
def test_the_allocator_grows_its_blocks_unless_the_user_has_set_something_for_it(name: str) -> None:
    variables = {name: "max_split_size_mb:64"}
    use_expandable_segments(variables)
    assert variables == {name: "max_split_size_mb:64"}
