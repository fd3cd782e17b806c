"""Which of many errors was the first cause, and how to say it. Standard library only."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Mapping, Optional, Sequence, TypeVar

from cloudtrain_launcher.events import Cause, Error

C = TypeVar("C", bound=Cause)

_PEER_LOST = re.compile(
    r"connection (was likely )?(closed|reset|refused)|broken pipe|remote process exited|connectFullMesh"
    r"|ncclRemoteError|ncclSystemError|communicator was aborted|Watchdog caught collective"
    r"|socket (timeout|closed)|timed out (waiting|connecting|after)|client socket has (timed out|failed)"
    r"|recvfrom|failed to recv|(send|recv)\w+ failed|store.*(closed|timeout)|wait timeout"
    r"|failed to pass monitoredBarrier",
    re.IGNORECASE,
)
"""What gloo, NCCL and c10d say of a peer that is gone."""

_C10D_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
"""torch.distributed's own exceptions (torch 2.1 and later)."""

_C10D_MESSAGE = re.compile(
    r"gloo/[\w/]+\.(cc|h):\d+\]|Gloo connectFullMesh|NCCL error|\[c10d\]|csrc/distributed/c10d|NCCL communicator"
    r"|monitoredBarrier"
)
"""Where gloo and c10d say that they speak, in a plain RuntimeError."""

_TORCH_FILE = re.compile(r"[/\\]torch[/\\](distributed|autograd|_tensor|nn[/\\]parallel|utils)")


def is_consequence(exception: str, message: str, file: str = "") -> bool:
    """Whether an error only says that a peer is gone: such a rank is a victim, not the cause.

    Only gloo's, NCCL's and c10d's own words count: a program has connections of its own, say to a data server, and
    one that is refused may well be the cause. `file`: where it was raised, for an older torch, whose words are plain.
    """
    if not _PEER_LOST.search(message):
        return False
    if exception in _C10D_ERRORS:
        return True
    return exception == "RuntimeError" and bool(_C10D_MESSAGE.search(message) or _TORCH_FILE.search(file))


def root_cause(errors: Sequence[C]) -> Optional[C]:
    """The earliest error that is no mere consequence of another one, of the last attempt."""
    last = max((error.attempt for error in errors), default=0)
    ours = [error for error in errors if error.attempt == last]
    return min(ours, key=lambda error: (error.consequence, error.time), default=None)


def early_exit(cause: Cause, left: Mapping[int, float], node: int) -> Optional[Error]:
    """The error of the rank that ended well while others still waited for it; None when `cause` says nothing of it.

    `left`: ranks of this node that ended with 0, and when.
    """
    early = [(when, rank) for rank, when in left.items() if when <= cause.time and rank != cause.rank]
    if not early or not cause.consequence or cause.exception == "SIGTERM":
        return None
    when, rank = min(early)
    message = f"ended with exit code 0 while rank {cause.rank} still waited for it"
    return Error(rank=rank, node=node, time=when, exception="exit", message=message)


def exit_error(rank: int, exitcode: int, time: float, *, finished: bool, reason: str = "") -> Error:
    """The error of a rank that left no exception behind: a signal, or an exit with a code.

    `done`: its script had already ended well; the interpreter died afterwards (pytorch/pytorch#190489).
    `why`: what the rank itself printed of the reason.
    """
    if exitcode < 0:
        name = _signal_name(-exitcode)
        message = f"was killed by {name}"
        if name == "SIGKILL":
            message += " (out of host memory?)"
        if finished:
            message = f"died by {name} while leaving, after its script had ended well"
        if reason:
            message += f": {reason}"
    else:
        name, message = "exit", f"exited with code {exitcode}"
    lost_peer = exitcode == -signal.SIGTERM or is_consequence("DistBackendError", reason)
    return Error(rank=rank, time=time, exception=name, message=message, consequence=lost_peer)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(error: Cause) -> str:
    """`rank 3 (node 1) raised ValueError: the dog ate shard 3`; `node 0: …` for what no rank did."""
    if error.rank < 0:
        return f"node {error.node}: {error.message}"
    who = f"rank {error.rank} (node {error.node})"
    if error.traceback:
        return f"{who} raised {error.exception}: {error.message}"
    return f"{who} {error.message}"


def write_failure_file(path: str, error: Cause, limit: int = 1024) -> None:
    """The reason where the platform shows it: our line first, then the traceback's end, as far as they are shown."""
    text = one_line(error)
    traceback = error.traceback or error.stack
    room = limit - len(text) - 1
    whole = text + ("\n" + traceback[-room:] if traceback and room > 80 else "")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(whole[:limit], encoding="utf-8", errors="replace")
