"""Emulate SageMaker on this machine: one emulated container per node, each with an /opt/ml.

Checkpoints are copied during the run, as SageMaker uploads them, and results at its end.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from cloudtrain.bundle import bundled
from cloudtrain.errors import StorageError
from cloudtrain.planning.launch import Launch
from cloudtrain.planning.sagemaker import (
    ROOT,
    NodeContainer,
    TrainingJob,
    training_job,
    training_request,
)
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.request import JOB, RESUME, SOURCE
from cloudtrain.providers.rehearsal.base import (
    HOST_VARIABLES,
    EmulatedPlan,
    ProcessesOfHost,
    machine_variables,
    node_addresses,
    published_variables,
)
from cloudtrain.providers.rehearsal.namespace import CHANGES
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.runs.paths import RunPaths
from cloudtrain.source.results import copy_results

# -I -S: a PYTHONPATH or PYTHONHOME of the program must not affect the script that enters the namespace.
_ENTER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("namespace.py")))

FileStates = dict[Path, tuple[int, int]]
"""Path -> size in bytes, and time of the last change in nanoseconds."""


def create_folders(
    job: TrainingJob,
    container: NodeContainer,
    root: Path,
    paths: Mapping[str, Path],
) -> None:
    """Create below `root` what SageMaker has at /opt/ml. Repeating it changes nothing.

    `paths`: content of each channel on this machine, a folder or a file, which is linked and not
    copied. A channel without a path is an empty folder. Raise FileNotFoundError if a path does not
    exist.
    """
    channels = {root / channel.folder: paths.get(channel.name) for channel in job.channels}
    for folder in channels:
        if folder.is_symlink():  # from an earlier start
            folder.unlink()
    for name in job.folders:
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, text in container.files.items():
        (root / name).write_text(text, encoding="utf-8")
    for folder, place in channels.items():
        if place is None:
            continue
        if not place.exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))
        if place.is_dir():
            folder.rmdir()
            folder.symlink_to(place.absolute())
        else:
            link = folder / place.name
            link.unlink(missing_ok=True)
            link.symlink_to(place.absolute())


def hosts_text(hosts: Sequence[str], addresses: Sequence[str]) -> str:
    """Return the content of an /etc/hosts with this machine and the nodes."""
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    lines += [f"{address} {host}" for host, address in zip(hosts, addresses, strict=True)]
    return "\n".join(lines) + "\n"


def has_namespaces() -> bool:
    """Return True if a process can have a private /opt/ml and host name here.

    Tested once, in a child process. CLOUDTRAIN_NAMESPACES=0 disables it.
    """
    return sys.platform == "linux" and os.environ.get("CLOUDTRAIN_NAMESPACES") != "0" and _probe()


@cache
def _probe() -> bool:
    try:
        tried = subprocess.run(
            [*_ENTER, "--probe"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False

    return tried.returncode == 0


def command(
    container: NodeContainer,
    root: Path,
    *,
    hosts_file: Path,
    address: str,
    master: str,
    private: bool,
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command of one node, and its variables.

    `private`: run it in namespaces; otherwise variables name its folder and the nodes' addresses.
    """
    env = dict(container.env)
    if private:
        enter = (*_ENTER, str(root), container.host, str(hosts_file))
        return enter + container.argv, env

    env["SAGEMAKER_BASE_DIR"] = str(root)
    env["CLOUDTRAIN_MASTER_ADDR"] = master
    env["CLOUDTRAIN_NODE_ADDR"] = address
    return container.argv, env


def _with_program(container: NodeContainer) -> NodeContainer:
    """Return the container with an explicit path of our image's default program, `train`.

    This machine's PATH lacks that program.
    """
    if container.argv[:1] != ("train",):
        return container
    return replace(container, argv=("python3", str(bundled("docker") / "train"), *container.argv))


