"""The processes of one attempt at a job, from the document that it was written from."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
from collections.abc import ItemsView, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from cloudtrain.planning.azureml import STORED_FOLDERS, CommandJob, Mount
from cloudtrain.providers.rehearsal.base import node_addresses
from tests.fakes.azure.account import Account
from tests.fakes.azure.jobs import LOG_CONTAINER, Job, tracking_variables
from tests.fakes.azure.recorded import duration_seconds
from tests.fakes.containers import Container

# From the PUT body of a command job back to the document that it was written from.

_MODES = {"ReadOnlyMount": "ro_mount", "Download": "download", "ReadWriteMount": "rw_mount"}
_SHORT = r"azureml://datastores/(?P<datastore>[^/]+)/paths/(?P<path>.*)"
_LONG = (
    r"azureml://subscriptions/(?P<subscription>[^/]+)/resourcegroups/(?P<group>[^/]+)(?:/providers/[^/]+)?"
    r"/workspaces/(?P<workspace>[^/]+)/datastores/(?P<datastore>[^/]+)/paths/(?P<path>.*)"
)
_ASSET = (
    r"(?:azureml:|/subscriptions/.*/data/)(?P<name>[^/:@]+)(?::|/versions/)(?P<version>[^/:@]+)"
)


class BlobPath(NamedTuple):
    """A place in a container."""

    container: str
    path: str


def blob_path_of(uri: str, account: Account) -> BlobPath | str:
    """Return the place of an address or a data asset, or the reason why it has none."""
    asset = re.fullmatch(_ASSET, uri)
    if asset:
        uri = account.data.get((asset["name"], asset["version"]), uri)
    match = re.fullmatch(_SHORT, uri, re.IGNORECASE) or re.fullmatch(_LONG, uri, re.IGNORECASE)
    if match:
        named = match.groupdict()
        parts = {
            "subscription": account.subscription,
            "group": account.resource_group,
            "workspace": account.workspace,
        }
        for key, name in parts.items():
            if named.get(key, name).lower() != name.lower():
                return f"The {key} {named[key]} of {uri} does not belong to this workspace."
        datastore = account.datastore(match["datastore"])
        if datastore is None:
            return f"Could not find datastore: {match['datastore']}."
        return BlobPath(datastore.name, match["path"].strip("/"))
    if uri.startswith(f"{account.blob_url}/"):
        container, _, path = (
            uri.removeprefix(f"{account.blob_url}/").partition("?")[0].partition("/")
        )
        if account.storage.container(container) is None:
            return f"The container {container} of {uri} does not exist."
        return BlobPath(container, path.strip("/"))
    return f"{uri} leads out of this imitation, or nowhere."


def document(job: Job) -> dict[str, Any]:
    """The command-job document of a request."""
    body = job.properties
    resources, distribution, limits = (
        body.get(key) or {} for key in ("resources", "distribution", "limits")
    )
    answer: dict[str, Any] = {
        "name": job.name,
        "code": body.get("codeId", ""),
        "command": body["command"],
        "environment_variables": dict(body.get("environmentVariables") or {}),
        "resources": {"instance_count": job.nodes},
        "inputs": {name: _mount(item, "ro_mount") for name, item in _items(body, "inputs")},
        "outputs": {name: _mount(item, "rw_mount") for name, item in _items(body, "outputs")},
    }
    if "instanceType" in resources:
        answer["resources"]["instance_type"] = resources["instanceType"]
    if distribution:
        count = distribution.get("processCountPerInstance", 1)
        kind = distribution["distributionType"].lower()
        answer["distribution"] = {"type": kind, "process_count_per_instance": count}
    if "timeout" in limits:
        answer["limits"] = {"timeout": duration_seconds(limits["timeout"])}
    for name, output in answer["outputs"].items():
        output["path"] = (
            output["path"]
            or f"azureml://datastores/workspaceblobstore/paths/azureml/{job.name}/{name}/"
        )
    return answer


def _items(body: Mapping[str, Any], kind: str) -> ItemsView[str, Any]:
    return (body.get(kind) or {}).items()


def _mount(item: Mapping[str, Any], mode: str) -> dict[str, str]:
    kind = item.get("jobInputType") or item["jobOutputType"]
    return {
        "type": kind,
        "path": item.get("uri") or "",
        "mode": _MODES.get(item.get("mode", ""), mode),
    }


# The processes of one attempt at a job: their folders, what is mounted for them, their log files,
# their end.

CHUNK_BYTES = 65_536


class NoInput(Exception):
    """There is nothing where an input should lie."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self.uri = uri


