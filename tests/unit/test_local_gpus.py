"""GPUs of this machine: which a job uses, leaves idle, or lacks."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any, cast

import pytest

import cloudtrain
from cloudtrain.api.package_checks import package_issues
from cloudtrain.cli.plan_view import headline
from cloudtrain.errors import SpecError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local import checks
from cloudtrain.providers.local.gpu_ids import gpu_ids
from cloudtrain_wire import visible_gpus


@pytest.fixture(params=["folders", "CUDA"])
def two_gpus(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine with two GPUs, by the driver's folders, or only by CUDA as on WSL."""
    folders = tmp_path / "gpus"
    folders.mkdir()
    for address in ("0000:01:00.0", "0000:02:00.0"):
        if request.param == "folders":
            (folders / address).mkdir()

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(visible_gpus, "NVIDIA_GPUS", folders)
    monkeypatch.setattr(visible_gpus, "visible_gpus", lambda: 2)
    monkeypatch.setattr(checks, "visible_gpus", lambda: 2)


def plan_of(tmp_path: Path, program: str = "", /, provider: str = "local", **spec: Any) -> Plan:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "train.py").write_text(program)
    (tmp_path / "job" / "job.yaml").write_text(
        json.dumps({"name": "job", "entrypoint": "train.py", **spec})
    )
    job = cloudtrain.load(tmp_path / "job")
    return cloudtrain.plan(job, provider, data_dir=str(tmp_path / "data"))


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("spec", "is_said"),
    [
        ({}, True),
        ({"resources": {"gpus": 0}}, False),
        ({"resources": {"gpus": "all"}}, False),
        ({"resources": {"processes": 2}}, False),
        ({"resources": {"nodes": 2}}, False),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, False),
        ({"env": {"CUDA_VISIBLE_DEVICES": ""}}, False),
        ({"env": {"CUDA_VISIBLE_DEVICES": "1,0"}}, True),
    ],
)
def test_a_job_that_names_no_gpus_says_which_it_leaves_idle(
    tmp_path: Path, spec: dict[str, Any], is_said: bool
) -> None:
    issues = checks.idle_gpus(plan_of(tmp_path, **spec))
    messages = ["this machine has 2 GPUs, and the job starts 1 process"]
    assert [issue.message for issue in issues] == (messages if is_said else [])
    assert all("--gpus 2" in str(issue.hint) for issue in issues)


@pytest.mark.usefixtures("two_gpus")
def test_all_gpus_are_those_that_the_job_may_use(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, resources={"gpus": "all"})
    assert (plan.gpus, plan.processes) == (2, 2)
    assert headline(plan).startswith("1 node x 2 processes, 2 GPUs on")
    assert checks.gpu_rules(plan, plan.gpus, "per node") == []


@pytest.mark.usefixtures("two_gpus")
def test_all_gpus_follow_the_choice_of_the_environment(tmp_path: Path) -> None:
    chosen = {"CUDA_VISIBLE_DEVICES": "1"}
    assert plan_of(tmp_path, resources={"gpus": "all"}, env=chosen).gpus == 1


def test_all_gpus_of_a_machine_without_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpus(monkeypatch, tmp_path)
    with pytest.raises(SpecError) as refused:
        plan_of(tmp_path, resources={"gpus": "all"})

    (issue,) = refused.value.issues
    assert (issue.field, issue.hint) == (
        "resources.gpus",
        "to rehearse on the CPU: --set resources.gpus=0",
    )


def no_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(visible_gpus, "NVIDIA_GPUS", tmp_path / "none")
    monkeypatch.setattr(visible_gpus, "visible_gpus", lambda: 0)


CALLS = {
    "model.cuda()": "train.py:2: asks for CUDA (cuda)",
    "n = torch.cuda.device_count()": "train.py:2: asks for CUDA (device_count)",
    "init_process_group('nccl')": "train.py:2: asks for CUDA (nccl)",
    "pass  # model.cuda()": "",
    "torch.cuda.is_available() and model.cuda()": "",
    "backend = 'nccl' if gpu else 'gloo'": "",
}


@pytest.mark.parametrize("call", CALLS)
def test_a_program_that_needs_a_gpu_is_named_in_a_job_without(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_gpus(monkeypatch, tmp_path)
    lines = [issue.line() for issue in package_issues(plan_of(tmp_path, f"import os\n{call}\n"))]
    assert [line.partition(", and")[0] for line in lines] == [CALLS[call]] * bool(CALLS[call])
    assert not any("gpus" in line for line in lines)  # nothing that this machine would refuse


@pytest.mark.usefixtures("two_gpus")
def test_a_program_that_sees_the_gpus_of_this_machine_is_not_named(tmp_path: Path) -> None:
    assert package_issues(plan_of(tmp_path, "model.cuda()\n")) == []


def test_a_driver_without_uuids_numbers_its_gpus() -> None:
    class Driver:
        """This library has one of CUDA's functions besides its start."""

        def cuInit(self, flags: int) -> int:
            return flags

        def cuDeviceGetCount(self, count: Any) -> int:
            count._obj.value = 2
            return 0

    assert gpu_ids(cast(ctypes.CDLL, Driver())) == ["0", "1"]
