"""Started sweep: watch, stop and extend it, and find its best run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from cloudtrain.api.notification import send_in_background
from cloudtrain.api.run import Run
from cloudtrain.errors import RunNotFound, StorageError, UsageError, did_you_mean
from cloudtrain.providers.local.processes import reap_in_background
from cloudtrain.runs.files import private_opener, read_lines, storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import SWEEPS, sweep_ids
from cloudtrain.settings import data_folder
from cloudtrain.spec.search_space import points_of
from cloudtrain.sweeps.definition import Caps, Definition
from cloudtrain.sweeps.driver import SweepJournal, request_stop
from cloudtrain.sweeps.journal import Extended, SweepEvent, SweepFolder
from cloudtrain.sweeps.schedule import cap_of_next
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain_wire.bounded_files import open_regular_file

POLL_SECONDS = 0.2
DRIVER_START_SECONDS = 20
"""Time for a driver to lock the sweep; after that its start has failed."""
DRIVER_LOG = "driver.log"
DRIVER = "cloudtrain.sweeps.background"
"""Program that drives a sweep, and tells its end."""


@dataclass(frozen=True, slots=True)
class SweepUpdate:
    """News of a sweep since the previous update."""

    state: SweepState
    """State of the sweep; the same object in every update."""
    events: list[SweepEvent]


class Sweep:
    """Sweep on this machine."""

    def __init__(self, folder: SweepFolder) -> None:
        self.folder = folder
        self.id = folder.sweep_id
        self.definition: Definition = folder.definition()
        self._journal = SweepJournal(folder, SweepState.new(self.definition))
        self._has_begun = False
        """True if a driver was started from here, which may then be replaced."""
        self._has_told = False

    def __repr__(self) -> str:
        return f"<Sweep {self.id}: {self._journal.state.state}>"

    @property
    def has_ended(self) -> bool:
        """True if the sweep had ended when it was last read."""
        return self._journal.state.state not in ("running", "stopping")

    def status(self) -> SweepState:
        """Return the current state. Raise StorageError if the journal cannot be read."""
        self._journal.read()
        if self.has_ended and not self._has_told:
            self._has_told = True
            send_in_background(RunFolder(self.folder.path), DRIVER)

        return self._journal.state

    @property
    def is_interrupted(self) -> bool:
        """True if it has not ended and nothing drives it: its machine or its driver was stopped."""
        is_driven = self.folder.is_driven()  # first: a driver records the end before it exits
        self.status()
        return not self.has_ended and not is_driven

    def start_driver(self) -> None:
        """Start a driver in the background unless one runs. Raise StorageError if that fails."""
        self._has_begun = True
        if self.folder.is_driven() or self.status().state not in ("running", "stopping"):
            return

        log = self.folder.path / DRIVER_LOG
        with storing(log), open(log, "ab", opener=private_opener) as file:
            offset = file.tell()
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", DRIVER, str(self.folder.path)],
                cwd=self.folder.path,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

        deadline = time.monotonic() + DRIVER_START_SECONDS
        while (
            not self.folder.is_driven() and process.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(POLL_SECONDS / 4)

        code = process.poll()
        reap_in_background(process)

        # A driver that was killed after it began is replaced, whenever that happens.
        was_killed = code is not None and code < 0 and self.folder.last_driver() == process.pid
        if code and not was_killed:
            why = _last_message(log, offset) or f"its exit code is {code}"
            raise StorageError(
                f"the driver of sweep {self.id} ended at once: {why}", hint=f"see {log}"
            )

    def watch(self) -> Iterator[SweepUpdate]:
        """Yield updates until the sweep has ended, the first with all past events.

        Replace a driver that was killed if this object has started one. Otherwise raise UsageError
        if nothing drives the sweep: a look at it must not start runs.
        """
        seen_driven = time.monotonic()
        while True:
            if self._has_begun or self.folder.is_driven():
                seen_driven = time.monotonic()

            events = self._journal.read()
            yield SweepUpdate(self._journal.state, events)

            if self.has_ended:
                return
            if time.monotonic() > seen_driven + DRIVER_START_SECONDS:
                raise UsageError(
                    f"sweep {self.id} was interrupted, and nothing drives it any more",
                    hint=f"cloudtrain sweep more {self.id} continues it",
                )

            if not events:
                if self._has_begun:
                    self.start_driver()

                time.sleep(POLL_SECONDS)

    def wait(self) -> SweepState:
        """Wait for the end and return the state."""
        for _ in self.watch():
            pass

        return self._journal.state

    def stop(self) -> SweepState:
        """Stop all trials, wait for the end, and return the state.

        A driver that finds the request starts no trial.
        """
        if self.status().state == "running":
            request_stop(self.folder)

        self.start_driver()
        return self.wait()

    def plan_extension(
        self, trials: int, *, parallel: int | None = None, budget: Caps | None = None
    ) -> Extension:
        """Plan more trials of the search. Raise UsageError if there is nothing to do."""
        return plan_extension(self.status(), trials, time.time(), parallel=parallel, budget=budget)

    def extend(self, extension: Extension) -> None:
        """Carry out an extension; an ended sweep starts again."""
        self.folder.append(replace(extension.event, time=time.time()))
        self.start_driver()

    def best(self) -> tuple[Trial, Run]:
        """Return the best trial and its latest run. Raise RunNotFound before the first value."""
        best = self.status().best
        if best is None:
            hint = f"cloudtrain status {self.id}"
            raise RunNotFound(
                f"no trial of sweep {self.id} has reported {self.definition.metric} yet", hint=hint
            )

        return best, self.run_of(best)

    def run_of(self, trial: Trial) -> Run:
        """Return the latest run of a trial. Raise RunNotFound before its first run."""
        folder = RunFolder(self.folder.path.parents[1] / "runs" / trial.run)
        if not trial.run or not folder.path.is_dir():
            raise RunNotFound(f"trial {trial.number} of sweep {self.id} has no run")
        return Run(folder)

    def runs_of(self, trial: Trial) -> list[Run]:
        """Return all started runs of a trial, the latest last."""
        runs = self.folder.path.parents[1] / "runs"
        folders = [RunFolder(runs / run.run) for run in trial.runs]
        return [Run(folder) for folder in folders if folder.path.is_dir()]


def _last_message(log: Path, offset: int) -> str:
    """Return the last line after a byte offset, without a hint; empty if there is none."""
    with storing(log), open_regular_file(log) as file:
        lines = [line for line, _ in read_lines(file, offset) if not line.startswith(b"hint:")]

    if not lines:
        return ""

    return lines[-1].decode(errors="replace").strip()


def find_sweep(name: str, *, data_dir: str | None = None) -> Sweep:
    """Return the sweep with this id or unique prefix. Raise RunNotFound if there is none."""
    folder = data_folder(data_dir)
    ids = sweep_ids(folder)
    matches = [name]

    if name not in ids:
        matches = sorted(sweep_id for sweep_id in ids if name and sweep_id.startswith(name))
    if len(matches) == 1:
        return Sweep(SweepFolder(folder / SWEEPS / matches[0]))

    if matches:
        shown = ", ".join(matches[:5])
        raise RunNotFound(
            f"{name!r} fits {len(matches)} sweeps: {shown}", hint="give more letters of the id"
        )

    raise RunNotFound(
        f"there is no sweep {name!r}{did_you_mean(name, ids)}", hint="cloudtrain list shows all"
    )


def list_sweeps(*, data_dir: str | None = None) -> list[Sweep]:
    """Return all readable sweeps of this machine, in any order."""
    folder = data_folder(data_dir)
    sweeps = []
    for sweep_id in sweep_ids(folder):
        with suppress(StorageError):
            sweeps.append(Sweep(SweepFolder(folder / SWEEPS / sweep_id)))

    return sweeps


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """Additions of `sweep more` to a sweep."""

    event: Extended
    new_trials: int
    resumed: tuple[int, ...]
    """Trials that a stop interrupted, by number."""
    worst_usd: float | None
    """Maximum cost of the extension; None without costs or with an unknown price."""


def plan_extension(
    state: SweepState,
    trials: int,
    time_now: float,
    *,
    parallel: int | None = None,
    budget: Caps | None = None,
) -> Extension:
    """Plan new trials in addition to trials that a stop interrupted.

    `parallel` and `budget` replace the sweep's values. Raise UsageError if there is nothing to do.
    """
    _refuse_what_cannot_grow(state)
    budget = budget or Caps()
    resumed = tuple(trial.number for trial in _resumable(state))
    points = points_of(state.definition.space)
    if points is None:
        most = trials
    else:
        most = min(trials, points - len(state.trials))

    if trials and not most and not resumed:
        message = f"sweep {_id(state)} has tried all {len(state.trials)} combinations of its values"
        raise UsageError(message, hint="start another one with a larger space")

    if not most and not resumed and (state.ended or (parallel is None and budget == Caps())):
        message = (
            f"nothing to do: no trial of sweep {_id(state)} was interrupted, and new trials were"
            " not requested"
        )
        raise UsageError(message, hint=f"cloudtrain sweep more {_id(state)} 20")

    if state.ended:
        planned = len(state.trials)
    else:
        planned = max(state.wanted, len(state.trials))

    event = Extended(
        time=time_now,
        trials=planned + most,
        parallel=parallel,
        budget_usd=budget.usd,
        budget_seconds=budget.seconds,
        resumes=True,
    )
    extended = deepcopy(state)
    extended.apply(event)
    _refuse_budget(state, extended, time_now)

    return Extension(
        event=event,
        new_trials=most,
        resumed=resumed,
        worst_usd=extended.definition.worst_usd(
            most + len(resumed), extended.spent_usd + extended.committed_usd
        ),
    )


def _resumable(state: SweepState) -> Iterable[Trial]:
    if not state.ended:
        return ()
    return [trial for trial in state.trials if trial.state == "waiting" or trial.is_interrupted]


def _refuse_what_cannot_grow(state: SweepState) -> None:
    if state.definition.is_native:
        message = f"the service that carries out sweep {_id(state)} takes no more trials"
        hint = "start another sweep, or engine: portable, which continues from the same study"
        raise UsageError(message, hint=hint)

    if state.state == "stopping":
        hint = f"wait for its end: cloudtrain attach {_id(state)}"
        raise UsageError(f"sweep {_id(state)} is being stopped", hint=hint)


def _refuse_budget(state: SweepState, extended: SweepState, time_now: float) -> None:
    """Raise UsageError if the budget is too small for another run."""
    _, refusal = cap_of_next(extended, time_now)
    if refusal and state.ended:
        flag = "--max-time" if "time" in refusal else "--max-cost"
        raise UsageError(f"no trial can be started: {refusal}", hint=f"{flag} raises the budget")


def _id(state: SweepState) -> str:
    return state.definition.sweep_id
