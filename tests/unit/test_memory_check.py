"""`cloudtrain check --memory`: the request to the Python with torch, and the text of its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli.check import memory_lines
from cloudtrain.planning.plan import Plan
from cloudtrain.submission import jobs as api
from cloudtrain.submission import memory
from cloudtrain.submission.memory import GIB, _free_here, estimate_memory
from tests.support.in_process import call

HELD = {"parameters": GIB, "gradients": GIB, "optimizer": 2 * GIB, "activations": 20 * GIB}


def planned(folder: Path, text: str, provider: str = "aws") -> Plan:
    job = folder / "job" / "job.yaml"
    job.parent.mkdir(exist_ok=True)
    job.write_text(text)
    return api.plan(api.load(job), provider, data_dir=str(folder / "data"), preview=True)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The requests; the answer is 24 GiB of tensors, which a T4 has not."""
    estimates: list[dict[str, Any]] = []

    def ask(python: str, request: dict[str, Any], plan: Plan) -> dict[str, Any]:
        estimates.append(request)
        needed = [24 * GIB, 25 * GIB, 30 * GIB]
        estimate = {
            "strategy": "fsdp",
            "recompute": "none",
            "needed": [GIB, 8 * GIB, 11 * GIB],
        }
        plan_found = {"held": HELD, "needed": needed, "verdict": "does not fit", "host": 200 * GIB}
        return {"plan": plan_found, "memory": 14 * GIB, "alternatives": [estimate]}

    monkeypatch.setattr(memory, "_ask", ask)
    return estimates


def test_the_machine_of_the_plan_is_asked_about(
    requests: list[dict[str, Any]], tmp_path: Path
) -> None:
    plan = planned(
        tmp_path, "name: g\nargs: {task: gpt}\nresources: {nodes: 2, gpus: 4, gpu: T4}\n"
    )
    report = estimate_memory(plan)
    assert requests == [
        {
            "ranks": 8, "per_node": 4, "gpu": "T4", "gpu_gib": 16.0, "argv": ["--task", "gpt"],
        }
    ]  # fmt: skip
    lines = memory_lines(report)
    assert (
        lines[0]
        == "memory per GPU: about 25.0 GiB (24.0 GiB to 30.0 GiB) of 14.0 GiB (T4): does not fit,"
        " by about 11.0 GiB"
    )
    assert "not measured on this GPU" in lines[1]
    assert lines[2].strip() == (
        "host memory per machine, with copies for checkpoints: about 208.0 GiB of 192.0 GiB:"
        " warning: it does not fit"
    )
    assert lines[4].strip() == "--strategy fsdp: about 8.0 GiB, at most 11.0 GiB"
    assert "GiB per GPU" in lines[5]  # a machine with as many GPUs, each of them large enough
    assert report.to_json()["verdict"] == "does not fit"


def test_a_program_of_ones_own_has_no_estimate(
    requests: list[dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text("")
    plan = planned(tmp_path, "name: g\nentrypoint: train.py\nresources: {gpus: 1, gpu: T4}\n")
    (line,) = memory_lines(estimate_memory(plan))
    assert line == ("memory: no estimate: only the shared trainer can be estimated, not train.py")
    assert not requests


def test_a_python_without_torch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "torch.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')"
    )
    plan = planned(tmp_path, "name: g\nresources: {processes: 1}\n")
    assert "no torch: pip install 'cloudtrain[train]'" in memory_lines(estimate_memory(plan))[0]


def test_a_task_of_ours_is_estimated_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.submission.memory._free_here", lambda: 8 * GIB)
    plan = planned(
        tmp_path,
        "name: g\nargs: {task: digits, batch-size: 8}\nresources: {processes: 2}\n",
        "local",
    )
    report = estimate_memory(plan)
    assert (report.reason, report.gpu, report.verdict) == ("", "", "fits")
    assert 0 < report.low < report.expected < report.high < 2 * GIB


@pytest.mark.linux("/proc/meminfo")
def test_files_that_the_kernel_caches_count_as_free_memory() -> None:
    read = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(read["MemAvailable"].split()[0]) * 1024
    assert _free_here() == pytest.approx(available, rel=0.5)


def test_the_estimate_needs_no_account_and_what_is_missing_of_it_is_said_after(
    requests: list[dict[str, Any]], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: g\nargs: {task: gpt}\nresources: {gpus: 4, gpu: T4}\n")
    result = call("check", str(job), "--memory", "--provider", "aws")
    assert result.code == 2
    assert "memory per GPU: about 25.0 GiB" in result.out
    assert "aws.role: is not set" in result.err
    assert len(requests) == 1


def test_a_job_that_does_not_fit_is_not_said_to_run(
    requests: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.yaml").write_text(
        "name: g\nargs: {task: gpt}\nresources: {processes: 1}\n"
    )
    result = call("check", str(tmp_path / "job"), "--memory")
    assert result.out.splitlines()[0].endswith(
        "no mistakes; g needs more memory than it has on this machine"
    )
    assert "does not fit" in result.out


def test_a_mistake_in_the_spec_comes_before_the_estimate(
    requests: list[dict[str, Any]], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: g\nargs: {task: gtp}\nresources: {gpus: 4, gpu: T4}\n")
    result = call("check", str(job), "--memory", "--provider", "aws")
    assert (result.code, result.out, requests) == (2, "", [])
    assert "invalid choice: 'gtp'" in result.err
