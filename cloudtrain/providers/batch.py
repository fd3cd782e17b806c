"""The base of providers for batch queues, schedulers and single machines: they implement six calls
of their platform.

The rest is the same for all of them and is here: whether an interrupted submission started the job,
each log line once, the cause of a failure.
"""

from __future__ import annotations

import subprocess
import time
from abc import abstractmethod
from collections.abc import Container, Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, Outcome, UsageError
from cloudtrain.providers import Note, Progress, Provider, Request
from cloudtrain.providers.shared.idempotent_create import reconcile
from cloudtrain.providers.shared.log_attempt import LogAttempt
from cloudtrain.providers.shared.outcome import (
    FinalState,
    all_nodes_reported,
    ended_event,
    incomplete_shutdown,
)
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import LogPart, Observation, Positions, Record
from cloudtrain.runs.state import RunState
from cloudtrain.source.extract import extract
from cloudtrain_launcher import events
from cloudtrain_launcher.events import Event

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.planning.plan import Plan

LONGEST_LINE = 1 << 20
"""Bytes after which an unfinished line of a log is taken as a line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """The state of a job, as its platform reports it."""

    phase: str
    """The platform's state in words: `waiting in the queue`, `running`; after the end, `exit code
    137`.

    It is shown as the reason of a failure if no node has reported one.
    """
    has_ended: bool
    """Whether all of its processes have ended, and all of its log can be read."""


class BatchProvider(Provider):
    """A provider whose platform has jobs with names: a job has the name of its run."""

    @abstractmethod
    def submit_job(self, run: RunFolder, request: Request, archive: Path) -> None:
        """Start the job of a run, unless it exists already: called twice, it starts one job.

        `archive`: the source, a .tar.gz. CloudError with `Outcome.UNKNOWN` if it is unknown whether
        the job exists now; any other error means that nothing was started.
        """

    @abstractmethod
    def job_status(self, run: RunFolder) -> JobStatus | None:
        """The state of a run's job; None if there is no such job. CloudError if the platform does
        not say.
        """

    @abstractmethod
    def read_log(self, run: RunFolder, node: int, offset: int) -> bytes:
        """The output of a node's launcher from byte `offset` on, or the first part of it.
        CloudError if it fails.
        """

    @abstractmethod
    def stop_job(self, run: RunFolder) -> None:
        """Ask the job to stop, by SIGTERM to its launchers or in another way; repeatable.
        CloudError if it fails.
        """

    @abstractmethod
    def job_folder(self, run: RunFolder) -> str:
        """The absolute path, on the job's machine, of the folder with its `model`, `output` and
        `checkpoints`.
        """

    @abstractmethod
    def download(self, run: RunFolder, name: str, file: IO[bytes]) -> None:
        """Write one of these folders to a file as .tar.gz; nothing if it does not exist. CloudError
        if it fails.
        """

    def start(
        self,
        plan: Plan,  # noqa: ARG002
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # noqa: ARG002
        record: Record,
    ) -> dict[str, Any]:
        """Record that the job may exist from now on, then submit it; returns the reference to it."""
        record(Observation(events=[events.Creating(time=time.time())]))
        self.submit_job(run, request, archive)
        return {"name": run.run_id}

    def observe(self, run: RunFolder, state: RunState) -> Iterator[Observation]:
        """The job's phase, its new log lines, and its end once all of its log has been read."""
        if state.has_ended and not state.may_have_started:
            return
        status = self.job_status(run)
        if state.ref is None:
            yield Observation(events=self._reconciled(run, status))
        if state.ref is None or state.has_ended:
            return
        if status is None:
            reason = f"{self.declaration.label} does not know this job (any more)"
            yield Observation(
                events=[events.Ended(time=time.time(), state="failed", reason=reason)]
            )
            return
        if status.phase != state.phase and not status.has_ended:
            yield Observation(events=[events.Phase(time=time.time(), phase=status.phase)])
        log = LogAttempt(
            lambda positions: self._lines(run, state.nodes, positions, whole=status.has_ended)
        )
        yield from log.observations(state)
        if status.has_ended and log.is_done(
            waited=True, all_reported=all_nodes_reported(state, state.nodes)
        ):
            yield Observation(events=[ended_event(state, _outcome(state, status), time.time())])

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to stop if it exists; if that is unknown, find out first. False: not possible
        yet.
        """
        if state.ref is None:
            record(Observation(events=self._reconciled(run, self.job_status(run))))
        if state.ref is None:
            return state.has_ended
        self.stop_job(run)
        record(
            Observation(events=[events.StopRequested(time=time.time(), reason="stop was asked")])
        )
        return True

    def fetch(
        self,
        run: RunFolder,
        state: RunState,  # noqa: ARG002
        names: Sequence[str],
        folder: Path,
        progress: Progress | None,  # noqa: ARG002
        note: Note,
    ) -> list[str]:
        """Download and extract the folders; returns the names of those that exist. The archives are
        not trusted.
        """
        found = []
        for name in names:
            with NamedTemporaryFile(dir=folder.parent) as file:
                self.download(run, name, file)
                file.flush()
                roots = (f"{self.job_folder(run)}/{name}",)
                exists = Path(file.name).stat().st_size > 0
                if exists and extract(Path(file.name), folder / name, roots, note, name):
                    found.append(name)
        return found

    def _reconciled(self, run: RunFolder, status: JobStatus | None) -> list[Event]:
        ref = {"name": run.run_id} if status is not None else None
        return [*reconcile(run, time.time(), lambda: ref, self.declaration.label)]

    def _lines(
        self, run: RunFolder, nodes: int, positions: Positions, *, whole: bool
    ) -> Generator[LogPart, None, bool]:
        """New lines of all nodes' logs. `whole`: the logs are complete, so that a last line may
        lack its end.
        """
        for node in range(nodes):
            stream = f"node-{node}"
            at = int(positions.get(stream, {}).get("bytes", 0))
            while text := self.read_log(run, node, at):
                lines = text[: text.rfind(b"\n") + 1] or (
                    text if whole or len(text) >= LONGEST_LINE else b""
                )
                if not lines:
                    break
                at = at + len(lines)
                now = time.time()
                stamped = [(now, line) for line in lines.removesuffix(b"\n").split(b"\n")]
                yield LogPart(node=node, lines=stamped, stream=stream, position={"bytes": at})
        return True


def program_output(
    argv: Sequence[str],
    data: bytes = b"",
    out: IO[bytes] | None = None,
    *,
    unknown: Container[int] = (),
) -> bytes:
    """Run a program with `data` as its input; returns its output, empty if that is written to the
    file `out`.

    CloudError with its error output if it fails; UsageError if it cannot be started. `unknown`:
    exit codes that do not say whether it has done its work, such as 255 of ssh; then the error is
    transient and its outcome UNKNOWN.
    """
    try:
        done = subprocess.run(
            argv, input=data, stdout=out or subprocess.PIPE, stderr=subprocess.PIPE, check=False
        )
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout or b""
    is_unknown = done.returncode in unknown
    outcome = Outcome.UNKNOWN if is_unknown else Outcome.REFUSED
    complaint = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    raise CloudError(f"{argv[0]}: {complaint}", transient=is_unknown, outcome=outcome)


def _outcome(state: RunState, status: JobStatus) -> FinalState:
    """The final state of a run and its reason, by the reports of its nodes and the status of its
    job.
    """
    outcomes = {node.outcome for node in state.nodes_ended.values()}
    is_reported = all_nodes_reported(state, state.nodes)
    if "failed" in outcomes:
        return FinalState("failed", status.phase)
    if not is_reported and not state.stop_requested:
        return FinalState("failed", f"not every node has reported how it ended: {status.phase}")
    if not is_reported or "stopped" in outcomes:
        return FinalState("stopped", (state.reason or status.phase) + incomplete_shutdown(state))
    return FinalState("succeeded", "")
