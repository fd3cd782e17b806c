"""AWS's own programs read the files of the container contract, and the request of a submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore
import pytest

from cloudtrain.planning.sagemaker import NodeContainer, training_job
from tests.oracles.tools import PYTHON, needs_local_mode, needs_oracles, needs_toolkit
from tests.support.command_line import CommandLine

GOLDEN = Path(__file__).parents[1] / "golden"
READ = """
import json
from sagemaker_training.environment import Environment
environment = Environment()
names = ("job_name", "current_host", "hosts", "network_interface_name", "hyperparameters",
         "channel_input_dirs", "current_instance_type", "current_instance_group_hosts",
         "is_hetero", "master_hostname", "model_dir", "output_data_dir", "input_config_dir")
print(json.dumps({name: getattr(environment, name) for name in names}))
"""


def request_of(case: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((GOLDEN / f"{case}.json").read_text())["request"]
    return document


def environment_of(container: NodeContainer, root: Path) -> dict[str, str]:
    """Write the files of a node; return its variables."""
    for path, text in container.files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    (root / "code").mkdir(exist_ok=True)
    own = {"SAGEMAKER_BASE_DIR": str(root), "PYTHONPATH": str(Path("entrypoints").absolute())}
    return os.environ | dict(container.env) | own


def run_in(root: Path, program: str, environment: dict[str, str]) -> dict[str, Any]:
    """Run a program in the job's folder; return the JSON in its last line."""
    result = subprocess.run(
        [PYTHON, "-c", program],
        cwd=root / "code",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


@needs_toolkit
@pytest.mark.parametrize("nodes", [1, 3, 11])
def test_the_container_toolkit_reads_the_files_of_each_node(nodes: int, tmp_path: Path) -> None:
    body = request_of("aws-spot")
    body["ResourceConfig"]["InstanceCount"] = nodes
    body["HyperParameters"] = {"lr": "0.1", "name": "digits"}
    job = training_job(body, interface="eth0")
    assert len(job.containers) == nodes
    for container in (job.containers[0], job.containers[-1]):
        root = tmp_path / container.host
        seen = run_in(root, READ, environment_of(container, root))
        base = root if Path(seen["model_dir"]).is_relative_to(root / "model") else root / "opt/ml"
        assert seen == {
            "job_name": job.name,
            "current_host": container.host,
            "hosts": list(job.hosts),
            "network_interface_name": "eth0",
            "hyperparameters": {"lr": 0.1, "name": "digits"},
            "channel_input_dirs": {
                channel.name: str(base / channel.folder) for channel in job.channels
            },
            "current_instance_type": job.instance_type,
            "current_instance_group_hosts": list(job.hosts),
            "is_hetero": False,
            "master_hostname": job.hosts[0],
            "model_dir": str(base / "model"),
            "output_data_dir": str(base / "output/data"),
            "input_config_dir": str(base / "input/config"),
        }


LOCAL_MODE = """
import os, pathlib
from sagemaker.core.shapes import Channel, DataSource, FileSystemDataSource
from sagemaker.train.local.local_container import _LocalContainer
source = DataSource(file_system_data_source=FileSystemDataSource(
    file_system_id="fs", file_system_access_mode="ro", file_system_type="EFS", directory_path="/"))
container = _LocalContainer(
    training_job_name="digits", instance_type="ml.g4dn.xlarge",
    instance_count=int(os.environ["NODES"]), image="image", container_root=os.getcwd(),
    input_data_config=[Channel(channel_name=name, data_source=source) for name in ("a", "b")],
    environment={}, hyper_parameters={"lr": "0.1", "name": "digits"},
    container_entrypoint=None, container_arguments=None)
for host in container.hosts:
    container._create_config_file_directories(host)
    container._write_config_files(host, container.input_data_config, container.hyper_parameters)
print("{}")
"""
NOT_IN_LOCAL_MODE = {"current_group_name", "instance_groups", "topology"}
"""Members of resourceconfig.json that only the service writes."""


@needs_local_mode
@pytest.mark.parametrize("nodes", [1, 3])
def test_local_mode_of_the_sdk_writes_the_same_files(nodes: int, tmp_path: Path) -> None:
    body = request_of("aws-spot")
    body["ResourceConfig"]["InstanceCount"] = nodes
    body["HyperParameters"] = {"lr": "0.1", "name": "digits"}
    channel = body["InputDataConfig"][0]
    body["InputDataConfig"] = [{**channel, "ChannelName": name} for name in ("a", "b")]
    (tmp_path / "code").mkdir()
    run_in(tmp_path, LOCAL_MODE, os.environ | {"NODES": str(nodes)})

    for container in training_job(body, interface="ethwe").containers:
        for path, text in container.files.items():
            ours = json.loads(text)
            theirs = json.loads((tmp_path / "code" / container.host / path).read_text())
            assert set(theirs) <= set(ours)
            assert set(ours) - set(theirs) <= NOT_IN_LOCAL_MODE
            for name, value in theirs.items():
                same = {key: ours[name][key] for key in value} if isinstance(value, dict) else None
                assert (same or ours[name]) == value


TOOLKIT_VARIABLES = """
import json
from sagemaker_training.environment import Environment
print(json.dumps(Environment().to_env_vars()))
"""
OUR_VARIABLES = """
import json, os, pathlib
from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.environment import job_environment
from cloudtrain_launcher.platforms import find_node_context
values = {"batch-size": 8, "lr": 0.1, "name": "digits"}
argv = ["--batch-size", "8", "--lr", "0.1", "--name", "digits"]
job = Job("run", "digits", "script", "train.py", argv, values, 1, 1, 0, 0, 30, 600, 3)
env = job_environment(job, find_node_context(os.environ), pathlib.Path(os.getcwd()), os.environ)
print(json.dumps({name: value for name, value in env.items() if name.startswith("SM_")}))
"""
MODEL_TRAINERS = {
    *("SM_MASTER_ADDR", "SM_MASTER_PORT", "SM_HOST_COUNT", "SM_CURRENT_HOST_RANK"),
    "SM_HP_BATCH_SIZE",
}
"""Variables of the SDK's ModelTrainer, which the toolkit does not set."""


NOT_OURS = {
    "is_modelparallel_enabled",
    "is_smddpmprun_installed",
    "is_smddprun_installed",
    "topology",
}
"""Facts of the toolkit about AWS's own libraries and GB200 machines."""


@needs_toolkit
@pytest.mark.parametrize("nodes", [1, 3])
def test_scripts_get_the_variables_of_the_container_toolkit(nodes: int, tmp_path: Path) -> None:
    body = request_of("aws-spot")
    body["ResourceConfig"]["InstanceCount"] = nodes
    body["InputDataConfig"] = request_of("aws")["InputDataConfig"][2:4]  # not the job's own
    body["HyperParameters"] = {
        "batch-size": "8",
        "lr": "0.1",
        "name": "digits",
        "sagemaker_torch_distributed_enabled": "true",
    }
    for container in training_job(body, interface="eth0").containers:
        root = tmp_path / container.host
        environment = environment_of(container, root) | {"SAGEMAKER_PROGRAM": "train.py"}
        theirs = run_in(root, TOOLKIT_VARIABLES, environment)
        ours = run_in(root, OUR_VARIABLES, environment)
        assert set(ours) == set(theirs) | MODEL_TRAINERS
        documents = [json.loads(variables.pop("SM_TRAINING_ENV")) for variables in (ours, theirs)]
        assert {name: ours[name] for name in theirs} == theirs
        expected = {name: value for name, value in documents[1].items() if name not in NOT_OURS}
        assert documents[0] == expected


@needs_toolkit
def test_toolkits_own_launcher_runs_the_script_of_a_job(tmp_path: Path) -> None:
    cli = CommandLine(tmp_path)
    cli.write(
        job_yaml=f"""
name: toolkit
launcher: none
entrypoint: ["{PYTHON}", -m, sagemaker_training.cli.train]
args: {{sagemaker_program: train.py, sagemaker_submit_directory: /opt/ml/code, epochs: 3}}
""",
        train_py="""
import os, sys
with open(os.environ["SM_MODEL_DIR"] + "/model", "w") as file:
    file.write(" ".join(sys.argv[1:]))
""",
    )
    result = cli.run("submit", "--as", "aws", "--run-id", "toolkit-1")
    cli.close()
    assert result.code == 0, result.err
    assert (cli.run_folder("toolkit-1") / "model" / "model").read_text() == "--epochs 3"


@needs_oracles
@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("aws*.json")))
def test_the_aws_command_line_accepts_each_golden_request(case: str, tmp_path: Path) -> None:
    body = request_of(case)
    operation = ["sagemaker", "create-hyper-parameter-tuning-job"]
    if "TrainingJobName" in body:
        operation = ["sagemaker", "create-training-job"]
    elif "jobQueue" in body:
        operation = ["batch", "submit-service-job"]

    (tmp_path / "request.json").write_text(json.dumps(body))
    command = [sys.executable, "-m", "awscli", *operation]
    options = ["--cli-input-json", "file://request.json", "--generate-cli-skeleton", "output"]
    result = subprocess.run(
        [*command, *options],
        cwd=tmp_path,
        env=os.environ
        | {
            "AWS_DEFAULT_REGION": "us-east-1",
            # the command line's own model is older than some members
            "AWS_DATA_PATH": str(Path(botocore.__file__).parent / "data"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert any(name.lower().endswith("jobarn") for name in json.loads(result.stdout))
