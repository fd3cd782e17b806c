"""Current state of a run: reads its events, asks its provider, and yields lines and updates."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from cloudtrain.api.notification import send_in_background
from cloudtrain.api.shared_history import mirror
from cloudtrain.errors import CloudError, StorageError, UsageError
from cloudtrain.providers import get_provider
from cloudtrain.providers.protocol import Provider
from cloudtrain.runs import index
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.logs import LogBlock, LogLine, LogReader, Observation
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import CLEANUP_MARKS, RunStore
from cloudtrain.runs.summary import index_run
from cloudtrain_wire.events import Cursor, Event

MAX_BACKOFF = 16
"""Maximum factor of the provider's interval while a cloud does not answer."""

POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 0.2
"""Seconds between two looks at the run folder, at first and after 10 s."""
EVENT_BATCH_BYTES = 1 << 20
"""Maximum bytes of the events file in an update."""


class RunMonitor:
    """State of a run, updated in place by `refresh`."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.history = History(folder)
        self.state = self.history.state
        self.last_error = ""
        """Error of the last request to the provider; empty if it succeeded."""
        self._last_poll = 0.0
        """Monotonic time of the last request; 0: ask at the next refresh."""
        self._poll_seconds: float | None = None
        self._backoff = 1
        self._provider: Provider | None = None
        self._has_told = False

    @property
    def provider(self) -> Provider:
        """Provider of the run. May raise StorageError or UsageError."""
        if self._provider is None:
            self._provider = get_provider(self.state.provider or RunRecord(self.folder).provider)
        return self._provider

    def record(self, observations: Iterable[Observation]) -> None:
        """Apply and write observations, and add an ended run to the index.

        A disk error is not raised: `unstored` reports it.
        """
        had_ended = self.state.has_ended
        has_events = self.history.take(observations, unstored_ok=True)
        if has_events and self.history.unstored is None:
            index_run(self.folder, self.state)
        if had_ended and not self.state.has_ended:
            index.remove(self.folder.path.parents[1])

    def record_stop(self, observation: Observation) -> None:
        """Write the effect of a stop, flushed to disk. A disk error does not prevent the stop."""
        self.history.take([observation], durable=True, unstored_ok=True)

    @property
    def unstored(self) -> str:
        """Error of writing the last observation; empty after success."""
        error = self.history.unstored
        if not error:
            return ""

        return f"what was seen is not kept: {error.message}"

    def observe(self) -> None:
        """Ask the provider and write its answer. May raise CloudError."""
        self.record(self.provider.observe(self.folder, self.state))

    def poll_at_once(self) -> None:
        """Make the next `refresh` ask the provider, whatever its interval."""
        self._last_poll = 0.0

    def refresh(self, *, retry: bool = True) -> RunState:
        """Read new events, ask the provider if its interval is over, and return the state.

        `retry`: keep a transient CloudError in `last_error` and ask again later. Raise StorageError
        if the events lack the beginning of the run, CloudError if the cloud does not answer.
        """
        self.history.read()
        if not self.state.created:
            hint = f"delete what is left of it, the folder {self.folder.path}, to forget the run"
            message = f"run {self.folder.run_id} is damaged: its events do not tell how it began"
            raise StorageError(message, hint=hint)

        if not self._is_settled() and self._is_poll_due():
            try:
                self.observe()
                self._backoff = 1
                self.last_error = ""
            except CloudError as error:
                if not (retry and error.transient):
                    raise

                self._backoff = min(2 * self._backoff, MAX_BACKOFF)
                self.last_error = error.message

            self.history.read()
        elif self.state.has_ended and not self._last_poll:
            self._last_poll = time.monotonic()
            self._clean_up()

        has_settled = self._is_settled() and not self._has_told
        if has_settled:
            self._has_told = True
            send_in_background(self.folder)

        mirror(self.folder.path.parents[1], at_once=has_settled)

        return self.state

    def _is_settled(self) -> bool:
        """Return whether a run has ended, and its job cannot appear after all."""
        if not self.state.may_have_started:
            return self.state.has_ended

        from cloudtrain.providers.shared.idempotent_create import may_appear  # it loads plans

        return self.state.has_ended and not may_appear(self.state, time.time())

    def sync_logs(self, *, retry: bool) -> CloudError | StorageError | None:
        """Copy new log lines to the run folder. Return the error of cloud or disk, if any."""
        try:
            self.backfill_logs(retry_failed=True)
            self.refresh(retry=retry)
            self.raise_if_log_unread(retry=retry)
        except CloudError as error:
            return error

        return self.history.unstored

    def backfill_logs(self, *, retry_failed: bool = False) -> None:
        """Copy the missing log of an ended run.

        This happens once for a run of another machine; `retry_failed`: also for a log that could
        not be read before.
        """
        state = self.history.read()
        if not state.has_ended:
            return

        is_first = state.adopted and not state.log_unread and self.folder.last_event(Cursor) is None
        if is_first or (retry_failed and state.log_unread):
            self.history.take(self.provider.backfill_logs(self.folder, state), unstored_ok=True)

    def raise_if_log_unread(self, *, retry: bool = True) -> None:
        """Raise CloudError if the log is unreadable; with `retry` only if a retry cannot help."""
        unread = self.state.log_unread
        if unread and not (retry and unread.transient and not self.state.has_ended):
            raise CloudError(self.state.log_error, hint=unread.hint or None, code=unread.code)

    def _is_poll_due(self) -> bool:
        moment = time.monotonic()
        if self._last_poll:
            if self._poll_seconds is None:
                self._poll_seconds = self.provider.poll_seconds(self.folder)
            if moment - self._last_poll <= self._poll_seconds * self._backoff:
                return False

        self._last_poll = moment
        return True

    def _clean_up(self) -> None:
        """Ask the provider to remove leftovers of a run on this machine."""
        if self.folder.run_id in RunStore(self.folder.path.parents[1]).marked(CLEANUP_MARKS):
            self.observe()


class LogStream:
    """Lines of all nodes of a run, each once, in blocks. Filters as in `Run.logs`.

    Raise UsageError for an invalid `grep`.
    """

    def __init__(
        self,
        monitor: RunMonitor,
        *,
        node: int | None = None,
        rank: int | None = None,
        since: float | None = None,
        grep: str | None = None,
        metrics: bool = True,
    ) -> None:
        self._pattern: re.Pattern[str] | None = None
        try:
            if grep:
                self._pattern = re.compile(grep)
        except re.error as error:
            raise UsageError(f"{grep!r} is not a valid regular expression: {error}") from None

        self._monitor = monitor
        self._reader = LogReader(monitor.folder)
        self._node = node
        self._source = None if rank is None else f"rank {rank}"
        self._since = since
        self._metrics = metrics
        self.has_ended = False
        """True if the run had ended before the last `fresh` read, so that no line follows."""

    def stored(self, *, tail: int | None, retry: bool) -> Iterator[LogBlock]:
        """Yield the stored lines, oldest first; with `tail` only the last ones.

        Then raise CloudError if the cloud does not return the others; with `retry`, only if asking
        again cannot help.
        """
        failure = self._monitor.sync_logs(retry=retry)
        if tail is None:
            ended = self._monitor.state.has_ended
            yield from self._unread(unfinished=ended)
        else:
            blocks = self._reader.read_backward(unfinished=self._monitor.state.has_ended)
            # Skipped lines count as read.
            latest = list(islice(self._wanted(blocks), max(1, tail)))[:tail]
            yield from reversed(latest)

        if failure is not None:  # after the stored lines
            raise failure

    def fresh(self) -> Iterator[LogBlock]:
        """Yield the lines since the last call. May raise CloudError."""
        ended = self._monitor.refresh().has_ended
        self._monitor.raise_if_log_unread()
        yield from self._unread(unfinished=ended)
        self.has_ended = ended

    def _unread(self, *, unfinished: bool) -> Iterator[LogBlock]:
        return self._wanted(self._reader.read_all(unfinished=unfinished))

    def _wanted(self, blocks: Iterable[LogBlock]) -> Iterator[LogBlock]:
        for block in blocks:
            if (
                (self._node is not None and block.node != self._node)
                or (self._source is not None and block.source != self._source)
                or (self._since is not None and block.time < self._since)
                or (block.kind and not self._metrics)
            ):
                continue

            if self._pattern is None:
                yield block
            elif lines := list(filter(self._pattern.search, block.text.split("\n"))):
                yield block._replace(text="\n".join(lines))


@dataclass(frozen=True, slots=True)
class Update:
    """Changes of a run since the previous update."""

    state: RunState
    """Current state; the same object in every update."""
    events: list[Event]
    """New events in the order of writing."""
    blocks: Sequence[LogBlock]
    """New lines of all nodes by time, those of one source together."""
    last_error: str = ""
    """Error of asking the cloud or reading the log, which is retried; empty if none."""

    @property
    def lines(self) -> list[LogLine]:
        """New lines of all nodes by time."""
        return list(chain.from_iterable(block.lines() for block in self.blocks))


class Wait:
    """Wait for a run from now, for `timeout` seconds or without a limit."""

    def __init__(self, monitor: RunMonitor, timeout: float | None = None) -> None:
        self._monitor = monitor
        self._timeout = timeout
        self._began = time.monotonic()

    def raise_if_over(self) -> None:
        """Raise TimeoutError when the time is over, while the run continues."""
        if self._timeout is not None and time.monotonic() > self._began + self._timeout:
            run = self._monitor.folder.run_id
            state = self._monitor.state.state
            raise TimeoutError(
                f"run {run} is still {state} after {self._timeout:g} s; it continues"
            )

    def pause(self) -> None:
        """Sleep until the next look at the run folder, longer in a long run."""
        time.sleep(min(MAX_POLL_SECONDS, max(POLL_SECONDS, (time.monotonic() - self._began) / 50)))


def updates(monitor: RunMonitor, *, tail: int | None, timeout: float | None) -> Iterator[Update]:
    """Yield the updates of `Run.watch`; same arguments and errors."""
    reader = LogReader(monitor.folder)
    offset = 0
    wait = Wait(monitor, timeout)
    monitor.refresh()

    if tail is not None:
        offset = monitor.folder.events_end()
        # Skipped lines count as read.
        latest = list(islice(reader.read_backward(), max(1, tail)))[:tail]
        yield Update(monitor.state, [], latest[::-1], monitor.last_error)

    while True:
        # Lines first: the event of an error is written before its lines, so never read after them.
        blocks = reader.read_batch()
        state = monitor.refresh()
        last_error = monitor.last_error or state.log_error or monitor.unstored
        events, offset = monitor.folder.events_since(offset, EVENT_BATCH_BYTES)

        while events and (following := monitor.folder.events_since(offset, EVENT_BATCH_BYTES))[0]:
            yield Update(state, events, [], last_error)
            events, offset = following

        if state.has_ended:
            blocks += reader.read_batch(unfinished=True)
        while state.has_ended and (unread := reader.read_batch(unfinished=True)):
            yield Update(state, events, blocks, last_error)
            events = []
            blocks = unread

        yield Update(state, events, blocks, last_error)
        if state.has_ended:
            return

        wait.raise_if_over()
        if not blocks:
            wait.pause()
