"""Containers on this machine, without an engine: their GPUs, mounts and variables."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker import container_spec
from cloudtrain.providers.docker.container_spec import ContainerLaunch, environment
from cloudtrain.providers.docker.emulator import DockerEmulator, docker_emulator
from cloudtrain.providers.local import machine
from cloudtrain.providers.local.gpu_ids import gpu_ids
from cloudtrain.providers.rehearsal.base import EmulatedPlan
from cloudtrain.runs.paths import RunPaths
from tests.golden.cases import plan_of

# GPUs of a run in containers: CUDA_VISIBLE_DEVICES by UUID, without another run's GPUs.

UUIDS = [uuid.UUID(int=2**100 + number) for number in range(4)]


class Driver:
    """Answer as libcuda on a machine of four GPUs in CUDA's order: the fastest first."""

    def __init__(self, *shown: int) -> None:
        self.shown = shown

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.shown)
        return 0

    def cuDeviceGet(self, device: Any, number: int) -> int:
        device._obj.value = self.shown[number]
        return 0

    def cuDeviceGetUuid_v2(self, answer: Any, device: ctypes.c_int) -> int:
        answer._obj[:] = list(UUIDS[device.value].bytes)
        return 0


def test_gpus_are_named_in_the_order_in_which_cuda_shows_them() -> None:
    assert gpu_ids(Driver(2, 3)) == [f"GPU-{UUIDS[2]}", f"GPU-{UUIDS[3]}"]  # type: ignore[arg-type]
    assert gpu_ids(Driver(1), f"MIG-{UUIDS[1]}") == [f"MIG-{UUIDS[1]}"]  # type: ignore[arg-type]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Provide a machine of four GPUs whose names belong to this test alone."""
    names = [f"GPU-{uuid.uuid4()}" for _ in range(4)]

    def visible(env: Mapping[str, str]) -> tuple[str, ...]:
        choice = {**os.environ, **env}.get("CUDA_VISIBLE_DEVICES")
        return tuple(
            names if choice is None else [names[int(number)] for number in choice.split(",")]
        )

    monkeypatch.setattr(machine, "visible_gpus", visible)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return names


def prepared(tmp_path: Path, text: str) -> tuple[DockerEmulator, list[ContainerLaunch]]:
    plan = plan_of("docker", f"name: digits\nimage: train:1\n{text}")
    request = json.loads(json.dumps(get_provider("docker").render(plan).document))
    emulator = docker_emulator(
        RunPaths(tmp_path / "runs" / "run-1"), request, EmulatedPlan.from_json(plan.to_json())
    )
    launches = [ContainerLaunch.from_json(launch) for launch in request["launches"]]
    emulator.gpus = emulator.take_gpus(launches)
    return emulator, launches


