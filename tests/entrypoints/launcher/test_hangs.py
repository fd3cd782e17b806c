"""A job that hangs is ended with the rank that it waits for; one that computes is left alone.

Timeouts of NCCL are recorded into the output, and named at the end of the run.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from mmap import PROT_READ, mmap
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import torch

from cloudtrain_launcher import flight_recorder
from tests.entrypoints.launcher.test_launcher_parts import JOB
from tests.entrypoints.launchers import Launcher, events, finish, start

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
    "a collective that one rank skips": (
        """
if rank == 0:
    dist.all_reduce(torch.ones(1))
dist.barrier()
"""
    ),
    "a lock that is never released": (
        """
lock = threading.Lock()
if rank == 1:
    lock.acquire(); lock.acquire()
dist.barrier()
"""
    ),
    "an endless loop": (
        """
while rank == 1:
    pass
dist.barrier()
"""
    ),
    "a loader process that does not answer": (
        """
if rank == 1:
    next(iter(DataLoader(Stuck(), num_workers=1)))
dist.barrier()
"""
    ),
}
COMPUTING = f"""
spin({LIMIT_SECONDS * 1.5})
dist.barrier()
"""
MOVING = f"""
import subprocess

def read_slow_pipe():
    writer = ["sh", "-c", "while printf x; do sleep 0.1; done"]
    with subprocess.Popen(writer, stdout=subprocess.PIPE, bufsize=0) as process:
        while time.monotonic() < end:
            process.stdout.read(1)
        process.kill()

def all_reduce_and_sleep():
    while True:
        goes_on = torch.tensor(float(time.monotonic() < end))
        dist.all_reduce(goes_on, dist.ReduceOp.MIN)
        if not goes_on:
            return
        time.sleep(0.1)

for move in (all_reduce_and_sleep, read_slow_pipe):
    end = time.monotonic() + {LIMIT_SECONDS * 1.5}
    move()
    dist.barrier()
    print("moved", flush=True)
"""
THEN_STUCK = f"""
end = time.monotonic() + {LIMIT_SECONDS * 1.5}
while time.monotonic() < end:
    time.sleep(0.05)
lock = threading.Lock()
lock.acquire(); lock.acquire()
"""
ENDING_WELL = [*list(HANGS)[:2], "silence"]
"""A job that hangs in its first two attempts, and then computes for longer than the limit."""
FAILING = [*list(HANGS)[2:], "hang after silence"]
"""The same for a job without a remaining restart at its third hang."""


def start_job(folder: Path, attempts: list[str]) -> Launcher:
    """A job of two ranks that are restarted for each further attempt."""
    programs = {**HANGS, "silence": COMPUTING, "hang after silence": THEN_STUCK}
    blocks = [
        f"if attempt == {n}:\n" + indent(programs[name].strip(), "    ")
        for n, name in enumerate(attempts)
    ]
    # A fork would have its parent's functions in its stack.
    return start(
        folder, BEGIN + "\n".join(blocks), new_process=True, restarts=len(attempts) - 1, **OPTIONS
    )


Outputs = tuple[str, str, str]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Return the output of three jobs at once: one succeeds, one fails, and one only moves."""
    well, failing = (
        start_job(tmp_path_factory.mktemp("hang"), attempts) for attempts in (ENDING_WELL, FAILING)
    )
    moving = start(tmp_path_factory.mktemp("moving"), BEGIN + MOVING, **OPTIONS)
    return finish(well), finish(failing), finish(moving)


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_ranks_that_wake_up_or_read_again_and_again_do_not_hang(outputs: Outputs) -> None:
    moved = outputs[2]
    assert moved.count("] moved") == 4
    assert events(moved)[-1]["outcome"] == "succeeded", moved
    assert errors(moved) == []


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_hang_is_found_after_a_long_silence_in_which_ranks_moved(
    outputs: Outputs,
) -> None:
    error = errors(outputs[1])[-1]
    assert error["attempt"] == FAILING.index("hang after silence")
    assert (error["rank"], error["code"]) == (0, "lock.acquire(); lock.acquire()"), outputs[1]


