"""`input()` in a job's only rank, answered in the terminal that follows the run: pdb uses it, too.

The client keeps a named pipe in the run's folder open while it follows from a terminal; its end is
the end of the input. Standard input itself stays empty. Standard library only.
"""

from __future__ import annotations

import builtins
import os
import select
import time
from pathlib import Path

import cloudtrain_job
from cloudtrain_launcher.contract import COMMAND, Job
from cloudtrain_wire.events import Activity
from cloudtrain_wire.prompts import AT_PROMPT, KEYBOARD_FILE

RUN_DIR = "CLOUDTRAIN_RUN_DIR"
"""Variable with the run's folder on this machine; unset in containers and clouds."""

FOLLOWER_SECONDS = 5.0
"""Time after the rank's start in which its client opens the pipe; later nobody is waited for."""

POLL_SECONDS = 0.05

MAX_LINE_BYTES = 1 << 16


class Keyboard:
    """Replacement for `input()` that asks the client. `pipe`: the client's named pipe."""

    def __init__(self, pipe: Path) -> None:
        self._pipe = pipe
        self._input = builtins.input
        self._rank_pid = os.getpid()
        self._deadline = time.monotonic() + FOLLOWER_SECONDS
        self._has_answered = False

    def ask(self, prompt: object = "", /) -> str:
        """Return the next line of the terminal. Raise EOFError if no terminal follows the run."""
        pipe = self._open() if os.getpid() == self._rank_pid else None
        if pipe is None:
            return self._input(prompt)

        cloudtrain_job.emit_event(Activity(activity=AT_PROMPT, prompt=str(prompt)))
        try:
            line = _read_line(pipe)
        finally:
            os.close(pipe)
            cloudtrain_job.emit_event(Activity(activity=""))

        print(f"{prompt}{line.rstrip()}")
        self._has_answered = bool(line)
        if not line:
            raise EOFError("the terminal does not follow the run any more")

        return line.removesuffix("\n")

    def is_left_by(self, error: BaseException) -> bool:
        """Return whether an error is the end of a debugger that somebody left at its prompt."""
        return self._has_answered and type(error).__name__ == "BdbQuit"

    def _open(self) -> int | None:
        """Open the pipe once a client has; return None if none does."""
        while True:
            try:
                pipe = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
            except OSError:
                pipe = -1

            if pipe >= 0 and _has_writer(pipe):
                return pipe
            if pipe >= 0:
                os.close(pipe)
            if time.monotonic() > self._deadline:
                return None

            time.sleep(POLL_SECONDS)


def _has_writer(pipe: int) -> bool:
    """Return whether a client has the pipe open; drop what it sent to an earlier question."""
    try:
        return bool(os.read(pipe, MAX_LINE_BYTES))
    except BlockingIOError:
        return True


def _read_line(pipe: int) -> str:
    """Return a line with its end; without one if the client has left."""
    line = b""
    while not line.endswith(b"\n"):
        select.select([pipe], [], [])
        chunk = os.read(pipe, MAX_LINE_BYTES)
        if not chunk:
            break

        line += chunk

    return line.decode("utf-8", "replace")


def keyboard_of(job: Job) -> Keyboard | None:
    """Give this rank's `input()` a keyboard, if the job can have one.

    Others would have to share it, a restarted rank would ask again, and a command is no Python of
    ours.
    """
    folder = os.environ.get(RUN_DIR)
    if not folder or job.nodes * job.processes > 1 or job.restarts or job.kind == COMMAND:
        return None

    keyboard = Keyboard(Path(folder) / KEYBOARD_FILE)
    builtins.input = keyboard.ask
    return keyboard
