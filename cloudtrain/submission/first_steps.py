"""Forecast of a job from its first steps on this machine, in a scratch folder."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudtrainError, JobFailed
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.local.processes import runs_end_with_this_process
from cloudtrain.runs.forecast import Forecast, forecast
from cloudtrain.runs.record import Terms
from cloudtrain.runs.state import RunState, explain
from cloudtrain.settings import DEFAULT_PROVIDER
from cloudtrain.submission.jobs import Job, plan, submit
from cloudtrain.submission.run import Run
from cloudtrain_launcher.file_locks import acquire, is_locked

START_SECONDS = 60.0
"""Time after which a job without reports is taken to report nothing."""

SCRATCH = "cloudtrain-forecast-"
LOCK = "forecast.lock"
"""Prefix of scratch folders, and the lock file of their process."""

REMOVAL_SECONDS = 10.0
"""Time limit for removing the scratch folder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSteps:
    """Result of a job's first steps."""

    forecast: Forecast | None = None
    """Forecast of the whole job on this machine."""
    measured: float | None = None
    """Seconds of the whole job if it ended meanwhile."""
    reason: str = ""
    """Reason and advice if both are missing."""
    on_cpu: bool = False
    """True if it ran on the CPU although it is meant for GPUs."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "here": self.forecast.to_json() if self.forecast else None,
            "measured_seconds": self.measured,
            "reason": self.reason,
            "on_cpu": self.on_cpu,
        }


def try_first_steps(
    job: Job, target: Plan, seconds: float, show: Callable[[RunState], None]
) -> FirstSteps:
    """Run the job here until it has trained for these seconds, and forecast it.

    `target`: plan of the intended machines. `show` is called repeatedly with the state. The run is
    removed. Raise JobFailed if the job fails, SpecError or RefusedError if it cannot run here.
    """
    with _scratch_folder() as folder:
        local = _plan_here(job, target, folder)
        with runs_end_with_this_process():
            run = submit(local)
        try:  # read the state before the stop changes it
            return _result_of(_until(run, seconds, show), seconds, target, local)
        finally:
            with suppress(CloudtrainError):
                run.stop()


def _result_of(state: RunState, seconds: float, target: Plan, local: Plan) -> FirstSteps:
    """Return the result of the current steps. Raise JobFailed if the job failed."""
    if state.state == "failed":
        cause = state.error
        place = f" ({cause.file}:{cause.line})" if cause and cause.file else ""
        hint = "cloudtrain submit --provider local runs it here and keeps its log"
        raise JobFailed(f"the first steps failed here: {explain(state)}{place}", hint=hint)
    estimate = forecast(state, _terms(target), now=time.time())
    measured = state.ended - state.started if state.state == "succeeded" else None
    return FirstSteps(
        forecast=estimate,
        measured=measured,
        reason="" if estimate or measured else _reason(state, seconds),
        on_cpu=bool(target.gpus and not local.gpus),
    )


@contextmanager
def _scratch_folder() -> Iterator[str]:
    """Yield a temporary folder and remove it, even while a supervisor still writes to it.

    Remove the folders of killed processes, too: each is locked by its process.
    """
    for stale in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/{LOCK}"):
        if is_locked(stale) is False:
            shutil.rmtree(stale.parent, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{SCRATCH}"))
    folder = str(draft.with_name(draft.name[1:]))
    lock = acquire(draft / LOCK)
    draft.rename(folder)  # the folder never exists without its lock
    try:
        yield folder
    finally:
        if lock is not None:
            lock.release()
        deadline = time.monotonic() + REMOVAL_SECONDS
        while os.path.exists(folder) and time.monotonic() < deadline:  # noqa: PTH110
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)


def _plan_here(job: Job, target: Plan, data_dir: str) -> Plan:
    """Return the plan of a run on this machine, on its CPU if it has too few GPUs."""
    limits = job.spec.limits.model_copy(
        update={"restarts": 0, "retries": 0, "max_runtime": None, "max_cost": None}
    )
    changes: dict[str, Any] = {"limits": limits, "sweep": None}
    local = plan(_changed(job, changes), DEFAULT_PROVIDER, data_dir=data_dir)
    refused = any(issue.is_error for issue in get_provider(DEFAULT_PROVIDER).rules(local))
    if not (refused and target.gpus) or _is_here(target):
        return local
    cpu = {"gpus": 0, "gpu": (), "instance": {}, "processes": target.processes}
    changes["resources"] = job.spec.resources.model_copy(update=cpu)
    return plan(_changed(job, changes), DEFAULT_PROVIDER, data_dir=data_dir)


def _changed(job: Job, changes: dict[str, Any]) -> Job:
    return Job(spec=job.spec.model_copy(update=changes), document=job.document, folder=job.folder)


def _until(run: Run, seconds: float, show: Callable[[RunState], None]) -> RunState:
    """Return the state after these seconds of training, at the end, or without any reports."""
    began = 0.0
    for update in run.watch():
        state = update.state
        current = time.time()
        show(state)
        began = began or (current if state.ranks else 0.0)
        patience = (
            seconds if state.reported and not state.progress else max(START_SECONDS, 2 * seconds)
        )
        if state.laps.first and current - state.laps.first >= seconds:
            break
        if began and not state.laps.first and current - began >= patience:
            break
    return state


def _reason(state: RunState, seconds: float) -> str:
    """Return the reason for a missing forecast."""
    if state.has_ended:
        return f"the job ended early: {state.state}{f', {state.reason}' if state.reason else ''}"
    if not state.progress:
        how = "a script tells them with cloudtrain_job.log_progress(step, steps)"
        return f"the job has reported no steps; {how}, and --forecast {2 * seconds:g} waits longer"
    if state.progress.steps is None:
        return (
            "the job does not say how many steps it has: log_progress(step, steps) of"
            " cloudtrain_job tells them"
        )
    return f"{seconds:g} s are too short for these steps: --forecast {4 * seconds:g} takes longer"


def _terms(target: Plan) -> Terms:
    """Return the limits of a job for this machine, without a price."""
    return (
        Terms(seconds=target.spec.limits.max_runtime or 0, limit="limits.max_runtime")
        if _is_here(target)
        else Terms()
    )


def _is_here(target: Plan) -> bool:
    return target.is_rehearsal or target.target.cost_estimate is None
