"""SageMaker's mapping: from the tree below /opt/ml and a few variables to the node's `Place`. Standard library only.

The container contract is the developer guide's "Run training with your own algorithm". (Not named `sagemaker`: the
trainer's own folder is on the import path, and a program may want the SDK of that name.)
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Callable, Mapping

from cloudtrain_launcher.contract import JOB_FILE, NodeContext
from cloudtrain_launcher.host import efa_library_dirs, has_efa

BASE_DIR = "SAGEMAKER_BASE_DIR"
"""Where the tree lies when it cannot be at /opt/ml: a rehearsal on a machine without namespaces."""

JOB_CHANNEL, RESUME_CHANNEL = "cloudtrain-job", "cloudtrain-resume"
RESERVED = ("cloudtrain-source", JOB_CHANNEL, RESUME_CHANNEL)
"""Channels that bring what the job is made of, not what it reads."""

MASTER_PORT = 7777

RDMA_TYPES = ("ml.p4", "ml.p5", "ml.p6")
"""Machines whose EFA adapters write into a GPU's memory, by AWS's "Elastic Fabric Adapter for AI/ML": libfabric before
1.18 does not do so on P4 unless it is told to. Told so where the adapter cannot (g4dn, g5, p3dn), it calls abort()
(ofiwg/libfabric, pull request 8661); and where it is told nothing it looks for itself."""


def sagemaker(
    environ: Mapping[str, str],
    efa: Callable[[], bool] = has_efa,
    folders: Callable[[], tuple[str, ...]] = efa_library_dirs,
) -> NodeContext:
    """One container of a training job. RuntimeError if its resourceconfig.json makes no sense."""
    base, adapter = base_dir(environ), efa()
    here, hosts, interface, machine = _resources(f"{base}/input/config/resourceconfig.json")
    port = environ.get("CLOUDTRAIN_MASTER_PORT") or str(MASTER_PORT)
    if not port.isdecimal():
        raise RuntimeError(f"CLOUDTRAIN_MASTER_PORT is {port!r}: expected a port number")
    channels = f"{base}/input/data"
    return NodeContext(
        platform="sagemaker",
        node_rank=hosts.index(here),
        nodes=len(hosts),
        master_addr=environ.get("CLOUDTRAIN_MASTER_ADDR") or hosts[0],
        master_port=int(port),
        # c10d sorts the nodes by this text: the platform's own names keep its order.
        address=environ.get("CLOUDTRAIN_NODE_ADDR") or here,
        interface=interface,
        output_dir=f"{base}/output/data",
        model_dir=f"{base}/model",
        checkpoint_dir=f"{base}/checkpoints",
        inputs=_channels(channels),
        failure_file=failure_file(environ),
        job_file=environ.get(JOB_FILE) or f"{channels}/{JOB_CHANNEL}/job.json",
        channel_dir=channels,
        resume_dir=f"{channels}/{RESUME_CHANNEL}",
        # gethostname() answers `aws` on every node: NCCL would take them all for one machine.
        variables={"NCCL_HOSTID": here, **(_efa_variables(machine) if adapter else {})},
        library_dirs=folders() if adapter else (),
    )


def base_dir(environ: Mapping[str, str]) -> str:
    """The folder that SageMaker's tree begins at."""
    return str(Path(environ.get(BASE_DIR) or "/opt/ml").absolute())


def failure_file(environ: Mapping[str, str]) -> str:
    """The first 1,024 characters written there become the job's FailureReason."""
    return f"{base_dir(environ)}/output/failure"


def _efa_variables(machine: str) -> dict[str, str]:
    """What libfabric must be told on a machine with an EFA adapter."""
    rdma = {"FI_EFA_USE_DEVICE_RDMA": "1"} if machine.startswith(RDMA_TYPES) else {}
    return {"FI_PROVIDER": "efa", **rdma}


def _resources(path: str) -> tuple[str, list[str], str, str]:
    """This node's name, all nodes' names in the order of their ranks, the network interface between them, and what
    machine it is."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
        raise RuntimeError(f"{path}, where SageMaker names the job's nodes, cannot be read: {why}") from None
    if not isinstance(document, dict):
        raise RuntimeError(f"{path}: expected an object with hosts and current_host")
    here, hosts = document.get("current_host"), document.get("hosts")
    if not isinstance(hosts, list) or not all(isinstance(host, str) and host for host in hosts) or not hosts:
        raise RuntimeError(f"{path}: hosts is {hosts!r}: expected a list of names")
    if len(set(hosts)) < len(hosts):
        raise RuntimeError(f"{path}: hosts names a node twice: {', '.join(hosts)}")
    if here not in hosts:
        raise RuntimeError(f"{path}: current_host is {here!r}, which is not among the hosts: {', '.join(hosts)}")
    interface, machine = (document.get(name) or "" for name in ("network_interface_name", "current_instance_type"))
    return str(here), sorted(hosts), str(interface), str(machine)


def _channels(folder: str) -> dict[str, str]:
    """The job's inputs as they lie on disk. SageMaker keeps files of its own beside their folders."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except FileNotFoundError:
        return {}
    return {name: f"{folder}/{name}" for name in names if name not in RESERVED}