def test_containers_get_the_chosen_gpus_and_count_them_from_zero(
    tmp_path: Path, four: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    emulator, launches = prepared(tmp_path, "resources: {nodes: 2, gpus: 1}\n")
    with emulator.gpu_locks:
        assert [emulator.spec(launch).gpus for launch in launches] == [(four[2],), (four[3],)]
    emulator, launches = prepared(
        tmp_path, "resources: {gpus: 2}\nenv: {CUDA_VISIBLE_DEVICES: '1,0'}\n"
    )
    with emulator.gpu_locks:
        spec = emulator.spec(launches[0])
    assert spec.gpus == (four[1], four[0])
    inside = environment(spec, {})
    assert inside["NVIDIA_VISIBLE_DEVICES"] == f"{four[1]},{four[0]}"
    assert "CUDA_VISIBLE_DEVICES" not in inside


def test_a_job_for_cpus_sees_no_gpu_whatever_its_image_says(
    tmp_path: Path, four: list[str]
) -> None:
    emulator, launches = prepared(tmp_path, "env: {NVIDIA_VISIBLE_DEVICES: all}\n")
    assert environment(emulator.spec(launches[0]), {})["NVIDIA_VISIBLE_DEVICES"] == "void"


HOLDER = """
import sys
from contextlib import ExitStack
from cloudtrain.providers.docker import container_spec
with ExitStack() as held:
    print(*container_spec.take(sys.argv[1:], 2, held), flush=True)
    sys.stdin.read()
"""


@pytest.mark.linux("sockets that are names and no files")
def test_two_runs_share_no_gpu_by_accident_and_a_killed_one_holds_none(
    tmp_path: Path, four: list[str]
) -> None:
    argv = [sys.executable, "-c", HOLDER, *four]
    second = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert second.stdout is not None
    assert second.stdin is not None
    try:
        assert second.stdout.readline().split() == four[:2]
        emulator, launches = prepared(tmp_path, "resources: {gpus: 2}\n")
        with emulator.gpu_locks:
            assert emulator.spec(launches[0]).gpus == (four[2], four[3])
        with pytest.raises(CloudError) as refused:
            prepared(tmp_path, "resources: {gpus: 3}\n")
        assert "3 of the 4 visible GPUs" in refused.value.message
    finally:
        second.kill()
        second.communicate()
    with ExitStack() as held:
        assert container_spec.take(four, 4, held) == tuple(four)


# Mounts, host names and variables that each cloud's contract puts into a container; without an
# engine.

ROOT = Path(__file__).resolve().parents[2]


def rehearsed(cloud: str, tmp_path: Path) -> tuple[DockerEmulator, list[ContainerLaunch]]:
    """The emulator and the launches of a golden request, rehearsed in containers."""
    request = json.loads((ROOT / "tests" / "golden" / f"{cloud}.json").read_text())["request"]
    run = tmp_path / "runs" / "digits-k2x9"
    for folder in ("input", "earlier", "output", "model", "checkpoints"):
        (run / folder).mkdir(parents=True)
    (run / "job.json").write_text(json.dumps({"nodes": 2, "processes": 3}))
    archive = tmp_path / "0123.tar.gz"
    archive.write_text("")
    (tmp_path / "labels.csv").write_text("")
    names = (
        "train-set",
        "test",
        "labels",
        "words",
        "bert",
        "mean",
        "old",
        "extra",
        "table",
        "live",
    )
    files = {"labels": str(tmp_path / "labels.csv"), "mean": str(tmp_path / "labels.csv")}
    places = {name: {"uri": {"local": files.get(name, str(run / "input"))}} for name in names}
    facts = {"image": "train:1", "gpus": 0, "shm_bytes": 2**30, "memory_bytes": None, "cores": 12}
    plan = {
        "provider": "docker",
        "host": {"facts": facts},
        "target": {
            "contract": {"aws": "sagemaker", "azure": "azureml"}[cloud],
            "grace_seconds": 60,
            "facts": {},
        },
        "spec": {"inputs": places, "secrets": {"HF_TOKEN": {"local": "env:HF", cloud: "…"}}},
        "facts": {"folder": str(tmp_path), "resume_from": str(run / "earlier")},
    }
    emulator = docker_emulator(RunPaths(run), request, EmulatedPlan.from_json(plan))
    return emulator, list(emulator.inner.prepare(archive))


def test_as_sagemaker_each_node_has_its_own_tree_and_its_channels_are_mounted(
    tmp_path: Path,
) -> None:
    emulator, launches = rehearsed("aws", tmp_path)
    assert [launch.host for launch in launches] == ["algo-1", "algo-2"]
    for node, launch in enumerate(launches):
        binds = {bind.target: bind for bind in launch.binds}
        assert binds["/opt/ml"].source == str(emulator.paths.run / "nodes" / str(node) / "ml")
        assert binds["/opt/ml/input/data/cloudtrain-source/source.tar.gz"].source == str(
            tmp_path / "0123.tar.gz"
        )
        assert binds["/opt/ml/input/data/labels/labels.csv"].read_only
        assert binds["/opt/ml/input/data/cloudtrain-resume"].source == str(
            emulator.paths.run / "earlier"
        )
        assert launch.secrets == {"HF_TOKEN": "env:HF"}
        for target in set(binds) - {"/opt/ml"}:  # Docker would make what is missing, as root
            assert (
                emulator.paths.run / "nodes" / str(node) / "ml" / target.removeprefix("/opt/ml/")
            ).exists()
    resources = (emulator.paths.run / "nodes/1/ml/input/config/resourceconfig.json").read_text()
    assert json.loads(resources)["network_interface_name"] == "eth0"
    assert not [path for path in emulator.paths.run.rglob("*") if path.is_symlink()]


def test_as_azure_inputs_are_read_only_and_outputs_are_shared(tmp_path: Path) -> None:
    emulator, launches = rehearsed("azure", tmp_path)
    assert [launch.env["MASTER_ADDR"] for launch in launches] == ["node-00", "node-00"]
    assert [launch.env["CLOUDTRAIN_NODE_ADDR"] for launch in launches] == ["node-00", "node-01"]
    for node, launch in enumerate(launches):
        binds = {bind.target: bind for bind in launch.binds}
        assert binds["/mnt/azureml/wd"].source == str(
            emulator.paths.run / "nodes" / str(node) / "wd"
        )
        assert binds["/mnt/azureml/outputs/model"].source == str(emulator.paths.model)
        assert not binds["/mnt/azureml/outputs/checkpoints"].read_only
        assert binds["/mnt/azureml/inputs/train_set"].read_only
        assert binds["/mnt/azureml/inputs/labels/labels.csv"].source == str(tmp_path / "labels.csv")
        shell, flag, command = launch.argv
        assert (shell, flag) == ("/bin/sh", "-c")
        assert 'CLOUDTRAIN_MODEL_DIR="/mnt/azureml/outputs/model"' in command
        assert str(tmp_path) not in command
