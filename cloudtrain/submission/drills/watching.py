"""Observer of a drilled run: its events, its checkpoints, and the moment of its fault."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.runs.state import RunState
from cloudtrain.submission.drills import processes
from cloudtrain.submission.drills.history import Listing, SavedFiles, history_of, listing
from cloudtrain.submission.drills.verdict import DrillRun, Trained, trained
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import Checkpoint, Event, Metrics, Progress, RankStarted

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
            for launcher in processes.launchers(self.events).values():
                processes.kill_at_once(processes.with_descendants(launcher))
            time.sleep(POLL_SECONDS)

    def ranks(self) -> dict[int, int]:
        """Return the current process of each rank."""
        return processes.rank_processes(self.events)

    def freeze(self) -> None:
        """Stop all ranks to fix the step of the fault, then read their earlier events."""
        self._frozen = set(self.ranks().values())
        processes.send(signal.SIGSTOP, self._frozen)
        deadline = time.monotonic() + EVENT_SECONDS
        while time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_SECONDS)

    def thaw(self, but: Collection[int] = ()) -> None:
        """Continue the stopped ranks. `but`: processes that stay stopped."""
        processes.send(signal.SIGCONT, self._frozen - set(but))

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
