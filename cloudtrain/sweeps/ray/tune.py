"""Adapter of a sweep to Ray Tune, the only module that imports Ray. Decisions are in driver.py.

Driver and workers share the data folder: a worker reads the driver's journal there and returns
events; only the driver writes the journal.
"""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections import deque
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import ray
from ray import tune
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.schedulers import FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from cloudtrain.errors import CloudError, CloudtrainError, StorageError, UsageError
from cloudtrain.providers.local.processes import end_runs_with_this_process
from cloudtrain.sweeps.driver import PAUSE_SECONDS
from cloudtrain.sweeps.journal import (
    RAY_DASHBOARD,
    Reported,
    RunEnded,
    SweepEvent,
    SweepFolder,
    parse,
)
from cloudtrain.sweeps.ray.driver import RayDriver
from cloudtrain.sweeps.state import SweepState, Trial, state_of
from cloudtrain.sweeps.trials import RunTrials
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.cores import available_cores

ADDRESS = "RAY_ADDRESS"
"""Environment variable with the address of the cluster, as in Ray."""
CONNECT_SECONDS = 10.0
ADDRESS_FILE = "ray-address"
"""File of the sweep's folder with RAY_ADDRESS, for a driver from another shell."""

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
}
"""Defaults of Ray's settings: files that Tune saves by itself are never read."""


class RayCluster:
    """Cluster of RAY_ADDRESS, or a running one on this machine, or else a new one."""

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder.path
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)

    def connect(self) -> None:
        """Join the cluster. Raise CloudError if it does not answer."""
        (self._folder / RAY_DASHBOARD).unlink(missing_ok=True)
        address_file = self._folder / ADDRESS_FILE
        address = os.environ.get(ADDRESS) or (
            read_regular_text(address_file) if address_file.exists() else ""
        )
        _check_port(address)

        try:
            context = ray.init(
                address=address or None,
                include_dashboard=None if not address else False,  # it starts where it is installed
                log_to_driver=False,
                logging_level="WARNING",
                runtime_env=_of_workers(),
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            ray.shutdown()
            where = "Ray"
            if address:
                where = f"the Ray cluster at {address}"

            why = " ".join(str(error).split())[:300]
            raise CloudError(
                f"{where} cannot be reached: {why}", hint=f"{ADDRESS}=HOST:PORT", transient=True
            ) from None

        if address:
            address_file.write_text(address)
        if url := context.dashboard_url:
            (self._folder / RAY_DASHBOARD).write_text(f"http://{url}")

    def disconnect(self) -> None:
        """Leave the cluster; one that was started here ends with all its processes."""
        ray.shutdown()

    def run(self, driver: RayDriver) -> None:
        """Run all trials of the driver until it hands out the last one."""
        path = driver.folder.path
        parallel = driver.state.definition.parallel
        # By default Tune starts one trial after another.
        os.environ.setdefault("TUNE_MAX_PENDING_TRIALS_PG", str(parallel))
        tune.Tuner(
            tune.with_resources(RayTrial, _resources),
            param_space={"folder": str(path)},
            tune_config=tune.TuneConfig(
                search_alg=_Search(driver),
                scheduler=_Schedule(driver),
                num_samples=-1,
                reuse_actors=True,
                trial_name_creator=_name,
                trial_dirname_creator=_name,
            ),
            run_config=tune.RunConfig(
                name=f"tune-{time.time():.0f}",
                storage_path=str(path / "ray"),
                # Runs save their checkpoints themselves.
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
                verbose=0,
            ),
        ).fit()


def _of_workers() -> dict[str, Any] | None:
    """Return the environment of Ray's workers: our variables."""
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("CLOUDTRAIN_")
    }
    if not variables:
        return None

    return {"env_vars": variables}


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
            try:
                definition = self._folder.definition()
            except StorageError as error:
                hint = "setting data_dir: a folder on a disk that all nodes of the cluster share"
                raise UsageError(
                    f"{socket.gethostname()} does not see {self._folder.path}", hint=hint
                ) from error

            at_once = min(definition.parallel, max(1, available_cores() // self._cpus))
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
        time=time.time(),
        trial=number,
        run=run,
        outcome=outcome,
        reason=reason,
        usd=0.0,
    )


class RayTrial(tune.Trainable):  # type: ignore[misc]
    """Process of the cluster that runs trials in turn; each result is an event."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the first trial."""
        self._worker = RayWorker(Path(config["folder"]), config["cpus"])
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start another trial in the same process."""
        self._metric = new_config["metric"]
        self._worker.begin(new_config["trial"], new_config["run"])
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next event. Readers of Tune's own folder find reports by their metric."""
        event = self._worker.next_event()
        result = {"event": json.dumps(event.to_json()), "done": isinstance(event, RunEnded)}

        if isinstance(event, Reported):
            result[self._metric] = math.nan if event.value is None else event.value

        return result

    def cleanup(self) -> None:
        """End all runs of this process."""
        self._worker.close()


def _check_port(address: str) -> None:
    """Raise CloudError if HOST:PORT does not answer: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        message = f"the Ray cluster at {address} cannot be reached: {error}"
        raise CloudError(message, hint=f"{ADDRESS}=HOST:PORT", transient=True) from None


def _name(trial: Any) -> str:
    return str(trial.config["run"])


def _resources(config: dict[str, Any]) -> PlacementGroupFactory:
    return PlacementGroupFactory([{"CPU": config["cpus"], "GPU": config["gpus"]}])


class _Search(Searcher):  # type: ignore[misc]
    """Searcher that hands out the trials of the driver."""

    def __init__(self, driver: RayDriver) -> None:
        super().__init__()
        self._driver = driver

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next run; FINISHED at the end of the sweep."""
        next_trial = self._driver.next_trial()
        if next_trial is None:
            return Searcher.FINISHED if self._driver.end else None
        return dict(next_trial)

    def on_trial_complete(self, *_: Any, **__: Any) -> None:
        """Ignore it: the scheduler receives it too."""

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: the journal has the state."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing; never called."""

    def __reduce__(self) -> Any:
        """Return a stub: Tune keeps a copy that nothing reads."""
        return (Searcher, ())


class _Schedule(FIFOScheduler):  # type: ignore[misc]
    """Scheduler that passes reports to the driver, which stops runs by itself."""

    def __init__(self, driver: RayDriver) -> None:
        super().__init__()
        self._driver = driver

    def __reduce__(self) -> Any:
        """Return a stub: Tune keeps a copy that nothing reads."""
        return (FIFOScheduler, ())

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """Observe runs without a worker; a sweep that stops takes back pending trials."""
        self._driver.advance()
        if self._driver.state.state == "stopping":
            for trial in tune_controller.get_trials():
                if trial.status == trial.PENDING:
                    tune_controller.stop_trial(trial)

        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Take in an event. A trial ends with its run, not before."""
        self._take(result)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Take in the last event."""
        self._take(result)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """Record the loss of a worker."""
        lines = str(trial.get_error() or "").strip().splitlines() or ["no reason is known"]
        self._driver.lose(
            trial.config["trial"], f"Ray has lost its worker: {lines[-1].strip()[:300]}"
        )

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """Record a trial that was taken back before its start."""
        self._driver.withdraw(trial.config["trial"])

    def _take(self, result: dict[str, Any]) -> None:
        event = parse(str(result.get("event", "")).encode())
        if event is not None:
            self._driver.take(event)
