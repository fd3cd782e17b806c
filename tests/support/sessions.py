"""Recorded sessions, and the screens that a terminal shows of them."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cloudtrain.api.monitor import Update
from cloudtrain.runs.fold import fold
from cloudtrain.runs.logs import EVENT_MARK, log_line, split_events
from cloudtrain.runs.state import RunState
from cloudtrain_wire.events import from_json

# Sessions as a terminal shows them: the output of nodes over time, and the text of the screen
# afterwards.

START = 1_795_213_200.0
"""The Unix timestamp of the beginning of every recorded session."""

SCREENS = Path(__file__).resolve().parents[1] / "data" / "screens"

# Read at import: the tests' own home has no such variable.
REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_GOLDEN")

Step = tuple[float, str | dict[str, Any]]
"""Seconds after the start, and a line of the first node's log, or an event: of the client, or
printed by the job.
"""


class Screen(io.StringIO):
    """A standard error that is a terminal, or a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        """Return the text on the screen: the last drawing of each line."""
        lines = self.getvalue().split("\n")
        return "\n".join(
            re.sub(r"\x1b\[[0-9;]*m", "", line.rpartition("\x1b[K")[2]).rstrip() for line in lines
        )


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


def updates(run_id: str, steps: Iterable[Step], clock: Clock) -> Iterator[Update]:
    """The updates of a run that does these steps, each at its time, which the clock then shows."""
    state = RunState(run_id=run_id)
    for after, step in steps:
        clock.now = START + after
        yield _update(state, step, clock.now)


def _update(state: RunState, step: str | dict[str, Any], now: float) -> Update:
    event = (
        None if isinstance(step, str) else from_json({"time": now, "node": 0, "rank": -1, **step})
    )
    if event is not None and event.WRITER == "client":
        return Update(fold(state.run_id, [event], state), [event], [])
    raw = (
        step.encode()
        if isinstance(step, str)
        else EVENT_MARK + json.dumps(event and event.to_json()).encode()
    )
    node = event.node if event is not None else 0
    events, lines = split_events([raw], node)
    return Update(
        fold(state.run_id, events, state),
        events,
        [log_line(now, node, line.decode()) for line in lines],
    )


def check(name: str, shown: str) -> None:
    """Hold a screen against the recorded one, `tests/data/screens/NAME.txt`, or write that anew."""
    path = SCREENS / f"{name}.txt"
    if REWRITE:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(shown + "\n", encoding="utf-8")
    assert shown + "\n" == path.read_text(encoding="utf-8")


def _sessions() -> dict[str, list[Step]]:
    """Return the recorded sessions: of the trainer, a script, one that fails, and one that hangs."""
    sessions: dict[str, list[Step]] = {}
    for line in SCREENS.with_name("sessions.jsonl").read_text().splitlines():
        name, after, step = json.loads(line)
        sessions.setdefault(name, []).append((after, step))
    return sessions


SESSIONS = _sessions()
TRAINER = SESSIONS["trainer"]
SCRIPT = SESSIONS["script"]
