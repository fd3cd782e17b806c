"""A job that hangs is ended with the rank that it waits for named; one that computes in silence is left alone."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from cloudtrain_launcher import stacks
from cloudtrain_launcher.hang_verdict import RankActivity, Sample, activity, describe, verdict
from tests.entrypoints.test_launcher import Launcher, events, finish, start
from tests.support.waiting import eventually

LIMIT_SECONDS = 4
OPTIONS: dict[str, Any] = {"processes": 2, "hang_seconds": LIMIT_SECONDS, "grace_seconds": 7}

BEGIN = """
import os, sys, threading, time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Stuck(Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): time.sleep(600)

def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        total = sum(number * number for number in range(1000))

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
print("ready", flush=True)
"""
HANGS = {
    "a collective that one rank skips": """
if rank == 0:
    dist.all_reduce(torch.ones(1))
dist.barrier()
""",
    "a lock that is never released": """
lock = threading.Lock()
if rank == 1:
    lock.acquire(); lock.acquire()
dist.barrier()
""",
    "an endless loop": """
while rank == 1:
    pass
dist.barrier()
""",
    "a loader process that does not answer": """
if rank == 1:
    next(iter(DataLoader(Stuck(), num_workers=1)))
dist.barrier()
""",
}
SILENT = f"spin({LIMIT_SECONDS * 1.5})\ndist.barrier()\n"
ENDING_WELL = [*list(HANGS)[:2], "silence"]
"""What a job does in each of its attempts: it hangs twice, and then computes for longer than the limit."""
FAILING = list(HANGS)[2:]
"""The same of a job that has no restart left at its second hang."""


def start_job(folder: Path, attempts: list[str]) -> Launcher:
    """A job of two ranks that are restarted for each further attempt."""
    programs = {**HANGS, "silence": SILENT}
    blocks = [f"if attempt == {n}:\n" + indent(programs[name].strip(), "    ") for n, name in enumerate(attempts)]
    # A fork would have its parent's functions in its stack.
    return start(folder, BEGIN + "\n".join(blocks), new_process=True, restarts=len(attempts) - 1, **OPTIONS)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """What the two jobs print: the one that ends well, and the one that fails."""
    jobs = [start_job(tmp_path_factory.mktemp("hang"), attempts) for attempts in (ENDING_WELL, FAILING)]
    well, failed = (finish(job) for job in jobs)
    return well, failed


def errors(text: str) -> list[dict[str, Any]]:
    """The errors that are hangs."""
    return [event for event in events(text) if event["type"] == "error" and event["exception"] == "Hang"]


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
@pytest.mark.parametrize("name", HANGS)
def test_the_rank_that_all_wait_for_is_the_cause(name: str, outputs: tuple[str, str]) -> None:
    attempts, text = (ENDING_WELL, outputs[0]) if name in ENDING_WELL else (FAILING, outputs[1])
    (error,) = (error for error in errors(text) if error["attempt"] == attempts.index(name))
    assert (error["rank"], error["consequence"], error["file"]) == (1, False, "train.py"), text
    assert re.match(r"has given no sign of life for \d+ s: it ", error["message"])


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_hang_ends_the_job_where_no_restarts_are_left(outputs: tuple[str, str]) -> None:
    text, end = outputs[1], events(outputs[1])[-1]
    assert end["outcome"] == "failed"
    assert end["error"].items() <= errors(text)[-1].items()
    assert f"[node 0] failed: rank 1 (node 0) {end['error']['message']}" in text


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_hang_is_restarted_where_restarts_are_left(outputs: tuple[str, str]) -> None:
    for text, attempts in zip(outputs, (ENDING_WELL, FAILING), strict=True):
        restarts = [event["why"] for event in events(text) if event["type"] == "restarted"]
        assert len(restarts) == len(attempts) - 1
        assert all("rank 1 (node 0) has given no sign of life" in why for why in restarts)


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_no_process_is_left_of_a_rank_that_hung(
    outputs: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert all(outputs)
    folder = tmp_path_factory.getbasetemp()

    def left() -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                found += [str(path)] if str(path.readlink()).startswith(f"{folder}/hang") else []
        return found

    assert eventually(lambda: not left()), left()


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_the_line_is_named_and_every_stack_is_in_the_log(outputs: tuple[str, str]) -> None:
    text = outputs[0]
    error = errors(text)[ENDING_WELL.index("a lock that is never released")]
    assert error["code"] == "lock.acquire(); lock.acquire()"
    assert "it is blocked at train.py:" in error["message"]
    assert "and rank 0 waits for it in barrier at train.py:" in error["message"]
    assert "[node 0] rank 0 waits in barrier:" in text
    assert "[node 0] rank 1 is blocked:" in text
    frames = [line for line in text.splitlines() if line.startswith("[node 0]   File")]
    assert any("train.py" in line for line in frames)
    assert [line for line in frames if "cloudtrain_launcher" in line] == [], "those of the launcher say nothing"
    doing = [event["activity"] for event in events(text) if event["type"] == "activity"]
    told = [number for number, text in enumerate(doing) if text.startswith("waiting for rank 1, which is blocked at")]
    assert re.fullmatch(r"waiting for rank 1, which is blocked at train\.py:\d+", doing[told[0]])
    assert doing[told[0] + 1] == ""
    assert f"after {LIMIT_SECONDS} s the job ends (limits.hang)" in text


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_long_computation_in_silence_is_no_hang(outputs: tuple[str, str]) -> None:
    told = events(outputs[0])
    (began,) = (e["time"] for e in told if e["type"] == "restarted" and e["attempt"] == ENDING_WELL.index("silence"))
    assert told[-1]["outcome"] == "succeeded", outputs[0]
    assert told[-1]["time"] - began > LIMIT_SECONDS
    assert len(errors(outputs[0])) == outputs[0].count("(limits.hang)") == len(ENDING_WELL) - 1


def stack(*frames: tuple[str, int, str]) -> str:
    """As faulthandler writes it: another thread first, the main thread last."""
    lines = ["Thread 0x01 (most recent call first):", '  File "/usr/lib/python3/threading.py", line 1 in wait']
    lines += ["", "Current thread 0x02 (most recent call first):"]
    return "\n".join([*lines, *(f'  File "{file}", line {line} in {function}' for file, line, function in frames)])


TORCH = "/venv/lib/python3.11/site-packages/torch"
ALL_REDUCE = [
    (f"{TORCH}/distributed/distributed_c10d.py", 9, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 8, "wrapper"),
]


@pytest.mark.parametrize(
    ("inner", "cpu", "still", "kind", "call"),
    [
        (ALL_REDUCE, 0.0, True, "collective", "all_reduce"),
        (ALL_REDUCE, 5.0, True, "collective", "all_reduce"),
        (ALL_REDUCE, 5.0, False, "busy", "all_reduce"),
        ([(f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward")], 0.0, True, "collective", "backward"),
        ([(f"{TORCH}/autograd/graph.py", 1, "_engine_run_backward")], 5.0, True, "busy", ""),
        ([(f"{TORCH}/nn/parallel/distributed.py", 1, "_sync_buffers")], 0.0, True, "collective", "forward"),
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
    found = activity(3, samples, tmp_path)
    assert (found.rank, found.kind, found.call) == (3, kind, call)
    assert found.place == f"train.py:{7 if still else 6}"


def rank(number: int, kind: str, line: int = 7, call: str = "all_reduce") -> RankActivity:
    return RankActivity(number, kind, call=call if kind == "collective" else "", file="train.py", line=line)


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
        ([rank(0, "blocked")], 0),
        ([rank(0, "blocked"), rank(1, "ended")], 0),
        ([rank(0, "busy"), rank(1, "ended")], None),
        ([rank(0, "ended"), rank(1, "ended")], None),
        ([rank(0, "busy"), rank(1, "busy")], None),
        ([rank(0, "busy"), rank(1, "blocked")], None),
        ([], None),
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
        "alone and blocked",
        "blocked when the others have ended",
        "the first one works on when the others have ended",
        "all have ended",
        "all compute",
        "nobody waits for a peer",
        "nobody runs",
    ],
)
def test_the_verdict_names(ranks: list[RankActivity], expected: int | None) -> None:
    found = verdict(ranks, nodes=1)
    assert (found and found[0].rank) == expected


@pytest.mark.parametrize(
    ("state", "words"), [("T", "it is stopped (SIGSTOP)"), ("D", "it waits in the kernel, as for a disk")]
)
def test_a_rank_whose_process_does_not_run_is_told_from_one_that_waits(state: str, words: str, tmp_path: Path) -> None:
    found = activity(1, [Sample(float(n), 0.0, "", state) for n in range(4)], tmp_path)
    assert found.kind == "frozen"
    assert words in describe(found, [rank(0, "collective")], 60, processes=2)
    for_a_moment = [Sample(float(n), 0.0, "", state if n == 2 else "S") for n in range(4)]
    assert activity(1, for_a_moment, tmp_path).kind == "blocked"


def test_a_node_whose_ranks_all_wait_at_one_line_looks_for_the_cause_on_another() -> None:
    ranks = [rank(2, "collective"), rank(3, "collective")]
    found = verdict(ranks, nodes=2)
    assert found is not None
    assert found[0] in found[1]
    message = describe(*found, 1800, processes=2)
    assert message.endswith("30 min: all ranks of its node wait in all_reduce at train.py:7 for another node")


def test_ranks_that_wait_for_ranks_of_their_own_are_told_what_to_ask_for() -> None:
    spawning = rank(0, "blocked")._replace(has_children=True)
    assert describe(spawning, [], 60, processes=2).endswith("if those are the ranks, use processes: 1")
    assert "processes: 1" not in describe(spawning, [], 60, processes=1)


def test_a_stack_ends_where_the_program_begins_whatever_has_forked_it() -> None:
    launcher = Path(stacks.__file__).parent
    program = '  File "/job/train.py", line 3 in step'
    below = (
        f"{launcher}/worker.py",
        f"{launcher}/fork_server.py",
        "/client/reserved.py",
        f"{launcher}/agent.py",
        "<string>",
    )
    frames = [program, *(f'  File "{file}", line 1 in main' for file in below)]
    assert stacks.program_lines("\n".join(["Current thread 0x1 (most recent call first):", *frames])) == [program]
