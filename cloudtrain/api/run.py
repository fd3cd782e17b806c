"""A run, while it goes on and ever after: status, logs, wait, stop, fetch, rerun. Needs neither spec nor plan."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, JobFailed, StorageError, UsageError
from cloudtrain.providers import Note, Progress, Provider, get_provider
from cloudtrain.runs.events import Cursor, Event
from cloudtrain.runs.failure import explain
from cloudtrain.runs.files import storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.index import index_run
from cloudtrain.runs.logs import BATCH_LINES, LogLine, LogReader
from cloudtrain.runs.observation import Observation
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0
MAX_LISTED = 20
"""Of what was left out, in an error."""
STOP_ATTEMPTS = 5
"""Of telling a job to stop, on top of an SDK's own tries of each call."""
MAX_BACKOFF = 16
"""A cloud that does not answer is asked ever more rarely: at last after this many usual pauses."""


EVENT_BATCH_BYTES = 1 << 20
"""So much of the events is handed on at once."""


@dataclass(frozen=True, slots=True)
class Update:
    """What is new about a run."""

    state: RunState
    events: list[Event]
    lines: list[LogLine]
    last_error: str = ""
    """What the cloud does not tell this time, and why; it will be asked again."""


class Run:
    """One run, on this machine or in a cloud, while it goes on and ever after."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.id = folder.run_id
        self._history = History(folder)
        self._state = self._history.state
        self._last_poll = 0.0
        self._poll_seconds: float | None = None
        self._backoff = 1
        self._last_error = ""
        self._cached_provider: Provider | None = None

    def __repr__(self) -> str:
        return f"<Run {self.id}: {self._state.state}>"

    @property
    def damaged_lines(self) -> int:
        """Lines among its events that are none: a writer was killed, a disk was full, or somebody has changed them."""
        return self._history.damaged_lines

    def status(self) -> RunState:
        """The state now. CloudError when the cloud cannot be asked."""
        self._backfill_logs()
        self._last_poll = 0.0
        state = self._refresh(retry=False)
        if state.has_ended and state.keeps_machines:
            with suppress(CloudError):  # as last seen, then
                self.take(self._provider().observe(self.folder, state))
        return self._state

    def cached_status(self) -> RunState:
        """The state as last seen; nobody is asked."""
        return self._history.read()

    def take(self, observations: Iterable[Observation]) -> None:
        """Write down what somebody has observed of the run; a list of runs shows how an ended one stands."""
        if self._history.take(observations):
            index_run(self._history)

    def watch(self) -> Iterator[Update]:
        """Everything from the beginning, then what comes, until the run has ended."""
        reader, told = LogReader(self.folder), 0
        self._refresh()
        while True:
            # Lines first: an error is told before the lines that tell of it, so it is never read after them.
            lines = reader.read_batch()
            state = self._refresh()
            last_error = self._last_error or state.log_error
            events, told = self.folder.events_since(told, EVENT_BATCH_BYTES)
            while events and (following := self.folder.events_since(told, EVENT_BATCH_BYTES))[0]:
                yield Update(state, events, [], last_error)
                events, told = following
            while state.has_ended and (rest := reader.read_batch()):
                if len(lines) + len(rest) > BATCH_LINES:
                    yield Update(state, events, lines, last_error)
                    lines, events = [], []
                lines += rest
            yield Update(state, events, lines, last_error)
            if state.has_ended:
                return
            if not lines:
                time.sleep(POLL_SECONDS)

    def wait(self, timeout: float | None = None) -> RunState:
        """Wait for the end and return the state. TimeoutError after `timeout` seconds; the run goes on."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not (state := self._refresh()).has_ended:
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
        """Log lines, oldest first. `since`: Unix timestamp. `follow`: until the run has ended.

        CloudError, after the lines that are here already, when the cloud does not give the others.
        """
        try:
            pattern = re.compile(grep) if grep else None
        except re.error as error:
            raise UsageError(f"{grep!r} is not a valid regular expression: {error}") from None

        def wanted(line: LogLine) -> bool:
            return (
                (node is None or line.node == node)
                and (rank is None or line.rank == rank)
                and (since is None or line.time >= since)
                and (pattern is None or pattern.search(line.text) is not None)
            )

        failure = self._sync_logs(retry=follow)
        reader = LogReader(self.folder)
        if tail is None:
            yield from filter(wanted, reader.read_all())
        else:
            latest = list(islice(filter(wanted, reader.read_backward()), tail))
            yield from reversed(latest)
        if failure is not None:  # what is here is shown all the same
            raise failure
        while follow:
            ended = self._refresh().has_ended
            self._raise_if_log_unread()
            yield from filter(wanted, reader.read_all())
            if ended:
                return
            time.sleep(POLL_SECONDS)

    def stop(self) -> RunState:
        """SIGTERM to every rank, the grace period, the end; returns when it has come. An ended run stays as it is.

        The job is told to stop also when nobody can tell how it stands.
        """
        state = self.last_known()
        while not state.has_ended and not self._request_stop(state):
            time.sleep(RETRY_SECONDS)  # it is just being submitted
            state = self.last_known()
        try:
            return self.wait()
        except CloudError as error:
            hint = f"it was told to stop; cloudtrain status {self.id} tells when it has ended"
            raise CloudError(error.message, hint=hint, code=error.code) from error

    def release(self) -> RunState:
        """Give back the machines that are kept after the run, and billed. UsageError where there are none."""
        self.take([self._provider().release(self.folder, self.cached_status())])
        return self._state

    def last_known(self) -> RunState:
        """The state now or, if nobody can tell, as last seen."""
        try:
            return self.status()
        except (CloudError, StorageError) as error:
            if isinstance(error, StorageError) and self.cached_status().ref is None:
                raise
            return self.cached_status()

    def _request_stop(self, state: RunState) -> bool:
        """Send the stop, again and again through what passes. False: the job is not there yet."""
        again = f"cloudtrain stop {self.id} asks again"
        for attempt in range(STOP_ATTEMPTS):
            try:
                return self._provider().stop(self.folder, state, self._history.record)
            except CloudError as error:
                failure = error
            if not failure.transient:
                break
            time.sleep(RETRY_SECONDS * 2**attempt)
        hint = f"{failure.hint}; {again}" if failure.hint else again
        raise CloudError(
            f"{self.id} was not told to stop: {failure.message}", hint=hint, code=failure.code
        ) from failure

    def fetch(
        self,
        folder: str | Path | None = None,
        *,
        checkpoints: bool = False,
        progress: Progress | None = None,
        note: Note | None = None,
    ) -> Path:
        """Bring model and output (and checkpoints) into a new folder, by default one named like the run.

        The folder is there with everything in it, or not at all. `progress` is told of bytes; `note` of each thing
        that was left out, such as a link that leads out of what the job left.
        """
        target = Path(folder or self.id)
        if os.path.exists(target) and (not target.is_dir() or any(target.iterdir())):  # noqa: PTH110  (false for what no disk can hold)
            raise UsageError(f"{target} exists and is not empty", hint=f"cloudtrain fetch {self.id} ANOTHER_FOLDER")
        names = ("model", "output", *(("checkpoints",) if checkpoints else ()))
        draft = target.absolute().with_name(f".{target.absolute().name}.{os.urandom(4).hex()}.part")
        state = self.last_known()  # what is stored can be brought, whoever does not answer
        left_out: list[str] = []
        with storing(target, f"cloudtrain fetch {self.id} ANOTHER_FOLDER"):
            try:
                draft.mkdir(parents=True)
                found = self._provider().fetch(self.folder, state, names, draft, progress, left_out.append)
                if found:
                    if target.is_dir():
                        target.rmdir()
                    draft.rename(target)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        if not found:
            if not state.has_ended:
                hint = f"cloudtrain wait {self.id}; --checkpoints brings what is saved already"
                message = f"run {self.id} is still {state.state}: its model comes at the end"
                raise StorageError("; ".join([message, *left_out[:MAX_LISTED]]), hint=hint)
            hint = f"cloudtrain logs {self.id}; a script writes to $CLOUDTRAIN_MODEL_DIR and $CLOUDTRAIN_OUTPUT_DIR"
            raise StorageError("; ".join([f"run {self.id} left no files", *left_out[:MAX_LISTED]]), hint=hint)
        if note is not None:
            for text in left_out:
                note(text)
        return target

    def artifacts(self) -> Mapping[str, str]:
        """Where model, output and checkpoints lie: folders of this machine, or addresses in a cloud.

        Once it has been looked for, only what is there.
        """
        state = self.cached_status()
        found, left = self._provider().artifacts(self.folder, state), state.results
        return found if left is None else {name: place for name, place in found.items() if name in left}

    def native(self) -> Any:
        """The job as an object of the cloud's own SDK: for aws a `sagemaker.core` TrainingJob, for azure a `Job`."""
        return self._provider().native(self.folder, self.status())

    def rerun(self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None) -> Run:
        """Run the same source and spec again, under a new id; what did not succeed goes on from its checkpoints."""
        from cloudtrain.submission.context import archive_of
        from cloudtrain.submission.submit import submit

        again = self.plan_again(overrides, fresh=fresh, provider=provider)
        return Run(submit(again, archive=archive_of(again)))

    def plan_again(self, overrides: Sequence[str] = (), *, fresh: bool = False, provider: str | None = None) -> Plan:
        """The plan that `rerun` submits."""
        state = self.status()
        if not state.has_ended:
            raise UsageError(f"run {self.id} is still {state.state}", hint=f"cloudtrain stop {self.id}")
        resume = not fresh and state.state != "succeeded"
        resume_from = self._provider().checkpoints(self.folder, state) if resume else ""
        from cloudtrain.submission.rerun import plan_again  # the one verb that needs spec and plan

        return plan_again(self.folder, provider, tuple(overrides), resume_from)

    def _sync_logs(self, *, retry: bool) -> CloudError | None:
        """Bring what is new of the log; the error where a cloud does not give it."""
        try:
            self._backfill_logs(retry_failed=True)
            self._refresh(retry=retry)
            self._raise_if_log_unread(retry=retry)
        except CloudError as error:
            return error
        return None

    def _raise_if_log_unread(self, *, retry: bool = True) -> None:
        """CloudError when the log cannot be read; `retry`: only when asking again cannot help."""
        unread = self._state.log_unread
        if unread and not (retry and unread.transient and not self._state.has_ended):
            raise CloudError(self._state.log_error, hint=unread.hint or None, code=unread.code)

    def _backfill_logs(self, *, retry_failed: bool = False) -> None:
        """Lines and events of an ended run that are not here: of a run of another machine, the first time; of one
        whose log could not be read, each time that somebody asks for it (`again`).
        """
        state = self._history.read()
        if not state.has_ended:
            return
        late = state.adopted and not state.log_unread and self.folder.last_event(Cursor) is None
        if not late and not (retry_failed and state.log_unread):
            return
        self._history.take(self._provider().backfill_logs(self.folder, state))

    def _provider(self) -> Provider:
        if self._cached_provider is None:
            self._cached_provider = get_provider(self._state.provider or RunRecord(self.folder).provider)
        return self._cached_provider

    def _refresh(self, *, retry: bool = True) -> RunState:
        """Read what is new; now and then ask the provider. `retry`: a cloud that cannot tell now is asked later.

        StorageError when the events do not tell how the run began.
        """
        self._history.read()
        if not self._state.created:
            hint = f"what is left of it is in {self.folder.path}"
            raise StorageError(f"run {self.id} is damaged: its events do not tell how it began", hint=hint)
        if not self._state.has_ended and self._is_poll_due():
            try:
                self.take(self._provider().observe(self.folder, self._state))
                self._backoff, self._last_error = 1, ""
            except CloudError as error:
                if not (retry and error.transient):
                    raise
                self._backoff = min(2 * self._backoff, MAX_BACKOFF)
                self._last_error = error.message
            self._history.read()
        elif self._state.has_ended and not self._last_poll:
            self._last_poll = time.monotonic()
            self._clean_up()
        return self._state

    def _clean_up(self) -> None:
        """Of a run on this machine that has ended: what could not be removed at its end."""
        if self.id in RunStore(self.folder.path.parents[1]).runs_to_clean_up():
            self.take(self._provider().observe(self.folder, self._state))

    def _is_poll_due(self) -> bool:
        now = time.monotonic()
        if self._last_poll:
            if self._poll_seconds is None:
                self._poll_seconds = self._provider().poll_seconds(self.folder)
            if now - self._last_poll <= self._poll_seconds * self._backoff:
                return False
        self._last_poll = now
        return True
