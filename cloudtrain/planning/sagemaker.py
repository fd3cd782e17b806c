"""Contract of SageMaker: the environment of each container of a training job. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cloudtrain.planning.launch import unfolded

ROOT = "/opt/ml"
GRACE_SECONDS = 120
"""Time from SIGTERM to SIGKILL, after a stop and at the time limit."""

MIN_KEPT_CHECKPOINTS = 2
"""Safe minimum: S3 may delete the old checkpoint before it has the new one."""

FAILURE_FILE = "output/failure"
FAILURE_CHARACTERS = 1024
"""Length of the failure file's part in the FailureReason."""

FOLDERS = ("input/config", "input/data", "model", "output/data", "code")
DEFAULT_MAX_RUNTIME_SECONDS = 86_400
_GROUP = "homogeneousCluster"

FILE_SYSTEMS = {"fsx": "FSxLustre", "efs": "EFS"}
"""Scheme of our URIs -> FileSystemType."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Channel:
    """Input: data from S3 or a file system in `input/data/<name>` of a container."""

    name: str
    uri: str
    mode: str
    """File: copied before the start. FastFile: read-only, streamed on access."""

    @property
    def folder(self) -> str:
        """Path below /opt/ml."""
        return f"input/data/{self.name}"


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeContainer:
    """A node at its start. Paths are relative to /opt/ml."""

    node: int
    """Index of the host in lexicographic order: algo-10 comes before algo-2."""
    host: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    """Content of the JSON files in input/config, by path."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingJob:
    """Containers of a request and the places of their output."""

    name: str
    instance_type: str
    hosts: tuple[str, ...]
    containers: tuple[NodeContainer, ...]
    channels: tuple[Channel, ...]
    folders: tuple[str, ...]
    checkpoints: str
    """Checkpoint folder below /opt/ml: restored at the start, uploaded on changes."""
    checkpoints_uri: str
    """Empty: checkpoints are not uploaded."""
    tensorboard: str
    """Folder below /opt/ml with TensorBoard files, uploaded on changes."""
    tensorboard_uri: str
    """Empty: they are not uploaded."""
    results: Mapping[str, str]
    """Folder below /opt/ml -> URI of all nodes' content: an archive, or a folder with a slash."""
    max_runtime_seconds: int
    grace_seconds: int = GRACE_SECONDS


def training_job(
    body: Mapping[str, Any],
    *,
    interface: str,
    region: str = "us-east-1",
    account: str = "123456789012",
) -> TrainingJob:
    """Return what SageMaker would start for a CreateTrainingJob request.

    `interface`: network interface between the nodes, for resourceconfig.json. The first of several
    instance preferences is used.
    """
    name = body["TrainingJobName"]
    algorithm = body["AlgorithmSpecification"]
    instance_type, count = instance_of(body["ResourceConfig"])
    hosts = tuple(sorted(f"algo-{number}" for number in range(1, count + 1)))
    channels = tuple(_channel(item, algorithm) for item in body.get("InputDataConfig", []))
    env = {
        "TRAINING_JOB_NAME": name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:{region}:{account}:training-job/{name}",
        "AWS_REGION": region,
    }
    env |= body.get("Environment", {})
    # Without an entrypoint in the request the image runs with the argument `train`.
    argv = list(algorithm.get("ContainerEntrypoint", ("train",)))
    argv += algorithm.get("ContainerArguments", ())
    network = (instance_type, interface)
    config = {
        "input/config/hyperparameters.json": dict(body.get("HyperParameters", {})),
        "input/config/inputdataconfig.json": {
            item.name: _channel_config(item) for item in channels
        },
    }
    containers = []
    for node, host in enumerate(hosts):
        files = _config_files(config, host, hosts, network)
        containers.append(
            NodeContainer(node=node, host=host, argv=tuple(argv), env=env, files=files)
        )

    keep = body.get("CheckpointConfig", {})
    checkpoints = _below_root(keep.get("LocalPath", f"{ROOT}/checkpoints"))
    tensorboard = body.get("TensorBoardOutputConfig", {})
    tensorboard_folder = _below_root(tensorboard.get("LocalPath", f"{ROOT}/output/tensorboard"))
    folders = [*FOLDERS, checkpoints]
    if tensorboard:
        folders.append(tensorboard_folder)

    folders += [channel.folder for channel in channels]
    results = result_uris(body)
    stopping = body.get("StoppingCondition", {})

    return TrainingJob(
        name=name,
        instance_type=instance_type,
        hosts=hosts,
        containers=tuple(containers),
        channels=channels,
        folders=tuple(folders),
        checkpoints=checkpoints,
        checkpoints_uri=keep.get("S3Uri", ""),
        tensorboard=tensorboard_folder,
        tensorboard_uri=tensorboard.get("S3OutputPath", ""),
        results={"model": results["model"], "output/data": results["output"]},
        max_runtime_seconds=stopping.get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_SECONDS),
    )