class SageMakerEmulator(ProcessesOfHost):
    """Executes a CreateTrainingJob request as SageMaker would.

    Local files replace S3: the source archive, the local folders of inputs, and the run's own
    folders for checkpoints, model and output. Inputs without a local folder are downloaded from S3.
    """

    interface = "lo" if sys.platform == "linux" else "lo0"

    def __init__(self, paths: RunPaths, body: Mapping[str, Any], plan: EmulatedPlan) -> None:
        self.paths = paths
        self.plan = plan
        self.job = training_job(training_request(body), interface=self.interface)
        self.max_runtime_seconds: int | None = self.job.max_runtime_seconds
        self.grace_seconds = self.job.grace_seconds
        self.synced: dict[Path, FileStates] = {}
        nodes = paths.run / "nodes"
        self.roots = [nodes / str(container.node) / "ml" for container in self.job.containers]

    def inherits(self, variable: str) -> bool:
        """Pass on HOST_VARIABLES and the AWS credentials, which replace the job's role.

        SageMaker's containers do not see the rest of the user's shell.
        """
        return variable in HOST_VARIABLES or variable.startswith(("AWS_", "LC_"))

    def prepare(self, archive: Path) -> Sequence[Launch]:
        """Create /opt/ml of each node with its files and channels; the launches enter it."""
        paths = {SOURCE: self._source(archive), **self.channel_paths()}
        addresses = node_addresses(len(self.roots))
        private = has_namespaces()
        hosts = self.paths.run / "hosts"
        hosts.write_text(hosts_text(self.job.hosts, addresses))
        machine = machine_variables(self.paths, self.plan)

        launches = []
        for container, root, address in zip(
            self.job.containers,
            self.roots,
            addresses,
            strict=True,
        ):
            create_folders(self.job, container, root, paths)
            argv, node_env = command(
                _with_program(container),
                root,
                hosts_file=hosts,
                address=address,
                master=addresses[0],
                private=private,
            )
            env = dict(machine)
            env.update(node_env)
            env.update(published_variables(self.paths))
            secrets = self.plan.local_secrets()
            launches.append(
                Launch(
                    node=container.node,
                    argv=argv,
                    cwd=str(root),
                    env=env,
                    secrets=secrets,
                )
            )

        return launches

    def sync(self) -> None:
        """Copy new checkpoints of every node into the run's checkpoint folder, if S3 gets them."""
        if not self.job.checkpoints_uri:
            return

        for root in self.roots:
            sync_folder(
                root / self.job.checkpoints,
                self.paths.checkpoints,
                self.synced.setdefault(root, {}),
            )

    def collect(self) -> list[str]:
        """Merge the model folders of all nodes into one, and their output folders too.

        Of several files with the same path, the first node's is kept.
        """
        self.sync()
        notes: list[str] = []
        for root in reversed(self.roots):
            for folder, into in (("model", self.paths.model), ("output/data", self.paths.output)):
                copy_results(root / folder, into, (f"{ROOT}/{folder}",), notes.append)
            shutil.rmtree(root.parent / CHANGES, ignore_errors=True)

        return notes

    def channel_paths(self) -> dict[str, Path]:
        """Return the local path of each channel's content, except the source's."""
        paths = {JOB: self.paths.job_file}
        for channel in self.job.channels:
            if channel.name not in (SOURCE, JOB):
                if channel.name == RESUME:
                    location = self.plan.resume_from
                else:
                    location = self.plan.local_input(channel.name)

                paths[channel.name] = self._downloaded(channel.name, location or channel.uri)

        return paths

    def _source(self, archive: Path) -> Path:
        source = self.paths.run / "inputs" / SOURCE
        source.mkdir(parents=True, exist_ok=True)
        if not (source / ARCHIVE).exists():
            (source / ARCHIVE).symlink_to(archive)
        return source

    def _downloaded(self, name: str, uri: str) -> Path:
        if not uri.startswith("s3://"):
            return Path(uri).resolve()

        from cloudtrain.providers.aws.results import download_folder

        folder = self.paths.run / "inputs" / name
        cloud = connect(AwsConfig.from_json(self.plan.target_settings).region)
        if not download_folder(cloud, uri, folder, None):
            raise StorageError(f"input {name}: there is nothing at {uri}")

        return folder


def sync_folder(source: Path, into: Path, known_files: FileStates) -> None:
    """Copy new and changed files, by size or time, each completely or not at all.

    A file that vanishes or changes meanwhile is left to the next call, and a folder never replaces
    a file, or a file a folder. Symbolic links are skipped: cloud storage has none. `known_files`:
    files copied by earlier calls, updated in place; those deleted in `source` since are deleted in
    `into`, as SageMaker does.
    """
    current = dict(_file_states(source))
    for path, state in current.items():
        if known_files.get(path) == state:
            continue
        with suppress(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError):
            if _copy(path, into / path.relative_to(source)):
                known_files[path] = state
    for path in known_files.keys() - current.keys():
        del known_files[path]
        _delete(into, path.relative_to(source))


def _file_states(folder: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    yield path, (status.st_size, status.st_mtime_ns)


def _copy(path: Path, target: Path) -> bool:
    """Copy a file and its time; return False if it has changed meanwhile."""
    before = path.lstat()
    target.parent.mkdir(parents=True, exist_ok=True)

    draft = target.with_name(f".cloudtrain-{os.urandom(4).hex()}.part")
    try:
        shutil.copyfile(path, draft, follow_symlinks=False)
        os.utime(draft, ns=(before.st_atime_ns, before.st_mtime_ns))
        if _content_id(path.lstat()) != _content_id(before):
            return False
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)

    return True


def _content_id(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _delete(folder: Path, path: Path) -> None:
    """Delete a file, and the folders that are empty after that."""
    with suppress(OSError):
        (folder / path).unlink()
        for parent in path.parents[:-1]:
            (folder / parent).rmdir()
