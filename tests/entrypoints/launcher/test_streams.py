"""Output of ranks: a line that only looks like an event is text, and a secret is masked.

An unfinished line is shown, and printed numbers are reported as metrics.
"""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from cloudtrain_job import MARKER, signed_marker
from cloudtrain_launcher import rank_tracker, reporting, streams
from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.rank_tracker import PrintedMetrics, RankTracker
from cloudtrain_wire import events
from cloudtrain_wire.events import Event, RankStarted
from cloudtrain_wire.secret_values import SecretMasker
from tests.entrypoints.launcher.test_launcher_parts import launcher_of

KEY = "00ff"
SIGNED = signed_marker(KEY)


class Node:
    """A node's streams with one rank that writes into them."""

    def __init__(self, folder: Path, output: Any, masker: SecretMasker) -> None:
        self.masker = masker
        self.seen: list[dict[str, Any]] = []
        self.on_event: Callable[[Event], None] = lambda event: self.seen.append(event.to_json())
        self.streams = streams.Streams(folder, 1, lambda event: self.on_event(event), key=KEY)
        self.path = folder / "rank-0"
        self.pipe = os.open(self.path, os.O_WRONLY)
        self._output = output

    def write(self, data: bytes) -> str:
        """Write these bytes into the pipe; returns what the launcher writes.

        A user with many pipes gets pipes of one page (pipe(7)).
        """
        for start in range(0, len(data) or 1, 4096):
            os.write(self.pipe, data[start : start + 4096])
            self.streams.pump(0)

        return self._output.readouterr().out.decode("utf-8", "replace")  # type: ignore[no-any-return]

    def end(self) -> str:
        os.close(self.pipe)
        self.streams.drain()
        return self._output.readouterr().out.decode()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close all ends of the pipe in this process."""
        pipe = self.path.stat()
        for name in os.listdir("/dev/fd"):  # noqa: PTH208  (names of no files)
            with suppress(OSError):  # the folder's own, which is closed by now
                if os.path.samestat(os.fstat(int(name)), pipe):
                    os.close(int(name))


@pytest.fixture
def node(tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    masker = SecretMasker()
    for module in (streams, reporting):
        monkeypatch.setattr(module, "masker", masker)

    monkeypatch.setattr(streams, "UNFINISHED_SECONDS", 1e6)  # however slow this machine is
    streams_node = Node(tmp_path, capfdbinary, masker)
    yield streams_node
    streams_node.close()


ERROR = '{"type":"error","time":1.5,"node":0,"rank":0,"exception":"ValueError","message":"x"}'


@pytest.mark.parametrize(
    "line",
    [
        '{"type":"rank_started"}',
        '{"type":"error","time":"noon","node":0,"rank":0,"exception":"x","message":"y"}',
        '{"type":"node_ended","error":{"a":1}}',
        '{"type":"ended","time":1,"state":"failed"}',
        '{"type":"metrics","values":{"loss":"low"}}',
        '{"type":"note","time":"noon"}',
        '{"type":7}',
        "[" * 100_000,
        '{"type":"note","x":' + "9" * 5000 + "}",
    ],
    ids=lambda line: line[:50],
)
@pytest.mark.parametrize("marker", [MARKER, SIGNED], ids=["printed", "signed"])
def test_a_line_that_only_looks_like_an_event_is_text(line: str, marker: str, node: Node) -> None:
    output = node.write(f"{marker}{line}\n".encode()) + node.end()
    assert node.seen == []
    assert output.startswith(f"[local rank 0] {MARKER}")


@pytest.mark.parametrize(
    "event",
    [
        ERROR,
        '{"type":"rank_failed","time":1.5,"local_rank":0,"exitcode":1}',
        '{"type":"warning","message":"all is lost"}',
    ],
    ids=lambda event: event[9:22],
)
def test_events_about_a_rank_are_accepted_from_its_own_process_only(event: str, node: Node) -> None:
    foreign = signed_marker("ff00")
    assert f"] {MARKER}{event}\n" in node.write(f"{MARKER}{event}\n".encode())
    assert f"] {foreign}{event}\n" in node.write(f"{foreign}{event}\n".encode())
    assert node.seen == []
    assert node.write(f"{SIGNED}{event}\n".encode()) == f"{MARKER}{event}\n"
    assert node.seen == [json.loads(event)]


CAUSE = {"rank": 0, "node": 0, "time": 0.5, "exception": "E", "message": "m"}
GOOD: dict[str, Any] = {
    **CAUSE,
    "local_rank": 0,
    "attempt": 3,
    "exitcode": 1,
    "outcome": "failed",
    "state": "failed",
}
GOOD |= {
    "error": CAUSE,
    "values": {"loss": 1},
    "step": 1,
    "reason": "r",
    "phase": "p",
    "why": "w",
    "ref": {},
}
ODD: tuple[Any, ...] = (
    0,
    -1,
    1.5,
    1e300,
    10**400,
    True,
    None,
    "",
    "stopped",
    [],
    {},
    {"a": 10**400},
    float("nan"),
)


def fuzzed(count: int) -> Iterator[bytes]:
    """Lines that look like events of every type: some valid, most with fields that are invalid,
    huge or missing.
    """
    chance = random.Random(25)
    kinds: tuple[Any, ...] = (*events.EVENT_TYPES, "found", "", 7, None, [], {})
    for number in range(count):
        event = {**GOOD, "seq": number, "type": chance.choice(kinds)}
        for name in chance.sample([name for name in event if name != "type"], chance.randint(0, 4)):
            event[name] = chance.choice(ODD)
            if chance.random() < 0.3:
                del event[name]

        line = (MARKER + json.dumps(event)).encode()
        yield line[: chance.randint(0, len(line))] if chance.random() < 0.1 else line


@pytest.mark.parametrize("code", [0, 1], ids=["succeeded", "failed"])
def test_a_thousand_fuzzed_lines_do_not_change_the_outcome(
    tmp_path: Path, node: Node, code: int
) -> None:
    launcher = launcher_of(tmp_path)
    node.on_event = launcher.on_event
    true = {
        "type": "error",
        "time": 2.0,
        "node": 1,
        "rank": 4,
        "attempt": 0,
        "exception": "ValueError",
        "message": "m",
    }
    lines = list(fuzzed(1000))
    node.write(b"\n".join(lines[:500]) + b"\n")
    if code:
        node.write(SIGNED.encode() + json.dumps(true).encode() + b"\n")

    node.write(b"\n".join(lines[500:]) + b"\n")
    outcome, cause = launcher.outcome(code)
    assert (outcome, cause and cause.to_json()) == (
        ("succeeded", None) if code == 0 else ("failed", true)
    )
    assert (launcher.ranks.attempt, launcher.ranks.failures, launcher.ranks.finished) == (0, [], {})


def test_program_events_need_no_signature_and_too_large_numbers_are_infinite(node: Node) -> None:
    values = '{"loss":NaN,"big":' + "9" * 400 + ',"small":-' + "9" * 400 + ',"word":"x","fine":0.5}'
    node.write(f'{MARKER}{{"type":"metrics","step":1,"values":{values}}}\n'.encode())
    node.write(f'half {MARKER}{{"type":"mine","any":[1]}}\n'.encode())
    assert repr(node.seen[0]["values"]) == "{'loss': nan, 'big': inf, 'small': -inf, 'fine': 0.5}"
    assert node.seen[1] == {"type": "mine", "any": [1]}


def test_output_is_written_in_whole_marked_lines(node: Node) -> None:
    assert node.write(b"half ") == ""
    assert node.write(b"and half\n") == "[local rank 0] half and half\n"
    assert node.write(b"step 1\rstep 2\rstep 3\n") == "[local rank 0] step 3\n"
    assert node.write(b"\xff raw\nno end") == "[local rank 0] \N{REPLACEMENT CHARACTER} raw\n"
    assert node.end() == "[local rank 0] no end\n"


def test_lines_that_arrive_together_keep_their_order_and_their_marks(node: Node) -> None:
    report = f'{MARKER}{{"type":"mine"}}'
    text = f"one\n\ntwo\nthree\n{report}\nfour\nfi".encode()
    lines = ["one", "", "two", "three", None, "four"]
    expected = [report if line is None else f"[local rank 0] {line}" for line in lines]
    assert node.write(text).splitlines() == expected
    assert node.write(b"ve\nsix\n").splitlines() == ["[local rank 0] five", "[local rank 0] six"]


def unfinished(node: Node) -> str:
    """Return the unfinished lines that are shown when their time has come."""
    with patch.object(streams, "UNFINISHED_SECONDS", 0.0):
        return node.write(b"")


def test_a_progress_bar_is_shown_before_its_line_ends(node: Node) -> None:
    assert node.write(b"\r 10%|#   | 1/10\r 20%|##  | 2/10") == ""
    node.streams.pump(0)
    assert unfinished(node) == "[local rank 0]  20%|##  | 2/10\n"
    assert unfinished(node) == "", "nothing new to say"
    assert node.write(b"\r 30%|### | 3/10") == "", "ten seconds have not gone by"
    assert unfinished(node) == "[local rank 0]  30%|### | 3/10\n"
    assert node.write(b"\r100%|####| 10/10\n") == "[local rank 0] 100%|####| 10/10\n"


def test_an_endless_progress_bar_does_not_fill_the_memory(node: Node) -> None:
    tracemalloc.start()
    try:
        for number in range(30):
            assert node.write(b"\r%4d %s" % (number, b"#" * 50_000)) == ""

        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 500_000, "the last text alone is kept"
    assert node.write(b"\n").startswith("[local rank 0]   29 #")


SECRET = 'hunter2-"quoted"\\-ünï'


def test_a_secret_that_a_script_prints_is_masked_in_text_and_in_events(node: Node) -> None:
    node.masker.add(
        [SECRET, "line one of a key\nline two of a key\n", "short", "", "longer-secret", "longer"]
    )
    assert node.write(f"my {SECRET}!\n".encode()) == "[local rank 0] my ***!\n"
    half = f"a {SECRET}\n"[:9].encode()
    remaining = f"a {SECRET}\n"[9:].encode()
    assert node.write(half) == ""
    assert unfinished(node) == "[local rank 0] a \n", (
        "what may be the beginning of a secret waits for its rest"
    )
    assert node.write(remaining) == "[local rank 0] a ***\n"
    assert (
        node.write(b"short line two of a key, longer-secret\n") == "[local rank 0] short ***, ***\n"
    )
    event = {"type": "note", "text": f"it is {SECRET}", "deep": [{SECRET: "longer"}], "rank": 0}
    for ascii_only in (True, False):
        output = node.write((MARKER + json.dumps(event, ensure_ascii=ascii_only) + "\n").encode())
        masked = {"type": "note", "text": "it is ***", "deep": [{"***": "***"}], "rank": 0}
        assert json.loads(output.removeprefix(MARKER)) == masked
        assert node.seen[-1] == masked

    assert node.write(f"{MARKER}{json.dumps({'type': 7, 'x': SECRET})}\n".encode()).endswith(
        '"x": "***"}\n'
    )


def test_a_secret_is_masked_where_a_long_line_is_split(node: Node) -> None:
    node.masker.add(["longer-secret"])
    output = node.write(b"x" * (streams.MAX_UNFINISHED_BYTES - 3) + b"longer-secret and more\n")
    assert "longer" not in output
    assert "secret" not in output
    assert "*** and more" in output


def test_a_secret_is_masked_in_the_output_of_the_launcher_itself(
    tmp_path: Path, capfdbinary: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    masker = SecretMasker()
    masker.add([SECRET])
    for module in (streams, reporting):
        monkeypatch.setattr(module, "masker", masker)

    launcher = launcher_of(tmp_path, context={"failure_file": str(tmp_path / "failure")})
    launcher.ranks.add_error(reporting.node_error(OSError(f"no such folder: {SECRET}")))
    assert launcher.conclude(1, 1.0) == 1
    output = capfdbinary.readouterr().out.decode()
    assert "hunter2" not in output + (tmp_path / "failure").read_text()
    assert output.count("no such folder: ***") == 3


def metrics_of(expressions: dict[str, str], *lines: str) -> list[dict[str, Any]]:
    events: list[Event] = []
    metrics = PrintedMetrics(expressions, events.append)
    metrics.on_text("\n".join(lines))

    return [event.to_json() for event in events]


ACCURACY = {"accuracy": "Accuracy: ([0-9.]+)"}


def test_a_printed_number_is_a_metric() -> None:
    assert metrics_of(ACCURACY, "Accuracy: 0.93.", "nothing", "Accuracy: ...") == [
        {"type": "metrics", "rank": 0, "values": {"accuracy": 0.93}}
    ]


def test_step_and_epoch_say_where_the_others_belong() -> None:
    expressions = {"step": "step ([0-9]+)", "loss": "loss ([-0-9.e]+)", "lr": "lr ([-0-9.e]+)"}
    assert metrics_of(expressions, "step 10", "loss 2.5e-1 lr 1e-3", "step 20 loss 0") == [
        {"type": "metrics", "rank": 0, "step": 10, "values": {"loss": 0.25, "lr": 0.001}},
        {"type": "metrics", "rank": 0, "step": 20, "values": {"loss": 0}},
    ]


LIBRARIES: dict[str, dict[str, float]] = {
    "{'loss': 0.25, 'learning_rate': 5e-05, 'epoch': 0.5}": {"loss": 0.25, "learning_rate": 5e-05},
    "{'eval_loss': '1.5', 'grad_norm': 'nan', 'epoch': '1'}": {"eval_loss": 1.5},
    "epoch 0: {'accuracy': 0.84, 'f1': 0.89}": {"accuracy": 0.84, "f1": 0.89},
    "Epoch 2: 100%|███| 10/10 [00:01<00:00, 8.21it/s, v_num=0, val_loss=0.4, train_loss_step=2e+3]": {
        "val_loss": 0.4,
        "train_loss_step": 2000,
    },
    "Epoch 2: 100%|███| 3/3 [00:09<00:00, 3.00s/it, v_num=3]": {},
    "Epoch 2:  50%|█  | 5/10 [00:01<00:01, 8.21it/s, loss=0.9]": {},
    "{'lr': 0.1, 'batch_size': 32}": {},
    "{'optimizer': 'adam', 'epoch': 3}": {},
    "epoch 1: {'path': 'a', 'accuracy': 0.5}": {},
}


@pytest.mark.parametrize("line", LIBRARIES)
def test_metrics_that_libraries_print_need_no_expression(line: str) -> None:
    found = [event["values"] for event in metrics_of({}, line)]
    assert found == [LIBRARIES[line]] * bool(LIBRARIES[line])
    assert metrics_of(ACCURACY, line) == []


def test_a_library_says_in_which_epoch() -> None:
    assert [event["epoch"] for event in metrics_of({}, *LIBRARIES)] == [0.5, 1, 0, 2]


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "", "word"])
def test_what_is_no_finite_number_is_left_out(text: str) -> None:
    assert metrics_of({"x": "x=(.*)"}, f"x={text}") == []


def test_an_expression_that_this_python_does_not_know_is_given_up() -> None:
    (warning,) = metrics_of({"x": "([0-9"}, "x")
    assert "metrics.x: the expression is not valid" in warning["message"]


def test_only_the_first_ranks_lines_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Event] = []
    monkeypatch.setattr(rank_tracker, "emit", emitted.append)
    job = Job("r", "n", "script", "t.py", [], {}, 2, 2, 0, 0, 30, 600, 3, metrics=ACCURACY)
    ranks = RankTracker(job, node=1)
    for local_rank, rank in ((0, 1), (1, 0)):
        ranks.on_event(RankStarted(time=1.0, rank=rank, local_rank=local_rank))
        ranks.on_text(local_rank, f"Accuracy: 0.{rank + 1}")

    ranks.on_text(-1, "Accuracy: 0.9")
    assert [event.to_json()["values"] for event in emitted] == [{"accuracy": 0.1}]
