"""A sweep by its cloud's own service: started once, then mirrored into the journal, trial by trial.

The service chooses the values and starts the trials. Each becomes an ordinary run as soon as the
service lists it, and its events tell its reports and its end, as those of trials of our own do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.errors import CloudError, CloudtrainError, Outcome, RunExists
from cloudtrain.providers import get_provider
from cloudtrain.providers.native_sweep import NativeSweepState, NativeTrial
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.submit import documents_of, submitting
from cloudtrain.sweeps.driver import PAUSE_SECONDS, SweepJournal
from cloudtrain.sweeps.events import Launching, RunEnded, Suggested, SweepEnded, SweepEvent
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.state import SweepState
from cloudtrain_launcher.events import Ended, Submitted

if TYPE_CHECKING:
    from cloudtrain.planning.reference import ResolvedImage
    from cloudtrain.providers import Progress
    from cloudtrain.sweeps.planning import SweepPlan

FINAL = ("completed", "pruned", "failed", "stopped")


def start_native(
    plan: SweepPlan, archive: Path, image: ResolvedImage | None, progress: Progress | None = None
) -> SweepFolder:
    """Make the sweep's folder and start the sweep at its cloud. CloudError and StorageError as
    `submit` raises them.
    """
    job = plan.job
    definition = plan.definition
    native = get_provider(job.provider).native_sweeps()
    request = native.render(job, image)
    folder = SweepFolder.create(Path(job.context.data_dir), definition, documents_of(job, request))
    run = RunFolder(folder.path)
    with (
        folder.driving()
    ):  # a driver would take a submission that goes on for one that was interrupted
        run.append(submitting(job), durable=True)
        try:
            reference = native.start(job, request, run, archive, progress, History(run).record)
        except CloudtrainError as error:
            if error.outcome is not Outcome.UNKNOWN:
                error.outcome = Outcome.NOT_STARTED
                run.append(Ended(time=time.time(), state="failed", reason=error.message))
                folder.append(SweepEnded(time=time.time(), state="failed", reason=error.message))
            raise
        run.append(Submitted(time=time.time(), ref=reference))
    return folder


def drive_native(folder: SweepFolder, *, pause: Callable[[], None] | None = None) -> SweepState:
    """Mirror a sweep into its journal until it has ended, and return its state. UsageError when
    another process does.

    `pause`: called between two looks.
    """
    definition = folder.definition()
    journal = SweepJournal(folder, SweepState.new(definition))
    with folder.driving():
        journal.read()
        mirror = NativeMirror(journal)
        while journal.state.state in ("running", "stopping"):
            mirror.advance()
            if journal.state.state in ("running", "stopping"):
                (pause or _pause)()
    return journal.state


def _pause() -> None:
    time.sleep(PAUSE_SECONDS)


class NativeMirror:
    """One process's work on the journal of a sweep that a cloud carries out."""

    def __init__(self, journal: SweepJournal) -> None:
        self.journal = journal
        self._definition = journal.state.definition
        self._run = RunFolder(journal.folder.path)
        self._history = History(self._run)
        self._store = RunStore(journal.folder.path.parents[1])
        self._provider = get_provider(self._definition.provider)
        self._native = self._provider.native_sweeps()
        from cloudtrain.sweeps.trials import (
            RunTrials,
        )  # of no use to the process that starts a sweep

        self._trials = RunTrials(journal.folder, self._definition)
        self._seen: NativeSweepState | None = None
        self._next_look = 0.0

    def advance(self) -> None:
        """Ask the service, if it is time to, and write down all that is new. A cloud that fails is
        asked again.
        """
        self.journal.read()
        if self.journal.state.state == "stopping" and not self._history.read().stop_requested:
            with suppress(CloudError):
                self._native.stop(self._run, self._history.state, self._history.record)
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self._provider.poll_seconds(self._run)
            try:
                self._seen = self._native.observe(
                    self._run, self._history.read(), self._history.record
                )
            except CloudError as error:
                if not error.transient:
                    raise
        if self._seen is not None:
            self._mirror(self._seen)
        elif self._history.read().has_ended:
            self.journal.write(
                SweepEnded(time=time.time(), state="failed", reason=self._history.state.reason)
            )

    def _mirror(self, seen: NativeSweepState) -> None:
        for trial in seen.trials:
            if trial.number == len(self.journal.state.trials):
                self._begin(trial)
            self.journal.write(*self._news(trial))
        running = any(trial.state == "running" for trial in self.journal.state.trials)
        if seen.state in ("succeeded", "failed", "stopped") and not running:
            self.journal.write(SweepEnded(time=time.time(), state=seen.state, reason=seen.reason))

    def _begin(self, trial: NativeTrial) -> None:
        """Make an ordinary run of a trial, and write down that it is there."""
        if trial.run is not None:
            with suppress(
                RunExists
            ):  # another machine's jobs were listed, or an earlier driver was killed here
                self._store.create(trial.name, trial.run.documents(), trial.run.submitting)
            made = RunFolder(self._store.runs_dir / trial.name)
            if History(made).read().ref is None:
                made.append(trial.run.submitted)
        cap = self._definition.trial_cap
        now = time.time()
        self.journal.write(
            Suggested(time=now, trial=trial.number, parameters=trial.parameters),
            Launching(
                time=now,
                trial=trial.number,
                run=trial.name,
                cap_usd=cap.usd,
                cap_seconds=cap.seconds,
            ),
        )

    def _news(self, trial: NativeTrial) -> Iterator[SweepEvent]:
        """Yield the events of a trial's run; the service decides how it ended."""
        before = self.journal.state.trials[trial.number]
        if before.state != "running":
            return
        for event in self._trials.observe(before):
            if not isinstance(event, RunEnded):
                yield event
            elif trial.state in FINAL and not (
                event.outcome == "stopped" and trial.state == "completed"
            ):
                yield replace(event, outcome=trial.state)  # type: ignore[arg-type]
            elif (
                trial.state in FINAL
            ):  # it saved when it was asked to stop, and ended as if it were done
                yield event
