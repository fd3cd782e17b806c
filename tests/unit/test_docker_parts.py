"""The docker provider without an engine: images, names, what each contract puts into a container, its errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.clouds.docker_errors import missing_image, translated
from cloudtrain.contracts.container import ContainerSpec, environment, host_names, spec_from_json
from cloudtrain.errors import SpecError
from cloudtrain.local.checks import place_checks
from cloudtrain.local.container_words import NodeWords
from cloudtrain.local.docker_images import image_of
from cloudtrain.local.docker_stage import DockerStage, docker_stage, labels_of
from cloudtrain.local.folders import RunPaths
from cloudtrain.planning import Plan
from cloudtrain.provider import get_provider
from tests.golden.cases import plan_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("wish", "address"),
    [
        ("auto", "cloudtrain:local"),
        ({"aws": "dlc:pytorch-2.8"}, "cloudtrain:local"),
        ({"docker": "auto"}, "cloudtrain:local"),
        ("train", "train"),
        ({"docker": "registry:5000/train@sha256:00", "aws": "x"}, "registry:5000/train@sha256:00"),
    ],
)
def test_an_image_is_an_address_on_this_machine(wish: Any, address: str) -> None:
    assert image_of(wish) == (address, ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("image: dlc:pytorch-2.8\n", "job.yaml:1:1: image: dlc:pytorch-2.8 means something in aws alone"),
        ("image: {docker: 'azureml:mine@latest'}\n", "job.yaml:1:9: image.docker: azureml:mine@latest means"),
        ("image: {build: docker/Dockerfile}\n", "docker build -f docker/Dockerfile -t cloudtrain:local ."),
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


def rehearsed(cloud: str, tmp_path: Path) -> tuple[DockerStage, list[Any]]:
    """The stage and the launches of a golden request, rehearsed in containers."""
    request = json.loads((ROOT / "tests" / "golden" / f"{cloud}.json").read_text())["request"]
    run = tmp_path / "runs" / "digits-k2x9"
    for folder in ("input", "earlier", "output", "model", "checkpoints"):
        (run / folder).mkdir(parents=True)
    (run / "job.json").write_text("{}")
    archive = tmp_path / "0123.tar.gz"
    archive.write_text("")
    (tmp_path / "labels.csv").write_text("")
    names = ("train-set", "test", "labels", "words", "mean", "old", "extra", "table", "live")
    files = {"labels": str(tmp_path / "labels.csv"), "mean": str(tmp_path / "labels.csv")}
    places = {name: {"uri": {"local": files.get(name, str(run / "input"))}} for name in names}
    facts = {"image": "train:1", "gpus": 0, "shm_bytes": 2**30, "memory_bytes": None}
    plan = {
        "provider": "docker",
        "host": {"facts": facts},
        "target": {"contract": {"aws": "sagemaker", "azure": "azureml"}[cloud], "facts": {}},
        "spec": {"inputs": places, "secrets": {"HF_TOKEN": {"local": "env:HF", cloud: "…"}}},
        "facts": {"folder": str(tmp_path), "resume_from": str(run / "earlier")},
    }
    stage = docker_stage(RunPaths(run), request, plan)
    return stage, list(stage.inner.prepare(archive))


def test_as_sagemaker_each_node_has_its_own_tree_and_its_channels_are_mounted(tmp_path: Path) -> None:
    stage, launches = rehearsed("aws", tmp_path)
    assert [launch["host"] for launch in launches] == ["algo-1", "algo-2"]
    for node, launch in enumerate(launches):
        binds = {bind.target: bind for bind in launch["binds"]}
        assert binds["/opt/ml"].source == str(stage.paths.run / "nodes" / str(node) / "ml")
        assert binds["/opt/ml/input/data/cloudtrain-source/source.tar.gz"].source == str(tmp_path / "0123.tar.gz")
        assert binds["/opt/ml/input/data/labels/labels.csv"].read_only
        assert binds["/opt/ml/input/data/cloudtrain-resume"].source == str(stage.paths.run / "earlier")
        assert launch["secrets"] == {"HF_TOKEN": "env:HF"}
        for target in set(binds) - {"/opt/ml"}:  # Docker would make what is missing, as root
            assert (stage.paths.run / "nodes" / str(node) / "ml" / target.removeprefix("/opt/ml/")).exists()
    resources = (stage.paths.run / "nodes/1/ml/input/config/resourceconfig.json").read_text()
    assert json.loads(resources)["network_interface_name"] == "eth0"
    assert not [path for path in stage.paths.run.rglob("*") if path.is_symlink()]


def test_as_sagemaker_the_network_is_isolated_if_the_request_says_so(tmp_path: Path) -> None:
    stage, _ = rehearsed("aws", tmp_path)
    assert not stage.isolated
    request = json.loads((ROOT / "tests" / "golden" / "aws.json").read_text())["request"]
    plan = {"provider": "docker", "host": {"facts": {}}, "target": {"contract": "sagemaker"}}
    assert docker_stage(stage.paths, {**request, "EnableNetworkIsolation": True}, plan).isolated


def test_as_azure_inputs_are_read_only_and_outputs_are_shared(tmp_path: Path) -> None:
    stage, launches = rehearsed("azure", tmp_path)
    assert [launch["env"]["MASTER_ADDR"] for launch in launches] == ["node-00", "node-00"]
    assert [launch["env"]["CLOUDTRAIN_NODE_ADDR"] for launch in launches] == ["node-00", "node-01"]
    for node, launch in enumerate(launches):
        binds = {bind.target: bind for bind in launch["binds"]}
        assert binds["/mnt/azureml/wd"].source == str(stage.paths.run / "nodes" / str(node) / "wd")
        assert binds["/mnt/azureml/outputs/model"].source == str(stage.paths.model)
        assert not binds["/mnt/azureml/outputs/checkpoints"].read_only
        assert binds["/mnt/azureml/inputs/train_set"].read_only
        assert binds["/mnt/azureml/inputs/labels/labels.csv"].source == str(tmp_path / "labels.csv")
        shell, flag, command = launch["argv"]
        assert (shell, flag) == ("/bin/sh", "-c")
        assert 'CLOUDTRAIN_MODEL_DIR="/mnt/azureml/outputs/model"' in command
        assert str(tmp_path) not in command


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
    assert missing_image("cloudtrain:local").hint == (
        "docker build -f docker/Dockerfile -t cloudtrain:local . or name another: image: {docker: …}"
    )
    assert (missing_image("other:1").hint or "").startswith("docker pull other:1")


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


def test_nobody_listening_is_noticed() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    words = NodeWords(0, writer)
    assert words.hear(b"half", b"")
    assert not words.hear(b" a line\n", b"")
    os.close(writer)
