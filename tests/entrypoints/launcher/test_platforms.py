"""Mappings of each platform to a node: rank, folders and variables, and errors if they are invalid."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cloudtrain.catalog import instances
from cloudtrain.planning.azureml import command_job
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.request import render
from cloudtrain.providers.azure.request import SERVICES
from cloudtrain_launcher import contract, devices, environment, platforms
from cloudtrain_launcher.platforms import azureml, sagemaker
from cloudtrain_launcher.platforms.azureml import azureml_context
from cloudtrain_launcher.platforms.sagemaker import sagemaker_context
from tests.entrypoints.launcher.platforms import MASTER, container, folders, resources, variables
from tests.entrypoints.launcher.test_launcher_parts import JOB
from tests.entrypoints.launchers import ENTRYPOINTS, document
from tests.golden.cases import FULL, plan_of
from tests.support.waiting import HANG_SECONDS

NODES = tuple(f"algo-{number}" for number in range(1, 12))


def context(
    base: Path, efa: bool = False, folders: tuple[str, ...] = (), **environ: str
) -> contract.NodeContext:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sagemaker, "has_efa", lambda: efa)
        patch.setattr(sagemaker, "efa_library_dirs", lambda: folders)
        return sagemaker_context({"SAGEMAKER_BASE_DIR": str(base), **environ})


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
    node = context(tmp_path)
    assert (node.node_rank, node.nodes, node.master_addr) == (rank, len(hosts), master)
    assert (node.address, node.interface, node.master_port) == (host, "lo", 7777)


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


@pytest.mark.parametrize("folder", ["/opt/ml/checkpoints", "/opt/ml/kept/here", "/kept"])
def test_checkpoints_are_saved_where_the_request_says_sagemaker_reads_them(
    tmp_path: Path, folder: str
) -> None:
    text = f"name: d\naws: {{request: {{CheckpointConfig: {{LocalPath: {folder}}}}}}}\n"
    body = render(plan_of("aws", text)).document
    assert body["CheckpointConfig"]["LocalPath"] == folder
    container(tmp_path)
    node = context(tmp_path, **body["Environment"])
    assert node.checkpoint_dir == folder.replace("/opt/ml", str(tmp_path))


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
        replace(JOB, inputs=inputs), context(tmp_path), tmp_path, environ
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
    local_path = render(plan_of("aws", FULL)).document["TensorBoardOutputConfig"]["LocalPath"]
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

    folders = devices.efa_library_dirs(str(tmp_path / "amazon"))
    assert folders == (f"{tmp_path}/amazon/ofi-nccl/lib/x86_64", f"{tmp_path}/amazon/efa/lib")
    assert devices.efa_library_dirs(str(tmp_path / "elsewhere")) == ()

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


HERE = {"CLOUDTRAIN_NODE_ADDR": "127.0.0.102"}


def test_a_node_comes_from_the_variables(tmp_path: Path) -> None:
    paths = folders(tmp_path)
    parent = Path.cwd().parent / "kept"
    node = platforms.find_node_context(variables(1, 2, CLOUDTRAIN_JOB='{"é": 1}') | paths | HERE)
    assert node == contract.NodeContext(
        platform="azureml",
        node_rank=1,
        nodes=2,
        master_addr=MASTER,
        master_port=6105,
        address="127.0.0.102",
        interface="lo" if sys.platform == "linux" else "lo0",
        output_dir=f"{parent}/output",
        model_dir=f"{parent}/model",
        checkpoint_dir=f"{parent}/checkpoint",
        inputs={"TRAIN": f"{tmp_path}/in a mount/train"},
        failure_file="",
        job_file="",
        resume_dir=f"{tmp_path}/earlier",
        job_document='{"é": 1}',
        stop_file=f"{tmp_path}/output/.cloudtrain-stop",
        published=f"{tmp_path}/output/.cloudtrain-published",
        stopped_exit_code=0,
        scheduled_events_url="",
        linked_dirs={
            str(Path.cwd() / name): str(Path.cwd().parent / name) for name in ("outputs", "logs")
        },
        synced_dirs={
            f"{parent}/output": f"{tmp_path}/output",
            f"{parent}/model": f"{tmp_path}/model",
            f"{parent}/checkpoint": f"{tmp_path}/checkpoints",
        },
    )
    del paths["CLOUDTRAIN_RESUME_DIR"]
    node = azureml_context(variables() | paths | HERE | {"CLOUDTRAIN_MASTER_PORT": "4711"})
    assert (node.node_rank, node.nodes, node.resume_dir) == (0, 1, "")
    assert node.master_port == 4711


def tensorflow(index: int, **cluster: list[str]) -> dict[str, str]:
    """Return TF_CONFIG as Azure ML sets it."""
    cluster = cluster or {"worker": ["10.0.0.4:2222", "10.0.0.5:2222"]}
    task = {"type": "worker", "index": index}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task, "environment": "cloud"})}


def mpi(rank: int, **changes: str) -> dict[str, str]:
    """Return the variables of a process that Azure ML starts by mpirun."""
    return {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "AZ_BATCH_MASTER_NODE": "10.0.0.4:6000",
    } | changes


@pytest.mark.parametrize("described", [tensorflow, mpi])
def test_a_node_of_another_distribution_finds_its_place(
    tmp_path: Path, described: Callable[[int], dict[str, str]]
) -> None:
    own = {"CLOUDTRAIN_JOB": json.dumps(document())} | folders(tmp_path)
    nodes = [azureml_context(described(rank) | own | HERE) for rank in range(2)]
    assert [(node.node_rank, node.nodes) for node in nodes] == [(0, 2), (1, 2)]
    assert {(node.master_addr, node.master_port) for node in nodes} == {("10.0.0.4", 6105)}


def test_a_rehearsal_describes_the_workers_of_tensorflow_as_azure_does(tmp_path: Path) -> None:
    text = "name: d\nlauncher: none\nentrypoint: python t.py\nresources: {nodes: 2}\n"
    plan = plan_of("azure", text + "azure: {request: {distribution: {type: TensorFlow}}}\n")
    hosts = ("127.0.0.2", "127.0.0.3")
    job = command_job(get_provider("azure").render(plan).document, master=hosts[0], hosts=hosts)
    assert [process.env["TF_CONFIG"] for process in job.processes] == [
        tensorflow(rank, worker=[f"{host}:2222" for host in hosts])["TF_CONFIG"]
        for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("variables_of_node", "message"),
    [
        (mpi(1, OMPI_COMM_WORLD_LOCAL_RANK="1"), "mpirun has started several launchers"),
        (mpi(1, AZ_BATCH_MASTER_NODE=""), "neither AZ_BATCH_MASTER_NODE nor"),
        (tensorflow(0, worker=["10.0.0.4:2222"], ps=["10.0.0.5:2222"]), "no other task"),
        (tensorflow(2), "expected one worker per node"),
        ({"TF_CONFIG": "{"}, "expected one worker per node"),
    ],
)
def test_a_distribution_with_other_processes_is_refused(
    tmp_path: Path, variables_of_node: dict[str, str], message: str
) -> None:
    own = {"CLOUDTRAIN_JOB": json.dumps(document())} | folders(tmp_path)
    with pytest.raises(RuntimeError, match=message):
        azureml_context(variables_of_node | own | HERE)


def test_a_trial_of_a_sweep_job_has_folders_of_its_own_in_the_outputs(tmp_path: Path) -> None:
    paths = (
        folders(tmp_path)
        | HERE
        | {
            "CLOUDTRAIN_TUNED_batch_size": "16",
            "AZUREML_RUN_ID": "sweep_3",
        }
    )
    node = azureml_context(variables() | paths)
    assert (node.job_name, node.hyperparameters) == (
        "sweep_3",
        {"batch_size": "16"},
    )
    assert node.stop_file == f"{tmp_path}/output/sweep_3/.cloudtrain-stop"
    assert [Path(folder).is_dir() for folder in node.synced_dirs.values()] == [True] * 3
    assert all(folder.endswith("/sweep_3") for folder in node.synced_dirs.values())
    rehearsed = azureml_context(variables() | paths | {"CLOUDTRAIN_TRIAL_FOLDER": ""})
    assert rehearsed.stop_file == f"{tmp_path}/output/.cloudtrain-stop"
    with pytest.raises(RuntimeError, match="has not set AZUREML_RUN_ID"):
        azureml_context(variables() | paths | {"AZUREML_RUN_ID": ""})


def test_variables_of_the_launcher_do_not_reach_the_ranks(tmp_path: Path) -> None:
    environ = (
        variables(1, 2, CLOUDTRAIN_JOB=json.dumps(document(nodes=2))) | folders(tmp_path) | HERE
    )
    context = contract.with_job_file(azureml_context(environ), tmp_path)
    assert contract.read_job(context.job_file).nodes == 2
    variables_of_job = environment.job_environment(JOB, context, tmp_path, environ)
    assert variables_of_job["CLOUDTRAIN_JOB_FILE"] == context.job_file == f"{tmp_path}/job.json"
    assert not {
        "CLOUDTRAIN_JOB",
        "CLOUDTRAIN_RESUME_DIR",
        "MASTER_ADDR",
        "RANK",
        "WORLD_SIZE",
    } & set(variables_of_job)
    assert (
        variables_of_job["PET_NNODES"],
        variables_of_job["PET_NODE_RANK"],
        variables_of_job["PET_MASTER_ADDR"],
    ) == (
        "2",
        "1",
        MASTER,
    )
    assert variables_of_job["CLOUDTRAIN_INPUT_TRAIN"] == f"{tmp_path}/in a mount/train"
    # Azure ML's service counts its log_dir from the job's folder, in which `code` is the
    # program's.
    assert variables_of_job["CLOUDTRAIN_TENSORBOARD_DIR"] == str(
        Path.cwd().parent / SERVICES["tensorboard"]["log_dir"]
    )
    assert not [
        name
        for name in variables_of_job
        if name.startswith(("FI_", "NCCL_")) and name != "NCCL_SOCKET_IFNAME"
    ]


NO_DISTRIBUTION = (
    "the job was submitted without distribution: {type: pytorch, process_count_per_instance: 1}, "
    "so its nodes do not know each other"
)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"MASTER_ADDR": "", "NODE_RANK": "", "WORLD_SIZE": ""},
         f"Azure ML has not set MASTER_ADDR, NODE_RANK, WORLD_SIZE: {NO_DISTRIBUTION}"),
        ({"NODE_RANK": ""}, f"Azure ML has not set NODE_RANK: {NO_DISTRIBUTION}"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE is 'two': expected a whole number"),
        ({"NODE_RANK": "2", "WORLD_SIZE": "2"}, "NODE_RANK is 2 and WORLD_SIZE is 2"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
        ({"LOCAL_RANK": "1"}, "several launchers on one node, because process_count_per_instance is more than 1"),
        ({"CLOUDTRAIN_JOB": ""}, "the variable CLOUDTRAIN_JOB is not set"),
    ],
)  # fmt: skip
def test_invalid_variables_are_reported_with_what_to_do(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        azureml_context(variables() | folders(tmp_path) | HERE | changes)

    assert message in str(caught.value)


def test_the_interface_is_the_one_that_has_the_address() -> None:
    carried = {name: azureml.address_of(name) for _, name in socket.if_nameindex()}
    for name, address in carried.items():
        named = azureml.interface_of(address)
        assert carried.get(named, "") == address, f"{name}: another one may have the same address"

    assert azureml.interface_of("127.0.0.102").startswith("lo")
    assert azureml.interface_of("240.0.0.1") == ""
    assert azureml.interface_of("node-0.example") == ""


def test_a_nodes_address_is_the_one_on_the_route_to_the_first_node() -> None:
    mine = [
        a
        for _, name in socket.if_nameindex()
        if (a := azureml.address_of(name)) and a != "127.0.0.1"
    ]
    expected = [(address, 6105, address) for address in mine]
    expected += [
        ("localhost", 6105, ""),
        ("255.255.255.255", 6105, ""),
        ("a..b", 1, ""),
        ("127.0.0.1", 99999, ""),
    ]
    # In a separate process, which may look up names and routes.
    script = "import sys; from cloudtrain_launcher.platforms.azureml import own_address as o\n"
    script += "print([o(m, p) for m, p, _ in eval(sys.argv[1])])"
    argv = [sys.executable, "-c", script, repr(expected)]
    process = subprocess.run(
        argv, cwd=ENTRYPOINTS, text=True, capture_output=True, check=True, timeout=HANG_SECONDS
    )
    assert process.stdout.strip() == str([address for _, _, address in expected])
    assert azureml.own_address("127.0.0.1", 6105).startswith("127.")
