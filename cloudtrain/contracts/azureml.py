"""The Azure ML contract: what the service promises each node of a command job. Pure values.

After "Distributed GPU training guide" and the command job's YAML schema in the documentation of
Azure Machine Learning: the variables of a PyTorch distribution, the code as working folder, inputs
and outputs as paths in the command. No signal is promised before a node is taken away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GRACE_SECONDS = 60
"""How long a stop waits for checkpoints before it cancels the job, unless `azure.stop_grace` is
set. Azure ML itself promises no time at all.
"""

MASTER_PORT = 6105
"""MASTER_PORT in Azure ML's documentation; jobs may rely on the variable, not on the number."""

STORED_FOLDERS = ("outputs", "logs")
"""Folders of each node's working folder that Azure ML stores with the job, below `artifact_folder`.
"""

ARTIFACT_STORE = "workspaceartifactstore"
"""The datastore, in every workspace, where Azure ML stores them."""

STOP_FILE = ".cloudtrain-stop"
"""File name in a job's output folder: the launcher stops when it appears. Ours, because Azure ML
sends no signal.
"""

PUBLISHED_FOLDER = ".cloudtrain-published"
"""Folder in a job's output folder, in which the launcher finds what the client publishes while the
job runs.
"""


def artifact_folder(job: str) -> str:
    """The path of a job's folders in the artifact store."""
    return f"ExperimentRun/dcid.{job}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """An input or an output: storage that is mounted at a path which is known only on the node."""

    name: str
    kind: str
    """uri_folder or uri_file."""
    mode: str
    """download, ro_mount, rw_mount, upload."""
    path: str
    """Its URI, `azureml://…` or `https://…`, or a folder on the client's machine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """One copy of the command. The distribution says how many are started per node."""

    node: int
    env: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandJob:
    """What a request starts: its processes, and what is mounted for them."""

    name: str
    code: str
    """The folder that is copied into each node's working folder."""
    command: str
    """A shell command with the placeholders `${{inputs.x}}` and `${{outputs.x}}`."""
    processes: tuple[Process, ...]
    inputs: tuple[Mount, ...]
    outputs: tuple[Mount, ...]
    timeout_seconds: int | None

    def command_line(self, paths: Mapping[str, str]) -> str:
        """The command with every placeholder replaced. `paths`: by `inputs.x` and `outputs.x`.
        KeyError for others.
        """
        return re.sub(
            r"\$\{\{\s*((?:inputs|outputs)\.\w+)\s*\}\}",
            lambda found: paths[found[1]],
            self.command,
        )


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
            for variables in _process_variables(
                document.get("distribution"), node, nodes, master, port
            )
        ),
        inputs=tuple(
            _mount(name, item)
            for name, item in document.get("inputs", {}).items()
            if "path" in item
        ),
        outputs=tuple(_mount(name, item) for name, item in document.get("outputs", {}).items()),
        timeout_seconds=document.get("limits", {}).get("timeout"),
    )


def _process_variables(
    distribution: Mapping[str, Any] | None, node: int, nodes: int, master: str, port: int
) -> list[dict[str, str]]:
    """The variables of each process on a node. Without a distribution each node runs alone.

    ValueError for any other distribution than PyTorch's.
    """
    if distribution is None:
        return [{}]
    if str(distribution["type"]).lower() != "pytorch":
        raise ValueError(
            f"a distribution of type {distribution['type']!r} is not part of this contract"
        )
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
