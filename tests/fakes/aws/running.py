"""The life of one job: machines, inputs, image, containers, archives, and the way it ends."""

from __future__ import annotations

import math
import os
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from cloudtrain.planning.sagemaker import (
    FAILURE_CHARACTERS,
    FAILURE_FILE,
    NodeContainer,
    TrainingJob,
    is_file_system,
    training_job,
)
from cloudtrain.providers.rehearsal import sagemaker as container_emulator
from cloudtrain.providers.rehearsal.base import node_addresses
from cloudtrain_wire.ports import free_port
from tests.fakes.aws.account import Account, Checkpoints, merged, packed
from tests.fakes.aws.jobs import (
    BOOTING,
    DOWNLOADING_IMAGE,
    Job,
    has_accelerators,
    instance_choices,
)
from tests.fakes.aws.request_rules import check_stage, no_objects
from tests.fakes.containers import Container as Process

WriteLine = Callable[[str, bytes], None]
"""Takes a line of the log stream of that name."""


class Node(Process):
    """The container of one node. OSError when there is no such program."""

    def __init__(
        self,
        host: str,
        root: Path,
        argv: Sequence[str],
        env: Mapping[str, str],
        write_line: WriteLine,
    ) -> None:
        stream = f"{host}-{int(time.time() * 1000)}"

        def read_output(lines: IO[bytes]) -> None:
            for line in lines:
                if text := line.rstrip(b"\r\n"):
                    write_line(stream, text)

        # Not in the tree: an image's own working folder is elsewhere.
        super().__init__(host, root, argv, env, cwd=Path(env["HOME"]), read_output=read_output)

    def failure(self) -> str:
        """The content of its failure file, cut to the length that SageMaker reads."""
        try:
            text = (self.root / FAILURE_FILE).read_text("utf-8", "replace")
        except OSError:
            return ""
        return text[:FAILURE_CHARACTERS]


