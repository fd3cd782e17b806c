"""`cloudtrain doctor` on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api import doctor
from cloudtrain.api.doctor import exit_code
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, warning
from cloudtrain.providers.docker import checks as containers
from cloudtrain.providers.docker.engine import EngineInfo
from cloudtrain.providers.local import checkup, machine
from cloudtrain.providers.local.machine import GpuFacts, PythonFacts
from tests.support.samples import assert_only_wrong, names_of_wrong, python_program

# `cloudtrain doctor` reports nothing on a good machine, and the one fault of every other.

GOOD = PythonFacts(
    path="/usr/bin/python3", version="3.11.7", torch="2.13.0+cu130", cuda="13.0", torch_gpus=8
)
GPUS = GpuFacts(driver="580.65.06", names=("NVIDIA H100",) * 8)
ENGINE = EngineInfo("28.2.2", "amd64", is_rootless=False, gives_gpus=True)


def of_machine(facts: PythonFacts = GOOD, gpus: GpuFacts = GPUS, free: int = 10**11) -> list[Check]:
    """All checks of a machine that is like this."""
    return [
        checkup.python_check(facts),
        *([checkup.torch_check(facts, gpus)] if facts.version else []),
        checkup.gpu_check(gpus),
        checkup.driver_check(gpus, facts),
        checkup.disk_check(Path("/data"), free),
    ]


@contextmanager
def no_engine(seconds: float) -> Iterator[None]:
    """Simulate a machine without a running engine."""
    raise CloudError(f"no Docker engine answers within {seconds:.0f} s", hint="start it")
    yield


def changed(**facts: object) -> PythonFacts:
    values = {name: getattr(GOOD, name) for name in GOOD.__dataclass_fields__}
    return PythonFacts(**{**values, **facts})


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert names_of_wrong(of_machine()) == []


def test_a_machine_without_gpus_and_torch_is_a_good_one_for_jobs_without() -> None:
    assert names_of_wrong(of_machine(changed(torch="", cuda="", torch_gpus=0), GpuFacts())) == []


@pytest.mark.parametrize(
    ("facts", "gpus", "free", "name", "message"),
    [
        (changed(version="", error="no such file"), GPUS, 10**11, "Python", "does not run"),
        (changed(version="3.9.18"), GPUS, 10**11, "Python", "3.9.18"),
        (changed(torch="", error="OSError: libcudart.so.13"), GPUS, 10**11, "torch", "libcudart"),
        (changed(torch="2.13.0+cpu", cuda="", torch_gpus=0), GPUS, 10**11, "torch", "without CUDA"),
        (changed(torch_gpus=0), GPUS, 10**11, "torch", "0 of the 8 GPUs"),
        (
            changed(torch_gpus=0),
            GpuFacts(driver="535.1", names=GPUS.names),
            10**11,
            "driver",
            "needs 580",
        ),
        (
            changed(torch_gpus=0),
            GpuFacts(error="Driver/library version mismatch"),
            10**11,
            "GPUs",
            "mismatch",
        ),
        (GOOD, GPUS, 10**9, "disk", "1.0 GB are free"),
    ],
)
def test_a_broken_machine_is_told_of_the_one_thing_that_is_wrong(
    facts: PythonFacts, gpus: GpuFacts, free: int, name: str, message: str
) -> None:
    assert_only_wrong(of_machine(facts, gpus, free), name, message)


NO_PLAN: Any = None
"""Without an engine the checks do not depend on it."""


def test_a_python_that_cannot_be_run_is_told_and_not_raised(tmp_path: Path) -> None:
    assert "No such file" in machine.ask_python(str(tmp_path / "python")).error
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    silent.chmod(0o755)
    assert machine.ask_python(str(silent)).error == "exit code 3: broken"


def test_a_driver_is_asked_by_its_own_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program.write_text("#!/bin/sh\necho '580.65.06, NVIDIA L4'\n")
    program.chmod(0o755)
    assert (machine.ask_driver().driver, machine.ask_driver().names) == (
        "580.65.06",
        ("NVIDIA L4",),
    )
    program.write_text(
        "#!/bin/sh\necho 'Failed to initialize NVML: Driver/library version mismatch'\nexit 18\n"
    )
    assert "version mismatch" in machine.ask_driver().error


def test_doctor_is_wrong_where_a_submit_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "ask_driver", GpuFacts)
    monkeypatch.setattr(machine, "ask_python", lambda _: changed(cuda="", torch_gpus=0))
    job = tmp_path / "job.yaml"
    for uri in ("./gone", "s3://bucket/words"):
        job.write_text(f"name: digits\ninputs: {{train: {uri}}}\n")
        wrong = [check for _, check in doctor.doctor() if check.is_wrong]
        assert "inputs.train" in f"{wrong[0].name} {wrong[0].answer}"
    job.unlink()
    assert names_of_wrong(check for _, check in doctor.doctor()) == []
    program = python_program(tmp_path / "without-torch", "raise SystemExit(1)")
    monkeypatch.setenv("CLOUDTRAIN_PYTHON", str(program))
    (torch,) = [check for _, check in doctor.doctor() if check.is_wrong]
    assert torch.answer == f"torch is not installed for {program}"


def test_missing_engine_matters_only_for_containers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "docker_engine", no_engine)
    assert containers.engine_check().verdict == "not checked"
    (check,) = containers.engine_checks(NO_PLAN)
    assert (check.name, check.verdict, check.exit_code) == ("engine", "wrong", 4)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    (check,) = containers.engine_checks(NO_PLAN)
    assert (check.verdict, check.fix) == ("wrong", "unset DOCKER_HOST")


def test_an_engine_without_the_toolkit_gives_no_gpus() -> None:
    bare = EngineInfo("28.2.2", "amd64", is_rootless=False, gives_gpus=False)
    assert containers.gpu_check(ENGINE, 8).verdict == "found"
    assert containers.gpu_check(bare, 0).verdict == "found"
    assert "nvidia-ctk" in containers.gpu_check(bare, 8).fix


def test_the_exit_code_tells_what_to_set_right_from_a_cloud_that_does_not_answer() -> None:
    question = Question("bucket", "is it there")
    lost = question.failed(CloudError("no answer came", hint="wait"))
    denied = question.failed(CloudError("AccessDenied", code="AccessDenied"))
    assert exit_code([question.found("yes"), denied, question.not_checked("none")]) == 0
    assert exit_code([question.found("yes"), lost]) == 4
    assert exit_code([lost, question.wrong("no", "make one")]) == 2
    assert denied.issue() == warning("bucket: not checked: AccessDenied")
    assert question.found("yes").issue() is None


def test_the_disk_tells_what_the_data_folder_holds(tmp_path: Path) -> None:
    for name, size in (("runs", 2_000_000), ("packages", 3_000_000), ("cache", 1000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(size))

    answer = checkup.disk_check(tmp_path, 10**11).answer
    assert "it holds packages 3.0 MB, runs 2.0 MB; cloudtrain prune" in answer
