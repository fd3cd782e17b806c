"""A run, while it goes on and ever after: status, logs, wait, stop, fetch, rerun. Needs neither spec nor plan."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, JobFailed, RunExists, RunNotFound, StorageError, UsageError
from cloudtrain.provider import Progress, Provider, get_provider
from cloudtrain.runs.index import remember, summaries
from cloudtrain.runs.logs import LogLine, read_logs
from cloudtrain.runs.state import ENDED, RunState, fold, who
from cloudtrain.runs.store import RunFolder, RunStore, storing
from cloudtrain.settings import load_settings

if TYPE_CHECKING:
    from cloudtrain.planning import Plan

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0
LONGEST_PAUSE = 16
"""A cloud that does not answer is asked ever more rarely: at last after this many usual pauses."""


def find_run(name: str = "last", *, data_dir: str | None = None, provider: str | None = None) -> Run:
    """The run of that id, of that unique beginning, or the last one. RunNotFound otherwise.

    An id that this machine does not know is looked for at `provider` (by default that of the settings), which knows
    the jobs that other machines have started.
    """
    store = _store(data_dir)
    try:
        return Run(store.open(name))
    except RunNotFound as unknown:
        try:
            found = adopt(provider, run_id=name, data_dir=data_dir)
        except CloudError as error:
            raise CloudError(f"{unknown.message}, and {error.message}", hint=error.hint, code=error.code) from error
        if not found:
            raise
        return Run(store.open(name))


def adopt(provider: str | None, *, run_id: str | None = None, data_dir: str | None = None) -> list[str]:
    """Take up jobs that other machines have started at a provider, or the one of that id; returns those new here."""
    settings = load_settings(Path.cwd(), {"provider": provider, "data_dir": data_dir})
    store = _store(data_dir)
    known = set(store.ids())
    new = []
    if run_id == "last" or run_id in known:
        return []
    for job in get_provider(settings["provider"]).adopt(settings, run_id):
        if job.run_id not in known:
            first, *others = job.events
            try:
                folder = store.create(job.run_id, job.documents, first)
                folder.append(*others)
                os.utime(folder.path / "plan.json", (first["time"], first["time"]))  # `last` goes by it
            except RunExists:  # by another process, in this moment
                continue
            new.append(job.run_id)
    return new


def list_runs(*, data_dir: str | None = None, asking: str | None = None) -> list[dict[str, Any]]:
    """A summary of every run, newest first; `damaged` where it cannot be read.

    The state of those still open is looked up, in a cloud only where `asking` names it: else it is as last seen. A
    cloud that does not answer is asked once, and `reason` says so.
    """
    store = _store(data_dir)
    found = []
    silent: dict[str, str] = {}
    for summary in summaries(store):
        where = summary["provider"]
        if summary["state"] not in ENDED and where not in silent:
            try:
                if where in ("", asking) or not get_provider(where).is_remote:
                    state = Run(RunFolder(store.runs_dir / summary["run"])).status()
                    summary = {key: state.to_json()[key] for key in summary}
            except CloudError as error:
                silent[where] = error.message
            except UsageError as error:
                summary = {**summary, "reason": f"not asked: {error.message}"}
            except StorageError as error:
                summary = {**summary, "state": "damaged", "reason": error.message}
        if summary["state"] not in ENDED and where in silent:
            summary = {**summary, "reason": f"not asked: {silent[where]}"}
        found.append(summary)
    return found


@dataclass(frozen=True, slots=True)
class Update:
    """What is new about a run."""

    state: RunState
    events: list[dict[str, Any]]
    lines: list[LogLine]
    trouble: str = ""
    """Why the cloud could not be asked this time; it will be asked again."""


class Run:
    """One run, on this machine or in a cloud, while it goes on and ever after."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self._state = RunState(run_id=folder.run_id)
        self._offset = 0
        self._observed = 0.0
        self._pause: float | None = None
        self._patience = 1
        self._trouble = ""
        self._runs_at: Provider | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self._state.state}>"

    def status(self) -> RunState:
        """The state now. CloudError when the cloud cannot be asked."""
        self._catch_up()
        self._observed = 0.0
        return self._refresh(patient=False)[0]

    def recorded(self) -> RunState:
        """The state as last seen; nobody is asked."""
        self._read()
        return self._state

    def watch(self) -> Iterator[Update]:
        """Everything from the beginning, then what comes, until the run has ended."""
        cursor: Mapping[str, Any] = {}
        before = self._refresh()[1]
        while True:
            # Lines first: an error is told before the lines that tell of it, so it is never read after them.
            lines, cursor = read_logs(self.folder, cursor)
            state, events = self._refresh()
            events, before = before + events, []
            ended = state.has_ended
            if ended:
                rest, cursor = read_logs(self.folder, cursor)
                lines += rest
            yield Update(state, events, lines, self._trouble)
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait for the end and return the state. TimeoutError after `timeout` seconds; the run goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (state := self._refresh()[0]).has_ended:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(f"run {self.id} is still {state.state} after {timeout:g} s; it goes on")
            time.sleep(POLL_SECONDS)
        return state

    def result(self) -> RunState:
        """Wait for the end; JobFailed, with the root cause, unless the run succeeded."""
        state = self.wait()
        if state.state != "succeeded":
            raise JobFailed(f"run {self.id} {state.state}: {explain(state)}", hint=f"cloudtrain logs {self.id}")
        return state

    def logs(
        self,
        *,
        follow: bool = False,
        node: int | None = None,
        rank: int | None = None,
        tail: int | None = None,
        since: float | None = None,
        grep: str | None = None,
    ) -> Iterator[LogLine]:
        """Log lines, oldest first. `since`: seconds since 1970. `follow`: until the run has ended."""
        try:
            pattern = re.compile(grep) if grep else None
        except re.error as error:
            raise UsageError(f"{grep!r} is no regular expression: {error}") from None

        def wanted(line: LogLine) -> bool:
            return (
                (node is None or line.node == node)
                and (rank is None or line.rank == rank)
                and (since is None or line.time >= since)
                and (pattern is None or pattern.search(line.text) is not None)
            )

        self._catch_up()
        self._refresh(patient=follow)
        lines, cursor = read_logs(self.folder, {})
        chosen = [line for line in lines if wanted(line)]
        yield from chosen if tail is None else chosen[max(0, len(chosen) - tail) :]
        while follow:
            ended = self._refresh()[0].has_ended
            lines, cursor = read_logs(self.folder, cursor)
            yield from (line for line in lines if wanted(line))
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def stop(self) -> RunState:
        """SIGTERM to every rank, the grace period, the end; returns when it has come. An ended run stays as it is."""
        state = self._looked_at()
        while not state.has_ended and not self._provider().stop(self.folder, state):
            time.sleep(RETRY_SECONDS)  # it is just being submitted
            state = self._looked_at()
        try:
            return self.wait()
        except CloudError as error:
            hint = f"it was told to stop; cloudtrain status {self.id} tells when it has ended"
            raise CloudError(error.message, hint=hint, code=error.code) from error

    def _looked_at(self) -> RunState:
        """The state now or, if nobody can tell, as last seen: what can be stopped is stopped all the same."""
        try:
            return self.status()
        except (CloudError, StorageError):
            if self.recorded().ref is None:
                raise
            return self._state

    def fetch(
        self, folder: str | Path | None = None, *, checkpoints: bool = False, progress: Progress | None = None
    ) -> Path:
        """Bring model and output (and checkpoints) into a new folder, by default one named like the run.

        The folder is there with everything in it, or not at all. `progress` is told of bytes.
        """
        target = Path(folder or self.id)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} exists and is not empty", hint=f"cloudtrain fetch {self.id} ANOTHER_FOLDER")
        names = ("model", "output", *(("checkpoints",) if checkpoints else ()))
        draft = target.absolute().with_name(f".{target.absolute().name}.{os.urandom(4).hex()}.part")
        state = self.status()
        with storing(target, f"cloudtrain fetch {self.id} ANOTHER_FOLDER"):
            try:
                draft.mkdir(parents=True)
                found = self._provider().fetch(self.folder, state, names, draft, progress)
                if found:
                    if target.is_dir():
                        target.rmdir()
                    draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        if not found:
            if not state.has_ended:
                hint = f"cloudtrain wait {self.id}; --checkpoints brings what is saved already"
                raise StorageError(f"run {self.id} is still {state.state}: its model comes at the end", hint=hint)
            hint = f"cloudtrain logs {self.id}; a script writes to $CLOUDTRAIN_MODEL_DIR and $CLOUDTRAIN_OUTPUT_DIR"
            raise StorageError(f"run {self.id} left no files", hint=hint)
        return target

    def places(self) -> Mapping[str, str]:
        """Where model, output and checkpoints lie: folders of this machine, or addresses in a cloud."""
        return self._provider().places(self.folder, self._state)

    def native(self) -> Any:
        """The job as an object of the cloud's own SDK: for aws a `sagemaker.core` TrainingJob, for azure a `Job`."""
        return self._provider().native(self.folder, self.status())

    def rerun(self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None) -> Run:
        """Run the same source and spec again, under a new id; what did not succeed goes on from its checkpoints."""
        from cloudtrain.submission import archive_of, submit

        again = self.plan_again(overrides, fresh=fresh, provider=provider)
        return Run(submit(again, archive=archive_of(again)))

    def plan_again(self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None) -> Plan:
        """The plan that `rerun` submits."""
        state = self.status()
        if not state.has_ended:
            raise UsageError(f"run {self.id} is still {state.state}", hint=f"cloudtrain stop {self.id}")
        resume = not fresh and state.state != "succeeded"
        resume_from = self._provider().checkpoints(self.folder, state) if resume else ""
        from cloudtrain.submission import plan_again  # the one verb that needs spec and plan

        return plan_again(self.folder, provider, tuple(overrides), resume_from)

    def _catch_up(self) -> None:
        """Of a run of another machine that had ended before it was known here: its lines and events, the first time."""
        self._read()
        if self._state.has_ended and self._state.adopted and self.folder.last_event("cursor") is None:
            self._provider().catch_up(self.folder, self._state)

    def _provider(self) -> Provider:
        if self._runs_at is None:
            self._runs_at = get_provider(self._state.provider or self.folder.document("plan.json")["provider"])
        return self._runs_at

    def _refresh(self, *, patient: bool = True) -> tuple[RunState, list[dict[str, Any]]]:
        """Read what is new; now and then ask the provider. `patient`: a cloud that cannot tell now is asked later."""
        events = self._read()
        if not self._state.has_ended and self._is_time():
            provider = self._provider()
            try:
                seen = provider.observe(self.folder, self._state)
                self._patience, self._trouble = 1, ""
            except CloudError as error:
                if not (patient and error.transient):
                    raise
                self._patience = min(2 * self._patience, LONGEST_PAUSE)
                self._trouble, seen = error.message, []
            if seen:
                self.folder.append(*seen)
            events += self._read()
            if self._state.has_ended and seen:
                remember(self.folder)
        return self._state, events

    def _read(self) -> list[dict[str, Any]]:
        events, self._offset = self.folder.events_since(self._offset)
        fold(self.id, events, self._state)
        return events

    def _is_time(self) -> bool:
        now = time.monotonic()
        if self._observed:
            if self._pause is None:
                self._pause = self._provider().pause_seconds(self.folder)
            if now - self._observed <= self._pause * self._patience:
                return False
        self._observed = now
        return True


def explain(state: RunState) -> str:
    """Why a run ended as it did, in one line: the first failing rank and what it raised."""
    error = state.error
    if not error:
        return state.reason
    if error["rank"] < 0:
        return f"{who(error)}: {error['message']}"
    verb = f"raised {error['exception']}: " if error.get("traceback") else ""
    return f"{who(error)} {verb}{error['message']}"


def _store(data_dir: str | None) -> RunStore:
    return RunStore(Path(load_settings(Path.cwd(), {"data_dir": data_dir})["data_dir"]).absolute())
