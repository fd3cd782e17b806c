"""The one module that imports Ray: a sweep as Ray Tune sees it. What it decides and remembers is
driver.py's.
"""

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
"""In place of what is not a number, which compares as neither better nor worse."""

ADDRESS = "RAY_ADDRESS"
"""The environment variable that names the cluster, as Ray has it."""
CONNECT_SECONDS = 10.0
DASHBOARD_FILE = "ray-dashboard"
"""Where the sweep's folder keeps the address of Ray's dashboard, while it is driven."""
ADDRESS_FILE = "ray-address"
"""Where the sweep's folder keeps it for a driver that is started from another shell."""

VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",
}
"""Set where the user has not: what Tune would keep of its own is never read again."""


class RayCluster:
    """The cluster that RAY_ADDRESS names, or that runs on this machine; else one of this machine
    alone.
    """

    def __init__(self, folder: SweepFolder) -> None:
        self._folder = folder.path
        for name, value in VARIABLES.items():
            os.environ.setdefault(name, value)

    def connect(self) -> None:
        """Join it. CloudError where it does not answer."""
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
        """Leave it; one that was started here ends, with all of its processes."""
        ray.shutdown()
        (self._folder / DASHBOARD_FILE).unlink(missing_ok=True)

    def halving(self, definition: Definition) -> RayHalving | None:
        """Ray's ASHA with the rungs of a sweep, which knows no values yet; None where no trial ends
        early.
        """
        return RayHalving(definition) if definition.rungs else None

    def run(self, driver: RayDriver) -> None:
        """Run all trials that the driver hands out, until it says that there are no more."""
        path = driver.folder.path
        parallel = driver.state.definition.parallel
        os.environ.setdefault(
            "TUNE_MAX_PENDING_TRIALS_PG", str(parallel)
        )  # by default one after another
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
                checkpoint_config=tune.CheckpointConfig(
                    checkpoint_at_end=False
                ),  # runs save their own
                verbose=0,
            ),
        ).fit()


def _of_workers(*, started_here: bool) -> dict[str, Any] | None:
    """What Ray's worker processes get of this one: our variables and, `started_here`, this Python.

    Ray hands its path to a shell as it is (2.x, `RuntimeEnvContext.exec_worker`): with a space in
    it no worker starts.
    """
    variables = {
        name: value for name, value in os.environ.items() if name.startswith("CLOUDTRAIN_")
    }
    runtime_env: dict[str, Any] = {"env_vars": variables} if variables else {}
    if started_here and shlex.quote(sys.executable) != sys.executable:
        runtime_env["py_executable"] = shlex.quote(sys.executable)
    return runtime_env or None


class RayHalving:
    """Ray's own scheduler for ASHA, told what trials report by their numbers in the sweep."""

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
            max_t=last
            * math.sqrt(eta),  # between the last rung and the next: whole trials end by themselves
            stop_last_trials=False,
        )

    def falls_behind(self, trial: int, report: int, value: float) -> bool:
        """Whether Ray would end the trial with this report, which it remembers."""
        if trial not in self._trials:
            self._trials[trial] = SimpleNamespace(trial_id=str(trial))
            self._asha.on_trial_add(None, self._trials[trial])
        result = {"report": report, "value": value if math.isfinite(value) else self._worst}
        return bool(
            self._asha.on_trial_result(None, self._trials[trial], result) == TrialScheduler.STOP
        )


class RayTrial(tune.Trainable):  # type: ignore[misc]
    """A process of the cluster that runs trials, one after another; each result is an event of the
    sweep.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start the first trial."""
        self._worker = RayWorker(Path(config["folder"]), config["cpus"])
        self.reset_config(config)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Start another one in the same process, in which torch may be warm already."""
        self._worker.begin(new_config["trial"], new_config["run"])
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next event."""
        event = self._worker.next_event()
        result = {"event": json.dumps(event.to_json()), "done": isinstance(event, RunEnded)}
        if isinstance(event, Reported):
            value = math.nan if event.value is None else event.value
            result |= {
                "report": event.report,
                self._worker.metric: value,
            }  # for what reads Tune's own folder
        return result

    def cleanup(self) -> None:
        """Leave nothing running."""
        self._worker.close()


def _check_port(address: str) -> None:
    """CloudError where nobody listens at HOST:PORT: Ray itself would try for many minutes."""
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
    """Hands out the trials of the driver."""

    def __init__(self, driver: RayDriver) -> None:
        super().__init__()
        self._driver = driver

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next run; FINISHED when the sweep is over."""
        next_trial = self._driver.next_trial()
        if next_trial is None:
            return Searcher.FINISHED if self._driver.end else None
        return dict(next_trial)

    def on_trial_complete(self, *_: Any, **__: Any) -> None:
        """The scheduler hears it, too."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the journal has it."""

    def restore(self, checkpoint_path: str) -> None:
        """Never called."""

    def __reduce__(self) -> Any:
        """Tune keeps a copy, of no use."""
        return (Searcher, ())


class _Schedule(FIFOScheduler):  # type: ignore[misc]
    """Hands what trials report to the driver, which tells a run itself that it is to end."""

    def __init__(self, driver: RayDriver) -> None:
        super().__init__()
        self._driver = driver

    def __reduce__(self) -> Any:
        """Tune keeps a copy, of no use."""
        return (FIFOScheduler, ())

    def choose_trial_to_run(self, tune_controller: Any) -> Any:
        """At each step of Tune: look after what is left, and take back what has not begun when the
        sweep stops.
        """
        self._driver.advance()
        if self._driver.state.state == "stopping":
            for trial in tune_controller.get_trials():
                if trial.status == trial.PENDING:
                    tune_controller.stop_trial(trial)
        return super().choose_trial_to_run(tune_controller)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        """Take in an event. The trial ends when its run has, and not before."""
        self._take(result)
        return str(TrialScheduler.CONTINUE)

    def on_trial_complete(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> None:
        """Take in the last event."""
        self._take(result)

    def on_trial_error(self, tune_controller: Any, trial: Any) -> None:
        """A worker was lost, or has broken."""
        lines = str(trial.get_error() or "").strip().splitlines() or ["no reason is known"]
        self._driver.lose(
            trial.config["trial"], f"Ray has lost its worker: {lines[-1].strip()[:300]}"
        )

    def on_trial_remove(self, tune_controller: Any, trial: Any) -> None:
        """A trial was taken back before it began."""
        self._driver.withdraw(trial.config["trial"])

    def _take(self, result: dict[str, Any]) -> None:
        event = parse(str(result.get("event", "")).encode())
        if event is not None:
            self._driver.take(event)
