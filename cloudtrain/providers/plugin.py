"""Everything that a provider in another package imports.

`docs/guides/add-a-provider.md` shows a whole one. Other names may change without notice.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from abc import abstractmethod
from collections.abc import Container, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote
from shutil import rmtree
from tempfile import NamedTemporaryFile
from typing import IO, Any, Literal

from pydantic import Field

from cloudtrain.catalog.pricing import Price
from cloudtrain.checkup import Check, NotCheckedError, Question
from cloudtrain.declaration import Declaration, Setting
from cloudtrain.errors import (
    CloudError,
    Issue,
    Outcome,
    RefusedError,
    RunExists,
    StorageError,
    UsageError,
    warning,
)
from cloudtrain.planning.cost import HOUR, CostEstimate, estimate_cost
from cloudtrain.planning.launch import (
    CLOUD_FIELDS,
    JobDocument,
    Launch,
    Layout,
    Request,
    launches,
    plain_job,
)
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.registry import ResolvedImage
from cloudtrain.planning.request_overrides import RequestForm, reserved_issues
from cloudtrain.planning.selection import PlannedImage, select_image
from cloudtrain.planning.target import Target
from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns, adopted
from cloudtrain.providers.progress import Note, Progress
from cloudtrain.providers.protocol import Export, Provider
from cloudtrain.providers.shared.idempotent_create import own_tags, reconcile, settle, tags
from cloudtrain.providers.shared.log_attempt import (
    FinalState,
    LogAttempt,
    all_nodes_reported,
    ended_event,
    incomplete_shutdown,
)
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogPart, Observation, Positions, Record
from cloudtrain.runs.provider_config import ProviderConfig
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.settings import Settings
from cloudtrain.source.extract import extract
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.section import Duration, Members, Money, Section, Size, Strings
from cloudtrain_wire import events
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.events import Billing, Event, Phase

__all__ = [
    "CLOUD_FIELDS",
    "BatchProvider",
    "Check",
    "CloudError",
    "CostEstimate",
    "Declaration",
    "DiscoveredRun",
    "Duration",
    "Export",
    "Field",
    "FinalState",
    "Issue",
    "JobDocument",
    "JobSpec",
    "JobStatus",
    "KnownRuns",
    "Launch",
    "Layout",
    "LogAttempt",
    "LogPart",
    "Members",
    "Money",
    "NotCheckedError",
    "Note",
    "Observation",
    "Outcome",
    "Phase",
    "Plan",
    "PlannedImage",
    "Positions",
    "Price",
    "Progress",
    "Provider",
    "ProviderConfig",
    "Question",
    "Record",
    "RefusedError",
    "Request",
    "RequestForm",
    "ResolvedImage",
    "RunExists",
    "RunFolder",
    "RunRecord",
    "RunState",
    "Section",
    "Setting",
    "Settings",
    "Size",
    "StorageError",
    "Strings",
    "Target",
    "UsageError",
    "adopted",
    "ended_event",
    "estimate_cost",
    "extract",
    "launches",
    "own_tags",
    "plain_job",
    "program_output",
    "read_regular_text",
    "reconcile",
    "reserved_issues",
    "select_image",
    "shell_script",
    "tags",
    "warning",
]

_FOLDERS = ("source", "output", "model", "checkpoints")
_FREE_PORT = """python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'"""

TIME_LIMIT = "time"
"""Reason of a node that stopped because of the time limit."""

LONGEST_LINE = 1 << 20
"""Maximum bytes of an unfinished log line; a longer one counts as a line."""


