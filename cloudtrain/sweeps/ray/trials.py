"""Trials of a sweep on a Ray cluster: a worker for each run, the run itself on a shared disk.

When its driver dies, Ray ends all workers, and their runs end with them. The next driver finds
these runs on the disk, and their trials continue from their checkpoints.
"""

from __future__ import annotations

import sys
import time
import traceback
from dataclasses import dataclass, replace
from typing import Any, Protocol

from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.paths import RunPaths
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.journal import Reported, RunEnded, SweepEvent, SweepFolder
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.trials import RunTrials, run_ended

MAX_LOSSES = 3
"""Maximum losses of a trial's worker without a report in between."""
MAX_BREAKS = 3
"""Maximum failures of Ray itself without a report of any trial in between."""
RECONNECT_SECONDS = 10.0
"""Interval of attempts to reach a cluster that does not answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Run for a worker, with the cores and GPUs that the cluster lends it."""

    trial: int
    run: str
    cpus: int
    gpus: float


class WorkerLost(Exception):
    """A worker has ended before its run; the message says why."""


class Cluster(Protocol):
    """Connection to Ray."""

    def connect(self) -> None:
        """Join the cluster, or start one here, unless that was done.

        Raise CloudError if it does not answer.
        """

    def disconnect(self) -> None:
        """Leave the cluster, and end one that was started here."""

    def place(self, placement: Placement) -> Any:
        """Return a worker that starts a run once the cluster has room for it."""

    def refusal(self, worker: Any) -> RunEnded | None:
        """Return the event of a run that the worker did not start; None while it works or after.

        Raise WorkerLost if it ended in another way.
        """


class RayRuns(RunTrials):
    """Runs of a sweep on a disk that the nodes of a cluster share."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        super().__init__(folder, definition)
        self.definition = definition
        self._runs_dir = folder.path.parents[1] / "runs"

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return True if anybody asked its run to stop; a lost worker does not ask."""
        return RunPaths(self._runs_dir / trial.run).stop_file.exists()

    def has_failed_by_itself(self, trial: Trial) -> bool:
        """Return True if its program failed and was not ended from outside."""
        return History(RunFolder(self._runs_dir / trial.run)).read().error is not None


