"""Observer of a drilled run: its events and checkpoints, and the faults that are injected."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.rehearsal.base import RunPaths
from cloudtrain.runs.state import RunState
from cloudtrain.submission.drills.history import (
    Listing,
    SavedFiles,
    history_of,
    listing,
    newest_file,
)
from cloudtrain.submission.drills.verdict import DrillRun, Fault, Trained, trained
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import (
    Checkpoint,
    Event,
    Metrics,
    NodeStarted,
    Progress,
    RankEnded,
    RankStarted,
)

POLL_SECONDS = 0.01
CALM_POLL_SECONDS = 0.1
"""Seconds between two looks at a run, near the fault of a short job and otherwise."""
OBSERVE_SECONDS = 1.0
"""Seconds between two requests to its provider, which notices a dead supervisor."""
EVENT_SECONDS = 0.2
"""Maximum seconds of an event from a rank to the run folder."""
END_SECONDS = 60.0
"""Maximum seconds from killing all processes to the end of the run."""

Draw = Callable[[RunState], None]
Saved = tuple[int, Listing]
"""Number of reported checkpoints, and files of checkpoints."""


class Watched:
    """Observed run.

    `by_events`: True if its program reports checkpoints; None: unknown, count their files unless
    one is reported.
    """

    def __init__(self, run: Run, *, by_events: bool | None = None) -> None:
        self.run = run
        self.events: list[Event] = []
        self.state = run.cached_status()
        self.overdue = False
        self.training_since = 0.0
        """Monotonic time of the first sight of its ranks; 0: not yet."""
        self.reported_saves = 0
        """Number of reported checkpoints."""
        self._files = SavedFiles(RunPaths(run.folder.path).checkpoints)
        self._frozen: set[int] = set()
        self._by_events = by_events
        self._offset = 0
        self._saved_before_last_report = (0, 0)
        self._observed = time.monotonic()

    @property
    def saves(self) -> int:
        """Number of saved checkpoints."""
        return self.reported_saves if self._counts_events else self._files.count

    @property
    def saves_in_time(self) -> int:
        """Number of checkpoints at the last reported step, because later ones are of no use."""
        return self._saved_before_last_report[0 if self._counts_events else 1]

    @property
    def _counts_events(self) -> bool:
        """True to count events. Files may be other things, such as the best weights."""
        return self.reported_saves > 0 if self._by_events is None else self._by_events

    @property
    def step(self) -> float:
        """Last known step; 0: none."""
        saved = self.state.checkpoint.step if self.state.checkpoint else 0
        return max(float(self.state.position.step or 0), float(saved or 0))

    @property
    def training_seconds(self) -> float:
        """Seconds since the first sight of its ranks."""
        return time.monotonic() - self.training_since if self.training_since else 0.0

    def saved(self) -> Saved:
        """Return everything saved until now, to detect changes later."""
        return self.reported_saves, listing(self._files.folder)

    def look(self) -> None:
        """Update events, state and files."""
        if time.monotonic() > self._observed + OBSERVE_SECONDS:
            self._observed = time.monotonic()
            with suppress(CloudtrainError):  # asked again soon
                self.run.status()

        new, self._offset = self.run.folder.events_since(self._offset)
        self.events += new
        self.state = self.run.cached_status()
        self._files.look()
        for event in new:
            if isinstance(event, Checkpoint):
                self.reported_saves += 1
            elif isinstance(event, RankStarted):
                self.training_since = self.training_since or time.monotonic()
            elif isinstance(event, (Metrics, Progress)) and event.step is not None:
                self._saved_before_last_report = (self.reported_saves, self._files.count)

    def until(
        self,
        ready: Callable[[Watched], bool] | None,
        seconds: float,
        draw: Draw,
        *,
        closely: bool = True,
    ) -> bool:
        """Watch until `ready` is true. Return False at the end of the run or after `seconds`.

        `overdue` is set if the time is over.
        """
        deadline = time.monotonic() + seconds
        drawn = 0.0
        while True:
            self.look()
            if self.state.has_ended:
                return False
            if ready is not None and ready(self):
                return True
            if time.monotonic() > deadline:
                self.overdue = True
                return False

            if time.monotonic() > drawn + CALM_POLL_SECONDS:
                drawn = time.monotonic()
                draw(self.state)

            time.sleep(POLL_SECONDS if closely and self.training_since else CALM_POLL_SECONDS)

    def abort(self) -> None:
        """End the run by force: kill its processes and let its supervisor record the end."""
        with suppress(CloudtrainError):
            self.run.request_stop(self.run.last_known())

        deadline = time.monotonic() + END_SECONDS
        while not self.state.has_ended and time.monotonic() < deadline:
            self.look()
            for launcher in launchers(self.events).values():
                kill_at_once(with_descendants(launcher))
            time.sleep(POLL_SECONDS)

    def ranks(self) -> dict[int, int]:
        """Return the current process of each rank."""
        return rank_processes(self.events)

    def freeze(self) -> None:
        """Stop all ranks to fix the step of the fault, then read their earlier events."""
        self._frozen = set(self.ranks().values())
        send(signal.SIGSTOP, self._frozen)
        deadline = time.monotonic() + EVENT_SECONDS
        while time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_SECONDS)

    def thaw(self, but: Collection[int] = ()) -> None:
        """Continue the stopped ranks. `but`: processes that stay stopped."""
        send(signal.SIGCONT, self._frozen - set(but))

    def finished(self) -> DrillRun:
        """Return the run as a value for the verdict."""
        history = history_of(self.events)
        results = (
            trained(self.run.folder.path, self.state)
            if self.state.state == "succeeded"
            else Trained()
        )
        return DrillRun(
            run=self.run.id,
            state=self.state,
            history=history,
            trained=results,
            overdue=self.overdue,
        )


LOADER_NAME = "pt_data_worker"
"""Name of torch's DataLoader workers (torch.utils.data._utils.worker, since torch 2.6)."""