def errors(text: str) -> list[dict[str, Any]]:
    """The errors that are hangs."""
    return [
        event for event in events(text) if event["type"] == "error" and event["exception"] == "Hang"
    ]


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
@pytest.mark.parametrize("name", HANGS)
def test_the_rank_that_all_wait_for_is_the_cause(name: str, outputs: Outputs) -> None:
    attempts, text = (ENDING_WELL, outputs[0]) if name in ENDING_WELL else (FAILING, outputs[1])
    (error,) = (error for error in errors(text) if error["attempt"] == attempts.index(name))
    assert (error["rank"], error["consequence"], error["file"]) == (1, False, "train.py"), text
    assert re.match(r"has given no sign of life for \d+ s: it ", error["message"])


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_hang_is_restarted_where_restarts_are_left(outputs: Outputs) -> None:
    for text, attempts in zip(outputs, (ENDING_WELL, FAILING), strict=False):
        restarts = [event["why"] for event in events(text) if event["type"] == "restarted"]
        assert len(restarts) == len(attempts) - 1
        assert all("rank 1 (node 0) has given no sign of life" in why for why in restarts)


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_the_line_is_named_and_every_stack_is_in_the_log(outputs: Outputs) -> None:
    text = outputs[0]
    error = errors(text)[ENDING_WELL.index("a lock that is never released")]
    assert error["code"] == "lock.acquire(); lock.acquire()"
    assert "it is blocked at train.py:" in error["message"]
    assert "and rank 0 waits for it in barrier at train.py:" in error["message"]
    assert "[node 0] rank 0 waits in barrier:" in text
    assert "[node 0] rank 1 is blocked:" in text
    frames = [line for line in text.splitlines() if line.startswith("[node 0]   File")]
    assert any("train.py" in line for line in frames)
    assert [line for line in frames if "cloudtrain_launcher" in line] == [], (
        "those of the launcher say nothing"
    )
    doing = [event["activity"] for event in events(text) if event["type"] == "activity"]
    numbers = [
        number
        for number, text in enumerate(doing)
        if text.startswith("waiting for rank 1, which is blocked at")
    ]
    assert re.fullmatch(r"waiting for rank 1, which is blocked at train\.py:\d+", doing[numbers[0]])
    assert doing[numbers[0] + 1] == ""
    assert f"after {LIMIT_SECONDS} s the job ends (limits.hang)" in text


@pytest.mark.torchrun
@pytest.mark.linux("stacks are read by a real-time signal and /proc")
def test_a_long_computation_in_silence_is_no_hang(outputs: Outputs) -> None:
    events_of_node = events(outputs[0])
    (began,) = (
        e["time"]
        for e in events_of_node
        if e["type"] == "restarted" and e["attempt"] == ENDING_WELL.index("silence")
    )
    assert events_of_node[-1]["outcome"] == "succeeded", outputs[0]
    assert events_of_node[-1]["time"] - began > LIMIT_SECONDS
    assert len(errors(outputs[0])) == outputs[0].count("(limits.hang)") == len(ENDING_WELL) - 1


GPUS = replace(JOB, gpus=4)


@pytest.mark.parametrize(
    ("version", "file", "size"),
    [
        ("2.13.0+cu130", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_FR_BUFFER_SIZE"),
        ("2.6.0", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_TRACE_BUFFER_SIZE"),
    ],
)
def test_timeouts_are_recorded_into_a_folder_of_the_output(
    tmp_path: Path, version: str, file: str, size: str
) -> None:
    environ = dict[str, str]()
    flight_recorder.enable(GPUS, str(tmp_path), version, environ)
    assert environ == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        file: str(tmp_path / "flight-recorder" / "rank_"),
        size: "2000",
    }
    assert (tmp_path / "flight-recorder").is_dir(), "torch creates no folder"


def test_the_names_are_those_that_this_torch_reads(tmp_path: Path) -> None:
    """Those of NCCL are in the library for GPUs, which a torch for CPUs lacks; their names are in
    its headers.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    headers = Path(torch.__file__).parent / "include" / "torch" / "csrc" / "distributed" / "c10d"
    nccl = (headers / "ProcessGroupNCCL.hpp").read_bytes()
    environ: dict[str, str] = {}
    for version in ("2.6.0", "2.13.0"):
        settings = dict[str, str]()
        flight_recorder.enable(GPUS, str(tmp_path), version, settings)
        environ |= settings

    assert len(environ) == 5
    for name in (*environ, "TORCH_NCCL_HIGH_PRIORITY"):
        is_in_nccl = name.encode() in nccl
        with library.open("rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as code:
            assert is_in_nccl or code.find(name.encode()) >= 0, name


def test_ranks_that_were_recorded_in_this_attempt_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "flight-recorder"
    folder.mkdir()
    for rank in (0, 3, 10):
        (folder / f"rank_{rank}").write_bytes(b"x")

    os.utime(folder / "rank_0", (1, 1))  # an earlier job with the same output
    (folder / "rank_4").touch()
    summary = flight_recorder.finish(str(tmp_path), since=2)
    assert "of 2 ranks are in flight-recorder/ of the output" in summary
    assert "`torchfrtrace flight-recorder`" in summary
    assert folder.is_dir()
