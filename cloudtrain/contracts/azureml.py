"""The Azure ML contract: what the service promises each node of a command job. Pure values.

After "Distributed GPU training guide" and the command job's YAML schema in the documentation of Azure Machine
Learning: the variables of a PyTorch distribution, the code as working folder, inputs and outputs as paths in the
command. No signal is promised before a node is taken away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GRACE_SECONDS = 60
"""How long a stop of ours waits for checkpoints before it cancels, unless `azure.stop_grace` says otherwise. Azure ML
itself promises no time at all."""

MASTER_PORT = 6105
"""What Azure ML's documentation shows as MASTER_PORT; a job may rely on the variable, not on the number."""


STORED_FOLDERS = ("outputs", "logs")
"""Of each node's working folder: what lies there is stored with the job, below `artifact_folder`."""

ARTIFACT_STORE = "workspaceartifactstore"
"""The datastore, which every workspace has, of what Azure ML stores with a job by itself."""

STOP_FILE = ".cloudtrain-stop"
"""In a job's output folder: its launcher stops when it appears. A word of ours, as Azure ML sends no signal."""


def artifact_folder(job: str) -> str:
    """Where in the artifact store the folders of a job lie."""
    return f"ExperimentRun/dcid.{job}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """An input or an output: storage that a node finds at a path which only the node knows."""

    name: str
    kind: str
    """uri_folder or uri_file."""
    mode: str
    """download, ro_mount, rw_mount, upload."""
    path: str
    """Where it lies: `azureml://…`, `https://…`, or a folder of the client's machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One copy of the command. Azure ML starts as many per node as the distribution says."""

    node: int
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandJob:
    """What a request means: its processes, and what is mounted for them."""

    name: str
    code: str
    """The folder whose content is each node's working folder."""
    command: str
    """For a shell, with `${{inputs.x}}` and `${{outputs.x}}` still in it."""
    processes: tuple[Process, ...]
    inputs: tuple[Mount, ...]
    outputs: tuple[Mount, ...]
    timeout_seconds: int | None

    def command_line(self, places: Mapping[str, str]) -> str:
        """The command with every placeholder replaced; `places` has a path for `inputs.x`, `outputs.x` each.

        KeyError for a name that is neither.
        """
        return re.sub(r"\$\{\{\s*((?:inputs|outputs)\.\w+)\s*\}\}", lambda found: places[found[1]], self.command)


def command_job(document: Mapping[str, Any], *, master: str, port: int = MASTER_PORT) -> CommandJob:
    """What Azure ML would start for a command-job document.

    `master`: the address of the first node, as all nodes reach it.
    """
    nodes = int(document.get("resources", {}).get("instance_count", 1))
    common = {"AZUREML_RUN_ID": document["name"], **document.get("environment_variables", {})}
    return CommandJob(
        name=document["name"],
        code=document.get("code", ""),
        command=document["command"],
        processes=tuple(
            Process(node=node, env={**common, **variables})
            for node in range(nodes)
            for variables in _distributed(document.get("distribution"), node, nodes, master, port)
        ),
        inputs=tuple(_mount(name, item) for name, item in document.get("inputs", {}).items() if "path" in item),
        outputs=tuple(_mount(name, item) for name, item in document.get("outputs", {}).items()),
        timeout_seconds=document.get("limits", {}).get("timeout"),
    )


def _distributed(
    distribution: Mapping[str, Any] | None, node: int, nodes: int, master: str, port: int
) -> list[dict[str, str]]:
    """The variables of each process on a node. Without a distribution every node runs for itself and knows no other."""
    if distribution is None:
        return [{}]
    if str(distribution["type"]).lower() != "pytorch":
        raise ValueError(f"a distribution of type {distribution['type']!r} is not part of this contract")
    each = int(distribution.get("process_count_per_instance") or 1)
    return [
        {
            "MASTER_ADDR": master,
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(nodes * each),
            "NODE_RANK": str(node),
            "RANK": str(node * each + local),
            "LOCAL_RANK": str(local),
        }
        for local in range(each)
    ]


def _mount(name: str, item: Mapping[str, Any]) -> Mount:
    return Mount(
        name=name,
        kind=item.get("type", "uri_folder"),
        mode=item.get("mode", ""),
        path=item.get("path", ""),
    )
