"""Adapter of a sweep to Ray Tune, the only module that imports Ray. Decisions are in driver.py."""

from __future__ import annotations

import json
import math
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray
from ray import tune
from ray.tune.execution.placement_groups import PlacementGroupFactory
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher

from cloudtrain.errors import CloudError
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.events import Reported, RunEnded, parse
from cloudtrain.sweeps.journal import SweepFolder
from cloudtrain.sweeps.ray.driver import RayDriver
from cloudtrain.sweeps.ray.worker import RayWorker
from cloudtrain_launcher.packages.bounded_files import read_regular_text

WORST = 1e300
"""Replacement for NaN, which compares as neither better nor worse."""

ADDRESS = "RAY_ADDRESS"
"""Environment variable with the address of the cluster, as in Ray."""
CONNECT_SECONDS = 10.0
DASHBOARD_FILE = "ray-dashboard"
"""File of the sweep's folder with the address of Ray's dashboard during the sweep."""
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
                runtime_env=_of_workers(started_here=not address),
            )
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            ray.shutdown()
            where = f"the Ray cluster at {address}" if address else "Ray"
            why = " ".join(str(error).split())[:300]
            raise CloudError(
                f"{where} cannot be reached: {why}", hint=f"{ADDRESS}=HOST:PORT", transient=True
            ) from None
        if address:
            address_file.write_text(address)
        if url := context.dashboard_url:
            (self._folder / DASHBOARD_FILE).write_text(f"http://{url}")

    def disconnect(self) -> None:
        """Leave the cluster; one that was started here ends with all its processes."""
        ray.shutdown()
        (self._folder / DASHBOARD_FILE).unlink(missing_ok=True)

    def halving(self, definition: Definition) -> RayHalving | None:
        """Return Ray's ASHA with the rungs of a sweep; None without early stopping."""
        return RayHalving(definition) if definition.rungs else None

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


def _of_workers(*, started_here: bool) -> dict[str, Any] | None:
    """Return the environment of Ray's workers: our variables and, if `started_here`, this Python.

    Ray passes its path to a shell without quotes (2.x, `RuntimeEnvContext.exec_worker`).
    """
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("CLOUDTRAIN_")
    }
    runtime_env: dict[str, Any] = {"env_vars": variables} if variables else {}
    if started_here and shlex.quote(sys.executable) != sys.executable:
        runtime_env["py_executable"] = shlex.quote(sys.executable)
    return runtime_env or None


class RayHalving:
    """Ray's own ASHA scheduler, with the sweep's numbers of trials."""

    def __init__(self, definition: Definition) -> None:
        first = definition.rungs[0]
        last = definition.rungs[-1]
        eta = definition.eta
        self._worst = -WORST if definition.goal == "maximize" else WORST
        self._trials: dict[int, Any] = {}
        self._asha = AsyncHyperBandScheduler(
            time_attr="report",
            metric="value",
            mode="max" if definition.goal == "maximize" else "min",
            grace_period=first,
            reduction_factor=eta,
            # Between the last rung and the next one: whole trials end by themselves.
            max_t=last * math.sqrt(eta),
            stop_last_trials=False,
        )

    def falls_behind(self, trial: int, report: int, value: float) -> bool:
        """Record a report. Return True if Ray would end the trial with it."""
        if trial not in self._trials:
            self._trials[trial] = SimpleNamespace(trial_id=str(trial))
            self._asha.on_trial_add(None, self._trials[trial])
        result = {"report": report, "value": value if math.isfinite(value) else self._worst}
        return bool(
            self._asha.on_trial_result(None, self._trials[trial], result) == TrialScheduler.STOP
        )


class RayTrial(tune.Trainable):  # type: ignore[misc]
    """Process of the cluster that runs trials in turn; each result is an event."""

    def setup(self, config: dict[str, Any]) -> None:
        """Start the first trial."""
        self._worker = RayWorker(Path(config["folder"]), config["cpus"])
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start another trial in the same process, where torch may be warm."""
        self._worker.begin(new_config["trial"], new_config["run"])
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next event."""
        event = self._worker.next_event()
        result = {"event": json.dumps(event.to_json()), "done": isinstance(event, RunEnded)}
        if isinstance(event, Reported):
            value = math.nan if event.value is None else event.value
            # For programs that read Tune's own folder.
            result |= {"report": event.report, self._worker.metric: value}
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
