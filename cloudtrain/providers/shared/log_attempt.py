"""Read a job's log. If a cloud refuses, the run gets a note and everything else still works.

Logs have separate permissions and quotas (CloudWatch's, a storage account's). Status, stop and
fetch do not depend on them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

from cloudtrain.errors import CloudError
from cloudtrain.runs.logs import LogPart, Observation, Positions
from cloudtrain_wire.causes import first_cause, process_name
from cloudtrain_wire.events import Billing, Ended, Kept, LogUnread

if TYPE_CHECKING:
    from cloudtrain.runs.state import RunState

LOG_LAG_POLLS = 3
"""Polling intervals to wait for the last log lines after the end of a job."""
RETRY_SECONDS = 0.2
"""Pause between two attempts to read a log that another process is reading."""

TIME_IS_UP = "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)"
"""Reason of a job that its time limit stopped."""

Read = Callable[[Positions], Generator[LogPart, None, bool]]
"""Yields the new lines of all logs; returns True if all of them were read."""

E = TypeVar("E", Ended, Kept)


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


def log_lag_is_over(state: RunState, phase: str, ended: float, poll: float) -> bool:
    """Return True if the last lines had time to arrive, by the service's clock or ours.

    `phase` and `ended`: as the service reports them; `poll`: the seconds between two calls.
    """
    time_now = time.time()
    first_seen = state.phase_seen if state.phase == phase else time_now
    return time_now - min(first_seen, ended or time_now) > LOG_LAG_POLLS * poll


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
        if not previous:
            return []

        return [LogUnread(time=time_now, reason="")]
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


class FinalState(NamedTuple):
    """Final state of a job and its reason, as the cloud reports it."""

    state: Literal["succeeded", "failed", "stopped"]
    reason: str
    """Description; empty if the job succeeded."""


def all_nodes_reported(state: RunState, nodes: int) -> bool:
    """Return True if the launcher of every node has reported how the node ended."""
    return len(state.nodes_ended) >= nodes


def incomplete_shutdown(state: RunState, hint: str = "") -> str:
    """Return a note on nodes that were killed or did not report; empty if all ended in order."""
    reports = state.nodes_ended
    nodes = [str(node) for node in sorted(reports) if reports[node].forced]

    how = "ended by force"
    if not nodes and state.started and not state.log_unread:
        nodes = [str(node) for node in range(state.nodes) if node not in reports]
        how = "cut off before telling how it ended"
    if not nodes:
        return ""

    saved = "no checkpoint was told of"
    if state.checkpoint and state.checkpoint.step is not None:
        saved = f"the last one told of is of step {state.checkpoint.step}"

    noun = "node" if len(nodes) == 1 else "nodes"
    words = f"{noun} {', '.join(nodes)} {how}: what it was saving may be lost; {saved}"
    if hint:
        words += f"; {hint}"

    return f" ({words})"


def ended_event(
    state: RunState,
    final: FinalState,
    when: float,
    billing: Billing | None = None,
) -> Ended:
    """Return the event that ends a run at `when`, a Unix timestamp.

    If a node reported why it failed, that is the reason; the cloud's reason is kept as
    `platform_reason`.
    """
    event = Ended(time=when, state=final.state, reason=final.reason)
    errors = [report.error for report in state.nodes_ended.values() if report.error]

    cause = first_cause(errors, state.finished_ranks)
    if final.state == "failed" and cause is not None:
        reason = f"{process_name(cause)} failed"
        event = event.replace(error=cause, reason=reason, platform_reason=final.reason)

    return with_billing(event, billing)


def with_billing(event: E, billing: Billing | None) -> E:
    """Return the event with the billing; the unchanged event if the billing is unknown."""
    if billing is None:
        return event

    return event.replace(billing=billing)
