"""SIGTERM in a rank: it stops after a step, waits for a checkpoint, and exits if it hangs."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.support.waiting import HANG_SECONDS

ENTRYPOINTS = Path(__file__).resolve().parents[2] / "entrypoints"

BLOCKED = (
    "mutex = ctypes.create_string_buffer(64); c.pthread_mutex_lock(mutex);"
    " c.pthread_mutex_lock(mutex)"
)
"""The main thread waits in C code forever, as in a kernel launch: it runs no Python code and no
signal handler.
"""


def rank(*lines: str, limit: float = 0.3) -> subprocess.Popen[str]:
    """Start a process that handles SIGTERM and runs these lines, one of which prints `ready`."""
    begin = f"import ctypes, sys, time; sys.path.insert(0, {str(ENTRYPOINTS)!r})"
    made = (
        "from cloudtrain_trainer.sigterm import Stop",
        f"stop = Stop(min_seconds={limit}); stop.listen()",
    )
    argv = [sys.executable, "-c", "\n".join([begin, *made, "c = ctypes.CDLL(None)", *lines])]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n", process.communicate()
    return process


READY = "print('ready', flush=True)"


def test_a_rank_that_hangs_in_c_code_exits() -> None:
    process = rank(READY, BLOCKED)
    process.terminate()
    _, errors = process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == 143
    assert "this rank hangs and exits" in errors


def test_a_rank_whose_steps_continue_stops_normally() -> None:
    process = rank(
        READY,
        "left = 200",
        "while left or not stop.requested:",
        "    time.sleep(0.02); stop.step_done(); left -= stop.requested",
        limit=3,
    )
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == 0
    process.communicate()


def test_a_checkpoint_in_progress_is_waited_for() -> None:
    process = rank("with stop.busy():", f"    {READY}", "    time.sleep(1.5)")
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == 0
    process.communicate()


def test_the_limit_is_three_times_the_longest_step() -> None:
    process = rank("stop.step_done(); time.sleep(0.5); stop.step_done()", READY, BLOCKED)
    began = time.monotonic()
    process.terminate()
    assert process.wait(timeout=HANG_SECONDS) == 143
    assert time.monotonic() - began >= 1.4
    process.communicate()
