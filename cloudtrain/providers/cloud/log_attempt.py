"""Reading a job's log, which a cloud may refuse: that is a note about the run, and no reason to leave it alone.

Reading logs needs rights and limits of its own (CloudWatch's, a storage account's): a job ends, is stopped and is
fetched without them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator

from cloudtrain.errors import CloudError
from cloudtrain.runs.observation import Event, LogPart, Observation, Positions
from cloudtrain.runs.state import RunState

ELSEWHERE_SECONDS = 0.2
"""Between two tries to read all of a log that another process is reading."""

Read = Callable[[Positions], Generator[LogPart, None, bool]]
"""Reads what is new of all logs; its value: whether nothing more is there for now."""


class LogAttempt:
    """One attempt to read a job's log: what became of it is known when its observations have been taken."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self.tried = False
        """Whether it was made at all: another process may be reading."""
        self.drained = False
        """Whether nothing more is there for now."""
        self.error: CloudError | None = None
        """Why it cannot be read."""

    def observations(self, state: RunState) -> Iterator[Observation]:
        """The lines, and the note where reading them has failed, or works again."""
        yield Observation(lines=self._lines)
        if self.tried:
            yield Observation(events=_note(state, self.error))

    def is_done(self, *, waited: bool, all_reported: bool) -> bool:
        """Whether an ended job's log need not be waited for: all of it is here, or it cannot be read for good.

        `waited`: its last lines had their time to arrive. `all_reported`: every node has said how it ended.
        """
        if self.error is not None:
            return waited or not self.error.transient
        return self.drained and (waited or all_reported)

    def _lines(self, positions: Positions) -> Iterator[LogPart]:
        self.tried = True
        try:
            self.drained = yield from self._read(positions)
        except CloudError as error:
            self.error = error


def backfill(read: Read, state: RunState) -> Iterator[Observation]:
    """All of a log, as far as it can be read."""
    while True:
        attempt = LogAttempt(read)
        yield from attempt.observations(state)
        if attempt.drained or attempt.error is not None:
            return
        if not attempt.tried:
            time.sleep(ELSEWHERE_SECONDS)


def _note(state: RunState, error: CloudError | None) -> list[Event]:
    """The event that says that the log cannot be read, or can be again; none where that is known already."""
    known, now = state.log_unread, time.time()
    if error is None:
        return [{"type": "log_unread", "time": now, "reason": ""}] if known else []
    if known and known.code == error.code:
        return []
    about = {"reason": error.message, "hint": error.hint or "", "code": error.code, "transient": error.transient}
    return [{"type": "log_unread", "time": now, **about}]
