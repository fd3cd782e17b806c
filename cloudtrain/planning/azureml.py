"""Contract of Azure ML: the environment of each node of a command job. Pure values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

GRACE_SECONDS = 60
"""Time that a stop waits for checkpoints before it cancels the job.

`azure.stop_grace` changes it. Azure ML itself gives no time.
"""

MASTER_PORT = 6105
"""MASTER_PORT in Azure ML's documentation. Jobs should rely on the variable."""

TENSORFLOW_PORT = 2222
"""Port of each worker in TF_CONFIG."""

STORED_FOLDERS = ("outputs", "logs")
"""Folders of each node that Azure ML stores with the job, below `artifact_folder`."""

ARTIFACT_STORE = "workspaceartifactstore"
"""Datastore for these folders, in every workspace."""

STOP_FILE = ".cloudtrain-stop"
"""File in a job's output folder that stops the launcher. Azure ML sends no signal."""

PUBLISHED_FOLDER = ".cloudtrain-published"
"""Folder in a job's output folder for files that the client publishes during the job."""


def artifact_folder(job: str) -> str:
    """Return the path of a job's folders in the artifact store."""
    return f"ExperimentRun/dcid.{job}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """An input or output: storage mounted at a path that only the node knows."""

    name: str
    kind: str
    """uri_folder or uri_file."""
    mode: str
    """download, ro_mount, rw_mount, upload."""
    path: str
    """URI, `azureml://…` or `https://…`, or a folder on the client's machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A copy of the command. The distribution sets the number per node."""

    node: int
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandJob:
    """Processes of a request and their mounts."""

    name: str
    code: str
    """Folder that is copied into each node's working folder."""
    command: str
    """Shell command with placeholders `${{inputs.x}}` and `${{outputs.x}}`."""
    processes: tuple[Process, ...]
    inputs: tuple[Mount, ...]
    outputs: tuple[Mount, ...]
    timeout_seconds: int | None

    def command_line(self, paths: Mapping[str, str]) -> str:
        """Return the command with its placeholders replaced. `paths`: by `inputs.x`."""
        return re.sub(
            r"\$\{\{\s*((?:inputs|outputs)\.\w+)\s*\}\}",
            lambda match: paths[match[1]],
            self.command,
        )


def command_job(
    document: Mapping[str, Any],
    *,
    master: str,
    port: int = MASTER_PORT,
    hosts: Sequence[str] = (),
) -> CommandJob:
    """Return what Azure ML would start for a command-job document.

    `master`: the address of the first node, as all nodes reach it. `hosts`: addresses of all nodes, for
    a distribution of TensorFlow.
    """
    nodes = int(document.get("resources", {}).get("instance_count", 1))
    common = {"AZUREML_RUN_ID": document["name"]}
    common |= document.get("environment_variables", {})
    distribution = document.get("distribution")
    processes = []
    for node in range(nodes):
        if distribution and str(distribution["type"]).lower() == "tensorflow":
            described = [{"TF_CONFIG": _tf_config(hosts, node)}]
        else:
            described = _process_variables(distribution, node, nodes, master, port)
        processes += [Process(node=node, env=common | variables) for variables in described]

    inputs = document.get("inputs", {}).items()
    outputs = document.get("outputs", {}).items()

    return CommandJob(
        name=document["name"],
        code=document.get("code", ""),
        command=document["command"],
        processes=tuple(processes),
        inputs=tuple(_mount(name, item) for name, item in inputs if "path" in item),
        outputs=tuple(_mount(name, item) for name, item in outputs),
        timeout_seconds=document.get("limits", {}).get("timeout"),
    )


def _process_variables(
    distribution: Mapping[str, Any] | None, node: int, nodes: int, master: str, port: int
) -> list[dict[str, str]]:
    """Return the variables of each process on a node. No distribution: each node is alone.

    Raise ValueError for distributions other than PyTorch and TensorFlow.
    """
    if distribution is None:
        return [{}]
    if str(distribution["type"]).lower() != "pytorch":
        raise ValueError(
            f"a distribution of type {distribution['type']!r} is not part of this contract"
        )

    processes = int(distribution.get("process_count_per_instance") or 1)
    result = []
    for local in range(processes):
        variables = {
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(nodes * processes),
            "NODE_RANK": str(node),
            "RANK": str(node * processes + local),
            "LOCAL_RANK": str(local),
        }
        result.append(variables)

    return result


def _tf_config(hosts: Sequence[str], node: int) -> str:
    """Return the variable of TensorFlow's distribution ("Distributed GPU training guide")."""
    workers = [f"{host}:{TENSORFLOW_PORT}" for host in hosts]
    task = {"type": "worker", "index": node}
    return json.dumps({"cluster": {"worker": workers}, "task": task, "environment": "cloud"})


def _mount(name: str, item: Mapping[str, Any]) -> Mount:
    return Mount(
        name=name,
        kind=item.get("type", "uri_folder"),
        mode=item.get("mode", ""),
        path=item.get("path", ""),
    )
