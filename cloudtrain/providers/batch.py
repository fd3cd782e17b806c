"""A provider for places that take a job by one call and tell of it by others: batch queues, machines, schedulers.

Such a provider says how its platform does six things. How a run's events, log and end come of them is the same for
all of them, and is here: what an interrupted submission has come to, each log line once, the cause of a failure.
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
from cloudtrain.providers.cloud.idempotent_create import reconcile
from cloudtrain.providers.cloud.log_attempt import LogAttempt
from cloudtrain.providers.cloud.outcome import FinalState, all_nodes_reported, ended_event, incomplete_shutdown
from cloudtrain.runs import events
from cloudtrain.runs.events import Event
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import LogPart, Observation, Positions, Record
from cloudtrain.runs.state import RunState
from cloudtrain.source.extract import extract

if TYPE_CHECKING:  # looking after a run needs no pydantic
    from cloudtrain.planning.plan import Plan

LONGEST_LINE = 1 << 20
"""Bytes after which a line that has not ended is taken for one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """How a job stands, by its platform."""

    phase: str
    """What the platform says of it, in words: `waiting in the queue`, `running`; of one that has ended `exit code 137`.

    The last is shown as the reason of a failure, where no node has reported one."""
    has_ended: bool
    """Whether all of its processes are over, and all of its log can be read."""


class BatchProvider(Provider):
    """The part of a provider that is the same for all such platforms. A job has the name of its run."""

    @abstractmethod
    def submit_job(self, run: RunFolder, request: Request, archive: Path) -> None:
        """Start the job of a run; nothing, if it is there already: asked twice, a job runs once.

        `archive`: the source, a .tar.gz. CloudError with `Outcome.UNKNOWN` if it is not known whether it is there
        now; any other error means that nothing was started.
        """

    @abstractmethod
    def job_status(self, run: RunFolder) -> JobStatus | None:
        """How the job of a run stands; None if there is none. CloudError if that is not known."""

    @abstractmethod
    def read_log(self, run: RunFolder, node: int, offset: int) -> bytes:
        """What the launcher of a node has printed, from this byte on: some of it, if it is much. CloudError."""

    @abstractmethod
    def stop_job(self, run: RunFolder) -> None:
        """Ask the job to stop, once or several times: SIGTERM to its launchers, or what stands for it. CloudError."""

    @abstractmethod
    def job_folder(self, run: RunFolder) -> str:
        """The absolute path of the folder that has the job's `model`, `output` and `checkpoints`, on its machine."""

    @abstractmethod
    def download(self, run: RunFolder, name: str, file: IO[bytes]) -> None:
        """Write one of these folders to a file as a .tar.gz; nothing, if it is not there. CloudError."""

    def start(
        self,
        plan: Plan,  # noqa: ARG002
        request: Request,
        run: RunFolder,
        archive: Path,
        progress: Progress | None,  # noqa: ARG002
        record: Record,
    ) -> dict[str, Any]:
        """Write down that the job may exist from now on, and submit it."""
        record(Observation(events=[events.Creating(time=time.time())]))
        self.submit_job(run, request, archive)
        return {"name": run.run_id}

    def observe(self, run: RunFolder, state: RunState) -> Iterator[Observation]:
        """How the job stands, its new lines, and its end when all of its log is here."""
        if state.has_ended:
            return
        status = self.job_status(run)
        if state.ref is None:
            yield Observation(events=self._reconciled(run, status))
        if state.ref is None or state.has_ended:
            return
        if status is None:
            reason = f"{self.declaration.label} does not know this job (any more)"
            yield Observation(events=[events.Ended(time=time.time(), state="failed", reason=reason)])
            return
        if status.phase != state.phase and not status.has_ended:
            yield Observation(events=[events.Phase(time=time.time(), phase=status.phase)])
        log = LogAttempt(lambda positions: self._lines(run, state.nodes, positions, whole=status.has_ended))
        yield from log.observations(state)
        if status.has_ended and log.is_done(waited=True, all_reported=all_nodes_reported(state, state.nodes)):
            yield Observation(events=[ended_event(state, _outcome(state, status), time.time())])

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to stop, if it exists; where that is not known yet, find out first."""
        if state.ref is None:
            record(Observation(events=self._reconciled(run, self.job_status(run))))
        if state.ref is None:
            return state.has_ended
        self.stop_job(run)
        record(Observation(events=[events.StopRequested(time=time.time(), reason="stop was asked")]))
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
        """Download and extract, as if the archives were anybody's."""
        found = []
        for name in names:
            with NamedTemporaryFile(dir=folder.parent) as file:
                self.download(run, name, file)
                file.flush()
                roots = (f"{self.job_folder(run)}/{name}",)
                is_there = Path(file.name).stat().st_size > 0
                if is_there and extract(Path(file.name), folder / name, roots, note, name):
                    found.append(name)
        return found

    def _reconciled(self, run: RunFolder, status: JobStatus | None) -> list[Event]:
        ref = {"name": run.run_id} if status is not None else None
        return [*reconcile(run, time.time(), lambda: ref, self.declaration.label)]

    def _lines(
        self, run: RunFolder, nodes: int, positions: Positions, *, whole: bool
    ) -> Generator[LogPart, None, bool]:
        """What is new of all nodes' logs. `whole`: nothing comes any more, so a last line may lack its end."""
        for node in range(nodes):
            stream = f"node-{node}"
            at = int(positions.get(stream, {}).get("bytes", 0))
            while text := self.read_log(run, node, at):
                lines = text[: text.rfind(b"\n") + 1] or (text if whole or len(text) >= LONGEST_LINE else b"")
                if not lines:
                    break
                at, now = at + len(lines), time.time()
                stamped = [(now, line) for line in lines.removesuffix(b"\n").split(b"\n")]
                yield LogPart(node=node, lines=stamped, stream=stream, position={"bytes": at})
        return True


def program_output(
    argv: Sequence[str], data: bytes = b"", out: IO[bytes] | None = None, *, unknown: Container[int] = ()
) -> bytes:
    """What a program prints that reads `data`; nothing, if it is written to the file `out`.

    CloudError with what it complains of, if it fails. `unknown`: exit codes that do not tell whether it has done what
    it was asked for, such as 255 of ssh: asking again may help. UsageError if there is no such program.
    """
    try:
        done = subprocess.run(argv, input=data, stdout=out or subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}") from None
    if done.returncode == 0:
        return done.stdout or b""
    is_unknown = done.returncode in unknown
    outcome = Outcome.UNKNOWN if is_unknown else Outcome.REFUSED
    said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
    raise CloudError(f"{argv[0]}: {said}", transient=is_unknown, outcome=outcome)


def _outcome(state: RunState, status: JobStatus) -> FinalState:
    """The state in which a run has ended, and why: by its nodes' last words, else by what was asked and seen."""
    outcomes = {node.outcome for node in state.nodes_ended.values()}
    is_told = all_nodes_reported(state, state.nodes)
    if "failed" in outcomes:
        return FinalState("failed", status.phase)
    if not is_told and not state.stop_requested:
        return FinalState("failed", f"not every node has told how it ended: {status.phase}")
    if not is_told or "stopped" in outcomes:
        return FinalState("stopped", (state.reason or status.phase) + incomplete_shutdown(state))
    return FinalState("succeeded", "")