class RayTrials:
    """Trials of a sweep, each in a worker of the cluster."""

    def __init__(self, runs: RayRuns, cluster: Cluster) -> None:
        self._runs = runs
        self._cluster = cluster
        self._state: SweepState | None = None
        self._placements: dict[str, Placement] = {}
        self._workers: dict[str, Any] = {}
        """Workers by run; a run without one was left by it, or by an earlier driver."""
        self._begun: set[str] = set()
        """Runs that their workers have started."""
        self._withdrawn: set[str] = set()
        """Runs with a request to stop before their start."""
        self._was_asked: dict[str, bool] = {}
        """Runs without a worker: True if a stop was requested before that."""
        self._lost: dict[str, str] = {}
        """Runs whose worker was lost, and why."""
        self._losses: dict[int, tuple[int, int]] = {}
        """Reports of a trial, and the losses of its worker since then."""
        self._breaks = 0
        self._failure = ""
        self._no_placement_before = 0.0
        """Monotonic time."""

    def start(self, trial: Trial) -> RunEnded | None:
        """Hand the latest run of a trial to Ray unless it was started."""
        if self._runs.has_run(trial):
            return None

        try:
            self._placements[trial.run] = self._placement(trial)
        except CloudtrainError as error:
            return run_ended(trial, "refused", error.message)

        self._place(trial)
        return None

    def has_run(self, trial: Trial) -> bool:
        """Return whether a worker has started the latest run of a trial."""
        return self._runs.has_run(trial)

    def observe(self, trial: Trial) -> list[SweepEvent]:
        """Return the new events of a running trial, also of one without a worker."""
        worker = self._workers.get(trial.run)
        if worker is not None:
            try:
                refusal = self._cluster.refusal(worker)
            except WorkerLost as error:
                self._lose(trial, str(error))
            else:
                if refusal is not None:
                    return [refusal]

        if self._runs.has_run(trial):
            return self._observe_run(trial)

        ended = self._observe_waiting(trial)
        return [ended] if ended else []

    def publish(self, state: SweepState) -> None:
        """Write the values of other trials for each run that has begun."""
        self._state = state
        self._runs.publish(state)

    def request_stop(self, trial: Trial) -> None:
        """Ask a run to stop by its file, and withdraw one that has not begun."""
        if self._runs.has_run(trial):
            self._runs.request_stop(trial)
        else:
            self._withdrawn.add(trial.run)

    def failure(self, state: SweepState) -> str:
        """Return why the cluster is given up: no answer before the first trial, or it breaks."""
        if not state.trials:
            try:
                self._cluster.connect()
            except CloudError as error:
                return error.message

        return self._failure

    def _placement(self, trial: Trial) -> Placement:
        """Return what Ray lends a run. Raise CloudtrainError if its values are invalid."""
        plan = self._runs.plan(trial)
        definition = self._runs.definition
        return Placement(
            trial=trial.number,
            run=trial.run,
            cpus=definition.ray_cpus or plan.processes,
            gpus=plan.gpus if definition.ray_gpus is None else definition.ray_gpus,
        )

    def _place(self, trial: Trial) -> None:
        """Hand a run to Ray, at once or at a later call if the cluster does not answer."""
        if time.monotonic() < self._no_placement_before:
            return

        try:
            self._cluster.connect()
            self._workers[trial.run] = self._cluster.place(self._placements[trial.run])
        except CloudError as error:  # retry without limit: there are trials
            print(error.render(), file=sys.stderr, flush=True)
            self._no_placement_before = time.monotonic() + RECONNECT_SECONDS
        except Exception as error:  # noqa: BLE001  (any error of Ray: the journal has the state)
            traceback.print_exc()
            self._no_placement_before = time.monotonic() + RECONNECT_SECONDS
            self._break(" ".join(f"{type(error).__name__}: {error}".split())[:300])

    def _break(self, why: str) -> None:
        """Leave a cluster that broke, with all workers; the next placement joins it again."""
        self._cluster.disconnect()
        self._workers.clear()
        self._breaks += 1
        if self._breaks >= MAX_BREAKS:
            self._failure = f"Ray broke {MAX_BREAKS} times in a row: {why}"

    def _observe_waiting(self, trial: Trial) -> RunEnded | None:
        """Return the end of a run that has not begun, if there is a reason for it."""
        if trial.run in self._withdrawn:
            return run_ended(trial, "stopped", "it had not begun")
        if trial.run in self._lost:
            return self._end_of_lost(trial, self._lost[trial.run])
        if self._failure:
            return run_ended(trial, "interrupted", self._failure)
        if trial.run not in self._workers:
            self._place(trial)

        return None

    def _observe_run(self, trial: Trial) -> list[SweepEvent]:
        if trial.run not in self._begun and self._state is not None:
            self._begun.add(trial.run)
            self._runs.publish(self._state)  # earlier calls left it out

        has_worker = trial.run in self._workers
        if not has_worker:
            if trial.run not in self._was_asked:
                self._was_asked[trial.run] = self._runs.was_asked_to_stop(trial)
            self._runs.request_stop(trial)

        events = self._runs.observe(trial)
        if any(isinstance(event, Reported) for event in events):
            self._breaks = 0
        if has_worker:
            return events

        return [self._as_left(trial, event) for event in events]

    def _as_left(self, trial: Trial, event: SweepEvent) -> SweepEvent:
        """Return the end of a run without a worker: interrupted, unless it had ended."""
        if not isinstance(event, RunEnded):
            return event

        by_itself = event.outcome == "failed" and self._runs.has_failed_by_itself(trial)
        if by_itself or event.outcome not in ("failed", "stopped", "interrupted"):
            return event
        if self._was_asked[trial.run]:
            return replace(event, outcome="stopped")

        lost = self._end_of_lost(trial, self._lost.get(trial.run, event.reason))
        return replace(event, outcome=lost.outcome, reason=lost.reason)

    def _lose(self, trial: Trial, why: str) -> None:
        """Count the loss of a worker; its run is ended at the next look."""
        del self._workers[trial.run]
        self._lost[trial.run] = why
        reports, losses = self._losses.get(trial.number, (trial.reports, 0))
        if reports != trial.reports:
            losses = 0
        self._losses[trial.number] = (trial.reports, losses + 1)

    def _end_of_lost(self, trial: Trial, why: str) -> RunEnded:
        if self._losses.get(trial.number, (0, 0))[1] >= MAX_LOSSES:
            reason = f"its worker was lost {MAX_LOSSES} times in a row: {why}"
            return run_ended(trial, "failed", reason)

        return run_ended(trial, "interrupted", why)
