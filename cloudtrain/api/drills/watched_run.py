"""Run of a drill that is watched closely: its events, its checkpoints and its processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import TracebackType

from cloudtrain.api.drills.saved_files import Listing, SavedFiles, listing
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudtrainError
from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.state import RunState
from cloudtrain_wire.events import Checkpoint, Event, NodeStarted, RankEnded, RankStarted
from cloudtrain_wire.processes import ProcessTree

POLL_SECONDS = 0.02
OBSERVE_SECONDS = 1.0
"""Seconds between two requests to its provider, which notices a dead supervisor."""
END_SECONDS = 60.0
"""Maximum seconds from killing all processes to the end of the run."""

Draw = Callable[[RunState], None]
"""Function that shows the progress of a run."""


class WatchedRun:
    """Run that is watched; a context that ends it by force if it still runs at the end."""

    def __init__(self, run: Run, draw: Draw | None = None, *, reports_saves: bool = False) -> None:
        self.run = run
        self.events: list[Event] = []
        self.state = run.cached_status()
        self.is_overdue = False
        """True if it went on longer than the drill waits."""
        self.reported_saves = 0
        """Number of checkpoints that its program reported."""
        self._reports_saves = reports_saves
        self._files = SavedFiles(RunPaths(run.folder.path).checkpoints)
        self._draw = draw
        self._offset = 0
        self._observed = time.monotonic()

    def __enter__(self) -> WatchedRun:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self.state.has_ended:
            self.abort()

    @property
    def step(self) -> float:
        """Last known step; 0: none."""
        saved = self.state.checkpoint.step if self.state.checkpoint else 0
        return max(float(self.state.position.step or 0), float(saved or 0))

    @property
    def saves(self) -> int:
        """Number of checkpoints. Files count if none is reported: they may be other things."""
        if self._reports_saves or self.reported_saves:
            return self.reported_saves
        return self._files.count

    def saved(self) -> tuple[int, Listing]:
        """Return everything saved until now, to detect changes later."""
        return self.reported_saves, listing(self._files.folder)

    def ranks(self) -> dict[int, int]:
        """Return the current process of each rank."""
        processes: dict[int, int] = {}
        for event in self.events:
            if isinstance(event, RankStarted) and event.pid:
                processes[event.rank] = event.pid
            elif isinstance(event, RankEnded):
                processes.pop(event.rank, None)

        return processes

    def nodes(self) -> dict[int, list[int]]:
        """Return the processes of each node, its launcher first."""
        tree = ProcessTree()
        processes = {}
        for event in self.events:
            if isinstance(event, NodeStarted) and event.pid:
                processes[event.node] = [event.pid, *tree.descendants(event.pid)]

        return processes

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
        self.reported_saves += sum(isinstance(event, Checkpoint) for event in new)

    def until(self, seconds: float, ready: Callable[[WatchedRun], bool] | None = None) -> bool:
        """Watch until `ready` is true. Return False at the end of the run or after `seconds`."""
        deadline = time.monotonic() + seconds
        while True:
            self.look()
            if self.state.has_ended:
                return False
            if ready is not None and ready(self):
                return True
            if time.monotonic() > deadline:
                self.is_overdue = True
                return False

            if self._draw is not None:
                self._draw(self.state)
            time.sleep(POLL_SECONDS)

    def until_end(self, seconds: float) -> None:
        """Watch until the run has ended, and end it by force after `seconds`."""
        self.until(seconds)
        if self.is_overdue:
            self.abort()

    def abort(self) -> None:
        """End the run by force: kill its processes and let its supervisor record the end."""
        with suppress(CloudtrainError):
            self.run.request_stop(self.run.last_known())

        deadline = time.monotonic() + END_SECONDS
        while not self.state.has_ended and time.monotonic() < deadline:
            self.look()
            for processes in self.nodes().values():
                kill_at_once(processes)
            time.sleep(POLL_SECONDS)


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
