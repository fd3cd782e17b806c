"""Loop that drives a sweep on a Ray cluster to its end, through failures of the cluster."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Protocol

from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.providers.rehearsal.run_paths import RunPaths
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import PAUSE_SECONDS, SweepJournal
from cloudtrain.sweeps.events import Reported, SweepEnded
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.ray.driver import Halving, Jobs, RayDriver
from cloudtrain.sweeps.schedule import End
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of
from cloudtrain.sweeps.trials import RunTrials

MAX_BREAKS = 3
"""Maximum failures of Ray Tune without a report in between."""
RECONNECT_SECONDS = 10.0
"""Interval of attempts to reach a cluster that does not answer."""


class Cluster(Protocol):
    """Connection of a driver to Ray."""

    def connect(self) -> None:
        """Join the cluster, or start one here. Raise CloudError if it does not answer."""

    def disconnect(self) -> None:
        """Leave the cluster, and end one that was started here."""

    def halving(self, definition: Definition) -> Halving | None:
        """Return a new scheduler for a sweep; None without early stopping."""

    def run(self, driver: RayDriver) -> None:
        """Run all trials of the driver until it hands out the last one."""


class RayRuns(RunTrials):
    """Runs of a sweep on a Ray cluster, on a disk that its nodes share."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        super().__init__(folder, definition)
        self._runs_dir = folder.path.parents[1] / "runs"

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return True if anybody asked its run to stop; a lost worker does not ask."""
        return RunPaths(self._runs_dir / trial.run).stop_file.exists()

    def has_failed_by_itself(self, trial: Trial) -> bool:
        """Return True if its program failed and was not ended from outside."""
        return History(RunFolder(self._runs_dir / trial.run)).read().error is not None


def drive_ray(
    folder: SweepFolder,
    cluster: Cluster,
    jobs: Jobs,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> SweepState:
    """Drive a sweep by Ray Tune to its end and return its state.

    `pause` sleeps for a number of seconds. Raise UsageError if another process drives the sweep.
    """
    definition = folder.definition()
    breaks = 0
    reports = -1
    with folder.driving():
        while True:
            driver = RayDriver(
                SweepJournal(folder, SweepState.new(definition)),
                jobs,
                suggester_of(definition),
                cluster.halving(definition),
            )
            driver.recover()
            if driver.state.state not in ("running", "stopping"):
                return driver.state
            error = _run_once(driver, cluster, pause)
            if error:
                count = sum(isinstance(event, Reported) for event, _ in folder.events_from())
                breaks = breaks + 1 if count == reports else 1
                reports = count
                if breaks >= MAX_BREAKS:
                    _end_all(driver, pause)
                    driver.end = End("failed", f"Ray Tune broke {breaks} times in a row: {error}")
            if driver.end is not None:
                driver.journal.write(
                    SweepEnded(time=time.time(), state=driver.end.state, reason=driver.end.reason)
                )


def _run_once(driver: RayDriver, cluster: Cluster, pause: Callable[[float], None]) -> str:
    """Run trials until the sweep is over or Ray fails. Return the failure, or an empty text."""
    if not _connected(driver, cluster, pause):
        return ""
    try:
        cluster.run(driver)
    except (CloudtrainError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  (any error of Ray: the journal has the state)
        traceback.print_exc()
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    finally:
        cluster.disconnect()
    return "" if driver.end else "it ended before the sweep did"


def _connected(driver: RayDriver, cluster: Cluster, pause: Callable[[float], None]) -> bool:
    """Join the cluster. Return False if the sweep has ended.

    Retry without limit once there are trials.
    """
    while True:
        try:
            cluster.connect()
        except CloudError as error:
            if not driver.state.trials:  # without trials, fail at once
                driver.end = End("failed", error.message)
                return False
            print(error.render(), file=sys.stderr, flush=True)
        else:
            return True
        until = time.monotonic() + RECONNECT_SECONDS
        while time.monotonic() < until:
            driver.advance()
            if (
                driver.state.state == "stopping"
                and driver.next_trial() is None
                and driver.end is not None
            ):
                return False
            pause(PAUSE_SECONDS)


def _end_all(driver: RayDriver, pause: Callable[[float], None]) -> None:
    """End all active runs."""
    for trial in driver.state.trials:
        driver.lose(trial.number, "Ray Tune broke")
    while any(trial.state == "running" for trial in driver.state.trials):
        driver.advance()
        pause(PAUSE_SECONDS)
