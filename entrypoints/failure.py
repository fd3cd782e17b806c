"""Which of many errors was the first cause, and how to say it. Standard library only."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any

Error = dict[str, Any]
"""An `error` event: rank, node, time (seconds), exception, message, file, line, traceback, consequence."""

_PEER_GONE = re.compile(
    r"connection (closed|reset|refused)|broken pipe|remote process exited|connectFullMesh|ncclRemoteError"
    r"|ncclSystemError|socket (timeout|closed)|timed out (waiting|connecting)|DistNetworkError"
    r"|Watchdog caught collective|recvfrom|failed to recv|store.*(closed|timeout)",
    re.IGNORECASE,
)


def is_consequence(exception: str, message: str) -> bool:
    """Whether an error only says that a peer is gone: such a rank is a victim, not the cause."""
    return bool(_PEER_GONE.search(f"{exception}: {message}"))


def root_cause(errors: list[Error]) -> Error | None:
    """The earliest error that is no mere consequence of another one, of the last attempt."""
    last = max((error.get("attempt", 0) for error in errors), default=0)
    ours = [error for error in errors if error.get("attempt", 0) == last]
    return min(ours, key=lambda error: (bool(error.get("consequence")), error["time"]), default=None)


def death(rank: int, exitcode: int, time: float, *, done: bool) -> Error:
    """The error of a rank that left no exception behind: a signal, or an exit with a code.

    `done`: its script had already ended well; the interpreter died afterwards (pytorch/pytorch#190489).
    """
    if exitcode < 0:
        name = _signal_name(-exitcode)
        message = f"was killed by {name}"
        if name == "SIGKILL":
            message += " (out of host memory?)"
        if done:
            message = f"died by {name} while leaving, after its script had ended well"
    else:
        name, message = "exit", f"exited with code {exitcode}"
    return {
        "rank": rank,
        "time": time,
        "exception": name,
        "message": message,
        "consequence": exitcode == -signal.SIGTERM,
    }


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(error: Error) -> str:
    """`rank 3 (node 1) raised ValueError: the dog ate shard 3`; `node 0: …` for what no rank did."""
    if error["rank"] < 0:
        return f"node {error['node']}: {error['message']}"
    who = f"rank {error['rank']} (node {error['node']})"
    if error.get("traceback"):
        return f"{who} raised {error['exception']}: {error['message']}"
    return f"{who} {error['message']}"


def write_failure_file(path: str, error: Error, limit: int = 1024) -> None:
    """The reason where the platform shows it: our line first, then the traceback's end, as far as they are shown."""
    text = one_line(error)
    traceback = error.get("traceback", "")
    room = limit - len(text) - 1
    whole = text + ("\n" + traceback[-room:] if traceback and room > 80 else "")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(whole[:limit], encoding="utf-8", errors="replace")
