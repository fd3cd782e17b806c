"""Emulate an Azure ML command job: one process per node, local folders as mounts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.errors import StorageError, UsageError
from cloudtrain.planning.azureml import STOP_FILE, STORED_FOLDERS, Mount, command_job
from cloudtrain.planning.launch import Launch
from cloudtrain.providers.azure.config import AzureConfig, connect
from cloudtrain.providers.azure.request import RESUME, input_name
from cloudtrain.providers.rehearsal.base import (
    HOST_VARIABLES,
    EmulatedPlan,
    ProcessesOfHost,
    machine_variables,
    node_addresses,
    published_variables,
)
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.runs.paths import RunPaths
from cloudtrain.source.results import copy_results

REHEARSAL_VARIABLES = {
    "CLOUDTRAIN_SCHEDULED_EVENTS": "off",
    "CLOUDTRAIN_SERVICE_METRIC": "off",
    "CLOUDTRAIN_TRIAL_FOLDER": "",
}
"""Variables of a rehearsal.

This machine is not in Azure: no eviction is announced, no service for sweeps takes a metric, and
each trial has separate folders.
"""


class AzureMLEmulator(ProcessesOfHost):
    """Executes a command job: each node has its own copy of the code, outputs are shared.

    Local folders replace datastores: the run's own folders for outputs, and the local folders of
    inputs. Inputs without a local folder are downloaded from their datastore.
    """

    def __init__(self, paths: RunPaths, document: Mapping[str, Any], plan: EmulatedPlan) -> None:
        self.paths = paths
        self.plan = plan
        self.addresses = self.names(int(document["resources"]["instance_count"]))
        self.job = command_job(document, master=self.addresses[0], hosts=self.addresses)
        self.max_runtime_seconds: int | None = self.job.timeout_seconds
        self.grace_seconds = plan.grace_seconds

    def names(self, nodes: int) -> tuple[str, ...]:
        """Return addresses of the nodes."""
        return node_addresses(nodes)

    def inherits(self, variable: str) -> bool:
        """Pass on HOST_VARIABLES and the user's Azure credentials, in place of the job's identity."""
        return variable in HOST_VARIABLES or variable.startswith(("AZURE_", "MSI_", "LC_"))

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """Create the working folder of each node; the launches run the command in it."""
        # The shell must not interpret the names of folders, so each path is passed as a variable.
        places = {}
        references = {}
        for name, path in self.mount_paths().items():
            place = name.replace("inputs.", "INPUT_").replace("outputs.", "OUTPUT_")
            places[f"AZURE_ML_{place}"] = str(path)
            references[name] = f"$AZURE_ML_{place}"

        command = self.job.command_line(references)
        machine = machine_variables(self.paths, self.plan)
        published = published_variables(self.paths)
        argv = ("/bin/sh", "-c", command)
        secrets = self.plan.local_secrets()

        launches = []
        for process in self.job.processes:
            folder = self.working_folder(process.node)
            (folder / ARCHIVE).symlink_to(archive)
            env = dict(machine)
            env.update(process.env)
            env.update(places)
            env.update(REHEARSAL_VARIABLES)
            env["CLOUDTRAIN_NODE_ADDR"] = self.addresses[process.node]
            env.update(published)
            launches.append(
                Launch(
                    node=process.node,
                    argv=argv,
                    cwd=str(folder),
                    env=env,
                    secrets=secrets,
                )
            )

        return launches

    def mount_paths(self) -> dict[str, Path]:
        """Return the path of each input and output by its name in the command: `inputs.x`.

        Outputs of `azure.request` are folders or files in the run's output.
        """
        outputs = {
            "model": self.paths.model,
            "output": self.paths.output,
            "checkpoints": self.paths.checkpoints,
        }
        paths = {}
        for mount in self.job.outputs:
            path = outputs.get(mount.name) or self.paths.output / mount.name
            paths[f"outputs.{mount.name}"] = path
            if mount.kind != "uri_file":
                path.mkdir(parents=True, exist_ok=True)

        for mount in self.job.inputs:
            paths[f"inputs.{mount.name}"] = self._input(mount)

        return paths

    def working_folder(self, node: int) -> Path:
        """Create a node's working folder with Azure ML's `outputs`; an existing one is emptied."""
        folder = self.paths.run / "nodes" / str(node) / "wd"
        shutil.rmtree(folder, ignore_errors=True)  # from an earlier start
        (folder / STORED_FOLDERS[0]).mkdir(parents=True)
        return folder

    def collect(self) -> list[str]:
        """Collect what Azure ML would store of the working folders; remove stop files.

        Of several files with the same path, that of the first node is kept.
        """
        for file in self.paths.output.glob(f"{STOP_FILE}*"):
            file.unlink()

        notes: list[str] = []
        for process in reversed(self.job.processes):
            for name in STORED_FOLDERS:
                folder = self.paths.run / "nodes" / str(process.node) / "wd" / name
                if folder.is_dir():
                    copy_results(folder, self.paths.output / name, (), notes.append)

        return notes

    def _input(self, mount: Mount) -> Path:
        """Return the path of an input on this machine: the original folder, not a copy."""
        if mount.name == RESUME:
            location = self.plan.resume_from
        else:
            names = {input_name(name): name for name in self.plan.inputs}
            location = self.plan.local_input(names[mount.name]) or mount.path

        if "://" not in location and not location.startswith("azureml:"):
            if not Path(location).exists():
                raise StorageError(f"input {mount.name}: there is nothing at {location}")
            return Path(location).resolve()

        return self._downloaded(mount.name, location)

    def _downloaded(self, name: str, uri: str) -> Path:
        from cloudtrain.providers.azure.results import download_folder

        if not uri.startswith("azureml://"):
            hint = f"give a local folder for it: inputs: {{{name}: {{local: ./data, azure: …}}}}"
            raise UsageError(f"input {name}: {uri} cannot be read from here", hint=hint)

        config = AzureConfig.from_json(self.plan.target_settings)
        folder = self.paths.run / "inputs" / name
        cloud = connect(config.subscription, config.resource_group, config.workspace)
        if not download_folder(cloud, uri, folder, None):
            raise StorageError(f"input {name}: there is nothing at {uri}")

        files = list(folder.iterdir())
        if len(files) == 1 and uri.endswith(files[0].name):
            return files[0]

        return folder
