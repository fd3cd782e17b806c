"""Emulators, which execute a request here: interface, files of a run, plan, and the plain contract."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from cloudtrain.declaration import declaration_of
from cloudtrain.errors import SourceError, StorageError
from cloudtrain.planning.launch import PACKAGES_DIR, PUBLISHED, Launch
from cloudtrain.runs.files import FOLDER_MODE, make_private_folder
from cloudtrain.runs.folder import PLAN, RunFolder
from cloudtrain.runs.paths import RunPaths
from cloudtrain.source.extract import DAMAGED, Header
from cloudtrain.source.results import copy_results

HOST_VARIABLES = {
    "PATH",
    "HOME",
    "USER",
    "LANG",
    "TMPDIR",
    "TZ",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "PYTHONDONTWRITEBYTECODE",
}
"""Variables that programs need on this machine, whatever the contract."""

LaunchT = TypeVar("LaunchT", bound=Launch, covariant=True)

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EmulatedPlan:
    """Parts of a stored plan that its execution on this machine depends on."""

    provider: str
    """Provider that executes the request."""
    contract: str
    grace_seconds: int
    gpus: int | None
    """GPUs per node, if the machine in the request determines them."""
    folder: str
    """Folder of the job; relative paths start there."""
    resume_from: str
    inputs: Mapping[str, Mapping[str, str]]
    """Locations per provider, by name of the input."""
    secrets: Mapping[str, Mapping[str, str]]
    image: str
    """Image of containers on this machine; empty for processes."""
    cores: int
    """Cores of this machine; all nodes share them."""
    host_settings: Mapping[str, Any]
    target_settings: Mapping[str, Any]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EmulatedPlan:
        """Read a plan from the result of its `to_json`."""
        target = document.get("target") or {}
        spec = document.get("spec") or {}
        context = document.get("facts") or {}
        host = (document.get("host") or target).get("facts") or {}
        return cls(
            provider=document["provider"],
            contract=target.get("contract", "plain"),
            grace_seconds=target.get("grace_seconds", 0),
            gpus=target.get("gpus"),
            folder=context.get("folder", ""),
            resume_from=context.get("resume_from", ""),
            inputs={name: item["uri"] for name, item in spec.get("inputs", {}).items()},
            secrets=spec.get("secrets", {}),
            image=host.get("image") or "",
            cores=host.get("cores", 1),
            host_settings=host,
            target_settings=target.get("facts") or {},
        )

    @property
    def python(self) -> str:
        """Path of the Python that runs the nodes' programs. StorageError if the plan lacks it."""
        python = self.host_settings.get("python")
        if not isinstance(python, str):
            hint = "the run's folder was changed by hand, or its disk failed"
            raise StorageError(
                f"{PLAN} cannot be read: it does not say which python runs the job",
                hint=hint,
            )

        return python

    def local_input(self, name: str) -> str:
        """Return the path of an input on this machine; empty without a local one in the spec."""
        location = self._on_this_machine(self.inputs.get(name, {}))
        if not location:
            return ""

        return str(Path(self.folder) / Path(location).expanduser())

    def local_secrets(self) -> dict[str, str]:
        """Return the local locations of secrets, if the spec has any."""
        places = {}
        for name, locations in self.secrets.items():
            location = self._on_this_machine(locations)
            if location:
                places[name] = location

        return places

    def _on_this_machine(self, locations: Mapping[str, str]) -> str:
        """Return the spec's location for this machine; empty if it is an address.

        Looks for the executing provider first, then for any run on this machine, then for all
        providers. Addresses are downloaded, as in the cloud.
        """
        location = declaration_of(self.provider).location_for(locations) or ""
        return "" if "://" in location else location


def emulated_plan(run: RunFolder) -> EmulatedPlan:
    """Read the plan of a run. Raise StorageError if it cannot be read."""
    return EmulatedPlan.from_json(run.document(PLAN, {"provider": str, "target.contract": str}))


class Emulator(Protocol[LaunchT]):
    """Executes the request of one run on this machine. `LaunchT`: the type of its launches."""

    max_runtime_seconds: int | None
    grace_seconds: int
    nodes_on_host: bool
    """True if paths on a node are paths on this machine; False for containers."""

    def inherits(self, variable: str) -> bool:
        """Return True if the job gets this variable from the user's environment."""
        ...

    def prepare(self, archive: Path) -> Sequence[LaunchT]:
        """Create folders and files of each node; return one launch per node.

        `archive`: the source.
        """
        ...

    def sync(self) -> None:
        """Copy new checkpoints to the run's folder, about once a second. May raise OSError."""
        ...

    def clean_up(self) -> None:
        """Remove leftovers of the nodes' processes after their end. May raise CloudtrainError."""
        ...

    def collect(self) -> list[str]:
        """Collect the nodes' artifacts in the run's folder at the end; return notes for the log."""
        ...


