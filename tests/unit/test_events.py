"""Events from outside: what does not keep to the schema is text, and what keeps to it can always be
shown.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.cli.output import learning_curves, print_json
from cloudtrain.providers.local.node import Node, run_outcome
from cloudtrain.providers.local.supervisor import Supervisor
from cloudtrain.providers.shared.outcome import FinalState, ended_event
from cloudtrain.runs.failure import explain, first_cause
from cloudtrain.runs.logs import EVENT_MARK, split_events
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Cause
from tests.entrypoints.test_streams import fuzzed
from tests.support.events import events_of, fold_json
from tests.support.samples import BORN

ERROR = {
    "rank": 1,
    "node": 0,
    "time": 5.0,
    "exception": "ValueError",
    "message": "m",
    "consequence": False,
}
LOST = {
    **ERROR,
    "rank": 0,
    "exception": "RuntimeError",
    "message": "Connection closed by peer",
    "consequence": True,
}


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """Return a supervisor whose node printed a thousand lines that only look like events."""
    (tmp_path / "request.json").write_text(
        json.dumps({"grace_seconds": 1, "max_runtime_seconds": None})
    )
    (tmp_path / "plan.json").write_text(
        json.dumps({"provider": "local", "target": {"contract": "plain"}})
    )
    (tmp_path / "lines").write_bytes(b"\n".join(fuzzed(1000)) + b"\n")
    program = (
        f"import shutil, sys; shutil.copyfileobj(open({str(tmp_path / 'lines')!r}, 'rb'),"
        " sys.stdout.buffer)"
    )
    made = Supervisor(tmp_path, tmp_path / "source.tar.gz", [])
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    with process, (tmp_path / "node-0.log").open("wb", buffering=0) as log:
        made.nodes.append(Node(rank=0, process=process, log=log))
        yield made


def test_no_line_whatever_breaks_the_supervisor_and_what_it_keeps_can_be_shown(
    supervisor: Supervisor, capsys: pytest.CaptureFixture[str]
) -> None:
    while supervisor.nodes[0].read(supervisor._record):
        pass
    supervisor.nodes[0].exit_code = 1
    ended = run_outcome(
        supervisor.nodes,
        stop_reason="",
        signalled_at=0,
        first_failed=supervisor.nodes[0],
        finished_ranks={},
    )
    assert ended.state in ("failed", "stopped")
    state = fold_json("x", [BORN, *events_of(supervisor.folder)])
    assert state.metrics, "some of the lines were good ones"
    show(state)
    assert json.loads(capsys.readouterr().out)["run"] == "x"


def show(state: RunState) -> None:
    explain(state)
    print_json(state.to_json())
    learning_curves({name: curve.values for name, curve in state.curves.items()})


def line(**event: Any) -> bytes:
    return EVENT_MARK + json.dumps(event).encode()


def test_a_metric_of_four_hundred_digits_and_one_that_is_no_number_can_be_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = (10**400, float("nan"), 1e308, -1e308, -(10**400), None, 0.5, "word", True)
    lines = [
        line(type="metrics", step=10**400, values={"loss": value, "fine": 1}) for value in values
    ]
    events, errors = split_events(
        [*lines, line(type="progress", step=10**400, steps=3, loss=10**400)], 0
    )
    assert errors[0] == b"[node 0 metrics] loss inf  fine 1"
    assert len(errors) == len(lines) + 1, "each is a line of the log"
    state = fold_json("x", [BORN, *(event.to_json() for event in events)])
    assert state.curves["loss"].values[:1] == [math.inf]
    assert len(state.curves["loss"].values) == 7, "null is how JSON says what is no number"
    assert state.to_json()["progress"] == {"steps": 3, "loss": math.inf}
    show(state)
    assert json.loads(capsys.readouterr().out)["metrics"] == {"loss": 0.5, "fine": 1}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "rank": 0, "time": 1.0},
        {"type": "error", **ERROR, "rank": "0"},
        {"type": "node_started"},
        {"type": "node_ended", "node": 0, "outcome": "resting"},
        {"type": "ended", "time": 1.0, "state": "failed"},
        {"type": "note", "seq": "first"},
    ],
    ids=[
        "bare error",
        "error of a word",
        "bare start",
        "no end",
        "the client's own",
        "number that is none",
    ],
)
def test_what_does_not_keep_to_the_schema_is_text(event: dict[str, Any]) -> None:
    raw = line(**event)
    assert split_events([raw], 0) == ([], [raw])


def test_a_rank_that_left_while_another_nodes_rank_waited_is_the_cause() -> None:
    events = [
        {"type": "rank_ended", "time": 4.0, "node": 1, "rank": 3, "exitcode": 0, "seq": 1},
        {
            "type": "node_ended",
            "time": 6.0,
            "node": 0,
            "outcome": "failed",
            "error": LOST,
            "seq": 2,
        },
        {"type": "node_ended", "time": 6.0, "node": 1, "outcome": "succeeded", "seq": 3},
    ]
    event = ended_event(fold_json("x", [BORN, *events]), FinalState("failed", "exit code 1"), 9.0)
    assert event.reason == "rank 3 (node 1) failed"
    assert event.error
    assert event.error.message == "ended with exit code 0 while rank 0 (node 0) still waited for it"
    repeated = [events[0], {"type": "restarted", "time": 4.5, "node": 0, "attempt": 1}, *events[1:]]
    error = ended_event(fold_json("x", [BORN, *repeated]), FinalState("failed", ""), 9.0).error
    assert error
    assert error.rank == 0


def test_a_cause_of_its_own_counts_more_than_a_rank_that_left() -> None:
    lost = Cause.read(LOST)
    error = Cause.read(ERROR)
    assert first_cause([lost, error], {3: (1, 4.0)}) == error
    assert first_cause([lost], {3: (1, 5.5)}) == lost


def test_a_warning_of_several_nodes_is_kept_once() -> None:
    warnings = [
        {"type": "warning", "time": 1.0, "node": node, "message": "apart"} for node in (0, 1)
    ]
    state = fold_json("x", [BORN, *warnings])
    assert state.warnings == ["apart"]
    assert state.to_json()["warnings"] == ["apart"]
