"""A program that is asked for an estimate: whatever a user's code does in it, it answers, and
leaves nothing behind.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cloudtrain.submission.torch_program import Answer, ask_program


def asked(folder: Path, code: str, seconds: float = 60.0) -> Answer:
    return ask_program(
        [sys.executable, "-c", f"import json, os, sys\n{code}"], os.environ, folder, seconds
    )


def test_what_the_program_prints_before_its_answer_may_be_anything(tmp_path: Path) -> None:
    code = (
        "sys.stdout.buffer.write(bytes(range(256)) * 9_000)\nsys.stdout.flush()\nprint('\\n' +"
        " json.dumps({'fits': 1}))"
    )
    assert asked(tmp_path, code).found == {"fits": 1}


def test_it_does_not_read_the_terminal_and_has_the_folders_of_a_job(tmp_path: Path) -> None:
    there = (
        "all(os.path.isdir(os.environ[f'CLOUDTRAIN_{n}_DIR']) for n in ('OUTPUT', 'MODEL',"
        " 'CHECKPOINT'))"
    )
    found = asked(
        tmp_path,
        "print(json.dumps([0]))\nprint(json.dumps({'read': sys.stdin.read(), 'there':"
        f" {there}}}))",
    ).found
    assert found == {"read": "", "there": True}


@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("os._exit(3)", "ended with exit code 3"),
        ("import signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV"),
    ],
    ids=["exit code", "signal"],
)
def test_an_end_without_an_answer_is_told(tmp_path: Path, code: str, how: str) -> None:
    assert asked(tmp_path, code)[:2] == ({}, how)
    assert asked(tmp_path, "raise ValueError('shard 3')").errors.endswith("ValueError: shard 3")


LEAVES_ONE = """
import fcntl, subprocess
file = open('lock', 'w')
fcntl.flock(file, fcntl.LOCK_EX)
subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], pass_fds=[file.fileno()])
"""


@pytest.mark.parametrize(
    "then", ["print(json.dumps({'fits': 1})); sys.stdout.flush(); os._exit(0)", "os.kill(0, 19)"]
)
def test_nothing_that_it_has_started_is_waited_for_or_left(tmp_path: Path, then: str) -> None:
    is_ended = "fits" in then
    if is_ended:
        assert asked(tmp_path, LEAVES_ONE + then).found == {"fits": 1}
    else:
        with pytest.raises(subprocess.TimeoutExpired):
            asked(tmp_path, LEAVES_ONE + then, seconds=2.0)
    with (tmp_path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # returns when the last process that holds it is gone
