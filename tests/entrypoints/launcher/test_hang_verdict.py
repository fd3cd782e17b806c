"""Stacks and samples show what each rank does, and all together which rank the others wait for.

A hang is named and ended by a clock that the test sets.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudtrain_launcher import hang, stacks
from cloudtrain_launcher.hang_verdict import RankActivity, Sample, activity, describe, verdict
from cloudtrain_launcher.stacks import main_thread, next_stack
from cloudtrain_wire.events import Activity, Error, Event
from cloudtrain_wire.processes import ProcessMoves, process_state
from tests.entrypoints.launcher.test_launcher_parts import JOB
from tests.support.waiting import eventually

TORCH = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = [
    (f"{TORCH}/distributed/distributed_c10d.py", 9, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 8, "wrapper"),
]
LOADER = [(f"{TORCH}/utils/data/dataloader.py", 5, "_try_get_data")]


@pytest.mark.parametrize(
    ("wakeups", "bytes_read", "inner", "kind"),
    [
        (20, 0, ALL_REDUCE, "collective"),
        (200, 0, ALL_REDUCE, "busy"),
        (20, 9, ALL_REDUCE, "collective"),
        (20, 0, [], "blocked"),
        (200, 0, [], "busy"),
        (20, 9, [], "busy"),
        (40, 0, LOADER, "blocked"),
        (200, 0, LOADER, "busy"),
    ],
    ids=[
        "waits in a collective and wakes up when it is asked",
        "goes from one collective to the next",
        "waits in a collective while a thread reads",
        "waits and wakes up when it is asked",
        "wakes up by itself",
        "reads",
        "waits for a loader and looks every five seconds whether it lives",
        "takes one batch after another",
    ],
)
def test_a_rank_that_wakes_up_or_reads_does_not_wait(
    wakeups: int, bytes_read: int, inner: list[tuple[str, int, str]], kind: str, tmp_path: Path
) -> None:
    at = stack(*inner, (str(tmp_path / "train.py"), 7, "main"))
    samples = [
        Sample(5.0 * n, 0.0, at, "S", moves=ProcessMoves(wakeups * n // 20, bytes_read * n))
        for n in range(21)
    ]
    assert activity(0, samples, tmp_path).kind == kind


def stack(*frames: tuple[str, int, str]) -> str:
    """As faulthandler writes it: another thread first, the main thread last."""
    lines = [
        "Thread 0x01 (most recent call first):",
        '  File "/usr/lib/python3/threading.py", line 1 in wait',
    ]
    lines += ["", "Current thread 0x02 (most recent call first):"]
    return "\n".join(
        [
            *lines,
            *(f'  File "{file}", line {line} in {function}' for file, line, function in frames),
        ]
    )


@pytest.mark.parametrize(
    ("inner", "cpu", "still", "kind", "call"),
    [
        (ALL_REDUCE, 0.0, True, "collective", "all_reduce"),
        (ALL_REDUCE, 5.0, True, "collective", "all_reduce"),
        (ALL_REDUCE, 5.0, False, "busy", "all_reduce"),
        (
            [(f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward")],
            0.0,
            True,
            "collective",
            "backward",
        ),
        ([(f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward")], 5.0, True, "busy", ""),
        (
            [(f"{TORCH}/nn/parallel/distributed.py", 1, "_sync_buffers")],
            0.0,
            True,
            "collective",
            "forward",
        ),
        ([], 0.0, True, "blocked", ""),
        ([], 5.0, True, "busy", ""),
        ([], 0.0, False, "busy", ""),
    ],
    ids=[
        "waits in a collective",
        "spins in a collective, as NCCL does",
        "goes from one collective to the next",
        "waits in backward",
        "computes backward",
        "waits in forward for the peers' buffers",
        "waits",
        "computes in one call",
        "moves on, with little CPU",
    ],
)
def test_what_a_rank_does_is_told_by_stack_and_cpu(
    inner: list[tuple[str, int, str]], cpu: float, still: bool, kind: str, call: str, tmp_path: Path
) -> None:
    def at(line: int) -> str:
        return stack(*inner, (str(tmp_path / "train.py"), line, "main"))

    samples = [Sample(float(n), cpu * n / 5, at(7 if still else n + 1)) for n in range(6)]
    shown = activity(3, samples, tmp_path)
    assert (shown.rank, shown.kind, shown.call) == (3, kind, call)
    assert shown.place == f"train.py:{7 if still else 6}"


def test_the_cost_of_writing_stacks_is_not_work_of_the_rank(tmp_path: Path) -> None:
    at = stack((str(tmp_path / "train.py"), 7, "main"))
    samples = [Sample(0.2 * n, 0.005 * n, at) for n in range(15)]
    assert activity(0, samples, tmp_path).kind == "blocked"
    computing = [Sample(0.2 * n, 0.05 * n, at) for n in range(15)]
    assert activity(0, computing, tmp_path).kind == "busy"


@pytest.mark.parametrize(("states", "kind"), [("RRRSRR", "busy"), ("SSRSSS", "blocked")])
def test_a_rank_that_gets_no_core_does_not_wait(states: str, kind: str, tmp_path: Path) -> None:
    at = stack((str(tmp_path / "train.py"), 7, "main"))
    samples = [Sample(float(n), 0.01 * n, at, state) for n, state in enumerate(states)]
    assert activity(0, samples, tmp_path).kind == kind


def rank(number: int, kind: str, line: int = 7, call: str = "all_reduce") -> RankActivity:
    return RankActivity(
        number, kind, call=call if kind == "collective" else "", file="train.py", line=line
    )


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([rank(0, "collective"), rank(1, "blocked"), rank(2, "collective")], 1),
        ([rank(0, "collective"), rank(1, "busy"), rank(2, "blocked")], 2),
        ([rank(0, "blocked"), rank(1, "frozen")], 1),
        ([rank(0, "collective"), rank(1, "blocked"), rank(2, "frozen")], 2),
        ([rank(0, "ended"), rank(1, "collective")], 0),
        ([rank(0, "collective"), rank(1, "collective"), rank(2, "collective", 5)], 2),
        ([rank(0, "collective", 9), rank(1, "collective", 7)], 0),
        ([rank(0, "collective"), rank(1, "collective")], 0),
        ([rank(0, "blocked"), rank(1, "ended")], 0),
        ([rank(0, "busy"), rank(1, "ended")], None),
        ([rank(0, "busy"), rank(1, "busy")], None),
        ([rank(0, "busy"), rank(1, "blocked")], None),
    ],
    ids=[
        "the only one outside of the collective",
        "the one that waits rather than the one that computes",
        "the one that is stopped when all wait for something",
        "the one that is stopped rather than the one that waits",
        "the one that has left",
        "the only one at another line",
        "of two at different lines the one further on",
        "all at the same line",
        "blocked when the others have ended",
        "the first one works on when the others have ended",
        "all compute",
        "nobody waits for a peer",
    ],
)
def test_the_verdict_names(ranks: list[RankActivity], expected: int | None) -> None:
    hang = verdict(ranks, nodes=1)
    assert (hang and hang[0].rank) == expected


@pytest.mark.parametrize(
    ("state", "words"),
    [("T", "it is stopped (SIGSTOP)"), ("D", "it waits in the kernel, as for a disk")],
)
def test_a_rank_whose_process_does_not_run_is_told_from_one_that_waits(
    state: str, words: str, tmp_path: Path
) -> None:
    summary = activity(1, [Sample(float(n), 0.0, "", state) for n in range(4)], tmp_path)
    assert summary.kind == "frozen"
    assert words in describe(summary, [rank(0, "collective")], 60, processes=2)
    for_a_moment = [Sample(float(n), 0.0, "", state if n == 2 else "S") for n in range(4)]
    assert activity(1, for_a_moment, tmp_path).kind == "blocked"


def test_a_node_whose_ranks_all_wait_at_one_line_looks_for_the_cause_on_another() -> None:
    ranks = [rank(2, "collective"), rank(3, "collective")]
    hang = verdict(ranks, nodes=2)
    assert hang is not None
    assert hang[0] in hang[1]
    message = describe(*hang, 1800, processes=2)
    assert message.endswith(
        "30 min: all ranks of its node wait in all_reduce at train.py:7 for another node"
    )


def test_a_stack_ends_where_the_program_begins_whatever_has_forked_it() -> None:
    launcher = Path(stacks.__file__).parent
    below = (
        f"{launcher}/worker.py",
        f"{launcher}/fork_server.py",
        f"{launcher}/agent.py",
        "<string>",
    )
    text = stack(("/job/train.py", 3, "step"), *((file, 1, "main") for file in below))
    assert stacks.main_thread(text) == [("/job/train.py", 3, "step")]


@pytest.mark.parametrize("library", ["<frozen importlib._bootstrap>", "<string>"])
def test_the_place_of_a_blocked_rank_is_a_line_in_a_file(library: str, tmp_path: Path) -> None:
    module = "/venv/site-packages/tool/train.py"
    for file, place in ((str(tmp_path / "train.py"), "train.py:7"), (module, f"{module}:7")):
        at = stack((library, 241, "call"), (file, 7, "main"), ("<frozen runpy>", 88, "_run_code"))
        samples = [Sample(float(n), 0.0, at) for n in range(4)]
        assert activity(0, samples, tmp_path).place == place


PROCESS = 1 << 30
"""The process of the rank: no kernel has one of this number."""


class BlockedRank:
    """Samples of one rank that stands still."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    def clear(self) -> None:
        self.samples.clear()

    def take(self, processes: Mapping[int, int]) -> None:
        self.samples.append(Sample(time.monotonic(), 0.0))

    def by_rank(self) -> dict[int, list[Sample]]:
        return {0: self.samples[-16:]}

    def count(self) -> int:
        return len(self.samples)


