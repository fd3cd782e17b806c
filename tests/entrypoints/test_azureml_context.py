"""Azure ML's mapping: a node's rank and folders from its variables, and the errors if they are
invalid.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.providers.azure.request import SERVICES
from cloudtrain_launcher import contract, environment, platforms
from cloudtrain_launcher.platforms import azureml
from cloudtrain_launcher.platforms.azureml import azureml_context
from tests.entrypoints.launchers import ENTRYPOINTS, document
from tests.entrypoints.platforms import MASTER, folders, variables
from tests.entrypoints.test_launcher_parts import JOB
from tests.support.waiting import HANG_SECONDS

HERE = {"CLOUDTRAIN_NODE_ADDR": "127.0.0.102"}


def test_a_node_context_comes_from_the_variables(tmp_path: Path) -> None:
    paths = folders(tmp_path)
    parent = Path.cwd().parent / "kept"
    node_context = platforms.find_node_context(
        variables(1, 2, CLOUDTRAIN_JOB='{"é": 1}') | paths | HERE
    )
    assert node_context == contract.NodeContext(
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
    node_context = azureml_context(variables() | paths | HERE | {"CLOUDTRAIN_MASTER_PORT": "4711"})
    assert (
        node_context.node_rank,
        node_context.nodes,
        node_context.master_port,
        node_context.resume_dir,
    ) == (0, 1, 4711, "")


def test_a_trial_of_a_sweep_job_has_folders_of_its_own_in_the_outputs(tmp_path: Path) -> None:
    paths = (
        folders(tmp_path)
        | HERE
        | {
            "CLOUDTRAIN_TUNED_batch_size": "16",
            "AZUREML_RUN_ID": "sweep_3",
        }
    )
    node_context = azureml_context(variables() | paths)
    assert (node_context.job_name, node_context.hyperparameters) == (
        "sweep_3",
        {"batch_size": "16"},
    )
    assert node_context.stop_file == f"{tmp_path}/output/sweep_3/.cloudtrain-stop"
    assert [Path(folder).is_dir() for folder in node_context.synced_dirs.values()] == [True] * 3
    assert all(folder.endswith("/sweep_3") for folder in node_context.synced_dirs.values())
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
    carried = {name: azureml._address_of(name) for _, name in socket.if_nameindex()}
    for name, address in carried.items():
        assert azureml.interface_of(address) == ("" if not address else name)
    assert azureml.interface_of("127.0.0.102").startswith("lo")
    assert azureml.interface_of("192.0.2.250") == ""
    assert azureml.interface_of("node-0.example") == ""


def test_a_nodes_address_is_the_one_on_the_route_to_the_first_node() -> None:
    mine = [
        a
        for _, name in socket.if_nameindex()
        if (a := azureml._address_of(name)) and a != "127.0.0.1"
    ]
    expected = [(address, 6105, address) for address in mine]
    expected += [
        ("localhost", 6105, ""),
        ("no-such-host.invalid", 6105, ""),
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
