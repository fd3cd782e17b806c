"""Watches a drilled run closely: its events, its checkpoints, and the moment of its fault."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.runs.state import RunState
from cloudtrain.submission.drills import processes
from cloudtrain.submission.drills.compared import Trained, trained
from cloudtrain.submission.drills.history import history_of
from cloudtrain.submission.drills.saved_files import Listing, SavedFiles, listing
from cloudtrain.submission.drills.verdict import DrillRun
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import Checkpoint, Event, Metrics, Progress, RankStarted

POLL_SECONDS = 0.01
CALM_POLL_SECONDS = 0.1
"""Between two looks at a run while it is watched closely, since a job may train for less than a
second; and else.
"""
OBSERVE_SECONDS = 1.0
"""Between two questions to its provider, which notices that its supervisor has died."""
EVENT_SECONDS = 0.2
"""How long an event takes from a rank to the run's folder, at most."""
END_SECONDS = 60.0
"""How long a run may take to end after all of its processes were killed."""

Draw = Callable[[RunState], None]
Saved = tuple[int, Listing]
"""How many checkpoints were reported, and the files of checkpoints."""


class Watched:
    """A run and what is known of it so far.

    `by_events`: its program reports its checkpoints; None: that is not known yet, and if none is
    reported their files are counted. `checkpoints`: where these are seen, if not in the run's own
    folder.
    """

    def __init__(
        self, run: Run, *, by_events: bool | None = None, checkpoints: Path | None = None
    ) -> None:
        self.run = run
        self.events: list[Event] = []
        self.state = run.cached_status()
        self.overdue = False
        self.training_since = 0.0
        """Monotonic time at which its ranks were first seen; 0: not yet."""
        self.reported_saves = 0
        """How many checkpoints it has reported."""
        self._files = SavedFiles(checkpoints or RunPaths(run.folder.path).checkpoints)
        self._frozen: set[int] = set()
        self._by_events = by_events
        self._offset = 0
        self._saved_before_last_report = (0, 0)
        self._observed = time.monotonic()

    @property
    def saves(self) -> int:
        """How many checkpoints it has saved."""
        return self.reported_saves if self._counts_events else self._files.count

    @property
    def saves_in_time(self) -> int:
        """How many of them it had saved when it last reported a step: those at its very end are of
        no use.
        """
        return self._saved_before_last_report[0 if self._counts_events else 1]

    @property
    def _counts_events(self) -> bool:
        """Files may be other things than checkpoints, such as the best weights."""
        return self.reported_saves > 0 if self._by_events is None else self._by_events

    @property
    def step(self) -> float:
        """The last step that is known of; 0: none."""
        saved = self.state.checkpoint.step if self.state.checkpoint else 0
        return max(float(self.state.position.step or 0), float(saved or 0))

    @property
    def training_seconds(self) -> float:
        """For how long its ranks have been there."""
        return time.monotonic() - self.training_since if self.training_since else 0.0

    def saved(self) -> Saved:
        """All that it has saved so far: what is not equal to this later has changed."""
        return self.reported_saves, listing(self._files.folder)

    def look(self) -> None:
        """Bring everything up to date."""
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
        """Watch until `ready` is true, and return that; False when the run has ended, or after so
        many seconds.

        `overdue` tells whether the time was over.
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
        """End the run by force: what it started is killed, and its supervisor writes down that it
        has ended.
        """
        with suppress(CloudtrainError):
            self.run.request_stop(self.run.last_known())
        deadline = time.monotonic() + END_SECONDS
        while not self.state.has_ended and time.monotonic() < deadline:
            self.look()
            for launcher in processes.launchers(self.events).values():
                processes.kill_at_once(processes.with_descendants(launcher))
            time.sleep(POLL_SECONDS)

    def ranks(self) -> dict[int, int]:
        """The process of each rank, as it was last started."""
        return processes.rank_processes(self.events)

    def freeze(self) -> None:
        """Stop all ranks, so that the fault comes at the step at which they are; then read what
        they told before.
        """
        self._frozen = set(self.ranks().values())
        processes.send(signal.SIGSTOP, self._frozen)
        deadline = time.monotonic() + EVENT_SECONDS
        while time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_SECONDS)

    def thaw(self, but: Collection[int] = ()) -> None:
        """Have them go on. `but`: processes that stay stopped."""
        processes.send(signal.SIGCONT, self._frozen - set(but))

    def finished(self) -> DrillRun:
        """The run as a value, for the verdict."""
        history = history_of(self.events)
        left = (
            trained(self.run.folder.path, self.state)
            if self.state.state == "succeeded"
            else Trained()
        )
        return DrillRun(
            run=self.run.id, state=self.state, history=history, trained=left, overdue=self.overdue
        )
