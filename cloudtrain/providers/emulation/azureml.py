"""A rehearsal as Azure ML: its command job executed here, one process per node, mounts as folders of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cloudtrain.contracts.azureml import STOP_FILE, STORED_FOLDERS, Mount, command_job
from cloudtrain.contracts.launch import Launch
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.request import RESUME, input_name
from cloudtrain.providers.cloud.paths import ARCHIVE
from cloudtrain.providers.emulation import container as rooms
from cloudtrain.providers.emulation.base import (
    HOST_VARIABLES,
    search_path,
    threads,
)
from cloudtrain.providers.emulation.plan import EmulatedPlan
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.providers.emulation.storage_sync import merge

REHEARSAL_VARIABLES = {"CLOUDTRAIN_SCHEDULED_EVENTS": "off"}
"""What a rehearsal tells the launcher: this is no machine of Azure, and nobody announces that it is taken away."""


class AzureMLEmulator:
    """A command job, executed as Azure ML would: each node has its own copy of the code and shares the outputs.

    What the request says of datastores is answered by this machine: the run's own folders for outputs, local folders
    for inputs that have one. Inputs without a local place come from their datastore.
    """

    nodes_on_host = True

    def __init__(self, paths: RunPaths, document: Mapping[str, Any], plan: EmulatedPlan) -> None:
        self.paths, self.plan = paths, plan
        self.addresses = self.names(int(document["resources"]["instance_count"]))
        self.job = command_job(document, master=self.addresses[0])
        self.max_runtime_seconds: int | None = self.job.timeout_seconds
        self.grace_seconds = plan.grace_seconds

    def names(self, nodes: int) -> tuple[str, ...]:
        """What the nodes are reached by."""
        return rooms.addresses(nodes)

    def inherits(self, variable: str) -> bool:
        """What a program needs to run on this machine at all, and the person's Azure in place of the job's identity."""
        return variable in HOST_VARIABLES or variable.startswith(("AZURE_", "MSI_", "LC_"))

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """The working folder of each node, and the command that is run in it."""
        found = {name: str(place) for name, place in self.places().items()}
        # The shell must not read what a folder is called: each place is put in as a variable.
        variables = {
            name: f"AZURE_ML_{name.replace('inputs.', 'INPUT_').replace('outputs.', 'OUTPUT_')}" for name in found
        }
        command = self.job.command_line({name: f"${variable}" for name, variable in variables.items()})
        places = {variables[name]: path for name, path in found.items()}
        machine = {"PATH": search_path(self.plan.python), **threads(self.paths, self.plan.cores)}
        argv, secrets = ("/bin/sh", "-c", command), self.plan.local_secrets()
        launches = []
        for process in self.job.processes:
            folder = self.working_folder(process.node)
            (folder / ARCHIVE).symlink_to(archive)
            address = self.addresses[process.node]
            env = {**machine, **process.env, **places, **REHEARSAL_VARIABLES, "CLOUDTRAIN_NODE_ADDR": address}
            launches.append(Launch(node=process.node, argv=argv, cwd=str(folder), env=env, secrets=secrets))
        return launches

    def places(self) -> dict[str, Path]:
        """Where each input and output lies on this machine, by the command's name for it."""
        outputs = {"model": self.paths.model, "output": self.paths.output, "checkpoints": self.paths.checkpoints}
        places = {f"outputs.{mount.name}": outputs[mount.name] for mount in self.job.outputs}
        return places | {f"inputs.{mount.name}": self._input(mount) for mount in self.job.inputs}

    def working_folder(self, node: int) -> Path:
        """A node's own folder, new and empty."""
        folder = self.paths.run / "nodes" / str(node) / "wd"
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier time
        folder.mkdir(parents=True)
        return folder

    def sync(self) -> None:
        """Nothing: they write where it stays, as to a mounted datastore."""

    def clean_up(self) -> None:
        """Nothing: all that a node starts is a process that carries the run's mark."""

    def collect(self) -> list[str]:
        """What Azure ML would store of the working folders. What the launchers told each other goes."""
        for file in self.paths.output.glob(f"{STOP_FILE}*"):
            file.unlink()
        said: list[str] = []
        for name in STORED_FOLDERS:
            folders = [self.paths.run / "nodes" / str(process.node) / "wd" / name for process in self.job.processes]
            there = [folder for folder in folders if folder.is_dir()]
            for clash in merge(there, self.paths.output / name, str(folders[0]), said.append):
                said.append(f"several nodes wrote {name}/{clash}, each something else: node 0's comes first")
        return said

    def _input(self, mount: Mount) -> Path:
        """Where an input lies on this machine. It is the folder itself, not a copy."""
        if mount.name == RESUME:
            given = self.plan.resume_from
        else:
            name = next(name for name in self.plan.inputs if input_name(name) == mount.name)
            given = self.plan.local_input(name) or mount.path
        if "://" not in given and not given.startswith("azureml:"):
            if not Path(given).exists():
                raise StorageError(f"input {mount.name}: there is nothing at {given}")
            return Path(given).resolve()
        return self._downloaded(mount.name, given)

    def _downloaded(self, name: str, place: str) -> Path:
        from cloudtrain.providers.azure.results import download_folder

        if not place.startswith("azureml://"):
            hint = f"give a local folder for it: inputs: {{{name}: {{local: ./data, azure: …}}}}"
            raise UsageError(f"input {name}: {place} cannot be read from here", hint=hint)
        try:
            from cloudtrain.providers.azure.client import workspace
        except ImportError as error:
            raise UsageError(f"input {name}: {place} cannot be read without azure-ai-ml: {error}") from None

        config, folder = self.plan.target_config(AzureConfig), self.paths.run / "inputs" / name
        cloud = workspace(config.subscription, config.resource_group, config.workspace)
        if not download_folder(cloud, place, folder, None):
            raise StorageError(f"input {name}: there is nothing at {place}")
        files = list(folder.iterdir())
        return files[0] if len(files) == 1 and place.endswith(files[0].name) else folder
