"""Mapping of SageMaker's /opt/ml and variables to a `NodeContext`. Standard library only.

The container contract is the developer guide's "Run training with your own algorithm".
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from cloudtrain_launcher.contract import JOB_FILE, PUBLISHED, NodeContext, read_object
from cloudtrain_launcher.devices import efa_library_dirs, has_efa

ROOT = "/opt/ml"
BASE_DIR = "SAGEMAKER_BASE_DIR"
"""Replacement for /opt/ml in a rehearsal on a machine without namespaces."""

CHECKPOINT_DIR = "CLOUDTRAIN_CHECKPOINT_DIR"

JOB_CHANNEL = "cloudtrain-job"
RESUME_CHANNEL = "cloudtrain-resume"
RESERVED = ("cloudtrain-source", JOB_CHANNEL, RESUME_CHANNEL)
"""Channels with parts of the job itself, not inputs."""

MASTER_PORT = 7777

OBJECTIVE = "_tuning_objective_metric"
"""Hyperparameter that SageMaker adds to each trial of a tuning job."""

RDMA_TYPES = ("ml.p4", "ml.p5", "ml.p6")
"""Machines with GPUDirect RDMA over EFA (AWS, "Elastic Fabric Adapter for AI/ML").

libfabric before 1.18 needs a variable for that on P4. On machines without RDMA (g4dn, g5, p3dn) the
variable makes libfabric call abort() (ofiwg/libfabric, pull request 8661). Without the variable
libfabric detects the feature.
"""


def sagemaker_context(environ: Mapping[str, str]) -> NodeContext:
    """Describe one container of a training job. Raise RuntimeError for invalid settings."""
    base = base_dir(environ)
    adapter = has_efa()
    host, hosts, interface, machine = _resources(f"{base}/input/config/resourceconfig.json")
    port = environ.get("CLOUDTRAIN_MASTER_PORT") or str(MASTER_PORT)
    if not port.isdecimal():
        raise RuntimeError(f"CLOUDTRAIN_MASTER_PORT is {port!r}: expected a port number")

    channels = f"{base}/input/data"
    job_name = environ.get("TRAINING_JOB_NAME", "")
    chosen = _hyperparameters(f"{base}/input/config/hyperparameters.json")
    # All trials of a tuning job share one checkpoint folder in S3, copied to each of them.
    own_folder = ""
    if OBJECTIVE in chosen and job_name:
        own_folder = f"/{job_name}"

    # gethostname() returns `aws` on every node, which NCCL would take for one machine.
    variables = {"NCCL_HOSTID": host}
    if adapter:
        variables |= _efa_variables(machine)

    return NodeContext(
        platform="sagemaker",
        node_rank=hosts.index(host),
        nodes=len(hosts),
        master_addr=environ.get("CLOUDTRAIN_MASTER_ADDR") or hosts[0],
        master_port=int(port),
        # c10d sorts the nodes by this text, so use the platform's names.
        address=environ.get("CLOUDTRAIN_NODE_ADDR") or host,
        interface=interface,
        output_dir=f"{base}/output/data",
        model_dir=f"{base}/model",
        checkpoint_dir=_checkpoints(environ, base) + own_folder,
        inputs=_channels(channels),
        failure_file=failure_file(environ),
        job_file=environ.get(JOB_FILE) or f"{channels}/{JOB_CHANNEL}/job.json",
        channel_dir=channels,
        config_dir=f"{base}/input/config",
        resume_dir=f"{channels}/{RESUME_CHANNEL}",
        published=environ.get(PUBLISHED, ""),
        variables=variables,
        library_dirs=efa_library_dirs() if adapter else (),
        job_name=job_name,
        hyperparameters=chosen,
    )


def base_dir(environ: Mapping[str, str]) -> str:
    """Return the absolute path of SageMaker's folder, usually /opt/ml."""
    return str(Path(environ.get(BASE_DIR) or ROOT).absolute())


def _checkpoints(environ: Mapping[str, str], base: str) -> str:
    """Return the folder that SageMaker copies to S3; a request with its own names it."""
    folder = environ.get(CHECKPOINT_DIR) or f"{ROOT}/checkpoints"
    if folder.startswith(f"{ROOT}/"):
        return base + folder.removeprefix(ROOT)

    return folder


def failure_file(environ: Mapping[str, str]) -> str:
    """Return the path of the file whose first 1,024 characters become FailureReason."""
    return f"{base_dir(environ)}/output/failure"


def _efa_variables(machine: str) -> dict[str, str]:
    """Return libfabric's variables for a machine with an EFA adapter.

    FI_EFA_FORK_SAFE is not needed: the plug-in sets it (aws-ofi-nccl from 1.1.5, PR 83).
    """
    variables = {"FI_PROVIDER": "efa"}
    if machine.startswith(RDMA_TYPES):
        variables["FI_EFA_USE_DEVICE_RDMA"] = "1"

    return variables


def _resources(path: str) -> tuple[str, list[str], str, str]:
    """Read resourceconfig.json: this node's name, names by rank, interface and instance type."""
    document = read_object(path, "SageMaker's list of the job's nodes")
    current = document.get("current_host")
    hosts = document.get("hosts")
    if not isinstance(hosts, list) or current not in hosts or len(set(hosts)) < len(hosts):
        raise RuntimeError(f"{path}: current_host is {current!r} and hosts is {hosts!r}")

    interface = document.get("network_interface_name") or ""
    machine = document.get("current_instance_type") or ""

    return str(current), sorted(hosts), str(interface), str(machine)


def _hyperparameters(path: str) -> dict[str, str]:
    """Read hyperparameters.json, by name; empty without the file."""
    if not os.path.lexists(path):
        return {}

    document = read_object(path, "SageMaker's list of hyperparameters")
    return {name: str(value) for name, value in document.items()}


def _channels(folder: str) -> dict[str, str]:
    """Return channel -> folder, without SageMaker's own files beside them."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except FileNotFoundError:
        return {}

    return {name: f"{folder}/{name}" for name in names if name not in RESERVED}