def node_addresses(count: int) -> tuple[str, ...]:
    """Return one loopback address per node, in lexicographic order, as c10d ranks nodes.

    Linux answers on all of 127/8; elsewhere, and for a single node, it is 127.0.0.1.
    """
    if count == 1 or sys.platform != "linux":
        return ("127.0.0.1",) * count
    return tuple(f"127.0.{node // 100}.{101 + node % 100}" for node in range(count))


def machine_variables(paths: RunPaths, plan: EmulatedPlan) -> dict[str, str]:
    """Return variables of a node: this machine's Python, a share of the cores, kept packages."""
    path = f"{Path(plan.python).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    variables = {"PATH": path, **thread_variables(paths, plan.cores)}
    variables[PACKAGES_DIR] = str(paths.packages)
    return variables


def published_variables(paths: RunPaths) -> dict[str, str]:
    """Return the folder that replaces a cloud's storage for published files, if it exists.

    It overrides the request's own variable.
    """
    if not paths.published.is_dir():
        return {}

    return {PUBLISHED: str(paths.published)}


def thread_variables(paths: RunPaths, cores: int) -> dict[str, str]:
    """Return OMP_NUM_THREADS for a rank: all nodes share this machine's cores.

    Too many threads slow a job down several times, because waiting OpenMP threads keep a core busy.
    """
    job = json.loads(paths.job_file.read_text())
    share = cores // (job["nodes"] * job["processes"])
    return {"OMP_NUM_THREADS": str(max(1, share))}


class ProcessesOfHost:
    """Base of emulators whose nodes are processes here: their supervisor ends all of them."""

    nodes_on_host = True

    def sync(self) -> None:
        """Do nothing: nodes write to the run's folder."""

    def clean_up(self) -> None:
        """Do nothing."""

    def collect(self) -> list[str]:
        """Do nothing: nodes write to the run's folder."""
        return []


class PlainEmulator(ProcessesOfHost):
    """The plain contract: the nodes share the run's folders, without sync or collection."""

    def __init__(self, paths: RunPaths, request: Mapping[str, Any]) -> None:
        self.paths = paths
        self.request = request
        self.max_runtime_seconds = request["max_runtime_seconds"]
        self.grace_seconds = request["grace_seconds"]

    def inherits(self, variable: str) -> bool:
        """Pass on all variables but ours: the job runs as the user would run it."""
        return not variable.startswith("CLOUDTRAIN_")

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """Return the request's own launches."""
        self.copy_source(archive)
        return [Launch.from_json(launch) for launch in self.request["launches"]]

    def copy_source(self, archive: Path) -> None:
        """Copy the source for each node, and the checkpoints of the run that this one resumes."""
        if self.request["resume_from"]:
            earlier = Path(self.request["resume_from"])
            if earlier.is_dir():
                # `print`: into the supervisor's own log
                copy_results(earlier, self.paths.checkpoints, (), print)
        for launch in self.request["launches"]:
            unpack(archive, self.paths.source(launch["node"]))


def unpack(archive: Path, folder: Path) -> None:
    """Extract files, folders and links into `folder`, which is made, or must be empty.

    Raise SourceError if the archive is damaged or has an entry that leads outside, and StorageError
    if the disk refuses; `folder` is left empty then.
    """
    make_private_folder(folder)
    if any(folder.iterdir()):
        raise SourceError(f"cannot unpack into {folder}: it is not empty", hint="name a new folder")
    try:
        _extract(archive, folder)
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, DAMAGED):
            raise SourceError(
                f"the source archive {archive} is damaged or hostile: {error}"
            ) from error
        if isinstance(error, OSError):
            raise StorageError(
                f"cannot unpack {archive} into {folder}: {error.strerror or error}"
            ) from error
        raise


def _extract(archive: Path, folder: Path) -> None:
    with (
        gzip.open(archive) as stream,
        tarfile.open(fileobj=stream, mode="r:", tarinfo=Header) as tar,
    ):
        members = tar.getmembers()
        # The checksum is at the very end, after what tar reads.
        while stream.read(_BLOCK):
            pass
        time_now = time.time()
        for member in members:
            member.mtime = time_now
        # Python before 3.11.4 lacks the filter.
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(folder, members)
    for parent, _, _ in os.walk(folder):  # the filter leaves folders to the umask
        Path(parent).chmod(FOLDER_MODE)
