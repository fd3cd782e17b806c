"""Search for the first cause among errors, and its description. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from cloudtrain_wire.events import Cause, Error

C = TypeVar("C", bound=Cause)

_PEER_LOST = (
    r"(?i)connection (was likely )?(closed|reset|refused)|broken pipe|remote process"
    r" exited|connectFullMesh"
    r"|ncclRemoteError|ncclSystemError|communicator was aborted|Watchdog caught collective"
    r"|socket (timeout|closed)|timed out (waiting|connecting|after)|client socket has (timed"
    r" out|failed)"
    r"|recvfrom|failed to recv|(send|recv)\w+ failed|store.*(closed|timeout)|wait timeout"
    r"|failed to pass monitoredBarrier"
)
"""Messages of gloo, NCCL and c10d about a lost peer."""

_C10D_ERRORS = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError")
"""torch.distributed's own exceptions (torch 2.1 and later)."""

_C10D_MESSAGE = (
    r"gloo/[\w/]+\.(cc|h):\d+\]|Gloo connectFullMesh|NCCL error|\[c10d\]|csrc/distributed/c10d|NCCL"
    r" communicator"
    r"|monitoredBarrier"
)
"""Parts of a plain RuntimeError's message that show its origin in gloo or c10d."""

_TORCH_FILE = r"[/\\]torch[/\\](distributed|autograd|_tensor|nn[/\\]parallel|utils)"


def is_consequence(exception: str, message: str, file: str = "") -> bool:
    """Return whether an error only reports a lost peer: its rank is a victim, not the cause.

    Only messages of gloo, NCCL and c10d count: a refused connection of the program itself, say to a
    data server, may be the cause. `file`: where it was raised, for an older torch, whose messages
    do not name their origin.
    """
    if not re.search(_PEER_LOST, message):
        return False
    if exception in _C10D_ERRORS:
        return True

    return exception == "RuntimeError" and bool(
        re.search(_C10D_MESSAGE, message) or re.search(_TORCH_FILE, file)
    )


def first_cause(
    errors: Sequence[C], finished: Mapping[int, tuple[int, float]] = MappingProxyType({})
) -> C | Error | None:
    """Return the last attempt's earliest error, preferably no consequence; None without errors.

    A SIGTERM before all other errors comes from outside the job: torchrun sends its own later. If
    the cause only reports a lost peer, and a peer exited with code 0 before, that exit is the
    cause. `finished`: rank that exited with code 0 -> node and Unix timestamp.
    """
    last = max((error.attempt for error in errors), default=0)
    of_last_attempt = [error for error in errors if error.attempt == last]
    first = min(of_last_attempt, key=lambda error: error.time, default=None)
    if first is not None and first.exception == "SIGTERM":
        return first.replace(consequence=False)

    cause = min(of_last_attempt, key=lambda error: (error.consequence, error.time), default=None)
    if cause is None or not cause.consequence:
        return cause

    early = []
    for rank, (node, when) in finished.items():
        if when <= cause.time and rank != cause.rank:
            early.append((when, rank, node))

    if not early or cause.exception == "SIGTERM":
        return cause

    when, rank, node = min(early)
    message = f"ended with exit code 0 while {process_name(cause)} still waited for it"

    return Error(rank=rank, node=node, time=when, exception="exit", message=message)


def process_name(error: Cause) -> str:
    """Return `rank 3 (node 1)`, or `node 0` without a rank."""
    if error.rank >= 0:
        return f"rank {error.rank} (node {error.node})"

    return f"node {error.node}"


def one_line(error: Cause) -> str:
    """Return `rank 3 (node 1) raised ValueError: …`, or `node 0: …` without a rank."""
    who = process_name(error)
    if error.rank < 0:
        return f"{who}: {error.message}"

    if error.traceback:
        message = ""
        if error.message.strip():
            message = f": {error.message}"

        return f"{who} raised {error.exception}{message}"

    if error.exception == "SystemExit" and not error.message.startswith("exited with code"):
        return f"{who} ended by sys.exit: {error.message}"

    return f"{who} {error.message}"
