"""The docker provider without an engine: images, names, what each contract puts into a container,
its errors.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import socket
import tempfile
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker import checks as docker_checks
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import ContainerLaunch, ContainerSpec, host_names
from cloudtrain.providers.docker.emulator import DockerEmulator, docker_emulator
from cloudtrain.providers.docker.engine import EngineInfo
from cloudtrain.providers.docker.errors import address, translated
from cloudtrain.providers.docker.errors import sdk_environment as environment_of_sdk
from cloudtrain.providers.docker.node import ContainerOutput
from cloudtrain.providers.local.checks import location_checks
from cloudtrain.providers.rehearsal.base import EmulatedPlan
from cloudtrain.runs.paths import RunPaths
from tests.golden.cases import plan_of
from tests.support.waiting import HANG_SECONDS


def test_host_names_sort_like_the_nodes() -> None:
    assert host_names(2) == ("node-00", "node-01")
    for count in (1, 11, 99, 100, 101):
        assert len(set(host_names(count))) == count
        assert list(host_names(count)) == sorted(host_names(count))


def emulator_of(plan: Plan, run: Path) -> DockerEmulator:
    request = json.loads(json.dumps(get_provider("docker").render(plan).document))
    return docker_emulator(RunPaths(run), request, EmulatedPlan.from_json(plan.to_json()))


def plain_specs(text: str, run: Path) -> list[ContainerSpec]:
    plan = plan_of("docker", text)
    emulator = emulator_of(plan, run)
    emulator.gpus = tuple(
        f"GPU-{number}" for number in range(plan.gpus * plan.spec.resources.nodes)
    )
    return [emulator.spec(launch) for launch in launches_of(plan)]


def launches_of(plan: Plan) -> list[ContainerLaunch]:
    document = json.loads(json.dumps(get_provider("docker").render(plan).document))
    return [ContainerLaunch.from_json(launch) for launch in document["launches"]]


GPUS = (
    "name: digits\nimage: train:1\nresources: {nodes: 3, gpus: 2, shm: 16 GiB}\nsecrets: {A:"
    " {local: 'env:B'}}\n"
)


def test_runs_of_one_id_in_two_data_folders_do_not_meet(tmp_path: Path) -> None:
    (one, *_), (second, *_) = (
        plain_specs(GPUS, tmp_path / name / "runs" / "run-1") for name in ("a", "b")
    )
    assert one.network != second.network
    assert one.labels != second.labels


def test_a_secret_that_only_the_cloud_has_is_missed_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(
        "docker", "name: digits\nsecrets: {A: {docker: 'env:MINE', local: 'env:OTHER'}}\n"
    )
    monkeypatch.setenv("OTHER", "x")
    assert [issue.message for issue in location_checks(plan)] == [
        "secret A: the environment variable MINE is not set"
    ]
    monkeypatch.setenv("MINE", "x")
    assert location_checks(plan) == []


def test_the_rights_of_a_container_are_those_of_whoever_submits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of("docker", "name: digits\nresources: {gpus: 1}\n")
    emulator = emulator_of(plan, tmp_path / "runs" / "run-1")
    launch = launches_of(plan)[0]
    for name, value in {"getuid": 1000, "getgid": 100, "getgroups": [100, 4711, 27]}.items():
        monkeypatch.setattr(os, name, lambda value=value: value)
    container = emulator.spec(launch)
    assert (container.user, container.groups, container.capabilities) == (
        "1000:100",
        ("27", "4711"),
        (),
    )
    assert container.ulimits == {"memlock": -1, "stack": 64 * 2**20}
    assert plain_specs("name: digits\n", tmp_path / "runs" / "run-2")[0].ulimits == {}, (
        "only NCCL wants them"
    )
    rootless = emulator.spec(launch, rootless=True)
    assert (rootless.user, rootless.groups, rootless.ulimits) == ("0:0", (), {})
    assert "DAC_OVERRIDE" in rootless.capabilities
    assert not {"SYS_ADMIN", "NET_RAW", "MKNOD"} & {*rootless.capabilities}


ERRORS = {
    "permission": "('Connection aborted.', PermissionError(13, 'Permission denied'))",
    "engine": "HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded",
    "gpus": 'could not select device driver "" with capabilities: [[gpu]]',
    "entrypoint": 'exec: "python3": executable file not found in $PATH',
    "architecture": "exec /usr/bin/python3: exec format error",
    "mount": "Mounts denied: The path /x is not shared from the host",
    "networks": "could not find an available, non-overlapping IPv4 address pool",
}


@pytest.mark.parametrize("code", ERRORS)
def test_an_error_of_docker_is_told_with_the_next_step(code: str) -> None:
    error = translated(RuntimeError(ERRORS[code]), "start it", image="train:1")
    assert error.code == code
    assert error.hint


@pytest.mark.parametrize("cause", ["", "out of host memory"])
@pytest.mark.parametrize("guess", [" (out of host memory?)", ": out of host memory", ""])
def test_engine_facts_about_memory_override_the_launcher(
    guess: str, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    output = ContainerOutput(0, 1)
    place = {"time": 2, "node": 0, "rank": -1}
    error = {**place, "exception": "SIGKILL", "message": f"was killed by SIGKILL{guess}"}
    ended = {**place, "type": "node_ended", "seq": 1, "outcome": "failed", "error": error}
    output.forward(f"::cloudtrain:: {json.dumps(ended)}\n".encode())
    output.finish(1, cause)
    reason = f" ({cause})" if cause else ""
    assert f'"was killed by SIGKILL{reason}"' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("code", "cause", "message"),
    [
        (139, "", "its container was killed by SIGSEGV"),
        (137, "out of host memory", "its container was killed by SIGKILL (out of host memory)"),
        (255, "", "its container exited with code 255"),
    ],
)
def test_a_container_without_a_last_word_is_given_one(
    code: int, cause: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert ContainerOutput(0, 1).finish(code, cause) == code
    assert f'"{message}' in capfd.readouterr().out


def test_a_launcher_that_was_stopped_from_outside_is_reported_as_such(
    capfd: pytest.CaptureFixture[str],
) -> None:
    output = ContainerOutput(0, 1)
    ended = {"type": "node_ended", "time": 2, "node": 0, "rank": -1, "seq": 1, "why": "sigterm"}
    ended |= {"outcome": "stopped", "error": None, "stop_asked": 1.5}
    output.forward(f"::cloudtrain:: {json.dumps(ended)}\n".encode())
    assert output.finish(5) == 5
    assert '"stopped_by":"by docker stop' in capfd.readouterr().out


class Elsewhere:
    """An engine of another kind of processor."""

    def info(self) -> EngineInfo:
        return EngineInfo("28.2.2", "arm64", is_rootless=False, gives_gpus=False)

    def image_architecture(self, image: str) -> str:
        return "amd64"


def test_an_image_for_another_processor_and_an_engine_elsewhere_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of("docker", "name: digits\nimage: train:1\nentrypoint: train.py\n")
    monkeypatch.setattr(docker_checks, "docker_engine", lambda: nullcontext(Elsewhere()))
    (issue,) = docker_checks.container_checks(plan)
    assert issue.severity == "warning"
    assert "the image train:1 is built for amd64, this machine is arm64" in issue.message
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@there")
    assert docker_checks.container_checks(plan) == []
    (issue,) = docker_checks.container_rules(plan)
    assert (issue.severity, "must be this machine's" in issue.message) == ("error", True)


def test_an_engine_that_does_not_answer_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests have left open

    with (
        tempfile.TemporaryDirectory(dir="/tmp") as folder,  # a socket's path may have 103 bytes
        warnings.catch_warnings(record=True) as warned,
    ):
        path = f"{folder}/docker.sock"
        with socket.socket(socket.AF_UNIX) as ended:
            ended.bind(path)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
        warnings.simplefilter("always")
        message = f"no Docker engine answers at unix://{path}"
        with pytest.raises(CloudError, match=message) as failed, docker_engine(HANG_SECONDS):
            pass
        del failed
        gc.collect()
    assert [str(warning.message) for warning in warned] == []


def test_nobody_listening_is_noticed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = ContainerOutput(0, writer)
    assert words.forward(b"half", b"")
    assert not words.forward(b" a line\n", b"")
    os.close(writer)


def context(folder: Path, name: str, host: str, *, current: bool = True) -> None:
    """A context as `docker context create` writes it, in use or not."""
    meta = folder / "contexts" / "meta" / hashlib.sha256(name.encode()).hexdigest()
    meta.mkdir(parents=True)
    (meta / "meta.json").write_text(
        json.dumps({"Name": name, "Endpoints": {"docker": {"Host": host}}})
    )
    if current:
        (folder / "config.json").write_text(json.dumps({"currentContext": name}))


def test_the_engine_is_looked_for_where_the_docker_program_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert address() == ("unix:///var/run/docker.sock", "")
    assert "DOCKER_HOST" not in environment_of_sdk()
    context(tmp_path, "desktop", "unix:///home/me/docker.sock")
    context(tmp_path, "far", "ssh://me@there", current=False)
    assert address() == ("unix:///home/me/docker.sock", "the docker context desktop")
    assert environment_of_sdk()["DOCKER_HOST"] == "unix:///home/me/docker.sock"

    monkeypatch.setenv("DOCKER_CONTEXT", "far")
    assert address() == ("ssh://me@there", "the docker context far")
    assert "DOCKER_HOST" not in environment_of_sdk()
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert address() == ("ssh://me@there", "the docker context far")
    assert "DOCKER_HOST" not in environment_of_sdk()
    monkeypatch.delenv("DOCKER_CONTEXT")
    assert address() == ("tcp://127.0.0.1:1", "DOCKER_HOST")
    assert environment_of_sdk()["DOCKER_HOST"] == "tcp://127.0.0.1:1"
    monkeypatch.setenv("DOCKER_CONTEXT", "default")
    assert address() == ("unix:///var/run/docker.sock", "")


def test_a_place_for_all_providers_is_one_for_rehearsals_too() -> None:
    plan = {"provider": "docker", "facts": {"folder": "/job"}, "spec": {"inputs": {}}}
    for places, outcomes in (
        ({"aws": "s3://b/c/", "*": "./data"}, "/job/data"),
        ({"aws": "s3://b/c/", "*": "./data", "local": "./mine"}, "/job/mine"),
        ({"*": "s3://b/c/"}, ""),
    ):
        plan["spec"] = {"inputs": {"train": {"uri": places}}}
        assert EmulatedPlan.from_json(plan).local_input("train") == outcomes
