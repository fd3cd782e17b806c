"""Log lines that a cloud does not give: a note about the run, and no reason to leave it alone.

Reading logs needs rights and limits of its own (CloudWatch's, a storage account's): a job ends, is stopped and is
fetched without them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cloudtrain.errors import CloudError
from cloudtrain.runs.state import RunState


@dataclass(frozen=True, slots=True)
class LogRead:
    """What became of one attempt to read a job's log."""

    drained: bool
    """Whether nothing more is there for now."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """The note, where it is new; or its end."""
    error: CloudError | None = None

    def is_final(self, *, waited: bool) -> bool:
        """Whether an ended job's log need not be waited for: it cannot be read, or could not for long enough."""
        return self.error is not None and (waited or not self.error.transient)


def read_log(read: Callable[[], bool], state: RunState, now: float) -> LogRead:
    """Read, and note the failure or that it has passed. `read`: True when nothing more is there for now."""
    try:
        drained = read()
    except CloudError as error:
        return LogRead(drained=False, events=note(state, error, now), error=error)
    return LogRead(drained=drained, events=note(state, None, now))


def note(state: RunState, error: CloudError | None, now: float) -> list[dict[str, Any]]:
    """The event that says that the log cannot be read, or can be again; none where that is known already."""
    known = state.log_trouble
    if error is None:
        return [{"type": "log_unread", "time": now, "reason": ""}] if known else []
    if known and known.get("code") == error.code:
        return []
    about = {"reason": error.message, "hint": error.hint or "", "code": error.code, "transient": error.transient}
    return [{"type": "log_unread", "time": now, **about}]


def unread(state: RunState) -> str:
    """`the log cannot be read: …`, why; empty while it can."""
    reason = state.log_trouble.get("reason", "")
    return f"the log cannot be read: {reason}" if reason else ""
