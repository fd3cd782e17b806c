"""Common base of the providers on this machine: a supervisor per run, local artifacts."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Issue, StorageError, UsageError
from cloudtrain.planning.launch import CLOUD_FIELDS, Request, plain_job
from cloudtrain.providers.aws.declaration import DECLARATION as AWS
from cloudtrain.providers.azure.declaration import DECLARATION as AZURE
from cloudtrain.providers.local.processes import (
    SupervisorState,
    end_orphans,
    has_started,
    identity_of,
    last_heartbeat,
    lifeline,
    reap_in_background,
    run_module,
    send_stop_signal,
    supervisor_state,
)
from cloudtrain.providers.progress import Note, Progress
from cloudtrain.providers.protocol import Provider
from cloudtrain.runs.files import (
    FOLDER_MODE,
    make_private_folder,
    private_opener,
    replace_text,
    storing,
)
from cloudtrain.runs.logs import Observation, Record
from cloudtrain.runs.paths import RunPaths
from cloudtrain.source.results import copy_results
from cloudtrain_wire.events import Ended, Event, Phase, Submitted
from cloudtrain_wire.file_locks import acquire, disk_time
from cloudtrain_wire.process_identity import ProcessIdentity
from cloudtrain_wire.visible_gpus import present_gpus

if TYPE_CHECKING:
    from cloudtrain.planning.launch import Launch
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.rehearsal.base import EmulatedPlan, Emulator
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState
    from cloudtrain.spec.model import JobSpec

ORPHAN_STOP_SECONDS = 10
"""Seconds for orphaned nodes to save a checkpoint and end."""

START_DEADLINE_SECONDS = 20
"""Seconds until a supervisor must have started; a later one gives up."""

REMOTE_START_DEADLINE_SECONDS = 120
"""The same for a supervisor in another container or on another host."""

STOP_RESPONSE_SECONDS = 60
"""Seconds without a heartbeat after a stop until a remote supervisor is given up."""

UNSTARTED = "submit was interrupted before anything started"

ON_CPU = "--set resources.gpus=0"

UNUSED = ("image", *CLOUD_FIELDS, "resources.shm")
"""Fields of the spec without effect on this machine."""


class LocalBackend(Provider):
    """Common part of the providers for processes and for containers."""

    container_root = ""
    """Folder in the container with the run's folders; empty if the job sees the originals."""

    @property
    def contracts(self) -> tuple[str, ...]:
        """The plain contract and the emulated contracts of the clouds."""
        return ("plain", AWS.contract, AZURE.contract)

    def _request(self, plan: Plan, launches: Sequence[Launch], **parts: object) -> Request:
        """Return the request with these launches. `parts`: what containers have besides."""
        job = plain_job(plan)
        document = {
            "run_id": plan.run_id,
            "job": job.to_json(),
            "source": plan.context.source.digest,
            **parts,
            "launches": [launch.to_json() for launch in launches],
            "max_runtime_seconds": plan.spec.limits.max_runtime,
            "grace_seconds": plan.target.grace_seconds,
            "resume_from": plan.context.resume_from or None,
        }
        return Request(provider=plan.host.provider, document=document, job=job)

    def emulator(
        self,
        paths: RunPaths,
        request: Mapping[str, Any],
        plan: EmulatedPlan,
    ) -> Emulator[Launch]:
        """Return the emulator of a request's contract. Called by the supervisor."""
        raise NotImplementedError

    def start(
        self,
        plan: Plan,
        request: Request,  # noqa: ARG002
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # noqa: ARG002
        record: Record,  # noqa: ARG002  (the supervisor reports for itself)
    ) -> dict[str, Any]:
        """Start the supervisor in a new session, so that closing the terminal does not end it."""
        paths = RunPaths(run.path)
        if plan.context.trial:
            # before the start: Docker would create the mounted folder as root
            with storing(paths.published):
                make_private_folder(paths.published)

        argv = [*run_module("local.supervisor"), str(run.path), str(archive)]
        argv += lifeline()
        with (
            storing(paths.supervisor_log),
            open(paths.supervisor_log, "wb", opener=private_opener) as log,
        ):
            process = subprocess.Popen(
                argv,
                cwd=run.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        identity = ProcessIdentity.of(process.pid).to_json()  # before it can be reaped
        reap_in_background(process)
        return identity

    def poll_seconds(self, run: RunFolder) -> float:  # noqa: ARG002
        """Return one second: observing a run on this machine is cheap."""
        return 1.0

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """Yield the end of a run whose supervisor is dead, after ending its leftovers.

        If the state of the supervisor is unknown, all processes stay, and a phase reports that.
        """
        if state.has_ended:
            return ()

        return (Observation(events=self._state_events(run, state)),)

    def _state_events(self, run: RunFolder, state: RunState) -> Sequence[Event]:
        """Return events for the supervisor's state. StorageError if the run's folder is gone."""
        if not run.path.is_dir():
            hint = "a training that still ran there ends within seconds"
            raise StorageError(f"run {run.run_id}: its folder was removed", hint=hint)

        time_now = time.time()
        supervisor = supervisor_state(run.path, ProcessIdentity.from_json(state.ref))

        is_starting = supervisor is SupervisorState.NOT_STARTED and not self._is_overdue(
            run,
            state,
            time_now,
        )
        if is_starting and state.ref is None and run.was_submitted_by_a_dead_process():
            _end_unstarted(run)
            return []
        if supervisor is SupervisorState.ALIVE or is_starting:
            if not state.phase:
                return []

            return [_phase(time_now, "")]

        given_up = supervisor is SupervisorState.UNKNOWN and _ignored_stop(run.path)
        # It may have written the last event and exited after the events were read.
        if run.last_event(Ended):
            return []
        if supervisor is SupervisorState.UNKNOWN and not given_up:
            phase = f"no sign of life of its supervisor{_where(run.path)}"
            since = last_heartbeat(run.path)
            if state.phase == phase:
                return []
            if since <= 0:
                since = time_now

            return [_phase(time_now, phase, since)]

        reason = UNSTARTED
        if given_up:
            reason = (
                f"its supervisor{_where(run.path)} shows no sign of life and did not answer the"
                " stop"
            )
        elif has_started(run.path):
            reason = "its supervisor is gone (killed, or this machine was restarted)"
        if not given_up and (orphans := self.end_orphans(run.path)):
            reason += f"; {orphans}"

        return [Ended(time=time_now, state="failed", reason=reason)]

    def _is_overdue(self, run: RunFolder, state: RunState, time_now: float) -> bool:
        deadline = START_DEADLINE_SECONDS if state.ref is None else REMOTE_START_DEADLINE_SECONDS
        return time_now - state.created >= deadline and not run.is_being_submitted()

    def end_orphans(self, run: Path) -> str:
        """End processes that a dead supervisor left; return a note, empty if there were none."""
        count = end_orphans(run, ORPHAN_STOP_SECONDS)
        if not count:
            return ""

        return f"{count} processes that were left have been ended"

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:  # noqa: ARG002
        """Write the stop file, and send SIGTERM if the supervisor is on this machine.

        The supervisor checks the file every second.
        """
        with storing(run.path):
            RunPaths(run.path).stop_file.touch()

        send_stop_signal(run.path)
        return True

    def publish(self, run: RunFolder, state: RunState, name: str, text: str) -> None:  # noqa: ARG002
        """Write the file into the run's folder for its nodes. StorageError if the disk refuses."""
        folder = RunPaths(run.path).published
        with storing(folder):
            folder.mkdir(FOLDER_MODE, exist_ok=True)
            replace_text(folder / name, text)

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:  # noqa: ARG002
        """Return the run's own folders that hold anything but folders."""
        paths = RunPaths(run.path)
        folders = {"model": paths.model, "output": paths.output, "checkpoints": paths.checkpoints}
        artifacts = {}
        for name, path in folders.items():
            if _is_own_folder(path) and any(map(_is_content, path.rglob("*"))):
                artifacts[name] = str(path)

        return artifacts

    def left_behind(self, run: RunFolder, state: RunState) -> list[str]:
        """Return the nodes' working folders with files that are newer than the program's start."""
        left = []
        for folder in RunPaths(run.path).working_folders:
            if state.started and _is_own_folder(folder) and _has_newer(folder, state.started):
                left.append(str(folder))

        return left

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Return the path of the checkpoint folder; empty if there are none."""
        return self.artifacts(run, state).get("checkpoints", "")

    def fetch(
        self,
        run: RunFolder,
        state: RunState,
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,  # noqa: ARG002
        note: Note,
    ) -> list[str]:
        """Copy the artifacts."""
        copied = []
        for name in names:
            source = run.path / name
            if source.is_symlink():  # the job has replaced the folder by a link
                note(f"{name} was left out: a link in place of the folder ({source.readlink()})")
            elif name in self.artifacts(run, state):
                roots: tuple[str, ...] = ()
                if self.container_root:
                    roots = (f"{self.container_root}/{name}",)

                shutil.rmtree(folder / name, ignore_errors=True)  # of a copy that was cut short
                if copy_results(source, folder / name, roots, note):
                    copied.append(name)

        return copied

    def release(self, run: RunFolder, state: RunState) -> Observation:  # noqa: ARG002
        """Raise UsageError: a run on this machine keeps no machines."""
        raise UsageError(f"run {run.run_id} keeps no machines: it runs on this one")


def _is_own_folder(path: Path) -> bool:
    """Return True for a folder, False for a link, which could lead to another user's files."""
    return path.is_dir() and not path.is_symlink()


def _is_content(path: Path) -> bool:
    return path.is_symlink() or not path.is_dir()


def _has_newer(folder: Path, since: float) -> bool:
    """Return whether a folder has files from after a time, besides caches and kept ones."""
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_cache(name)]
        for name in names:
            with suppress(OSError):  # removed meanwhile
                info = os.lstat(f"{top}/{name}")
                # The launcher has linked files of `keep` into the output.
                is_own = stat.S_ISREG(info.st_mode) and info.st_nlink == 1
                if is_own and info.st_ctime > since and not _is_cache(name):
                    return True

    return False