class ContainerGroup:
    """All processes of one attempt."""

    def __init__(
        self, job: Job, contract: CommandJob, code: Path | None, folder: Path, account: Account
    ) -> None:
        self.job = job
        self.contract = contract
        self.processes = list[Container]()
        self._code = code
        self._folder = folder
        self._account = account
        self._addresses = node_addresses(job.nodes)
        self.failed: tuple[int, int] | None = None
        """The process that failed before all others, and its exit code."""

    def build(self) -> None:
        """A folder for each process, with the code in it. NoInput when an input does not exist."""
        for mount in self.contract.inputs:
            self._source(mount)
        for index in range(len(self.contract.processes)):
            root = self._root(index)
            (root / "home").mkdir(parents=True)
            if self._code is None:
                (root / "wd").mkdir()
            else:
                shutil.copytree(self._code, root / "wd")

    def start(self) -> None:
        """All of them."""
        for index, process in enumerate(self.contract.processes):
            root = self._root(index)
            places = self._places(root)
            # The shell must outlive what it runs: a container is over with its first process.
            argv = ("/bin/sh", "-c", f"trap : TERM\n{self.contract.command_line(places)}")
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
            env = {
                "PATH": path,
                "HOME": str(root / "home"),
                **self._account.env,
                "MSI_SECRET": self._account.machine_secret(
                    self._account.identities_of(self.job.properties)[1]
                ),
                **tracking_variables(self.job, self._account),
                **process.env,
                # A machine has one address, however many nodes share it, unless they get separate
                # ones.
                "CLOUDTRAIN_NODE_ADDR": self._addresses[process.node],
                # This machine lacks a metadata service, or has a foreign one.
                "CLOUDTRAIN_SCHEDULED_EVENTS": "off",
            }
            name = f"{self.job.name}-{index}"
            self.processes.append(
                Container(name, root, argv, env, cwd=root / "wd", read_output=self._log(index).keep)
            )

    def poll(self) -> bool:
        """Return whether all containers have ended."""
        finished = [process.poll() for process in self.processes]
        if self.failed is None:
            codes = ((index, process.code) for index, process in enumerate(self.processes))
            self.failed = next(((index, code) for index, code in codes if code), None)
        return all(finished)

    def end(self) -> None:
        """Send SIGKILL to all running containers."""
        for process in self.processes:
            if process.code is None:
                process.end()

    def keep(self) -> None:
        """Store the parts of each working folder that Azure ML stores by itself, however the
        attempt ended.

        "./outputs" and "./logs", after "Save and log files for Azure Machine Learning" in
        Microsoft's documentation.
        """
        for index, name in itertools.product(range(len(self.contract.processes)), STORED_FOLDERS):
            self._store(
                self._root(index) / "wd" / name,
                BlobPath(LOG_CONTAINER, f"{self.job.log_folder}{name}"),
            )

    def _store(self, folder: Path, place: BlobPath) -> None:
        container = self._account.storage.create(place.container)
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                container.write(
                    f"{place.path}/{path.relative_to(folder).as_posix()}", path.read_bytes()
                )

    def log_file(self, index: int) -> str:
        """The log file of a process."""
        count = len(self.contract.processes)
        suffix = f"_process_{index:0{len(str(count - 1))}}" if count > 1 else ""
        return f"user_logs/std_log{suffix}.txt"

    def _root(self, index: int) -> Path:
        return self._folder / str(index)

    def _log(self, index: int) -> _Log:
        """A new log file; one of an earlier attempt is gone."""
        file = self.log_file(index)
        blob = f"{self.job.log_folder}{file}"
        path = self._account.storage.create(LOG_CONTAINER).renew(blob)
        self.job.open_log(file, blob)
        return _Log(path)

    def _source(self, mount: Mount) -> Path:
        """Return the place of an input on this machine."""
        place = blob_path_of(mount.path, self._account)
        if isinstance(place, str):
            raise NoInput(mount.path)
        path = self._account.storage.create(place.container).folder / place.path
        if not path.exists():
            raise NoInput(mount.path)
        return path

    def _places(self, root: Path) -> dict[str, str]:
        """A path of this process for every input and every output."""
        places: dict[str, Path] = {}
        for mount in self.contract.inputs:
            source = self._source(mount)
            if mount.mode == "download":
                copy = root / "inputs" / mount.name
                if source.is_dir():
                    shutil.copytree(source, copy)
                else:
                    copy.mkdir(parents=True)
                    source = copy = Path(shutil.copy(source, copy))
                source = copy
            places[f"inputs.{mount.name}"] = source
        for mount in self.contract.outputs:
            place = blob_path_of(mount.path, self._account)
            if isinstance(place, str):
                raise RuntimeError(f"an output that leads nowhere was not refused: {place}")
            folder = self._account.storage.create(place.container).folder / place.path
            folder.mkdir(parents=True, exist_ok=True)
            places[f"outputs.{mount.name}"] = folder
        return {name: str(path) for name, path in places.items()}


class _Log:
    """A log file that grows as somebody talks."""

    def __init__(self, path: Path) -> None:
        # Opened at once: when the file is replaced later on, what is still said goes to the old
        # one.
        self._file = path.open("ab", buffering=0)

    def keep(self, output: IO[bytes]) -> None:
        """Write all output to the log at once."""
        with self._file:
            while chunk := os.read(output.fileno(), CHUNK_BYTES):
                self._file.write(chunk)