SIGNAL_SECONDS = 10.0
"""Maximum seconds for a stop to reach the ranks."""


def rank_processes(events: Iterable[Event]) -> dict[int, int]:
    """Return the current process of each running rank, from its events."""
    processes: dict[int, int] = {}
    for event in events:
        if isinstance(event, RankStarted) and event.pid:
            processes[event.rank] = event.pid
        elif isinstance(event, RankEnded):
            processes.pop(event.rank, None)
    return processes


def launchers(events: Iterable[Event]) -> dict[int, int]:
    """Return the launcher process of each node."""
    return {
        event.node: event.pid for event in events if isinstance(event, NodeStarted) and event.pid
    }


def with_descendants(process: int) -> list[int]:
    """Return a process and its living descendants, parents first."""
    tree = []
    unvisited = [process]
    while unvisited:
        current = unvisited.pop()
        tree.append(current)
        for task in Path(f"/proc/{current}/task").glob("*/children"):
            with suppress(OSError):
                unvisited += map(int, task.read_text().split())
    return [member for member in tree if Path(f"/proc/{member}").exists()]


def loader_workers(rank: int) -> list[int]:
    """Return the DataLoader workers of a rank's process."""
    return [member for member in with_descendants(rank)[1:] if _name(member) == LOADER_NAME]


def send(signum: signal.Signals, processes: Iterable[int]) -> None:
    """Send a signal to processes that still exist."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signum)


def kill_at_once(processes: Iterable[int]) -> None:
    """Kill processes as if their machine had failed: none sees another one end."""
    victims = list(processes)
    send(signal.SIGSTOP, victims)
    send(signal.SIGKILL, victims)


def await_pending(signum: signal.Signals, processes: Iterable[int]) -> None:
    """Wait until a signal is pending in stopped processes (proc(5), ShdPnd) or they have ended."""
    deadline = time.monotonic() + SIGNAL_SECONDS
    waiting = list(processes)
    while waiting and time.monotonic() < deadline:
        waiting = [process for process in waiting if _lacks(process, signum)]
        time.sleep(POLL_SECONDS)


def _lacks(process: int, signum: signal.Signals) -> bool:
    try:
        lines = Path(f"/proc/{process}/status").read_text(errors="replace").splitlines()
    except OSError:
        return False
    words = dict(line.split(":", 1) for line in lines if ":" in line)
    pending = int(words["SigPnd"], 16) | int(words["ShdPnd"], 16)
    return not words["State"].strip().startswith("Z") and not pending >> (signum - 1) & 1


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


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
    node, launcher = max(launchers(watched.events).items())
    node_processes = with_descendants(launcher)
    kill_at_once(node_processes)
    return Injected(
        text=f"SIGKILL of all {len(node_processes)} processes of node {node}", ends_run=True
    )


def _stop(watched: Watched) -> Injected:
    watched.run.request_stop(watched.state)
    await_pending(signal.SIGTERM, watched.ranks().values())
    return Injected(text="SIGTERM to all ranks", ends_run=True)


def _fill_disk(watched: Watched) -> Injected:
    for launcher in launchers(watched.events).values():
        for process in with_descendants(launcher):
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
    workers = loader_workers(process)
    send(signal.SIGSTOP, workers)
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
