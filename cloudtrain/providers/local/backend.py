"""What every provider that runs jobs on this machine does alike: a supervisor per run, and the run's own folders."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.contracts.plain import CLOUD_FIELDS
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.issues import Issue
from cloudtrain.providers import Note, Progress, Provider, Request
from cloudtrain.providers.emulation.run_paths import RunPaths
from cloudtrain.providers.local import end_on_full_disk
from cloudtrain.providers.local.processes import run_module
from cloudtrain.providers.local.supervisor_status import (
    SupervisorState,
    disk_time,
    end_orphans,
    has_begun,
    identity_of,
    last_heartbeat,
    send_stop_signal,
    supervisor_state,
)
from cloudtrain.runs.events import Ended
from cloudtrain.runs.files import private_opener, storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.identity import ProcessIdentity
from cloudtrain.runs.observation import Event, Observation, Record
from cloudtrain.runs.state import RunState
from cloudtrain.source.results import copy_results

if TYPE_CHECKING:
    from cloudtrain.contracts.launch import Launch
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.emulation.base import Emulator
    from cloudtrain.providers.emulation.plan import EmulatedPlan

ORPHAN_STOP_SECONDS = 10
"""How long nodes that lost their supervisor may take to stop by themselves, with a checkpoint."""

START_DEADLINE_SECONDS = 20
"""A start that nobody recorded and that has not reported by then never will; a supervisor that comes later gives up."""

FAR_START_DEADLINE_SECONDS = 120
"""The same for a supervisor that was started where we cannot look, and that perhaps has much to wait for."""

ANSWER_SECONDS = 60
"""A supervisor that cannot be looked at from here, and has shown no sign of life so long after a stop, is given up."""

UNUSED = ("image", *CLOUD_FIELDS, "resources.shm")
"""Fields of the spec that mean nothing on this machine."""


class LocalBackend(Provider):
    """The part of a provider that is the same for launchers and for containers."""

    container_root = ""
    """Where a job sees the run's own folders, if that is not where they are."""

    @property
    def contracts(self) -> tuple[str, ...]:
        """Our own, and those that are emulated here."""
        from cloudtrain.providers.aws.declaration import DECLARATION as AWS
        from cloudtrain.providers.azure.declaration import DECLARATION as AZURE

        return ("plain", AWS.contract, AZURE.contract)

    def rules(self, plan: Plan) -> list[Issue]:
        """Checkpoints of a run in a cloud are not at hand here."""
        earlier = plan.context.resume_from
        if "://" not in earlier:
            return []
        hint = f"cloudtrain rerun {plan.context.resume_run} --fresh starts without them"
        return [Issue((), f"the earlier run's checkpoints are in {earlier}", hint)]

    def emulator(self, paths: RunPaths, request: Mapping[str, Any], plan: EmulatedPlan) -> Emulator[Launch]:
        """What executes a request here, under the contract that it is for. The supervisor asks for it."""
        raise NotImplementedError

    def start(
        self,
        plan: Plan,  # noqa: ARG002
        request: Request,  # noqa: ARG002  (the supervisor reads it from the run folder)
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # noqa: ARG002
        record: Record,  # noqa: ARG002  (the supervisor reports for itself)
    ) -> dict[str, Any]:
        """Start the supervisor, in a session of its own: closing the terminal does not reach it."""
        paths = RunPaths(run.path)
        argv = [*run_module("local.supervisor"), str(run.path), str(archive)]
        with storing(paths.supervisor_log), open(paths.supervisor_log, "wb", opener=private_opener) as log:
            process = subprocess.Popen(
                argv,
                cwd=run.path,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        identity = ProcessIdentity.of(process.pid).to_json()  # before anybody may collect it
        _reap(process)
        return identity

    def poll_seconds(self, run: RunFolder) -> float:  # noqa: ARG002
        """A look at this machine costs next to nothing."""
        return 1.0

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        """The end of a run whose supervisor is proven to be gone; what of it is left, if anything, is ended first.

        A supervisor that cannot be looked at from here is never ended by a look: what is seen of it is said.
        """
        return () if state.has_ended else (Observation(events=self._observed_events(run, state)),)

    def _observed_events(self, run: RunFolder, state: RunState) -> list[Event]:
        if not run.path.is_dir():
            hint = "a training that still ran there ends within seconds"
            raise StorageError(f"run {run.run_id}: its folder was removed", hint=hint)
        now = time.time()
        life = supervisor_state(run.path, ProcessIdentity.from_json(state.ref))
        if life in (SupervisorState.ALIVE, SupervisorState.NOT_BEGUN) and (
            life is SupervisorState.ALIVE or not self._is_overdue(run, state, now)
        ):
            return [_phase(now, "")] if state.phase else []
        given_up = life is SupervisorState.UNKNOWN and _ignored_stop(run.path)
        # It may have written its last word and gone between the reading of the events and this look.
        if run.last_event(Ended):
            return []
        if told := end_on_full_disk.read(RunPaths(run.path).end_on_full_disk):
            self.end_orphans(run.path)
            return [told]
        if life is SupervisorState.UNKNOWN and not given_up:
            phase = f"no sign of life of its supervisor{_where(run.path)}"
            since = last_heartbeat(run.path)
            return [] if state.phase == phase else [_phase(now, phase, since if since > 0 else now)]
        reason = "submit was interrupted before anything started"
        if given_up:
            reason = f"its supervisor{_where(run.path)} shows no sign of life and did not answer the stop"
        elif has_begun(run.path):
            reason = "its supervisor is gone (killed, or this machine was restarted)"
        if not given_up and (left := self.end_orphans(run.path)):
            reason += f"; {left}"
        return [{"type": "ended", "time": now, "state": "failed", "reason": reason}]

    def _is_overdue(self, run: RunFolder, state: RunState, now: float) -> bool:
        deadline = START_DEADLINE_SECONDS if state.ref is None else FAR_START_DEADLINE_SECONDS
        return now - state.created >= deadline and not run.is_being_submitted()

    def end_orphans(self, run: Path) -> str:
        """End what a dead supervisor left running; what there is to say of it."""
        left = end_orphans(run, ORPHAN_STOP_SECONDS)
        return f"{left} processes that were left have been ended" if left else ""

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:  # noqa: ARG002
        """A file that the supervisor looks for each second, wherever it runs; and SIGTERM, if it is proven ours."""
        with storing(run.path):
            RunPaths(run.path).stop_file.touch()
        send_stop_signal(run.path)
        return True

    def artifacts(self, run: RunFolder, state: RunState) -> Mapping[str, str]:  # noqa: ARG002
        """The run's own folders, those that hold something."""
        paths = RunPaths(run.path)
        found = {"model": paths.model, "output": paths.output, "checkpoints": paths.checkpoints}
        return {name: str(path) for name, path in found.items() if _is_own_folder(path) and any(path.iterdir())}

    def checkpoints(self, run: RunFolder, state: RunState) -> str:
        """Their folder, if it holds any."""
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
        """Copy them."""
        brought = []
        for name in names:
            source = run.path / name
            if source.is_symlink():  # in place of the folder that was made for it
                note(f"{name} was left out: a link in place of the folder ({source.readlink()})")
            elif name in self.artifacts(run, state):
                roots = (f"{self.container_root}/{name}",) if self.container_root else ()
                if copy_results(source, folder / name, roots, note):
                    brought.append(name)
        return brought

    def release(self, run: RunFolder, state: RunState) -> Observation:  # noqa: ARG002
        """UsageError: a run of this machine keeps none."""
        raise UsageError(f"run {run.run_id} keeps no machines: it runs on this one")

    def native(self, run: RunFolder, state: RunState) -> Any:  # noqa: ARG002
        """UsageError: there is no SDK."""
        raise UsageError("a run on this machine has no object of a cloud's SDK")


def _is_own_folder(path: Path) -> bool:
    """A program may put a link in its place, which leads to somebody else's files."""
    return path.is_dir() and not path.is_symlink()


def _phase(now: float, phase: str, since: float | None = None) -> dict[str, Any]:
    return {"type": "phase", "time": now, "phase": phase, "since": since or now}


def _where(run: Path) -> str:
    who = identity_of(run)
    return f" on {who.machine}" if who else ""


def _ignored_stop(run: Path) -> bool:
    """Whether a stop was asked for long ago, and no heartbeat has come since; both by the clock of the disk."""
    try:
        asked = RunPaths(run).stop_file.stat().st_mtime
    except OSError:
        return False
    return last_heartbeat(run) < asked < disk_time(run) - ANSWER_SECONDS


def resolve_path(plan: Plan, place: str) -> str:
    """The absolute path of a place on this machine, as the spec says it."""
    return os.path.normpath(Path(plan.context.folder) / Path(place).expanduser())


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Leave the supervisor to itself: collect it when it ends while we still live, and do not wait for it."""

    def collect() -> None:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, 0)

    threading.Thread(target=collect, daemon=True).start()
    process.returncode = 0
