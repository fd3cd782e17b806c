"""Drives a sweep on a Ray cluster to its end, through clusters that break or cannot be reached for
a while.
"""

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
"""How often Ray Tune may break without one report in between, before the sweep ends."""
RECONNECT_SECONDS = 10.0
"""Between two attempts to reach a cluster that has trials of the sweep, and does not answer."""


class Cluster(Protocol):
    """Ray, as far as a driver needs it."""

    def connect(self) -> None:
        """Join the cluster, or start one on this machine. CloudError where it does not answer."""

    def disconnect(self) -> None:
        """Leave it; one that was started here is ended."""

    def halving(self, definition: Definition) -> Halving | None:
        """The scheduler of a sweep, which knows nothing yet; None where no trial ends early."""

    def run(self, driver: RayDriver) -> None:
        """Run all that the driver hands out, until it says that there is no more."""


class RayRuns(RunTrials):
    """Runs of a sweep on a Ray cluster, on a disk that its nodes share."""

    def __init__(self, folder: SweepFolder, definition: Definition) -> None:
        super().__init__(folder, definition)
        self._runs_dir = folder.path.parents[1] / "runs"

    def was_asked_to_stop(self, trial: Trial) -> bool:
        """Return whether somebody asked its run to stop; a lost worker does not ask."""
        return RunPaths(self._runs_dir / trial.run).stop_file.exists()

    def has_failed_by_itself(self, trial: Trial) -> bool:
        """Return whether its program failed, and was not ended from outside."""
        return History(RunFolder(self._runs_dir / trial.run)).read().error is not None


def drive_ray(
    folder: SweepFolder,
    cluster: Cluster,
    jobs: Jobs,
    *,
    pause: Callable[[float], None] = time.sleep,
) -> SweepState:
    """Drive a sweep by Ray Tune to its end and return its state. UsageError when another process
    drives it.

    `pause`: waits so many seconds.
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
    """Run trials on the cluster until the sweep is over, or Ray breaks; why it broke, else empty."""
    if not _connected(driver, cluster, pause):
        return ""
    try:
        cluster.run(driver)
    except (CloudtrainError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001  (whatever Ray raises: the journal knows how to go on)
        traceback.print_exc()
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    finally:
        cluster.disconnect()
    return "" if driver.end else "it ended before the sweep did"


def _connected(driver: RayDriver, cluster: Cluster, pause: Callable[[float], None]) -> bool:
    """Join the cluster, however long that takes once there are trials; False where the sweep has
    ended meanwhile.
    """
    while True:
        try:
            cluster.connect()
        except CloudError as error:
            if not driver.state.trials:  # nothing to lose, and somebody waits for the first one
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
    """Bring all runs to their end that still go on."""
    for trial in driver.state.trials:
        driver.lose(trial.number, "Ray Tune broke")
    while any(trial.state == "running" for trial in driver.state.trials):
        driver.advance()
        pause(PAUSE_SECONDS)