class ContainerGroup:
    """All containers of one attempt."""

    def __init__(
        self, job: TrainingJob, folder: Path, env: Mapping[str, str], write_line: WriteLine
    ) -> None:
        self.job = job
        self.nodes = list[Node]()
        self.roots = [folder / container.host / "ml" for container in job.containers]
        self._folder = folder
        self._env = env
        self._write_line: WriteLine = lambda stream, line: write_line(f"{job.name}/{stream}", line)

    def build(self) -> None:
        """A fresh tree for each, with the channels still empty."""
        for container, root in zip(self.job.containers, self.roots, strict=True):
            root.mkdir(parents=True)
            container_emulator.create_folders(self.job, container, root, {})

    def start(self) -> None:
        """Start all containers, each on its own loopback address."""
        addresses = node_addresses(len(self.roots))
        port = free_port()
        hosts = self._folder / "hosts"
        hosts.write_text(container_emulator.hosts_text(self.job.hosts, addresses))
        for container, root, address in zip(
            self.job.containers, self.roots, addresses, strict=True
        ):
            argv, env = container_emulator.command(
                container,
                root,
                hosts_file=hosts,
                address=address,
                master=addresses[0],
                private=container_emulator.has_namespaces(),
            )
            # One machine has one set of ports, however many containers are on it.
            environment = (
                self._environment(container, root) | env | {"CLOUDTRAIN_MASTER_PORT": str(port)}
            )
            self.nodes.append(Node(container.host, root, argv, environment, self._write_line))

    def poll(self) -> bool:
        """Return whether all containers have ended."""
        finished = [node.poll() for node in self.nodes]
        return all(finished)

    def terminate(self) -> None:
        """Send SIGTERM to all running containers."""
        for node in self.nodes:
            node.terminate()

    def end(self) -> None:
        """Send SIGKILL to all running containers."""
        for node in self.nodes:
            if node.code is None:
                node.end()

    def _environment(self, container: NodeContainer, root: Path) -> dict[str, str]:
        home = root.parent / "home"
        home.mkdir(exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
        return {"PATH": path, "HOME": str(home), **self._env, **container.env}


STOP_FILE_POLL_SECONDS = 0.02
SYNC_SECONDS = 0.2
"""How often a job polls its containers, and syncs their checkpoints."""

INTERNAL = "InternalServerError: We encountered an internal error. Please try again."


class JobEnded(Exception):
    """The job ends here: its status, its secondary status, and why."""

    def __init__(self, status: str, secondary: str = "", reason: str = "") -> None:
        super().__init__(status, secondary, reason)
        self.status = status
        self.secondary = secondary or status
        self.reason = reason


def run(job: Job, account: Account) -> None:
    """Run the job in its own thread; it always reaches an end."""
    folder = account.folder / job.name
    try:
        _JobRun(job, account, folder).live()
    except JobEnded as ended:
        job.finish(ended.status, ended.secondary, ended.reason)
    except Exception:  # noqa: BLE001  (an error of the imitation, which must not look like one of the client's)
        account.unexpected_errors.append(traceback.format_exc())
        job.finish("Failed", "Failed", INTERNAL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _JobRun:
    def __init__(self, job: Job, account: Account, folder: Path) -> None:
        self.job = job
        self.account = account
        self.folder = folder
        self.attempts = 0
        self.trained_seconds = 0.0
        self.runtime_limit = math.inf

    def live(self) -> None:
        """Attempt after attempt, until one ends the job."""
        while True:
            self.attempts += 1
            self._pause()
            self._find_machines()
            self._attempt(self.folder / str(self.attempts))

    def _find_machines(self) -> None:
        """Take the first machines that there are. A job on GPUs waits in `Pending`, unless on spot."""
        job = self.job
        choices = instance_choices(job.body["ResourceConfig"])
        if not job.spot and any(has_accelerators(kind) for kind, _ in choices):
            job.enter("Pending")
        job.choose_machines(self.account.training_plans)
        job.say(BOOTING)
        self._pause()

    def _attempt(self, folder: Path) -> None:
        job = self.job
        account = self.account
        kind, count = job.machines
        body = {**job.body, "ResourceConfig": {"InstanceType": kind, "InstanceCount": count}}
        contract = training_job(
            body, interface="lo", region=account.region, account=account.account
        )
        has_log = not check_stage("logs", job.body, account)
        group = ContainerGroup(
            contract, folder, account.env, account.logs.write_line if has_log else _drop_line
        )
        checkpoints = Checkpoints(
            account.storage,
            contract.checkpoints_uri,
            [root / contract.checkpoints for root in group.roots],
        )
        boards = Checkpoints(
            account.storage,
            contract.tensorboard_uri,
            [root / contract.tensorboard for root in group.roots],
        )
        job.enter("Downloading")
        job.take_machines()
        group.build()
        self._require("download", "Data download failed:")
        self._download(contract, group)
        checkpoints.restore()
        self._pause()
        job.say(DOWNLOADING_IMAGE)
        self._pause()
        job.enter("Training")
        try:
            self._start(group)
            why, first = self._watch(group, checkpoints, contract)
        finally:
            group.end()
        self._require("checkpoints", "Checkpoint upload failed: ")
        checkpoints.sync(last=True)
        boards.sync(last=True)
        if why == "interrupted":
            self._interrupted()
        else:
            self._conclude(group, contract, why, first)

    def _require(self, stage: str, failure: str) -> None:
        """End the job if its role may not do what comes now."""
        if lacked := check_stage(stage, self.job.body, self.account):
            raise JobEnded("Failed", reason=f"ClientError: {failure}{lacked}")

    def _download(self, contract: TrainingJob, group: ContainerGroup) -> None:
        """Download every channel to each node."""
        for channel in contract.channels:
            first, *remaining = (root / channel.folder for root in group.roots)
            if is_file_system(channel.uri):
                self._mount(channel.uri, [first, *remaining])
                continue
            if not self.account.storage.download(channel.uri, first):
                bucket = channel.uri.partition("://")[2].partition("/")[0]
                reason = no_objects(
                    channel.uri, bucket, self.job.body["RoleArn"], self.account.region
                )
                raise JobEnded("Failed", reason=f"ClientError: Data download failed:{reason}")
            for second in remaining:
                shutil.copytree(first, second, dirs_exist_ok=True)

    def _mount(self, uri: str, folders: Sequence[Path]) -> None:
        """Mount the folder of a file system on each node."""
        file_system, _, path = uri.partition("://")[2].partition("/")
        content = self.account.file_systems.get(file_system)
        if content is None or not (content / path).is_dir():
            reason = f"Unable to mount file system: {file_system}, directory path: /{path}."
            raise JobEnded("Failed", reason=f"ClientError: {reason} Incorrect mount path.")
        for folder in folders:
            shutil.copytree(content / path, folder, dirs_exist_ok=True)

    def _start(self, group: ContainerGroup) -> None:
        try:
            group.start()
        except (
            FileNotFoundError
        ) as error:  # where containers are real ones, they tell by their exit code
            reason = f"AlgorithmError: {error.filename}: executable not found, exit code: 127"
            raise JobEnded("Failed", reason=reason) from None

    def _watch(
        self, group: ContainerGroup, checkpoints: Checkpoints, contract: TrainingJob
    ) -> tuple[str, Node | None]:
        """Until all containers are over: why they were ended, if they were, and the node that
        failed first.
        """
        began = synced = time.monotonic()
        self.runtime_limit = began + contract.max_runtime_seconds - self.trained_seconds
        why = ""
        deadline = 0.0
        first = None
        while not group.poll():
            moment = time.monotonic()
            first = first or next((node for node in group.nodes if node.code), None)
            if not why:
                why = self._reason(first)
                if why:
                    deadline = moment + contract.grace_seconds
                    group.terminate()
            elif moment > deadline or self.account.closing.is_set():
                group.end()
            if moment > synced + SYNC_SECONDS:
                checkpoints.sync()
                synced = time.monotonic()
            time.sleep(STOP_FILE_POLL_SECONDS)
        self.trained_seconds += time.monotonic() - began
        first = first or next((node for node in group.nodes if node.code), None)
        return why or ("failed" if first else ""), first

    def _reason(self, failed: Node | None) -> str:
        """Return the reason why the containers must end, or None; also record it in the job."""
        late = "MaxRuntimeExceeded" if time.monotonic() > self.runtime_limit else ""
        if time.time() > self._wait_limit():
            late = "MaxWaitTimeExceeded"
        if self.job.stop_asked.is_set() or self.account.closing.is_set():
            return "stopped"
        if failed:
            return "failed"
        if self.job.interrupted.is_set():
            self.job.enter("Interrupted")
            return "interrupted"
        if late:
            self.job.enter("Stopping", status="Stopping")
        return late

    def _wait_limit(self) -> float:
        """When a job on spot machines must be over, all its waiting included."""
        seconds = (
            self.job["StoppingCondition"].get("MaxWaitTimeInSeconds") if self.job.spot else None
        )
        return math.inf if seconds is None else float(self.job["CreationTime"] + seconds)

    def _interrupted(self) -> None:
        """The machines are gone: a spot job starts once more, another one has failed."""
        job = self.job
        job.interrupted.clear()
        job.return_machines()
        if job.stop_asked.is_set():
            raise JobEnded("Stopped")
        if not job.spot:
            raise JobEnded("Failed", reason=INTERNAL)
        job.enter("Starting")

    def _conclude(
        self, group: ContainerGroup, contract: TrainingJob, why: str, failed: Node | None
    ) -> None:
        """Upload results, then end. A job that failed keeps its output, but leaves no model."""
        job = self.job
        job.enter("Uploading")
        self._require("results", "Artifact upload failed:")
        for folder, uri in contract.results.items():
            files = merged([root / folder for root in group.roots])
            if folder == "model":
                if why == "failed":
                    continue
                job.update(ModelArtifacts={"S3ModelArtifacts": uri})
            if not uri.endswith("/"):
                if files or folder == "model":
                    self.account.storage.store(packed(files), uri)
                continue
            for name, path in files.items():
                if path.is_file():
                    self.account.storage.store(path.read_bytes(), uri + name)
        if why == "failed" and failed is not None:
            texts = [node.failure() for node in (failed, *group.nodes)]
            text = next((text for text in texts if text), "")
            raise JobEnded("Failed", reason=f"AlgorithmError: {text}, exit code: {failed.code}")
        if why == "stopped":
            raise JobEnded("Stopped")
        raise JobEnded("Stopped" if why else "Completed", why)

    def _pause(self) -> None:
        """A moment of nothing to do; a stop ends the job there."""
        self.job.woken.wait(self.account.phase_seconds)
        if self.job.stop_asked.is_set() or self.account.closing.is_set():
            raise JobEnded("Stopped")


def _drop_line(stream: str, line: bytes) -> None:
    """Drop a log line; a node without the right to write its log continues without one."""
