"""Read the Python stack of a running rank: the rank writes it into a file when the launcher asks.

A thread of the rank answers, because faulthandler may read the frames of a thread only while that
thread does not run Python code: in the handler of a signal it can crash a program that computes
(python/cpython#116008). A rank that does not answer holds the interpreter's lock in native code.
If it also sleeps, its frames stand still, and a signal makes faulthandler write them.

Standard library only.
"""

from __future__ import annotations

import _thread
import faulthandler
import os
import re
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cloudtrain_wire.processes import read_count

STACK_SIGNAL = int(signal.SIGRTMIN) + 11 if hasattr(signal, "SIGRTMIN") else 0
"""A real-time signal, since programs use the others; 0 on a system without them and without stacks."""

_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')
_THREAD = re.compile(r"(?:Current thread|Thread) 0x")


class StackFrame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str


def write_on_request(folder: str, local_rank: int) -> None:
    """Let this process, a rank, write the stacks of its threads whenever the launcher asks."""
    if not STACK_SIGNAL:
        return

    stacks = _stacks_path(Path(folder), local_rank)
    request = _request_path(Path(folder), local_rank)
    output = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(STACK_SIGNAL, file=output, all_threads=True)
    with suppress(OSError):  # an earlier attempt made it, or the disk cannot hold a pipe
        os.mkfifo(request, 0o600)

    # Programs may count or join what `threading` lists.
    _thread.start_new_thread(_answer_requests, (request, output))


def _answer_requests(request: Path, output: int) -> None:
    """Write the stacks into the file `output` each time that another process opens the pipe."""
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    with suppress(OSError):  # the launcher is gone, and its folder with it
        while True:
            # Opening waits for the launcher; reading a byte would look like progress of the rank.
            os.close(os.open(request, os.O_RDONLY))
            faulthandler.dump_traceback(output, all_threads=True)


def next_stack(folder: Path, local_rank: int, pid: int, *, was_asked: bool, sleeps: bool) -> str:
    """Return the text that the rank has written since the last call and ask it again.

    It may be empty. `was_asked`: whether the last call was for this process. `sleeps`: whether its
    main thread sleeps now.
    """
    path = _stacks_path(folder, local_rank)

    try:
        text = path.read_text(errors="replace")
        os.truncate(path, 0)
    except OSError:
        return ""

    with suppress(OSError):  # no such pipe, or no reader at its other end
        os.close(os.open(_request_path(folder, local_rank), os.O_WRONLY | os.O_NONBLOCK))

    if was_asked and not text and sleeps:
        with suppress(OSError):
            if _catches_signal(pid):
                os.kill(pid, STACK_SIGNAL)

    return text


def main_thread(text: str) -> list[StackFrame]:
    """Return the program's frames of the main thread, innermost call first.

    faulthandler writes this thread last. `worker.py` and the frames below it are left out: those of
    the processes that forked the rank.
    """
    start = max((header.start() for header in _THREAD.finditer(text)), default=0)
    worker = str(Path(__file__).with_name("worker.py"))
    frames: list[StackFrame] = []

    for frame in map(_FRAME.match, text[start:].splitlines()):
        if frame and frame["file"] == worker:
            break
        if frame:
            frames.append(StackFrame(frame["file"], int(frame["line"]), frame["function"]))

    return frames


def _stacks_path(folder: Path, local_rank: int) -> Path:
    return folder / f"stack-{local_rank}"


def _request_path(folder: Path, local_rank: int) -> Path:
    return folder / f"stack-{local_rank}.request"


def _catches_signal(pid: int) -> bool:
    """Return whether the process handles the signal; without a handler it would end."""
    handled = read_count(f"/proc/{pid}/status", "SigCgt:", 16) or 0
    return bool(handled >> (STACK_SIGNAL - 1) & 1)
