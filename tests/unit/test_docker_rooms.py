"""Mounts, host names and variables that each cloud's contract puts into a container; without an
engine.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.providers.docker.container_spec import ContainerLaunch
from cloudtrain.providers.docker.emulator import DockerEmulator, docker_emulator
from cloudtrain.providers.rehearsal.base import EmulatedPlan
from cloudtrain.providers.rehearsal.run_paths import RunPaths

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


@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_the_ranks_of_all_nodes_share_this_machines_cores(cloud: str, tmp_path: Path) -> None:
    _, launches = rehearsed(cloud, tmp_path)
    assert [launch.env["OMP_NUM_THREADS"] for launch in launches] == ["2", "2"]


def test_as_sagemaker_the_network_is_isolated_if_the_request_says_so(tmp_path: Path) -> None:
    emulator, _ = rehearsed("aws", tmp_path)
    assert not emulator.isolated
    request = json.loads((ROOT / "tests" / "golden" / "aws.json").read_text())["request"]
    plan = {"provider": "docker", "host": {"facts": {}}, "target": {"contract": "sagemaker"}}
    request = {**request, "EnableNetworkIsolation": True}
    assert docker_emulator(emulator.paths, request, EmulatedPlan.from_json(plan)).isolated


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
