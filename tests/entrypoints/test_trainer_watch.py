"""What the trainer tells and leaves besides the weights: GPU readings, trackers, the model, memory's errors."""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from cloudtrain_launcher.events import Event
from cloudtrain_trainer import checkpointer, gpu_monitor, hardware, memory, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.batches import loader_processes
from cloudtrain_trainer.gpu_monitor import GpuMonitor
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.step import Step, lr_factor
from cloudtrain_trainer.strategies import Strategy
from cloudtrain_trainer.trackers import Trackers
from tests.support.limits import HANG_SECONDS


class Nvml(ModuleType):
    """A driver with one GPU that cannot tell its power."""

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


def test_a_gpu_is_read_as_far_as_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Event] = []
    monkeypatch.setitem(sys.modules, "pynvml", Nvml("pynvml"))
    monkeypatch.setattr(gpu_monitor, "emit_event", sent.append)
    monitor = GpuMonitor("00000000:3b:00.0", pause=0.01)
    deadline = time.monotonic() + HANG_SECONDS
    while not sent and time.monotonic() < deadline:
        time.sleep(0.01)
    monitor.end()
    assert sent[0].to_json() == {"type": "gpu", **READINGS}


def test_without_a_driver_or_the_package_there_is_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Nvml("pynvml")
    monkeypatch.setattr(broken, "nvmlInit", lambda: (_ for _ in ()).throw(OSError("no driver")), raising=False)
    for module in (broken, None):
        monkeypatch.setitem(sys.modules, "pynvml", module)
        GpuMonitor("00000000:3b:00.0", pause=0.01)
    gpu_monitor.watch(torch.device("cpu"))


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "CUDA out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), "DefaultCPUAllocator"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may"), "cuDNN could not get memory"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "cuDNN could not get memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "cuBLAS could not get memory"),
        (
            RuntimeError("NCCL error: ... Failed to CUDA calloc 6291456 bytes"),
            "NCCL could not get memory for its buffers",
        ),
    ],
)
def test_memory_in_disguise_is_named(error: Exception, named: str) -> None:
    assert memory.is_out_of_memory(error)
    assert named in memory.describe_error(error)


def test_other_errors_are_not_memory() -> None:
    for error in (
        RuntimeError("Connection closed by peer"),
        ValueError("out of memory"),
        RuntimeError("mat1 and mat2"),
    ):
        assert not memory.is_out_of_memory(error)


def test_what_was_learnt_is_of_one_kind_of_machine(tmp_path: Path) -> None:
    memory.MicroBatchCache(tmp_path, Ranks(), "gpt ddp T4").write(16)
    assert memory.MicroBatchCache(tmp_path, Ranks(), "gpt ddp T4").read() == 16
    assert memory.MicroBatchCache(tmp_path, Ranks(), "gpt ddp H100").read() is None
    (tmp_path / memory.FILE).write_text("torn")
    assert memory.MicroBatchCache(tmp_path, Ranks(), "gpt ddp T4").read() is None


def test_the_model_is_written_whole_and_the_best_one_is_taken(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    weights = {"a": torch.arange(4.0), "b": torch.ones(2, 2).t()}
    weights["tied"] = weights["a"]
    written = checkpointer.write_model(tmp_path / checkpointer.BEST, weights, Ranks().log)
    taken = checkpointer.copy_best_model(tmp_path, tmp_path / "model" / "model")
    assert taken is not None
    assert taken.read_bytes() == written.read_bytes()
    if find_spec("safetensors") is None:
        assert taken.name == "model.pt"
        assert "safetensors is not installed" in capfd.readouterr().out
        found = torch.load(taken, weights_only=True)
    else:
        from importlib import import_module

        assert taken.name == "model.safetensors"
        found = import_module("safetensors.torch").load_file(taken)
    assert set(found) == set(weights)
    assert all(torch.equal(found[name], weights[name]) for name in weights)
    assert checkpointer.copy_best_model(tmp_path / "nothing", tmp_path / "model" / "model") is None


def test_mlflow_hears_of_a_run_and_a_server_that_is_gone_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, Any]] = []
    mlflow: Any = ModuleType("mlflow")
    mlflow.__spec__ = SimpleNamespace()
    mlflow.start_run = lambda **about: calls.append(("start", about["run_name"]))
    mlflow.log_params = lambda values: calls.append(("params", values))
    mlflow.log_metrics = lambda values, step: calls.append(("metrics", (step, values)))
    mlflow.end_run = lambda status: calls.append(("end", status))
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.setenv("CLOUDTRAIN_RUN_ID", "digits-1")
    trackers = Trackers(tmp_path, {"lr": 0.1})
    trackers.log(3, {"loss": 0.5})
    trackers.close("succeeded")
    wanted = [("start", "digits-1"), ("params", {"lr": "0.1"}), ("metrics", (3, {"loss": 0.5})), ("end", "FINISHED")]
    assert calls == wanted

    def fail(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("gone")

    mlflow.log_metrics = fail
    trackers = Trackers(tmp_path, {})
    trackers.log(3, {"loss": 0.5})
    trackers.log(4, {"loss": 0.4})
    assert capfd.readouterr().err.count("MLflow is turned off: ConnectionError: gone") == 1


def test_only_rank_0_has_trackers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Trackers(tmp_path, {}, active=False).log(1, {"loss": 1.0})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "warm_up", "wanted"),
    [("linear", 0.0, [1, 0.75, 0.5, 0.25, 0]), ("constant", 0.5, [0.5, 1, 1, 1, 1]), ("cosine", 0.0, [1, 0.854, 0.5])],
)
def test_schedules(kind: str, warm_up: float, wanted: list[float]) -> None:
    found = [lr_factor(step, 4, kind, warm_up) for step in range(len(wanted))]
    assert found == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("limit", [0.01, 1e6])
def test_clipping_is_that_of_torch(limit: float) -> None:
    task, options = tasks.build("digits", 0), parse(["--clip-norm", str(limit)])
    step = Step(task, Strategy(Ranks(), options), options, 32)
    torch.manual_seed(0)
    for parameter in step.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    other = [nn.Parameter(p.detach().clone()) for p in step.model.parameters()]
    for mine, parameter in zip(other, step.model.parameters(), strict=True):
        assert parameter.grad is not None
        mine.grad = parameter.grad.clone()
    step._clip()
    nn.utils.clip_grad_norm_(other, limit)
    for mine, parameter in zip(other, step.model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, mine.grad)


def test_peaks_are_known_by_name() -> None:
    assert hardware.peak_flops("NVIDIA H100 PCIe", "bf16") == 756.5e12
    assert hardware.peak_flops("NVIDIA H100 80GB HBM3", "bf16") == 989.5e12
    assert hardware.peak_flops("Tesla T4", "no") == 8.1e12
    assert hardware.peak_flops("NVIDIA L40S", "bf16") == 362e12
    assert hardware.peak_flops("Some Card", "bf16") == 0


@pytest.mark.parametrize(
    ("asked", "task", "cores", "ranks", "wanted"),
    [(3, 0, 8, 2, 3), (None, 0, 8, 2, 0), (None, None, 8, 2, 3), (None, None, 2, 2, 0), (None, None, 96, 1, 16)],
)
def test_loader_processes_take_what_the_ranks_leave(
    asked: int | None, task: int | None, cores: int, ranks: int, wanted: int
) -> None:
    assert loader_processes(asked, task, cores, ranks) == wanted