def test_a_hang_is_named_after_two_minutes_and_ended_after_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    emitted: list[tuple[float, Event]] = []
    ended: list[tuple[float, Error]] = []
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(hang, "STACK_SIGNAL", 1)
    monkeypatch.setattr(hang, "emit", lambda event: emitted.append((now[0], event)))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: 5000.0 + now[0])
    monkeypatch.setattr(hang, "RankSamples", lambda _: BlockedRank())
    monkeypatch.setattr(os, "killpg", lambda *how: killed.append(how))
    ranks = SimpleNamespace(
        running=lambda: {0: PROCESS},
        rank_of=lambda _: 0,
        ended=list,
        add_error=lambda error: ended.append((now[0], error)),
    )
    job = replace(JOB, hang_seconds=1800, nodes=1, processes=1)
    watch = hang.HangWatch(job, ranks, tmp_path, lambda _: None)  # type: ignore[arg-type]
    while not ended:
        now[0] += 1.0
        watch.check(0.0)

    [(at_end, error)] = ended
    (named, activity), (taken_back, nothing) = emitted
    assert (taken_back, nothing) == (at_end, Activity(activity=""))
    assert error.rank == 0
    assert killed == [(PROCESS, signal.SIGKILL)]
    assert isinstance(activity, Activity)
    assert 120 <= named <= 140
    assert activity.time == 5000.0, "the silence counts from its beginning"
    assert activity.activity.startswith("rank 0 is blocked")
    assert 1800 <= at_end <= 1900


