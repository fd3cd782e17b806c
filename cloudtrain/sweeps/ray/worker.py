"""Worker of a Ray cluster: start and watch trials as ordinary runs. Does not import Ray.

Driver and workers share the data folder: a worker reads the driver's journal there and returns
events; only the driver writes the journal.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cloudtrain.errors import CloudtrainError, StorageError, UsageError
from cloudtrain.providers.local.lifeline import end_runs_with_this_process
from cloudtrain.sweeps.driver import PAUSE_SECONDS
from cloudtrain.sweeps.events import RunEnded, SweepEvent
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.state import SweepState, Trial, state_of

if TYPE_CHECKING:
    from cloudtrain.sweeps.trials import RunTrials


class RayWorker:
    """Process of Ray that runs trials in turn."""

    def __init__(self, folder: Path, cpus: int) -> None:
        """`cpus`: number of this machine's cores that Ray lends to each trial."""
        end_runs_with_this_process()
        self._folder = SweepFolder(folder)
        self._cpus = cpus
        self._trials: RunTrials | None = None
        self._events: deque[SweepEvent] = deque()
        self._state: SweepState | None = None
        self._number = 0

    @property
    def metric(self) -> str:
        """Objective of the sweep."""
        return self._state.definition.metric if self._state else ""

    def begin(self, number: int, run: str) -> None:
        """Start a run from the journal; an error becomes its end."""
        self._state = None
        self._number = number
        try:
            refused = self._start(number, run)
        except CloudtrainError as error:
            refused = _ended(
                number, run, "refused", error.message + (f" ({error.hint})" if error.hint else "")
            )
        if refused:
            self._take(refused)

    def _start(self, number: int, run: str) -> RunEnded | None:
        trials = self._open()
        state = state_of(
            self._folder.definition(), (event for event, _ in self._folder.events_from())
        )
        if (
            number >= len(state.trials)
            or state.trials[number].run != run
            or state.trials[number].state != "running"
        ):
            raise UsageError(
                f"run {run} is not announced in the journal of sweep {self._folder.sweep_id}"
            )
        self._state = state
        if state.state != "running":
            return _ended(number, run, "stopped", "it had not begun")
        return trials.start(state.trials[number])

    def _open(self) -> RunTrials:
        """Return the runs of the sweep. Raise UsageError without its folder."""
        if self._trials is None:
            # The driver imports this class, and does without this import.
            from cloudtrain.sweeps.trials import RunTrials

            try:
                definition = self._folder.definition()
            except StorageError as error:
                hint = "setting data_dir: a folder on a disk that all nodes of the cluster share"
                raise UsageError(
                    f"{socket.gethostname()} does not see {self._folder.path}", hint=hint
                ) from error
            at_once = min(definition.parallel, max(1, _cores() // self._cpus))
            self._trials = RunTrials(self._folder, replace(definition, parallel=at_once))
        return self._trials

    def next_event(self) -> SweepEvent:
        """Wait for the next report of the trial, or its end, which is the last event."""
        while not self._events:
            trial = self._running()
            if trial is None or self._trials is None:
                raise UsageError("this worker does not run a trial")
            self._take(*self._trials.observe(trial))
            if not self._events:
                time.sleep(PAUSE_SECONDS)
        return self._events.popleft()

    def close(self) -> None:
        """Stop the active run, if any, wait for its end, and end all processes."""
        with suppress(StorageError):  # a run without its folder ends by itself
            while (
                (trial := self._running()) is not None
                and self._trials is not None
                and self._trials.has_run(trial)
            ):
                self._trials.request_stop(trial)
                self._take(*self._trials.observe(trial))
                time.sleep(PAUSE_SECONDS)

    def _running(self) -> Trial | None:
        trial = self._state.trials[self._number] if self._state else None
        return trial if trial is not None and trial.state == "running" else None

    def _take(self, *events: SweepEvent) -> None:
        for event in events:
            if self._state is not None:
                self._state.apply(event)
            self._events.append(event)


def _ended(number: int, run: str, outcome: Literal["refused", "stopped"], reason: str) -> RunEnded:
    return RunEnded(
        time=time.time(), trial=number, run=run, outcome=outcome, reason=reason, usd=0.0
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