def _is_cache(name: str) -> bool:
    return name.startswith(".") or name == "__pycache__"


def _phase(time_now: float, phase: str, since: float | None = None) -> Phase:
    return Phase(time=time_now, phase=phase, since=since or time_now)


def _where(run: Path) -> str:
    identity = identity_of(run)
    if not identity:
        return ""

    return f" on {identity.machine}"


def _ignored_stop(run: Path) -> bool:
    """Return True if no heartbeat followed a stop for long, by the clock of the disk."""
    try:
        requested_at = RunPaths(run).stop_file.stat().st_mtime
    except OSError:
        return False
    return last_heartbeat(run) < requested_at < disk_time(run) - STOP_RESPONSE_SECONDS


def require_unix() -> None:
    """Raise UsageError on Windows, which lacks sessions, signals and pipes that can be awaited."""
    if sys.platform == "win32":
        hint = "run cloudtrain in WSL, or choose --provider aws or azure"
        raise UsageError("runs on this machine need Linux or macOS", hint=hint)


def gpus_of(spec: JobSpec) -> tuple[int | None, tuple[Issue, ...]]:
    """Return the GPUs per node, of this machine for a job that asks for all; None: not set."""
    gpus = spec.resources.gpus
    if gpus != "all":
        return gpus, ()

    count = present_gpus({**os.environ, **spec.env})
    if count:
        return count, ()

    hint = f"to rehearse on the CPU: {ON_CPU}"
    return 0, (Issue(("resources", "gpus"), "all: this machine shows no GPUs", hint),)


def resolve_path(plan: Plan, location: str) -> str:
    """Return the absolute path of a location; relative ones start in the job's folder."""
    return os.path.normpath(Path(plan.context.folder) / Path(location).expanduser())


def _end_unstarted(run: RunFolder) -> None:
    """End a run without a supervisor. A later one sees the event and gives up.

    Both look and write under the supervisor's lock, so that only one of them wins.
    """
    lock = acquire(RunPaths(run.path).lock, wait=False)
    if lock is None:
        return
    try:
        if not run.last_event(Submitted) and not run.last_event(Ended):
            run.append(Ended(time=time.time(), state="failed", reason=UNSTARTED))
    finally:
        lock.release()
