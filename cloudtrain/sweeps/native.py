"""Sweep by its cloud's service: started once, then mirrored into the journal.

The service chooses the values and starts the trials. Each trial becomes an ordinary run when the
service lists it; the events of the run contain its reports and its end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api.submit import documents_of, submitting
from cloudtrain.errors import CloudError, CloudtrainError, Outcome, RunExists
from cloudtrain.providers import get_provider
from cloudtrain.providers.native_sweep import NativeSweepState, NativeTrial
from cloudtrain.providers.shared.idempotent_create import may_appear
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.sweeps.driver import SweepJournal, pause_between_rounds
from cloudtrain.sweeps.journal import (
    Launching,
    RunEnded,
    Suggested,
    SweepEnded,
    SweepEvent,
    SweepFolder,
)
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.trials import RunTrials
from cloudtrain_wire.events import Ended, Submitted

if TYPE_CHECKING:
    from cloudtrain.planning.registry import ResolvedImage
    from cloudtrain.sweeps.planning import SweepPlan

FINAL = ("completed", "pruned", "failed", "stopped")


def start_native(plan: SweepPlan, archive: Path, image: ResolvedImage | None) -> SweepFolder:
    """Create the sweep's folder and start the sweep at its cloud.

    Raise CloudError and StorageError as `submit` does.
    """
    job = plan.job
    definition = plan.definition
    native = get_provider(job.provider).native_sweeps()
    request = native.render(job, image)
    folder = SweepFolder.create(Path(job.context.data_dir), definition, documents_of(job, request))
    run = RunFolder(folder.path)

    # The lock keeps a driver from mistaking an active submission for an interrupted one.
    with folder.driving():
        run.append(submitting(job), durable=True)
        try:
            reference = native.start(
                job,
                request,
                run,
                archive,
                None,
                History(run).record,
            )
        except CloudtrainError as error:
            if error.outcome is not Outcome.UNKNOWN:
                error.outcome = Outcome.NOT_STARTED
                run.append(Ended(time=time.time(), state="failed", reason=error.message))
                folder.append(SweepEnded(time=time.time(), state="failed", reason=error.message))

            raise

        run.append(Submitted(time=time.time(), ref=reference))

    return folder


def drive_native(
    folder: SweepFolder, *, pause: Callable[[], None] = pause_between_rounds
) -> SweepState:
    """Mirror a sweep into its journal until it has ended, and return its state.

    `pause` is called between two observations. Raise UsageError if another process drives it.
    """
    definition = folder.definition()
    journal = SweepJournal(folder, SweepState.new(definition))

    with folder.driving():
        journal.read()
        mirror = NativeMirror(journal)

        while journal.state.state in ("running", "stopping"):
            mirror.advance()
            if journal.state.state in ("running", "stopping"):
                pause()

    return journal.state


class NativeMirror:
    """Copy of a sweep that a cloud carries out, in the journal."""

    def __init__(self, journal: SweepJournal) -> None:
        self.journal = journal
        self._definition = journal.state.definition
        self._run = RunFolder(journal.folder.path)
        self._history = History(self._run)
        self._store = RunStore(journal.folder.path.parents[1])
        self._provider = get_provider(self._definition.provider)
        self._native = self._provider.native_sweeps()
        self._trials = RunTrials(journal.folder, self._definition)
        self._observed: NativeSweepState | None = None
        self._next_look = 0.0

    def advance(self) -> None:
        """Observe the service, if it is time to, and record news.

        Repeat after transient errors of the cloud.
        """
        self.journal.read()
        if self.journal.state.state == "stopping" and not self._history.read().stop_requested:
            with suppress(CloudError):
                self._native.stop(self._run, self._history.state, self._history.record)

        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self._provider.poll_seconds(self._run)
            try:
                self._observed = self._native.observe(
                    self._run, self._history.read(), self._history.record
                )
            except CloudError as error:
                if not error.transient:
                    raise

        if self._observed is not None:
            self._mirror(self._observed)
            return

        run = self._history.read()
        if run.has_ended and not may_appear(run, time.time()):
            self.journal.write(SweepEnded(time=time.time(), state="failed", reason=run.reason))

    def _mirror(self, sweep: NativeSweepState) -> None:
        for trial in sweep.trials:
            if trial.number == len(self.journal.state.trials):
                self._begin(trial)
            self.journal.write(*self._news(trial))

        running = any(trial.state == "running" for trial in self.journal.state.trials)
        if sweep.state in ("succeeded", "failed", "stopped") and not running:
            self.journal.write(SweepEnded(time=time.time(), state=sweep.state, reason=sweep.reason))

    def _begin(self, trial: NativeTrial) -> None:
        """Create an ordinary run for a trial and record it."""
        # It exists if an earlier driver was killed here.
        with suppress(RunExists):
            self._store.create(trial.name, trial.run.documents(), trial.run.submitting)

        folder = RunFolder(self._store.runs_dir / trial.name)
        if History(folder).read().ref is None:
            folder.append(trial.run.submitted)

        cap = self._definition.trial_cap
        time_now = time.time()
        self.journal.write(
            Suggested(time=time_now, trial=trial.number, parameters=trial.parameters),
            Launching(
                time=time_now,
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
            elif trial.state in FINAL:  # it saved a checkpoint at the stop, then ended normally
                yield event
