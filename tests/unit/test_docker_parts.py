"""The docker provider without an engine: images, names, what each contract puts into a container, its errors."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.clouds.docker_errors import missing_image, translated
from cloudtrain.contracts.container import ContainerSpec, environment, host_names, spec_from_json
from cloudtrain.errors import SpecError
from cloudtrain.image.recipe import our_recipe
from cloudtrain.local import docker_checks
from cloudtrain.local.checks import place_checks
from cloudtrain.local.container_words import NodeWords
from cloudtrain.local.docker_images import image_of
from cloudtrain.local.docker_stage import DockerStage, docker_stage, labels_of
from cloudtrain.local.folders import RunPaths
from cloudtrain.planning import Plan
from cloudtrain.provider import get_provider
from cloudtrain.settings import Settings
from tests.golden.cases import plan_of

NOTHING_SET = Settings(values={}, origins={})


@pytest.mark.parametrize(
    ("wish", "address"),
    [
        ("train", "train"),
        ({"docker": "registry:5000/train@sha256:00", "aws": "x"}, "registry:5000/train@sha256:00"),
    ],
)
def test_an_image_is_an_address_on_this_machine(wish: Any, address: str) -> None:
    assert image_of(wish, NOTHING_SET, gpu=False) == ({"image": address, "recipe": None}, ())


@pytest.mark.parametrize("wish", ["auto", {"aws": "dlc:pytorch-2.8"}, {"docker": "auto"}])
@pytest.mark.parametrize(("gpu", "kind"), [(False, "cpu"), (True, "cuda")])
def test_our_own_image_is_called_by_its_content_and_has_a_variant_for_gpus(wish: Any, gpu: bool, kind: str) -> None:
    recipe = our_recipe(kind)
    assert image_of(wish, NOTHING_SET, gpu=gpu) == ({"image": recipe.name, "recipe": recipe.to_json()}, ())
    assert recipe.name.startswith(f"cloudtrain:{kind}-")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image: dlc:pytorch-2.8\n", "job.yaml:1:1: image: dlc:pytorch-2.8 means something in aws alone"),
        ("image: {docker: 'azureml:mine@latest'}\n", "job.yaml:1:9: image.docker: azureml:mine@latest means"),
        (
            "image: {build: elsewhere/Dockerfile}\n",
            "job.yaml:1:9: image.build: there is no file /",
        ),
        ("inputs: {a: 's3://b/c'}\n", "inputs.a: s3://b/c cannot be read by the docker provider"),
        ("secrets: {A: {aws: 'ssm:a'}}\n", "add docker: 'env:A'"),
    ],
)
def test_what_makes_no_sense_here_is_refused_at_its_line(text: str, said: str) -> None:
    with pytest.raises(SpecError) as refused:
        plan_of("docker", f"{text}name: digits\n")
    assert said in str(refused.value)


def test_host_names_sort_like_the_nodes() -> None:
    assert host_names(2) == ("node-00", "node-01")
    for count in (1, 11, 99, 100, 101):
        assert len(set(host_names(count))) == count
        assert list(host_names(count)) == sorted(host_names(count))


def stage_of(plan: Plan, run: Path) -> DockerStage:
    request = json.loads(json.dumps(get_provider("docker").render(plan).document))
    return docker_stage(RunPaths(run), request, plan.to_json())


def plain_specs(text: str, run: Path) -> list[ContainerSpec]:
    plan = plan_of("docker", text)
    stage = stage_of(plan, run)
    launches = json.loads(json.dumps(get_provider("docker").render(plan).document))["launches"]
    return [stage.spec(launch, "1000:1000") for launch in launches]


GPUS = "name: digits\nimage: train:1\nresources: {nodes: 3, gpus: 2, shm: 16 GiB}\nsecrets: {A: {local: 'env:B'}}\n"


def test_each_container_has_its_own_name_and_gpus_and_the_same_network(tmp_path: Path) -> None:
    specs = plain_specs(GPUS, tmp_path / "runs" / "run-1")
    assert [spec.gpus for spec in specs] == [("0", "1"), ("2", "3"), ("4", "5")]
    assert [spec.host for spec in specs] == ["node-00", "node-01", "node-02"]
    assert len({spec.network for spec in specs}) == 1
    assert len({spec.name for spec in specs}) == 3
    assert {(spec.shm_bytes, spec.memory_bytes, spec.secrets) for spec in specs} == {(2**34, 2**33, ("A",))}
    assert all(spec.labels.items() >= labels_of(tmp_path / "runs" / "run-1").items() for spec in specs)


def test_runs_of_one_id_in_two_data_folders_do_not_meet(tmp_path: Path) -> None:
    (one, *_), (other, *_) = (plain_specs(GPUS, tmp_path / name / "runs" / "run-1") for name in ("a", "b"))
    assert one.network != other.network
    assert one.labels != other.labels


def test_a_container_is_read_back_as_it_was_written_and_holds_no_secret(tmp_path: Path) -> None:
    spec = plain_specs(GPUS, tmp_path / "runs" / "run-1")[1]
    assert spec_from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert environment(spec, {"A": "hunter2"})["A"] == "hunter2"
    assert "hunter2" not in json.dumps(spec.to_json())


def test_what_the_spec_says_of_home_counts_more(tmp_path: Path) -> None:
    spec = plain_specs("name: digits\nenv: {HOME: /root}\n", tmp_path / "runs" / "run-1")[0]
    assert environment(spec, {})["HOME"] == "/root"
    assert environment(spec, {})["USER"] == "cloudtrain"


def test_a_secret_that_only_the_cloud_has_is_missed_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("docker", "name: digits\nsecrets: {A: {docker: 'env:MINE', local: 'env:OTHER'}}\n")
    monkeypatch.setenv("OTHER", "x")
    assert [found.message for found in place_checks(plan)] == ["secret A: the environment variable MINE is not set"]
    monkeypatch.setenv("MINE", "x")
    assert place_checks(plan) == []


ERRORS = {
    "Error while fetching server API version: ('Connection aborted.', PermissionError(13, 'Permission denied'))": (
        "this user may not use the Docker engine",
        "docker $USER",
    ),
    "Error while fetching server API version: ('Connection aborted.', FileNotFoundError(2, 'No such file'))": (
        "no Docker engine answers",
        "start it",
    ),
    "HTTPConnectionPool(host='127.0.0.1', port=1): Max retries exceeded": ("no Docker engine answers", "start it"),
    'could not select device driver "" with capabilities: [[gpu]]': ("cannot give GPUs", "NVIDIA Container Toolkit"),
    'OCI runtime create failed: exec: "python3": executable file not found in $PATH': ("train:1 has not", "python3"),
    "exec /usr/bin/python3: exec format error": ("another kind of processor", "--platform"),
    "Mounts denied: The path /x is not shared from the host": ("cannot see a folder", "File sharing"),
    "could not find an available, non-overlapping IPv4 address pool among the defaults": ("no addresses", "prune"),
    "something else": ("Docker would not start it: something else", ""),
}


@pytest.mark.parametrize("text", ERRORS)
def test_an_error_of_docker_is_told_with_the_next_step(text: str) -> None:
    message, hint = ERRORS[text]
    told = translated(RuntimeError(text), "start it", image="train:1")
    assert message in told.message
    assert hint in (told.hint or "")


def test_a_missing_image_is_told_with_how_to_get_it() -> None:
    told = missing_image("other:1")
    assert told.message == "there is no image other:1 on this machine"
    assert told.hint == "docker pull other:1, or image: auto, which is built"


@pytest.mark.parametrize(
    ("code", "oom", "said"),
    [
        (0, False, "the launcher never spoke"),
        (139, False, "its container was killed by SIGSEGV"),
        (137, True, "its container was killed by SIGKILL (out of host memory)"),
        (255, False, "its container exited with code 255 and said nothing"),
    ],
)
def test_a_container_without_a_last_word_is_given_one(
    code: int, oom: bool, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = plain_specs("name: digits\n", tmp_path / "runs" / "run-1")[0]
    unlimited = ContainerSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, "memory_bytes": None})
    assert NodeWords(0, 1).conclude(code, oom, unlimited, asked=False, forced=False) == (code or 1)
    assert f'"{said}' in capfd.readouterr().out.replace("its container ended well, but ", "")


class Elsewhere:
    """An engine of another kind of processor."""

    def machine(self) -> tuple[str, bool]:
        return "arm64", False

    def image_architecture(self, image: str) -> str:
        return "amd64"


def test_an_image_for_another_processor_and_an_engine_elsewhere_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("docker", "name: digits\nimage: train:1\nentrypoint: train.py\n")
    monkeypatch.setattr(docker_checks, "docker_engine", lambda: nullcontext(Elsewhere()))
    (found,) = docker_checks.container_checks(plan)
    assert found.severity == "warning"
    assert "the image train:1 is built for amd64, this machine is arm64" in found.message
    monkeypatch.setenv("DOCKER_HOST", "ssh://me@there")
    (found,) = docker_checks.container_checks(plan)
    assert (found.severity, "must be this machine's" in found.message) == ("error", True)


def test_a_missing_sdk_is_told_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudtrain.clouds.docker", None)
    found = get_provider("docker").checks(plan_of("docker", "name: digits\n"))
    assert "containers and images need Docker's SDK, which is not installed" in found[0].message
    assert found[0].hint == 'pip install "cloudtrain[docker]"'


def test_nobody_listening_is_noticed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = NodeWords(0, writer)
    assert words.hear(b"half", b"")
    assert not words.hear(b" a line\n", b"")
    os.close(writer)
