"""The launcher measures its ranks by /proc and its GPUs by the driver's library, and the ranks do
nothing for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cloudtrain_launcher import usage
from cloudtrain_launcher.events import Event, RankStarted
from cloudtrain_launcher.processes import ProcessUse, use_by_root
from cloudtrain_launcher.usage import Gpus, UsageSampler


class Nvml(ModuleType):
    """A driver with four GPUs, which do not report their power."""

    NVML_TEMPERATURE_GPU = 0

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 4

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        return {"GPU-c": 2}[name]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return SimpleNamespace(gpu=80 + handle)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(used=3_000_000_000, total=16_000_000_000)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return 61


@pytest.mark.parametrize(
    ("visible", "percent"),
    [
        (None, {"0": 80, "1": 81, "2": 82, "3": 83}),
        ("3,1", {"0": 83, "1": 81}),
        ("GPU-c", {"0": 82}),
        ("MIG-1", None),
        ("", None),
    ],
    ids=["all", "by index", "by name", "a part of one", "none"],
)
def test_the_gpus_of_the_job_are_read(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, percent: dict[str, int] | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    gpus = Gpus({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}).read()
    assert gpus.get("gpu_percent") == percent
    assert "gpu_power_w" not in gpus
    if percent:
        assert gpus["gpu_memory_total_gb"]["0"] == 16.0


def test_without_a_driver_or_its_library_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Nvml("pynvml")
    monkeypatch.setattr(
        broken, "nvmlInit", lambda: (_ for _ in ()).throw(OSError("no driver")), raising=False
    )
    for module in (broken, None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        assert Gpus({}).read() == {}


@pytest.fixture
def parent_and_child() -> Iterator[subprocess.Popen[str]]:
    """A process that has used no CPU time itself, with a child that has."""
    busy = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    process = subprocess.Popen([sys.executable, "-S", "-c", code], stdin=-1, stdout=-1, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == "done\n"
    yield process
    process.communicate("\n")


@pytest.mark.linux("the use of processes is read from /proc")
def test_a_process_counts_with_its_children(parent_and_child: subprocess.Popen[str]) -> None:
    missing = 2**22 + 1
    use = use_by_root([parent_and_child.pid, missing])
    assert list(use) == [parent_and_child.pid]
    assert use[parent_and_child.pid].cpu_seconds >= 0.3
    assert use[parent_and_child.pid].memory_bytes > 1e6
    assert (
        use_by_root([os.getpid()])[os.getpid()].cpu_seconds >= use[parent_and_child.pid].cpu_seconds
    )


def sampler(
    monkeypatch: pytest.MonkeyPatch, uses: dict[int, ProcessUse], report: Callable[[Event], None]
) -> UsageSampler:
    monkeypatch.setattr(
        usage, "use_by_root", lambda pids: {pid: uses[pid] for pid in pids if pid in uses}
    )
    monkeypatch.setattr(usage, "machine_memory", lambda: (2_000_000_000, 8_000_000_000))
    monkeypatch.setattr(usage, "available_cores", lambda: 4)
    usage_sampler = UsageSampler(report, gpus=False)
    for rank in (0, 1):
        usage_sampler.on_event(RankStarted(time=1.0, rank=rank, pid=100 + rank))
    return usage_sampler


def test_the_cpu_time_is_that_since_the_measurement_before(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = {100: ProcessUse(10.0, 1_000_000_000), 101: ProcessUse(20.0, 2_000_000_000)}
    measure = sampler(monkeypatch, uses, lambda _: None).measure
    base = {"cores": 4, "memory_gb": 2.0, "memory_total_gb": 8.0}
    memory = {"0": 1.0, "1": 2.0}
    assert measure(50.0).fields() == {**base, "rank_memory_gb": memory}
    uses[100] = ProcessUse(14.0, 1_000_000_000)
    uses[101] = ProcessUse(21.0, 2_000_000_000)
    values = {"rank_cpu_percent": {"0": 100.0, "1": 25.0}, "cpu_percent": 125.0}
    assert measure(54.0).fields() == {**base, "rank_memory_gb": memory, **values}


def test_restarted_rank_is_measured_anew_and_a_missing_one_is_omitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uses = {100: ProcessUse(10.0, 10**9), 101: ProcessUse(20.0, 10**9)}
    usage_sampler = sampler(monkeypatch, uses, lambda _: None)
    usage_sampler.measure(50.0)
    uses.clear()
    uses[200] = ProcessUse(1.0, 10**9)
    usage_sampler.on_event(RankStarted(time=2.0, rank=0, pid=200))
    assert "rank_cpu_percent" not in usage_sampler.measure(54.0).fields()
    uses[200] = ProcessUse(2.0, 10**9)
    assert usage_sampler.measure(58.0).fields()["rank_cpu_percent"] == {"0": 25.0}
