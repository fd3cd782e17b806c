"""Recorded sessions, and the screens that a terminal shows of them."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cloudtrain.runs.fold import fold
from cloudtrain.runs.logs import EVENT_MARK, log_line, split_events
from cloudtrain.runs.state import RunState
from cloudtrain.submission.monitor import Update
from cloudtrain_launcher.events import from_json

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


# Recorded sessions: a healthy run of the trainer, one of an own script, one that fails, and one
# that hangs.


def _born(name: str, nodes: int, processes: int) -> list[Step]:
    size = {"name": name, "nodes": nodes, "processes": processes}
    return [
        (0, {"type": "submitting", **size, "provider": "local", "contract": "plain"}),
        (0.1, {"type": "submitted", "ref": {"pid": 1}}),
        (1, {"type": "node_started", "pid": 2, "host": "h"}),
    ]


def _rank(rank: int, at: float) -> Step:
    return at, {"type": "rank_started", "rank": rank, "local_rank": rank, "pid": 10 + rank}


def _progress(at: float, step: int, loss: float, **more: float | str) -> Step:
    totals = {"epoch": 1 + (step - 1) // 100, "epochs": 3, "steps": 300}
    return at, {
        "type": "progress",
        "rank": 0,
        "step": step,
        **totals,
        "loss": loss,
        "samples_per_s": 1234.5,
        **more,
    }


TRAINER: list[Step] = [
    *_born("digits", 2, 2),
    (1.2, {"type": "activity", "activity": "restoring"}),
    (2.0, "[node 0] restored 3 files (1.2 MB) from an earlier run"),
    (2.1, {"type": "activity", "activity": "waiting for peers"}),
    (24.0, "[node 1] waiting for node 0"),
    *(_rank(rank, 25.0 + rank / 4) for rank in range(4)),
    (26.0, {"type": "activity", "rank": 0, "activity": "restoring"}),
    (27.0, {"type": "activity", "rank": 0, "activity": ""}),
    (27.1, {"type": "resumed", "rank": 0, "step": 40, "epoch": 0}),
    _progress(28, 41, 2.3),
    _progress(58, 71, 1.1),
    _progress(87, 100, 0.7),
    (87.1, {"type": "activity", "rank": 0, "activity": "evaluating"}),
    (110.0, "[rank 1] a line of another rank"),
    (110.1, {"type": "activity", "rank": 0, "activity": ""}),
    (
        110.2,
        {
            "type": "metrics",
            "rank": 0,
            "step": 100,
            "epoch": 1,
            "values": {"loss": 0.7, "val_accuracy": 0.8125},
        },
    ),
    (111.0, {"type": "activity", "rank": 0, "activity": "saving"}),
    (112.0, {"type": "activity", "rank": 0, "activity": ""}),
    _progress(127, 130, 0.5),
    _progress(157, 160, 0.4, unit="images"),
]

SCRIPT: list[Step] = [
    *_born("my-training", 1, 2),
    _rank(0, 2.0),
    _rank(1, 2.1),
    (3.0, "[rank 0] \x1b[32mreading\x1b[0m 5 files"),
    *(
        (4.0 + step, {"type": "metrics", "rank": 0, "step": step, "values": {"loss": 1 / step}})
        for step in (1, 2, 3)
    ),
    (8.0, {"type": "progress", "rank": 0, "step": 4, "steps": 40}),
    (
        9.0,
        {
            "type": "metrics",
            "rank": 0,
            "step": 5,
            "values": {"loss": 0.2, "perplexity": 1.25, "learning_rate": 1e-4},
        },
    ),
    (10.0, "[rank 0] Accuracy: 0.93"),
]

_CAUSE = {
    "rank": 1,
    "node": 0,
    "time": START + 20.2,
    "exception": "ValueError",
    "message": "a learning rate of 2.5 never works",
    "file": "train.py",
    "line": 17,
    "code": 'raise ValueError(f"a learning rate of {args.lr} never works")',
}

FAILURE: list[Step] = [
    *_born("my-training", 1, 2),
    _rank(0, 2.0),
    _rank(1, 2.1),
    (10.0, {"type": "metrics", "rank": 0, "step": 1, "values": {"loss": 0.5}}),
    (20.0, {"type": "metrics", "rank": 0, "step": 2, "values": {"loss": 0.25}}),
    (20.2, {"type": "error", **_CAUSE}),
    (20.3, "[rank 1] ValueError: a learning rate of 2.5 never works"),
    (20.4, "[rank 0] gloo: connection closed by peer"),
    (21.0, {"type": "node_ended", "outcome": "failed", "error": _CAUSE}),
    (21.1, {"type": "ended", "state": "failed", "error": _CAUSE}),
]

_HANG = {
    "rank": 1,
    "node": 0,
    "time": START + 1820,
    "exception": "Hang",
    "message": "has given no sign of life for 30 min: it is blocked at train.py:15, "
    "and rank 0 waits for it in all_reduce at train.py:9",
    "file": "train.py",
    "line": 15,
    "code": "lock.acquire()",
}

HANG: list[Step] = [
    *_born("my-training", 1, 2),
    _rank(0, 2.0),
    _rank(1, 2.1),
    (10.0, {"type": "metrics", "rank": 0, "step": 1, "values": {"loss": 0.5}}),
    (20.0, {"type": "metrics", "rank": 0, "step": 2, "values": {"loss": 0.25}}),
    (
        920.0,
        {"type": "activity", "activity": "waiting for rank 1, which is blocked at train.py:15"},
    ),
    (950.0, {"type": "usage", "cores": 2, "memory_gb": 4.1, "memory_total_gb": 25.3}),
    (1820.0, "[node 0] rank 0 waits in all_reduce:"),
    (1820.0, {"type": "error", **_HANG}),
    (1820.1, "[rank 0] gloo: connection closed by peer"),
    (1821.0, {"type": "node_ended", "outcome": "failed", "error": _HANG}),
    (1821.1, {"type": "ended", "state": "failed", "error": _HANG}),
]

SESSIONS = {"trainer": TRAINER, "script": SCRIPT, "failure": FAILURE, "hang": HANG}