def shell_script(
    plan: Plan,
    folder: str,
    *,
    python: str = "python3",
    inputs: Mapping[str, str],
    secrets: Mapping[str, str],
) -> str:
    """Return the POSIX shell script for a job in `folder`, an absolute path.

    `source/` in it holds the archive. `inputs`: absolute paths. `secrets`: shell commands that
    print the values. The job writes `output/`, `model/`, `checkpoints/` and finally its exit code
    to the file `exit`. It stops with a checkpoint as soon as a file `stop` exists. It enforces the
    time limit. Its output is the log of node 0.
    """
    where = {name: f"{folder}/{name}" for name in _FOLDERS}
    layout = Layout(
        python=python,
        job_file=f"{folder}/job.json",
        inputs=inputs,
        stop_file=f"{folder}/stop",
        **where,
    )
    (launch,) = launches(plan, layout, addresses=("127.0.0.1",), interface="lo", threads=None)
    lines = [
        f"cd {quote(folder)} || exit 1",
        "umask 077",
        "rm -f exit; trap 'echo $? > exit.part; mv exit.part exit' EXIT",
        "set -e",
        f"mkdir -p {' '.join(_FOLDERS)}",
        f"printf %s {quote(json.dumps(plain_job(plan, keeps_time=True).to_json()))} > job.json",
        f"CLOUDTRAIN_MASTER_PORT=$({_FREE_PORT}); export CLOUDTRAIN_MASTER_PORT",
    ]
    lines += [f"export {name}={quote(value)}" for name, value in launch.env.items()]
    lines += [f"{name}=$({secrets[name]}); export {name}" for name in launch.secrets]
    lines.append(f"(cd source && exec {join(launch.argv)})")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class JobStatus:
    """The state of a job, as its platform reports it."""

    phase: str
    """State in the platform's terms: `waiting in the queue`, `running`, `exit code 137`.

    Shown as the reason of a failure if no node has reported one.
    """
    has_ended: bool
    """True if all processes have ended and the whole log can be read."""
    outcome: Literal["", "stopped", "failed"] = ""
    """How it ended, where the platform knows that better than the nodes. Empty: as they report."""
    seconds: int | None = None
    """Seconds that its machines were taken, over all attempts; None if unknown."""


class BatchProvider(Provider):
    """A provider for a platform with named jobs: a job has the name of its run."""

    @abstractmethod
    def submit_job(self, run: RunFolder, request: Request, archive: Path) -> None:
        """Start the job of a run, unless it exists already: two calls start one job.

        `archive`: the source, a .tar.gz. Raise CloudError with `Outcome.UNKNOWN` if the job may
        exist now; any other error means that no job was started.
        """

    @abstractmethod
    def job_status(self, run: RunFolder) -> JobStatus | None:
        """Return the state of a run's job; None if it does not exist.

        Raise CloudError if the platform does not answer.
        """

    @abstractmethod
    def read_log(self, run: RunFolder, node: int, offset: int) -> bytes:
        """Return output of a node's launcher from byte `offset`, or its first part.

        Raise CloudError if that fails.
        """

    @abstractmethod
    def stop_job(self, run: RunFolder) -> None:
        """Ask the job to stop, by SIGTERM to its launchers or in another way; repeatable.

        Raise CloudError if that fails.
        """

    @abstractmethod
    def job_folder(self, run: RunFolder) -> str:
        """Return the absolute path, on the job's machine, of the folder with its artifacts.

        It contains `model`, `output` and `checkpoints`.
        """

    @abstractmethod
    def download(self, run: RunFolder, name: str, file: IO[bytes]) -> None:
        """Write one of these folders to a file as .tar.gz; write nothing if it does not exist.

        Raise CloudError if that fails.
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
        """Record that the job may exist from now on, submit it, and return its reference."""
        record(Observation(events=[events.Creating(time=time.time())]))
        self.submit_job(run, request, archive)
        return {"name": run.run_id}

    def observe(self, run: RunFolder, state: RunState) -> Iterator[Observation]:
        """Yield the job's phase, new log lines, and its end after the whole log was read."""
        if state.has_ended and not state.may_have_started:
            return

        status = self.job_status(run)
        if state.ref is None:
            yield Observation(events=self._reconciled(run, status))
        if state.ref is None or state.has_ended:
            return
        if status is None:
            reason = f"{self.declaration.label} does not know this job (any more)"
            ended = events.Ended(time=time.time(), state="failed", reason=reason)
            if state.stop_requested:  # before it ran
                ended = events.Ended(time=time.time(), state="stopped", reason=state.reason)
            yield Observation(events=[ended])
            return
        if status.phase != state.phase and not status.has_ended:
            yield Observation(events=[Phase(time=time.time(), phase=status.phase)])

        log = LogAttempt(
            lambda positions: self._lines(run, state.nodes, positions, whole=status.has_ended)
        )
        yield from log.observations(state)
        if status.has_ended and log.is_done(
            waited=True,
            all_reported=all_nodes_reported(state, state.nodes),
        ):
            final = _outcome(state, status)
            billing = _billing(run, state, status)
            yield Observation(events=[ended_event(state, final, time.time(), billing)])

    def stop(self, run: RunFolder, state: RunState, record: Record) -> bool:
        """Ask the job to stop if it exists. Return False if that is not possible yet.

        If its existence is unknown, find out first.
        """
        if settle(state, record, lambda: self._reconciled(run, self.job_status(run))) is None:
            return state.has_ended

        self.stop_job(run)
        stop_requested = events.StopRequested(time=time.time(), reason="stop requested")
        record(Observation(events=[stop_requested]))
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
        """Download and extract untrusted archives of the folders; return the existing names."""
        existing = []
        for name in names:
            with NamedTemporaryFile(dir=folder.parent) as file:
                self.download(run, name, file)
                file.flush()
                roots = (f"{self.job_folder(run)}/{name}",)
                exists = Path(file.name).stat().st_size > 0
                rmtree(folder / name, ignore_errors=True)  # of a copy that was cut short
                if exists and extract(Path(file.name), folder / name, roots, note, name):
                    existing.append(name)

        return existing

    def _reconciled(self, run: RunFolder, status: JobStatus | None) -> list[Event]:
        ref = None
        if status is not None:
            ref = {"name": run.run_id}

        return reconcile(run, time.time(), lambda: ref, self.declaration.label)

    def _lines(
        self,
        run: RunFolder,
        nodes: int,
        positions: Positions,
        *,
        whole: bool,
    ) -> Generator[LogPart, None, bool]:
        """New lines of all nodes' logs. `whole`: the logs are complete, so that a last line may
        lack its end.
        """
        for node in range(nodes):
            stream = f"node-{node}"
            offset = int(positions.get(stream, {}).get("bytes", 0))
            while text := self.read_log(run, node, offset):
                lines = text[: text.rfind(b"\n") + 1]
                if not lines and (whole or len(text) >= LONGEST_LINE):
                    lines = text
                if not lines:
                    break
                offset += len(lines)
                read_at = time.time()
                stamped = [(read_at, line) for line in lines.removesuffix(b"\n").split(b"\n")]
                yield LogPart(
                    node=node,
                    lines=stamped,
                    stream=stream,
                    position={"bytes": offset},
                )

        return True


