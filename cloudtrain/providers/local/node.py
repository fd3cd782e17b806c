"""One node of a run on this machine, as its supervisor sees it: its launcher, and what that has said."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import IO

from cloudtrain.runs.events import Cause


@dataclass(kw_only=True)
class Node:
    """One launcher and what it has said."""

    rank: int
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    rest: bytes = b""
    code: int | None = None
    error: Cause | None = None
    """The root cause by its launcher's own account."""
    stopped: bool = False
    """Whether its launcher says so; where its exit code would end the job for its peers, it leaves with 0."""
    stop_asked: float = 0.0
    """When its launcher was asked to stop; 0 if it never was."""
    stopped_by: str = ""
    """By whom, if not by us, as far as whoever watches it can tell."""
    forced: bool = False
    """Whether its launcher had to kill what did not end within the grace period."""
    scratch: str = ""
    """Its launcher's temporary folder, which one that was killed leaves behind."""


def stopped(node: Node) -> str:
    """Why a run has stopped, where we did not ask for it."""
    return f"node {node.rank} was told to stop" + (f": {node.stopped_by}" if node.stopped_by else "")


def stdout(node: Node) -> int:
    """Where a launcher is read from."""
    if node.process.stdout is None:
        raise RuntimeError("a launcher was started without a pipe")
    return node.process.stdout.fileno()
