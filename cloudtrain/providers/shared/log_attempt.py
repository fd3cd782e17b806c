"""Read a job's log. If a cloud refuses, the run gets a note and everything else still works.

Logs have separate permissions and quotas (CloudWatch's, a storage account's). Status, stop and
fetch do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from cloudtrain.errors import CloudError
from cloudtrain.runs.observation import LogPart, Observation, Positions
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import LogUnread

RETRY_SECONDS = 0.2
"""Pause between two attempts to read a log that another process is reading."""

Read = Callable[[Positions], Generator[LogPart, None, bool]]
"""Yields the new lines of all logs; returns True if all of them were read."""


class LogAttempt:
    """One attempt to read a job's log. Attributes are valid after its observations are consumed."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.was_read = False
        """True if the log was read; False while another process reads it."""
        self.is_complete = False
        """True if all lines for now were read."""
        self.error: CloudError | None = None
        """Reason why the log cannot be read."""

    def observations(self, state: RunState) -> Iterator[Observation]:
        """Yield the new lines, then an event if the log has become unreadable or readable again."""
        yield Observation(lines=self._lines)
        if self.was_read:
            yield Observation(events=_readability_events(state, self.error))

    def is_done(self, *, waited: bool, all_reported: bool) -> bool:
        """Return True if an ended job's log needs no further attempt.

        It is complete, or will stay unreadable. `waited`: the last lines had enough time to arrive.
        `all_reported`: every node has reported its end.
        """
        if self.error is not None:
            return waited or not self.error.transient
        return self.is_complete and (waited or all_reported)

    def _lines(self, positions: Positions) -> Iterator[LogPart]:
        self.was_read = True
        try:
            self.is_complete = yield from self._read(positions)
        except CloudError as error:
            self.error = error


def backfill(read: Read, state: RunState) -> Iterator[Observation]:
    """Yield the whole log of an ended job, as far as it can be read."""
    while True:
        attempt = LogAttempt(read)
        yield from attempt.observations(state)
        if attempt.is_complete or attempt.error is not None:
            return
        if not attempt.was_read:
            time.sleep(RETRY_SECONDS)


def _readability_events(state: RunState, error: CloudError | None) -> list[LogUnread]:
    """Return an event if the log has become unreadable, or readable again."""
    previous = state.log_unread
    time_now = time.time()
    if error is None:
        return [LogUnread(time=time_now, reason="")] if previous else []
    if previous and previous.code == error.code:
        return []
    hint = error.hint or ""
    return [
        LogUnread(
            time=time_now,
            reason=error.message,
            hint=hint,
            code=error.code,
            transient=error.transient,
        )
    ]
