"""Events from outside, and logs and events of any length."""

from __future__ import annotations

import io
import json
import math
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.api.run import Run
from cloudtrain.cli.output import learning_curves, print_json
from cloudtrain.providers.local.node import Node, run_outcome
from cloudtrain.providers.local.supervisor import Supervisor
from cloudtrain.providers.shared.log_attempt import FinalState, ended_event
from cloudtrain.runs.files import BLOCK_BYTES, end_of_lines, read_lines, read_lines_backward
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import EVENT_MARK, LogReader, format_timestamp, split_events
from cloudtrain.runs.state import RunState, explain
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.causes import first_cause
from cloudtrain_wire.events import Cause, Ended
from tests.entrypoints.launcher.test_streams import fuzzed
from tests.support.in_process import call
from tests.support.samples import BORN, born, events_of, fold_json, write_events

# Events from outside: what does not keep to the schema is text, and what keeps to it can always be
# shown.

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
    while supervisor.nodes[0].read(supervisor.record):
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
    assert len(state.curves["loss"].values) == 7, "JSON has null for infinity"
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
    assert first_cause([lost], {lost.rank: (0, 4.0)}) == lost, "a rank never waits for itself"
    of_last_attempt = lost.replace(attempt=1, time=lost.time + 9)
    assert first_cause([error, of_last_attempt]) == of_last_attempt


def test_a_warning_of_several_nodes_is_kept_once() -> None:
    warnings = [
        {"type": "warning", "time": 1.0, "node": node, "message": "apart"} for node in (0, 1)
    ]
    state = fold_json("x", [BORN, *warnings])
    assert state.warnings == ["apart"]
    assert state.to_json()["warnings"] == ["apart"]


# Logs and events of any length: what is held in memory does not grow with them, and no line is lost
# or told twice.

LINES = 20_000
ENDED = {"type": "ended", "time": 5000.0, "state": "succeeded"}


@pytest.fixture
def run(store: RunStore) -> RunFolder:
    """Two nodes that have printed 20,000 lines, about 3 MB, in turns; and as many events."""
    folder = born(store, "a-1")
    for node in range(2):
        lines = (
            f"{format_timestamp(1e9 + i)} [rank {node}] line {i} {'x' * 80}\n"
            for i in range(node, LINES, 2)
        )
        (folder.path / "logs" / f"node-{node}.log").write_text("".join(lines))
    with folder.events_file.open("a") as file:
        for i in range(LINES):
            file.write(
                f'{{"type":"metrics","time":101.0,"node":0,"rank":0,"seq":{i},"values":{{"loss":{i}.5}}}}\n'
            )
    write_events(folder, ENDED)
    return folder


def peak(work: Callable[[], object]) -> int:
    """The most that was held at once while something was done, in bytes."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def bytes_of(folder: Path, pattern: str) -> int:
    return sum(file.stat().st_size for file in folder.glob(pattern))


def test_a_log_is_passed_on_line_by_line_and_its_tail_as_it_is(run: RunFolder) -> None:
    size = bytes_of(run.path, "logs/node-*.log")
    loaded = Run(run)
    loaded.status()
    held = peak(lambda: [None for line in loaded.logs() if line.node > 1])
    assert held < size / 2
    assert [line.text.split()[1] for line in loaded.logs(tail=3)] == [
        str(LINES - 3 + i) for i in range(3)
    ]
    assert [line.text.split()[1] for line in loaded.logs(tail=2, rank=1)] == [
        str(LINES - 3),
        str(LINES - 1),
    ]
    assert sum(1 for _ in loaded.logs(rank=0)) == LINES / 2
    assert list(loaded.logs(tail=0)) == []


def test_logs_are_searched_line_by_line_and_it_is_said_if_there_is_nothing(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = born(store, "a-1")
    write_events(folder, ENDED)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(folder.path.parents[1]))
    assert call("logs", "a-1").err.startswith("a-1 was never started")

    lines = (f"{format_timestamp(1.0)} [rank 0] {text}\n" for text in ("loss 1", "no", "loss 2"))
    (folder.path / "logs" / "node-0.log").write_text("".join(lines))
    assert call("logs", "a-1", "--grep", r"^loss \d$", "--rank", "0").out == "loss 1\nloss 2\n"
    assert "no such lines" in call("logs", "a-1", "--grep", "^1").err


def test_a_long_history_of_events_is_folded_as_it_is_read(run: RunFolder) -> None:
    size = run.events_file.stat().st_size
    loaded = Run(run)
    assert peak(loaded.status) < size / 2
    assert loaded.cached_status().metrics == {"loss": LINES - 0.5}
    assert peak(lambda: run.last_event(Ended)) < size / 5


def test_watching_hands_on_every_line_and_event_once_in_parts(run: RunFolder) -> None:
    lines: list[str] = []
    events = parts = 0
    for update in Run(run).watch():
        lines += [line.text.split()[1] for line in update.lines]
        events += len(update.events)
        parts += 1
    assert lines == [str(i) for i in range(LINES)]
    assert (events, parts > 2) == (LINES + 2, True)


def test_lines_that_come_later_are_read_on_from_where_reading_stopped(store: RunStore) -> None:
    folder = born(store, "a-1")
    log = folder.path / "logs" / "node-0.log"
    reader = LogReader(folder)
    reported = []
    for text in ("a\nb", "c\n", "", "d\n\ne\n", "f"):
        with log.open("a") as file:
            file.write(
                "".join(f"{format_timestamp(1.0)} {line}\n" for line in text.split("\n")[:-1])
                + text.rpartition("\n")[2]
            )
        reported.append([line.text for line in reader.read_batch()])
    assert reported[0] == ["a"]
    assert [len(part) for part in reported] == [1, 1, 0, 3, 0]


@pytest.mark.parametrize("seed", range(6))
def test_lines_are_the_same_forwards_and_backwards_whatever_their_length(seed: int) -> None:
    chance = random.Random(seed)
    lengths = [
        chance.choice([0, 1, 7, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES])
        for _ in range(9)
    ]
    lines = [bytes([97 + at]) * length for at, length in enumerate(lengths)]
    whole = b"".join(line + b"\n" for line in lines)
    file = io.BytesIO(whole + b"not whole yet")
    longest = chance.choice([10, BLOCK_BYTES, 1 << 20])
    assert end_of_lines(file) == len(whole)
    forwards = list(read_lines(file, 0, longest))
    assert [line for line, _ in forwards] == [line[:longest] for line in lines]
    assert forwards[-1][1] == len(whole)
    assert list(read_lines_backward(file, len(whole), longest)) == [
        line[:longest] for line in reversed(lines)
    ]
    for (_, offset), remaining in zip(forwards, range(1, 10), strict=True):
        assert [line for line, _ in read_lines(file, offset, longest)] == [
            line[:longest] for line in lines[remaining:]
        ]


def test_a_line_without_an_end_in_sight_is_not_held_whole() -> None:
    class Endless(io.RawIOBase):
        left = 16 << 20

        def seek(self, place: int, whence: int = 0) -> int:
            return place

        def read(self, size: int = -1) -> bytes:
            self.left -= size
            return b"x" * size if self.left > 0 else b""

    assert peak(lambda: list(read_lines(Endless(), 0))) < 8 << 20
