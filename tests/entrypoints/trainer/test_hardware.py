"""Precision, devices and compiler of a machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cloudtrain_trainer import hardware, state
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.training.evaluation import evaluate
from cloudtrain_trainer.training.loop import Loop
from tests.entrypoints.groups import StartGroup
from tests.entrypoints.launchers import document, events
from tests.entrypoints.trainer.compile_checks import GraphCounter
from tests.entrypoints.trainer.loss_curves import (
    TOLERANCE,
    begin,
    one_process,
    relative_difference,
    small_task,
    task_flags,
    train,
)
from train import use_expandable_segments

CPU = torch.device("cpu")
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("name", "precision", "tflops"),
    [
        ("NVIDIA GB200", "bf16", 2500.0),
        ("NVIDIA B200", "bf16", 2250.0),
        ("NVIDIA L40", "no", 90.5),
        ("NVIDIA L4", "fp16", 121.0),
        ("cpu", "no", 0.0),
    ],
)
def test_a_peak_rate_is_of_the_gpu_with_this_name(name: str, precision: str, tflops: float) -> None:
    assert hardware.peak_flops(name, precision) == tflops * 1e12


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


def ranks_of(device: str, size: int = 16) -> Any:
    return SimpleNamespace(device=torch.device(device), rank=0, size=size, local_size=8, log=print)


@pytest.mark.parametrize(
    ("device", "size", "measured"), [("cuda", 16, True), ("cuda", 8, False), ("cpu", 16, False)]
)
def test_the_network_between_gpus_of_several_nodes_is_measured(
    device: str, size: int, measured: bool, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(hardware, "bus_bandwidth", lambda _: 1e9)
    hardware.check_network(ranks_of(device, size))
    assert ("1 GB/s" in capsys.readouterr().out) == measured


def test_the_expected_bandwidth_is_the_share_of_the_gpus_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 16)
    assert hardware.expected_bandwidth(ranks_of("cuda")) == 0
    (tmp_path / "job.json").write_text(json.dumps(document(network_gbps=400)))
    monkeypatch.setenv("CLOUDTRAIN_JOB_FILE", str(tmp_path / "job.json"))
    assert hardware.expected_bandwidth(ranks_of("cuda")) == 25e9


@pytest.mark.parametrize(
    ("has_efa", "env", "reason"),
    [
        (False, {}, "uverbs"),
        (True, {"FI_PROVIDER": "efa"}, "no EFA plug-in"),
        (True, {"NCCL_TOPO_FILE": "/none.xml"}, "/none.xml"),
        (True, {}, "NCCL_DEBUG"),
    ],
)
def test_a_slow_network_is_a_warning_with_a_reason(
    has_efa: bool,
    env: dict[str, str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(hardware, "has_efa", lambda: has_efa)
    monkeypatch.setattr(hardware, "efa_library_dirs", tuple)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    hardware.report_network(ranks_of("cuda"), 5e9, 50e9)
    output = capfd.readouterr().out
    assert "at 5 of 50 GB/s expected" in output
    (warning,) = events(output)
    assert warning["type"] == "warning"
    assert reason in warning["message"]

    hardware.report_network(ranks_of("cuda"), 40e9, 50e9)
    assert "warning" not in capfd.readouterr().out


@pytest.mark.parametrize("name", ["digits", "text"])
def test_model_and_loss_are_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = train(begin(small_task(name), task_flags(name), one_process()))
    torch._dynamo.reset()
    counter = GraphCounter(differentiate=name == "digits")
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", counter)
    trained = train(begin(small_task(name), [*task_flags(name), "--compile"], one_process()))
    assert len(counter.graphs) == 1
    assert relative_difference(trained.losses, expected.losses) < TOLERANCE


def test_nothing_is_compiled_again_after_the_third_step(
    make_loop: Callable[..., Loop], monkeypatch: Any
) -> None:
    """Micro-batches of two sizes, and an evaluation between the steps."""
    torch._dynamo.reset()
    counter = GraphCounter()
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", counter)
    loop = make_loop("--compile", "--batch-size", "33", "--accumulate", "2")
    batches = loop.batches.load(0, 0)
    graphs = []
    for step in range(6):
        loop.step.wrapped.train()
        loop.step.train_step(batches, step, 10)
        graphs.append(len(counter.graphs))
        assert evaluate(loop.step, 64, 0, lambda: False)
    assert graphs[0] >= 1
    assert graphs[2:] == [graphs[2]] * 4


def test_a_compiled_training_resumes_bit_identically(
    make_loop: Callable[..., Loop], monkeypatch: Any
) -> None:
    """With dropout, whose random numbers a compiled graph draws, too."""
    monkeypatch.setattr(hardware, "COMPILE_BACKEND", GraphCounter(differentiate=True))
    flags = ["--compile", "--epochs", "1", "--batch-size", "256"]

    def begin_again() -> Loop:
        torch._dynamo.reset()
        loop = make_loop(*flags)
        loop.resume()
        return loop

    first = begin_again()
    first.steps = 2
    assert first.run() == "succeeded"
    resumed = begin_again()
    assert resumed.position.step == 2
    resumed.run()
    shutil.rmtree(resumed.checkpointer.checkpoints.folder)
    whole = begin_again()
    assert whole.position.step == 0
    whole.run()
    assert whole.position.step == resumed.position.step == 5
    fingerprints = {state.fingerprint(loop.step.model.state_dict()) for loop in (whole, resumed)}
    assert len(fingerprints) == 1
    assert state.fingerprint(first.step.model.state_dict()) not in fingerprints


@pytest.mark.once
def test_ddp_compiles_a_graph_per_bucket(group: StartGroup) -> None:
    ranks = group(2, program="tests.entrypoints.trainer.compile_checks:graphs")
    assert ranks.wait() == [0, 0], ranks.output()
    assert [log.read_text().count("all checks passed on rank") for log in ranks.logs] == [1, 1]