on_linux = pytest.mark.linux("stacks need FIFOs, a real-time signal and /proc")

ENTRYPOINTS = Path(__file__).parents[3] / "entrypoints"
BEGIN = f"""
import ctypes, os, sys, threading
sys.path.insert(0, {str(ENTRYPOINTS)!r})
from cloudtrain_launcher.stacks import write_on_request
write_on_request(sys.argv[1], 0)
"""
COMPUTE = """
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

print("ready", flush=True)
while True:
    fibonacci(15)
    [number * number for number in range(100)]
"""
WAIT = """
def wait_for_lock():
    lock.acquire()

lock = threading.Lock()
lock.acquire()
print("ready", flush=True)
wait_for_lock()
"""
HOLD_INTERPRETER = """
def read_in_native_code():
    empty_pipe, _ = os.pipe()
    ctypes.PyDLL(None).read(empty_pipe, byte, 1)  # PyDLL keeps the lock of the interpreter

byte = ctypes.create_string_buffer(1)
print("ready", flush=True)
read_in_native_code()
"""


@contextmanager
def running_rank(folder: Path, program: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that writes its stacks into the folder, and kill it at the end."""
    argv = [sys.executable, "-c", BEGIN + program, str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def function_of(folder: Path, process: subprocess.Popen[str]) -> str:
    """Ask the rank for its stack; return the innermost function of its answer to the last call."""
    sleeps = process_state(process.pid) == "S"
    frames = main_thread(next_stack(folder, 0, process.pid, was_asked=True, sleeps=sleeps))
    return frames[0].function if frames else ""


@on_linux
@pytest.mark.parametrize(
    ("program", "function"),
    [
        (COMPUTE, "fibonacci"),
        (WAIT, "wait_for_lock"),
        (HOLD_INTERPRETER, "read_in_native_code"),
    ],
    ids=["that computes", "that waits", "that holds the interpreter's lock in native code"],
)
def test_the_stack_names_the_function_of_a_rank(
    program: str, function: str, tmp_path: Path
) -> None:
    with running_rank(tmp_path, program) as process:
        assert eventually(lambda: function_of(tmp_path, process) == function)
        assert process.poll() is None


@on_linux
def test_a_rank_that_computes_survives_every_request(tmp_path: Path) -> None:
    answers = 0
    with running_rank(tmp_path, COMPUTE) as process:
        while answers < 100:
            answers += bool(function_of(tmp_path, process))
            assert process.poll() is None, f"it ended after {answers} answers"


@on_linux
def test_a_process_that_replaced_the_rank_is_left_alone(tmp_path: Path) -> None:
    program = "import os\nos.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 600'])\n"
    with running_rank(tmp_path, program) as process:
        for _ in range(20):
            next_stack(tmp_path, 0, process.pid, was_asked=True, sleeps=True)

        assert process.poll() is None
