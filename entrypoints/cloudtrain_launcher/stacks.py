"""The Python stack of a rank that runs: the rank writes it into a file when the launcher sends it a
signal.

Standard library only.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from pathlib import Path
from typing import List, NamedTuple

STACK_SIGNAL = int(signal.SIGRTMIN) + 11 if hasattr(signal, "SIGRTMIN") else 0
"""A real-time signal, since programs use the others; 0 on a system without them, where no stacks
are had.
"""

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")


class StackFrame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str


def write_on_signal(folder: str, local_rank: int) -> None:
    """Have this process, a rank, write the stacks of its threads when `STACK_SIGNAL` arrives,
    whatever it does then.

    faulthandler does it in the signal's handler, so that neither a lock nor a call that never
    returns is in its way.
    """
    if STACK_SIGNAL:
        file = os.open(
            _path(Path(folder), local_rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        faulthandler.register(STACK_SIGNAL, file=file, all_threads=True)


def next_stack(folder: Path, local_rank: int, pid: int) -> str:
    """What the rank has written since the last call; asks it to write again. Empty if it did not
    answer.
    """
    path = _path(folder, local_rank)
    try:
        text = path.read_text(errors="replace")
        os.truncate(path, 0)
        if _catches_signal(pid):
            os.kill(pid, STACK_SIGNAL)
    except OSError:
        return ""
    return text


def main_thread(text: str) -> List[StackFrame]:
    """The frames of the main thread, most recent call first: faulthandler writes the oldest thread
    last.
    """
    frames: List[StackFrame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            frames = []
        found = _FRAME.match(line)
        if found:
            frames.append(StackFrame(found["file"], int(found["line"]), found["function"]))
    return frames


def program_lines(text: str) -> List[str]:
    """The lines of the main thread's frames, most recent call first, without those of what has
    begun it.

    In a forked rank these are the frames of all the processes that it comes from, below those of
    `worker.py`.
    """
    lines = text[max((found.start() for found in _THREAD.finditer(text)), default=0) :].splitlines()
    frames = [line for line in lines if _FRAME.match(line)]
    worker = f'"{Path(__file__).with_name("worker.py")}"'
    begins = next((number for number, line in enumerate(frames) if worker in line), len(frames))
    return frames[:begins]


def _path(folder: Path, local_rank: int) -> Path:
    return folder / f"stack-{local_rank}"


def _catches_signal(pid: int) -> bool:
    """Whether the process still has a handler for the signal, which would end it otherwise."""
    for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) >> (STACK_SIGNAL - 1) & 1)
    return False
