"""A rank writes its stack when the launcher asks, and asking never harms it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cloudtrain_launcher.processes import process_state
from cloudtrain_launcher.stacks import main_thread, next_stack
from tests.support.waiting import eventually

pytestmark = pytest.mark.linux("stacks need FIFOs, a real-time signal and /proc")

ENTRYPOINTS = Path(__file__).parents[2] / "entrypoints"
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
def rank(folder: Path, program: str) -> Iterator[subprocess.Popen[str]]:
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
    with rank(tmp_path, program) as process:
        assert eventually(lambda: function_of(tmp_path, process) == function)
        assert process.poll() is None


def test_a_rank_that_computes_survives_every_request(tmp_path: Path) -> None:
    answers = 0
    with rank(tmp_path, COMPUTE) as process:
        while answers < 100:
            answers += bool(function_of(tmp_path, process))
            assert process.poll() is None, f"it ended after {answers} answers"


def test_a_process_that_replaced_the_rank_is_left_alone(tmp_path: Path) -> None:
    program = "import os\nos.execvp('sh', ['sh', '-c', 'echo ready; exec sleep 600'])\n"
    with rank(tmp_path, program) as process:
        for _ in range(20):
            next_stack(tmp_path, 0, process.pid, was_asked=True, sleeps=True)
        assert process.poll() is None
