"""SageMaker's mapping: a node's rank and folders from resourceconfig.json, and the errors if it is
invalid.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.catalog import instances
from cloudtrain.providers.aws.request import body_of
from cloudtrain_launcher import contract, environment, host, platforms
from cloudtrain_launcher.platforms.sagemaker import sagemaker_context
from tests.entrypoints.launchers import document
from tests.entrypoints.platforms import container, resources
from tests.entrypoints.test_launcher_parts import JOB
from tests.golden.cases import FULL, plan_of

NODES = tuple(f"algo-{number}" for number in range(1, 12))


def context(
    base: Path, efa: bool = False, folders: tuple[str, ...] = (), **environ: str
) -> contract.NodeContext:
    return sagemaker_context(
        {"SAGEMAKER_BASE_DIR": str(base), **environ}, lambda: efa, lambda: folders
    )


def job(**changes: Any) -> contract.Job:
    return contract.Job(**{**vars(JOB), **changes})


@pytest.mark.parametrize(
    ("host", "hosts", "rank", "master"),
    [
        ("algo-1", ("algo-1",), 0, "algo-1"),
        ("algo-2", ("algo-1", "algo-2"), 1, "algo-1"),
        ("algo-10", NODES, 1, "algo-1"),
        ("algo-11", NODES, 2, "algo-1"),
        ("algo-2", NODES, 3, "algo-1"),
        ("algo-1", ("algo-2", "algo-1"), 0, "algo-1"),
        ("worker.b", ("worker.b", "a_node", "10.0.0.7"), 2, "10.0.0.7"),
    ],
)
def test_node_ranks_follow_the_sorted_names(
    tmp_path: Path, host: str, hosts: tuple[str, ...], rank: int, master: str
) -> None:
    container(tmp_path, here=host, hosts=hosts)
    node_context = context(tmp_path)
    assert (node_context.node_rank, node_context.nodes, node_context.master_addr) == (
        rank,
        len(hosts),
        master,
    )
    assert (node_context.address, node_context.interface, node_context.master_port) == (
        host,
        "lo",
        7777,
    )


def test_all_paths_are_below_the_base_folder(tmp_path: Path) -> None:
    container(tmp_path)
    node_context = context(tmp_path)
    assert node_context.output_dir == f"{tmp_path}/output/data"
    assert node_context.model_dir == f"{tmp_path}/model"
    assert node_context.checkpoint_dir == f"{tmp_path}/checkpoints"
    assert node_context.failure_file == platforms.find_failure_file(
        {"CLOUDTRAIN_PLATFORM": "sagemaker", "SAGEMAKER_BASE_DIR": str(tmp_path)}
    )
    assert node_context.job_file == f"{tmp_path}/input/data/cloudtrain-job/job.json"
    assert node_context.resume_dir == f"{tmp_path}/input/data/cloudtrain-resume"
    assert (
        platforms.find_failure_file({"CLOUDTRAIN_PLATFORM": "sagemaker"})
        == "/opt/ml/output/failure"
    )
    assert platforms.find_failure_file({}) == ""


def test_a_rehearsal_sets_addresses_and_ports_by_variables(tmp_path: Path) -> None:
    container(tmp_path, here="algo-2", hosts=("algo-1", "algo-2"))
    node_context = context(
        tmp_path,
        CLOUDTRAIN_MASTER_ADDR="127.0.0.1",
        CLOUDTRAIN_MASTER_PORT="4711",
        CLOUDTRAIN_NODE_ADDR="127.0.0.2",
        CLOUDTRAIN_JOB_FILE="/elsewhere/job.json",
    )
    assert (node_context.master_addr, node_context.master_port, node_context.address) == (
        "127.0.0.1",
        4711,
        "127.0.0.2",
    )
    assert (node_context.node_rank, node_context.job_file) == (1, "/elsewhere/job.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ("[1]", "is not a JSON object"),
        (json.dumps(resources() | {"hosts": "algo-1"}), "hosts is 'algo-1'"),
        (json.dumps(resources(hosts=("algo-1", "algo-1"))), "hosts is ['algo-1', 'algo-1']"),
        (json.dumps(resources(here="algo-3")), "current_host is 'algo-3'"),
    ],
)
def test_an_invalid_resourceconfig_is_reported_with_its_path(
    tmp_path: Path, content: str | None, message: str
) -> None:
    container(tmp_path)
    path = tmp_path / "input/config/resourceconfig.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(RuntimeError) as caught:
        context(tmp_path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_inputs_are_channels_by_the_names_of_the_spec(tmp_path: Path) -> None:
    environ = container(tmp_path)
    data = tmp_path / "input/data"
    for channel in ("train", "held-out.v2", "cloudtrain-source", "cloudtrain-resume", "ch-3"):
        (data / channel).mkdir()
    (data / "train" / "k.csv").write_text("1\n")
    (data / "train-manifest").write_text("SageMaker's own")
    inputs = {
        "train": {"channel": "train", "file": "k.csv"},
        "test-set": {"channel": "ch-3", "file": "absent.csv"},
        "late": {"channel": "not-yet-there"},
    }
    variables = environment.job_environment(
        job(inputs=inputs), context(tmp_path), tmp_path, environ
    )
    assert {
        key: value for key, value in variables.items() if key.startswith("CLOUDTRAIN_INPUT_")
    } == {
        "CLOUDTRAIN_INPUT_TRAIN": f"{data}/train/k.csv",
        "CLOUDTRAIN_INPUT_TEST_SET": f"{data}/ch-3",
        "CLOUDTRAIN_INPUT_LATE": f"{data}/not-yet-there",
        "CLOUDTRAIN_INPUT_HELD_OUT_V2": f"{data}/held-out.v2",
    }
    assert variables["CLOUDTRAIN_PLATFORM"] == "sagemaker"
    local_path = body_of(plan_of("aws", FULL))["TensorBoardOutputConfig"]["LocalPath"]
    assert variables["CLOUDTRAIN_TENSORBOARD_DIR"] == local_path.replace("/opt/ml", str(tmp_path))
    assert variables["CLOUDTRAIN_JOB_FILE"] == f"{data}/cloudtrain-job/job.json"


EFA_TYPES = [row.instance_type for row in instances("aws") if row.network in ("efa", "")]
RDMA_FAMILIES = {"p4d", "p4de", "p5", "p5e", "p5en", "p6-b200", "p6-b300", "p6e-gb200"}
"""Those of "Elastic Fabric Adapter for AI/ML workloads on EC2" whose adapters reach a GPU's memory:
GPUDirect RDMA.
"""


@pytest.mark.parametrize("machine", [*EFA_TYPES, "ml.g4dn.metal", ""])
def test_rdma_is_enabled_only_on_machines_that_have_it(tmp_path: Path, machine: str) -> None:
    container(tmp_path)
    path = tmp_path / "input/config/resourceconfig.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "current_instance_type": machine}))
    variables = environment.job_environment(JOB, context(tmp_path, efa=True), tmp_path, {})
    assert variables["FI_PROVIDER"] == "efa"
    has_rdma = machine.partition(".")[2].partition(".")[0] in RDMA_FAMILIES
    assert variables.get("FI_EFA_USE_DEVICE_RDMA") == ("1" if has_rdma else None)


@pytest.mark.parametrize("efa", [False, True])
def test_nccl_gets_the_nodes_name_and_efa_only_with_an_adapter(tmp_path: Path, efa: bool) -> None:
    container(tmp_path, here="algo-2", hosts=("algo-1", "algo-2"))
    variables = environment.job_environment(JOB, context(tmp_path, efa=efa), tmp_path, {})
    assert variables["NCCL_HOSTID"] == "algo-2"
    assert variables["NCCL_SOCKET_IFNAME"] == "lo"
    assert ("FI_PROVIDER" in variables) == efa
    assert "NCCL_PROTO" not in variables
    chosen = {"NCCL_HOSTID": "mine", "FI_PROVIDER": "tcp"}
    assert (
        environment.job_environment(JOB, context(tmp_path, efa=efa), tmp_path, chosen).items()
        >= chosen.items()
    )


def test_efa_libraries_are_on_the_path_only_with_an_adapter(
    tmp_path: Path,
) -> None:
    container(tmp_path)
    for file in (
        "ofi-nccl/lib/x86_64/libnccl-net.so",
        "efa/lib/libfabric.so.1",
        "efa/lib/libfabric.so",
        "efa/README",
    ):
        (tmp_path / "amazon" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "amazon" / file).touch()
    folders = host.efa_library_dirs(str(tmp_path / "amazon"))
    assert folders == (f"{tmp_path}/amazon/ofi-nccl/lib/x86_64", f"{tmp_path}/amazon/efa/lib")
    assert host.efa_library_dirs(str(tmp_path / "elsewhere")) == ()

    def provider_of(efa: bool, folders: tuple[str, ...], **environ: str) -> str | None:
        variables = environment.job_environment(
            JOB, context(tmp_path, efa, folders), tmp_path, environ
        )
        return variables.get("LD_LIBRARY_PATH")

    assert provider_of(True, folders) == ":".join(folders)
    assert provider_of(True, folders, LD_LIBRARY_PATH="/mine") == ":".join(("/mine", *folders))
    assert provider_of(True, (), LD_LIBRARY_PATH="/mine") == "/mine"
    assert provider_of(True, ()) is None
    assert provider_of(False, folders) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("", "cannot be read: not JSON"),
        ("[]", "is not a JSON object"),
        ({"target": ...}, "has no field target"),
    ],
)
def test_an_invalid_job_document_is_reported(tmp_path: Path, changes: Any, message: str) -> None:
    path = tmp_path / "job.json"
    if not isinstance(changes, str):
        changes = json.dumps(
            {key: value for key, value in document(**changes).items() if value is not ...}
        )
    path.write_text(changes)
    with pytest.raises(RuntimeError) as caught:
        contract.read_job(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)
