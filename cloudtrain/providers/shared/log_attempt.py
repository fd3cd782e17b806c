"""Reads a job's log, which a cloud may refuse: then the run gets a note, and everything else still
works.

Reading logs needs permissions and quotas of its own (CloudWatch's, a storage account's). Status,
stop and fetch do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from cloudtrain.errors import CloudError
from cloudtrain.runs.observation import LogPart, Observation, Positions
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import LogUnread

RETRY_SECONDS = 0.2
"""Between two attempts to read a log that another process is reading."""

Read = Callable[[Positions], Generator[LogPart, None, bool]]
"""Yields the new lines of all logs; returns whether there is nothing more for now."""


class LogAttempt:
    """One attempt to read a job's log. Its attributes are valid once its observations have been
    taken.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self.was_read = False
        """Whether the log was read at all; not while another process reads it."""
        self.is_complete = False
        """Whether there is nothing more for now."""
        self.error: CloudError | None = None
        """Why it cannot be read."""

    def observations(self, state: RunState) -> Iterator[Observation]:
        """The new lines, then an event if the log has become unreadable or readable again."""
        yield Observation(lines=self._lines)
        if self.was_read:
            yield Observation(events=_readability_events(state, self.error))

    def is_done(self, *, waited: bool, all_reported: bool) -> bool:
        """Whether an ended job's log needs no further attempt: it is complete, or will stay
        unreadable.

        `waited`: the last lines have had the time they need to arrive. `all_reported`: every node
        has reported its end.
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
    """The whole log of an ended job, as far as it can be read."""
    while True:
        attempt = LogAttempt(read)
        yield from attempt.observations(state)
        if attempt.is_complete or attempt.error is not None:
            return
        if not attempt.was_read:
            time.sleep(RETRY_SECONDS)


def _readability_events(state: RunState, error: CloudError | None) -> list[LogUnread]:
    """The event that the log cannot be read, or can be read again; none if the run's state says so
    already.
    """
    known = state.log_unread
    now = time.time()
    if error is None:
        return [LogUnread(time=now, reason="")] if known else []
    if known and known.code == error.code:
        return []
    hint = error.hint or ""
    return [
        LogUnread(
            time=now, reason=error.message, hint=hint, code=error.code, transient=error.transient
        )
    ]