def program_output(
    argv: Sequence[str],
    data: bytes = b"",
    out: IO[bytes] | None = None,
    *,
    unknown: Container[int] = (),
    unknown_text: str = "",
    seconds: float | None = None,
    env: Mapping[str, str] | None = None,
    folder: str | None = None,
) -> bytes:
    """Run a program with `data` as its input and return its output.

     `out`: the file for the output; the result is empty then. `unknown`: exit codes that leave open
     whether the work is done, such as 255 of ssh; the error is then transient and its outcome
     UNKNOWN. `unknown_text`: a pattern of error output that leaves it open, too, as does a program
     that is killed after `seconds` or by a signal. `env`: its whole environment instead of ours.
    `folder`: where it runs. Raise CloudError with its error output if it fails, UsageError if it cannot be started.
    """
    try:
        completed = subprocess.run(
            argv,
            input=data,
            stdout=out or subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
            timeout=seconds,
            env=env,
            cwd=folder,
        )
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        message = f"{argv[0]}: no answer within {seconds:g} s"
        raise CloudError(message, transient=True, outcome=Outcome.UNKNOWN) from None
    if completed.returncode == 0:
        return completed.stdout or b""

    complaint = completed.stderr.decode(errors="replace").strip()
    is_unknown = completed.returncode in unknown or completed.returncode < 0
    if unknown_text and re.search(unknown_text, complaint):
        is_unknown = True

    outcome = Outcome.UNKNOWN if is_unknown else Outcome.REFUSED
    complaint = complaint or f"exit code {completed.returncode}"
    raise CloudError(f"{argv[0]}: {complaint}", transient=is_unknown, outcome=outcome)


def _billing(run: RunFolder, state: RunState, status: JobStatus) -> Billing | None:
    """Return the cost of the seconds that a platform tells, by the price of the plan."""
    if status.seconds is None:
        return None

    usd = None
    if price := RunRecord(run).price:
        usd = round(price["usd"] * state.nodes * status.seconds / HOUR, 4)

    return Billing(billable_seconds=status.seconds, usd=usd)


def _outcome(state: RunState, status: JobStatus) -> FinalState:
    """Return the final state of a run and its reason, from its nodes and its job."""
    outcomes = {node.outcome for node in state.nodes_ended.values()}
    is_reported = all_nodes_reported(state, state.nodes)
    if "failed" in outcomes or status.outcome == "failed":
        return FinalState("failed", status.phase)
    if not is_reported and not (state.stop_requested or status.outcome):
        return FinalState("failed", f"not every node has reported how it ended: {status.phase}")
    if not is_reported or status.outcome or "stopped" in outcomes:
        reason = state.reason
        if any(node.why == TIME_LIMIT for node in state.nodes_ended.values()):
            reason = "the time limit was near"
        return FinalState("stopped", (reason or status.phase) + incomplete_shutdown(state))

    return FinalState("succeeded", "")
