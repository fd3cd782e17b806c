"""Errors of ranks that left none, and the file that tells a platform of a failure.

Standard library only.
"""

from __future__ import annotations

import signal
from pathlib import Path

from cloudtrain_wire.causes import is_consequence, one_line
from cloudtrain_wire.events import Cause, Error

NOT_STARTED = (126, 127)
"""Exit codes of a shell that cannot start a program (POSIX, "Exit Status for Commands")."""


def exit_error(
    rank: int,
    exitcode: int,
    time: float,
    *,
    finished: bool,
    reason: str = "",
    memory_was_short: bool = False,
) -> Error:
    """Return the error of a rank without an exception: killed by a signal, or exited with a code.

    `exitcode`: below 0 minus the signal's number. `time`: a Unix timestamp. `finished`: the script
    ended with code 0 before the interpreter crashed (pytorch/pytorch#190489). `reason`: the rank's
    own output about it. `memory_was_short`: the kernel has killed a process for lack of memory
    since the rank's start.
    """
    if exitcode < 0:
        name = _signal_name(-exitcode)
        message = f"was killed by {name}"
        if name == "SIGKILL":
            message += ": out of host memory" if memory_was_short else " (out of host memory?)"
        if finished:
            message = f"died by {name} while leaving, after its script had ended well"
        if reason:
            message += f": {reason}"
    else:
        name = "exit"
        message = f"exited with code {exitcode}"
        if reason and exitcode in NOT_STARTED:
            message += f": {reason}"

    lost_peer = exitcode == -signal.SIGTERM or is_consequence("DistBackendError", reason)
    return Error(rank=rank, time=time, exception=name, message=message, consequence=lost_peer)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def write_failure_file(path: str, error: Cause, limit: int = 1024) -> None:
    """Write the cause for the platform, at most `limit` characters. Raise OSError if that fails.

    The summary comes first, then the end of the traceback.
    """
    text = one_line(error)
    traceback = error.traceback or error.stack
    remaining = limit - len(text) - 1
    if traceback and remaining > 80:
        text += "\n" + traceback[-remaining:]
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text[:limit], encoding="utf-8", errors="replace")
