"""`cloudtrain doctor` and `check --memory` on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.checkup import Check, Question
from cloudtrain.cli import main
from cloudtrain.cli.check import memory_lines
from cloudtrain.errors import CloudError, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.target import Target
from cloudtrain.providers.docker import checks as containers
from cloudtrain.providers.docker.engine import EngineInfo
from cloudtrain.providers.local import checks as checkup
from cloudtrain.providers.local import machine
from cloudtrain.providers.local.machine import GpuFacts, PythonFacts
from cloudtrain.submission import jobs as api
from cloudtrain.submission import memory
from cloudtrain.submission.checkup import exit_code
from cloudtrain.submission.memory import GIB, _free_here, estimate_memory
from tests.support.in_process import call

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


def wrong(checks: list[Check]) -> list[str]:
    assert all(check.answer for check in checks)
    assert all(check.fix for check in checks if check.is_wrong), (
        "what is wrong comes with what to do"
    )
    return [check.name for check in checks if check.is_wrong]


def changed(**facts: object) -> PythonFacts:
    values = {name: getattr(GOOD, name) for name in GOOD.__dataclass_fields__}
    return PythonFacts(**{**values, **facts})


def test_nothing_is_wrong_with_a_good_machine() -> None:
    assert wrong(of_machine()) == []


def test_a_machine_without_gpus_and_torch_is_a_good_one() -> None:
    assert wrong(of_machine(changed(torch="", cuda="", torch_gpus=0), GpuFacts())) == []


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
    checks = of_machine(facts, gpus, free)
    assert wrong(checks) == [name]
    assert message in next(check.answer for check in checks if check.is_wrong)


def test_a_python_that_cannot_be_run_is_told_and_not_raised(tmp_path: Path) -> None:
    assert "No such file" in machine.ask_python(str(tmp_path / "python")).error
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    silent.chmod(0o755)
    assert machine.ask_python(str(silent)).error == "exit code 3: broken"


def test_a_python_that_a_file_beside_the_job_names_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ask_python", lambda path: pytest.fail(f"{path} was run"))
    first = next(checkup.machine_checks("/evil", "cloudtrain.toml:1", tmp_path))
    assert (first.name, first.verdict) == ("Python", "not applicable")


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


def test_missing_engine_matters_only_for_containers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(containers, "docker_engine", no_engine)
    assert containers.engine_check().verdict == "not applicable"
    (check,) = containers.engine_checks(Target(provider="docker", where="here", grace_seconds=30))
    assert (check.name, check.verdict, check.exit_code) == ("engine", "wrong", 4)
    monkeypatch.setenv("DOCKER_HOST", "tcp://10.0.0.1:2375")
    (check,) = containers.engine_checks(Target(provider="docker", where="here", grace_seconds=30))
    assert (check.verdict, check.fix) == ("wrong", "unset DOCKER_HOST")


def test_an_engine_without_the_toolkit_gives_no_gpus() -> None:
    bare = EngineInfo("28.2.2", "amd64", is_rootless=False, gives_gpus=False)
    assert containers.gpu_check(ENGINE, 8).verdict == "ok"
    assert containers.gpu_check(bare, 0).verdict == "not applicable"
    assert "nvidia-ctk" in containers.gpu_check(bare, 8).fix


def test_the_exit_code_tells_what_to_set_right_from_a_cloud_that_does_not_answer() -> None:
    question = Question("bucket", "is it there")
    lost = question.failed(CloudError("no answer came", hint="wait"))
    denied = question.failed(CloudError("AccessDenied", code="AccessDenied"))
    assert exit_code([question.ok("yes"), denied, question.not_applicable("none")]) == 0
    assert exit_code([question.ok("yes"), lost]) == 4
    assert exit_code([lost, question.wrong("no", "make one")]) == 2
    assert denied.issue() == warning("bucket: not allowed to look: AccessDenied")
    assert question.ok("yes").issue() is None


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


# `cloudtrain check --memory`: the request to the Python with torch, and the text of its answer.

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


def test_a_model_whose_package_is_not_installed_says_what_to_do(tmp_path: Path) -> None:
    text = "name: g\nargs: {task: digits, model: 'own:build'}\ndependencies: [no-such-package]\n"
    plan = planned(tmp_path, text, "local")
    (tmp_path / "job" / "own.py").write_text("import no_such_package\n")
    line = memory_lines(estimate_memory(plan))[0]
    assert "No module named 'no_such_package'; an estimate installs no packages: install it" in line


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


def test_a_mistake_in_the_spec_comes_before_the_estimate(
    requests: list[dict[str, Any]], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text("name: g\nargs: {task: gtp}\nresources: {gpus: 4, gpu: T4}\n")
    result = call("check", str(job), "--memory", "--provider", "aws")
    assert (result.code, result.out, requests) == (2, "", [])
    assert "invalid choice: 'gtp'" in result.err
