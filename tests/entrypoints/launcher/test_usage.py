"""Usage of ranks and GPUs, and a trial's metric, are reported without any work of the ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from io import BytesIO
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cloudtrain_launcher import service_metric, usage
from cloudtrain_launcher.service_metric import MlflowServer, ServiceMetric
from cloudtrain_launcher.usage import Gpus, UsageSampler
from cloudtrain_wire.events import Event, Metrics, RankStarted
from cloudtrain_wire.processes import ProcessUse, use_by_root
from tests.entrypoints.launcher.platforms import Answers, json_server


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
    assert use[parent_and_child.pid].cpu_seconds >= 0.2  # the kernel rounds down to 0.01 s
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


WORKSPACE = (
    "subscriptions/s/resourceGroups/g/providers/Microsoft.MachineLearningServices/workspaces/w"
)


METRIC_PATH = f"/mlflow/v2.0/{WORKSPACE}/api/2.0/mlflow/runs/log-metric"
TOKEN_PATH = f"/history/v1.0/{WORKSPACE}/experimentids/e/runs/sweep_3/token"


def tracking_variables(server: str) -> dict[str, str]:
    """Return Azure ML's tracking variables of a job."""
    return {
        "MLFLOW_TRACKING_URI": f"{server}/mlflow/v1.0/{WORKSPACE}?",
        "MLFLOW_TRACKING_TOKEN": "first",
        "MLFLOW_RUN_ID": "sweep_3",
        "MLFLOW_EXPERIMENT_ID": "e",
    }


class Tracking(Answers):
    """A tracking server that stores its requests, and answers as configured."""

    environ: dict[str, str]

    def told(self) -> list[tuple[str, float | str, int]]:
        """Return key, value and step of each attempt at a report."""
        bodies = [request.body for request in self.requests if request.body]
        return [(body["key"], body["value"], body.get("step", 0)) for body in bodies]


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracking]:
    monkeypatch.setattr(service_metric, "PAUSE_SECONDS", 0.0)
    server = Tracking()
    with json_server(server) as port:
        server.environ = tracking_variables(f"http://127.0.0.1:{port}")
        yield server


def report(step: int, **values: float) -> Metrics:
    return Metrics(rank=0, step=step, values=values)


def tell(tracking: Tracking, *events: Metrics) -> list[str]:
    """Return the warnings while a trial makes these reports."""
    warnings: list[str] = []
    metric = ServiceMetric("score", {}, tracking.environ, warnings.append)
    for event in events:
        metric.on_metrics(event)

    metric.finish()
    return warnings


def test_each_report_is_told_once_by_its_number(tracking: Tracking) -> None:
    second = report(10, score=0.1)
    assert (
        tell(
            tracking,
            report(10, score=0.1, loss=3.0),
            second,
            report(20, loss=2.0),
            report(30, score=0.3),
        )
        == []
    )
    assert tracking.told()[-1] == ("score", 0.3, 2)
    assert set(tracking.told()) <= {("score", 0.1, 1), ("score", 0.3, 2)}
    assert set(tracking.asked("http")) == {METRIC_PATH}


def test_the_values_of_a_trial_are_told_first(tracking: Tracking) -> None:
    metric = ServiceMetric(
        "score", {"lr": "0.1", "batch_size": "16"}, tracking.environ, pytest.fail
    )
    metric.on_metrics(report(1, score=1.0))
    metric.finish()
    names = [path.rpartition("/")[2] for path in tracking.asked("http")]
    assert names == ["log-parameter", "log-parameter", "log-metric"]
    assert tracking.told() == [
        ("cloudtrain.lr", "0.1", 0),
        ("cloudtrain.batch_size", "16", 0),
        ("score", 1.0, 1),
    ]


def test_a_value_that_is_not_finite_is_not_told(tracking: Tracking) -> None:
    assert tell(tracking, report(1, score=float("nan")), report(2, score=1.0)) == []
    assert tracking.told() == [("score", 1.0, 2)]


def test_a_token_that_has_run_out_is_replaced(tracking: Tracking) -> None:
    tracking.answers = {METRIC_PATH: [(401, {}), (200, {})], TOKEN_PATH: [(200, {"token": "next"})]}
    assert tell(tracking, report(1, score=1.0)) == []
    assert [(request.path, request.headers["authorization"]) for request in tracking.requests] == [
        (METRIC_PATH, "Bearer first"),
        (TOKEN_PATH, "Bearer first"),
        (METRIC_PATH, "Bearer next"),
    ]


def test_an_error_that_passes_is_tried_again_and_one_that_stays_is_warned_of_once(
    tracking: Tracking,
) -> None:
    tracking.answers[METRIC_PATH] = [(503, {}), (429, {}), (200, {})]
    assert tell(tracking, report(1, score=1.0)) == []
    assert tracking.told() == [("score", 1.0, 1)] * 3
    tracking.answers[METRIC_PATH] = [(400, {})]
    [warning] = tell(tracking, report(1, score=2.0))
    assert warning.startswith(
        "the sweep is not told what this trial reaches (score): HTTP Error 400"
    )


def test_the_address_of_azure_ml_is_one_of_https(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def urlopen(request: urllib.request.Request, **_: Any) -> BytesIO:
        asked.append(request.full_url)
        return BytesIO(b'{"token": "next"}')

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    server = MlflowServer(tracking_variables("azureml://eastus.api.azureml.ms"))
    server.log_metric("score", 1.0, 1)
    server.refresh_token()
    assert asked == [f"https://eastus.api.azureml.ms{path}" for path in (METRIC_PATH, TOKEN_PATH)]