def training_request(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the CreateTrainingJob body of a request, which a request to a queue holds as text."""
    body: Mapping[str, Any] = unfolded(document).get("serviceRequestPayload", document)
    return body


def result_uris(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the URIs of a job's model and output: archives, or folders without compression.

    AWS's own SDK (sagemaker-train 1.27) reads `output/output/` of a job without compression.
    """
    config = body["OutputDataConfig"]
    base = f"{config['S3OutputPath'].rstrip('/')}/{body['TrainingJobName']}/output"
    suffix = "/" if config.get("CompressionType") == "NONE" else ".tar.gz"
    return {name: f"{base}/{name}{suffix}" for name in ("model", "output")}


def _config_files(
    config: Mapping[str, Any], host: str, hosts: tuple[str, ...], network: tuple[str, str]
) -> dict[str, str]:
    """Return the files in input/config of a host. `network`: instance type and interface."""
    documents = dict(config)
    documents["input/config/resourceconfig.json"] = _resource_config(host, hosts, *network)
    return {path: json.dumps(value, indent=2) for path, value in documents.items()}


def instance_of(resources: Mapping[str, Any]) -> tuple[str, int]:
    """Return instance type and count of a ResourceConfig, by its first preference.

    For groups of several types: an empty type, and the count of all.
    """
    if groups := resources.get("InstanceGroups"):
        return "", sum(group["InstanceCount"] for group in groups)

    first = (resources.get("InstancePreferences") or [resources])[0]
    return first["InstanceType"], first.get("InstanceCount", resources.get("InstanceCount", 1))


def _channel(item: Mapping[str, Any], algorithm: Mapping[str, Any]) -> Channel:
    mode = item.get("InputMode", algorithm["TrainingInputMode"])
    return Channel(name=item["ChannelName"], uri=_uri(item["DataSource"]), mode=mode)


def is_file_system(uri: str) -> bool:
    """Return whether the URI of an input is a folder of FSx for Lustre or of EFS."""
    return uri.partition("://")[0] in FILE_SYSTEMS


def file_system_source(uri: str) -> dict[str, Any]:
    """Return the DataSource that mounts the folder of a file system, to read it."""
    scheme, _, place = uri.partition("://")
    file_system, _, folder = place.partition("/")
    return {
        "FileSystemDataSource": {
            "FileSystemId": file_system,
            "FileSystemType": FILE_SYSTEMS[scheme],
            "DirectoryPath": f"/{folder.rstrip('/')}",
            "FileSystemAccessMode": "ro",
        }
    }


def _uri(source: Mapping[str, Any]) -> str:
    mounted = source.get("FileSystemDataSource")
    if mounted is None:
        return str(source["S3DataSource"]["S3Uri"])

    schemes = {kind: scheme for scheme, kind in FILE_SYSTEMS.items()}
    scheme = schemes[mounted["FileSystemType"]]
    return f"{scheme}://{mounted['FileSystemId']}{mounted['DirectoryPath']}"


def _channel_config(channel: Channel) -> dict[str, str]:
    return {
        "TrainingInputMode": channel.mode,
        "S3DistributionType": "FullyReplicated",
        "RecordWrapperType": "None",
    }


def _resource_config(
    host: str, hosts: tuple[str, ...], instance_type: str, interface: str
) -> dict[str, Any]:
    return {
        "current_host": host,
        "current_instance_type": instance_type,
        "current_group_name": _GROUP,
        "hosts": list(hosts),
        "instance_groups": [
            {"instance_group_name": _GROUP, "instance_type": instance_type, "hosts": list(hosts)},
        ],
        "network_interface_name": interface,
        "topology": None,
    }


def _below_root(path: str) -> str:
    return path.removeprefix(ROOT).strip("/")
