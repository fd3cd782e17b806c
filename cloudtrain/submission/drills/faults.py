"""Faults in a running job by real signals and files, each with its description."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.submission.drills import watching
from cloudtrain.submission.drills.history import newest_file
from cloudtrain.submission.drills.scenario import Fault
from cloudtrain.submission.drills.watching import Saved, Watched
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import Checkpoint

FILE_LIMIT_BYTES = 64
"""Maximum size of any file on a full disk (RLIMIT_FSIZE, setrlimit(2))."""


@dataclass(kw_only=True)
class Injected:
    """Fault that was injected into a run."""

    text: str
    ends_run: bool = False
    """True if the run should end by it, as after a stop."""
    stalled: list[int] = field(default_factory=list)
    """Processes that stay stopped."""
    saved_before: Saved | None = None
    """Saved checkpoints before the fault."""


class NotPossible(Exception):
    """The fault is not possible here; the text has the reason."""


class TooLate(Exception):
    """The job is already at its end."""


def inject(fault: Fault, watched: Watched) -> Injected:
    """Inject a fault. May raise TooLate, NotPossible or OSError."""
    stalled: list[int] = []
    ranks = watched.ranks()
    watched.freeze()
    try:
        if not ranks or watched.ranks() != ranks:
            raise TooLate
        before = watched.saved()
        injected = _INJECTIONS[fault](watched)
        injected.saved_before = before
        stalled = injected.stalled
    finally:
        watched.thaw(but=stalled)
    return injected


def _kill_rank(watched: Watched) -> Injected:
    rank, process = max(watched.ranks().items())
    os.kill(process, signal.SIGKILL)
    return Injected(text=f"SIGKILL of rank {rank}")


def _lose_node(watched: Watched) -> Injected:
    node, launcher = max(watching.launchers(watched.events).items())
    node_processes = watching.with_descendants(launcher)
    watching.kill_at_once(node_processes)
    return Injected(
        text=f"SIGKILL of all {len(node_processes)} processes of node {node}", ends_run=True
    )


def _stop(watched: Watched) -> Injected:
    watched.run.request_stop(watched.state)
    watching.await_pending(signal.SIGTERM, watched.ranks().values())
    return Injected(text="SIGTERM to all ranks", ends_run=True)


def _fill_disk(watched: Watched) -> Injected:
    for launcher in watching.launchers(watched.events).values():
        for process in watching.with_descendants(launcher):
            _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
            resource.prlimit(process, resource.RLIMIT_FSIZE, (FILE_LIMIT_BYTES, hard))
    return Injected(
        text=(
            f"no file of the job may grow beyond {FILE_LIMIT_BYTES} bytes (RLIMIT_FSIZE: EFBIG, not"
            " ENOSPC)"
        )
    )


def _stall_loader(watched: Watched) -> Injected:
    rank, process = max(watched.ranks().items())
    workers = watching.loader_workers(process)
    watching.send(signal.SIGSTOP, workers)
    if workers:
        victims = "the worker" if len(workers) == 1 else f"all {len(workers)} workers"
        return Injected(text=f"SIGSTOP of {victims} of the loader of rank {rank}", stalled=workers)
    return Injected(text=f"SIGSTOP of rank {rank} (without loader workers)", stalled=[process])


_INJECTIONS: dict[Fault, Callable[[Watched], Injected]] = {
    Fault.RANK_KILLED: _kill_rank,
    Fault.NODE_LOST: _lose_node,
    Fault.SIGTERM: _stop,
    Fault.DISK_FULL: _fill_disk,
    Fault.CHECKPOINT_TORN: _stop,
    Fault.LOADER_STALLED: _stall_loader,
}


def tear_newest(run: Run, watched: Watched) -> str:
    """Cut the largest file of the newest checkpoint in half, and return a description.

    Raise NotPossible if there is none.
    """
    names = tuple(
        Path(event.path).name
        for event in watched.events
        if isinstance(event, Checkpoint) and event.path
    )
    folder = RunPaths(run.folder.path).checkpoints
    file = newest_file(folder, names)
    if file is None:
        raise NotPossible("it has saved no file that could be torn")
    size = file.stat().st_size
    os.truncate(file, size // 2)
    return f"{file.relative_to(folder)} cut from {size} to {size // 2} bytes"
