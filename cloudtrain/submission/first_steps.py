"""A rehearsal of a job's first steps on this machine, in a scratch folder, and the forecast that
they allow.
"""

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
from cloudtrain.providers.local.lifeline import runs_end_with_this_process
from cloudtrain.runs.failure import explain
from cloudtrain.runs.forecast import Forecast, Span, forecast
from cloudtrain.runs.state import RunState
from cloudtrain.runs.terms import Terms
from cloudtrain.settings import DEFAULT_PROVIDER
from cloudtrain.submission.jobs import Job, plan, submit
from cloudtrain.submission.run import Run
from cloudtrain_launcher.file_locks import acquire, is_locked

START_SECONDS = 60.0
"""A job that has reported nothing so long after its processes began is taken to report nothing at
all.
"""

SCRATCH = "cloudtrain-forecast-"
LOCK = "forecast.lock"
"""How the names of scratch folders begin, and the file in each that its process has locked."""

REMOVAL_SECONDS = 10.0
"""How long the removal of the scratch folder is tried."""


@dataclass(frozen=True, kw_only=True, slots=True)
class There:
    """What a limit of the job means on machines that are not this one."""

    machines: str
    """`2 x ml.p4d.24xlarge`."""
    usd_per_hour: float | None
    """Of all of them; None: the price is not known."""
    max_seconds: int
    limit: str
    """What says so; empty: the platform's own limit."""
    times_as_fast: Span | None
    """How many times as fast as here the job must be there to end within that; None: that is not
    known.
    """

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        fast = self.times_as_fast.to_json() if self.times_as_fast else None
        limit = {"max_seconds": self.max_seconds, "limit": self.limit}
        return {
            "machines": self.machines,
            "usd_per_hour": self.usd_per_hour,
            **limit,
            "times_as_fast": fast,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstSteps:
    """What the first steps of a job have shown."""

    forecast: Forecast | None = None
    """Of the whole job on this machine."""
    measured: float | None = None
    """Seconds of the whole job, where it has ended meanwhile."""
    reason: str = ""
    """Why there is neither, and what to do."""
    on_cpu: bool = False
    """Whether it ran on the CPU, though it is meant for GPUs."""
    there: There | None = None
    """Of a job for other machines."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "here": self.forecast.to_json() if self.forecast else None,
            "measured_seconds": self.measured,
            "reason": self.reason,
            "on_cpu": self.on_cpu,
            "there": self.there.to_json() if self.there else None,
        }


def try_first_steps(
    job: Job, target: Plan, seconds: float, show: Callable[[RunState], None]
) -> FirstSteps:
    """Run the job here until it has trained for so many seconds, and forecast it. Nothing is left
    of it.

    `target`: the plan of where it is meant to run. `show` is called with the state again and again.
    JobFailed if the job fails, SpecError or RefusedError if it cannot be run here.
    """
    with _scratch_folder() as folder:
        here = _plan_here(job, target, folder)
        with runs_end_with_this_process():
            run = submit(here)
        try:  # what is to be said of it is said before the stop, which changes its state
            return _seen(_until(run, seconds, show), seconds, target, here)
        finally:
            with suppress(CloudtrainError):
                run.stop()


def _seen(state: RunState, seconds: float, target: Plan, here: Plan) -> FirstSteps:
    """What the steps so far tell. JobFailed if the job has failed."""
    if state.state == "failed":
        cause = state.error
        place = f" ({cause.file}:{cause.line})" if cause and cause.file else ""
        hint = "cloudtrain submit --provider local runs it here and keeps its log"
        raise JobFailed(f"the first steps failed here: {explain(state)}{place}", hint=hint)
    found = forecast(state, _terms(target), now=time.time())
    measured = state.ended - state.started if state.state == "succeeded" else None
    total = found.total if found else Span(measured, measured, measured) if measured else None
    return FirstSteps(
        forecast=found,
        measured=measured,
        reason="" if total else _reason(state, seconds),
        on_cpu=bool(target.gpus and not here.gpus),
        there=_there(target, total),
    )


@contextmanager
def _scratch_folder() -> Iterator[str]:
    """A folder that is gone afterwards, also where the supervisor of a run still writes its last
    words into it.

    Those that were left by processes that were killed are removed, too: each is locked by its
    process.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/{LOCK}"):
        if is_locked(left) is False:
            shutil.rmtree(left.parent, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{SCRATCH}"))
    folder = str(draft.with_name(draft.name[1:]))
    lock = acquire(draft / LOCK)
    draft.rename(folder)  # never there without its lock
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
    """The plan of a run on this machine: with as many processes as there, on its CPU where it has
    too few GPUs.
    """
    limits = job.spec.limits.model_copy(
        update={"restarts": 0, "retries": 0, "max_runtime": None, "max_cost": None}
    )
    changes: dict[str, Any] = {"limits": limits, "sweep": None}
    here = plan(_changed(job, changes), DEFAULT_PROVIDER, data_dir=data_dir)
    refused = any(issue.is_error for issue in get_provider(DEFAULT_PROVIDER).rules(here))
    if not (refused and target.gpus) or _is_here(target):
        return here
    cpu = {"gpus": 0, "gpu": (), "instance": {}, "processes": target.processes}
    changes["resources"] = job.spec.resources.model_copy(update=cpu)
    return plan(_changed(job, changes), DEFAULT_PROVIDER, data_dir=data_dir)


def _changed(job: Job, changes: dict[str, Any]) -> Job:
    return Job(spec=job.spec.model_copy(update=changes), document=job.document, folder=job.folder)


def _until(run: Run, seconds: float, show: Callable[[RunState], None]) -> RunState:
    """The state once it has trained for so long, has ended, or seems to report nothing."""
    began = 0.0
    for update in run.watch():
        state = update.state
        now = time.time()
        show(state)
        began = began or (now if state.ranks else 0.0)
        patience = (
            seconds if state.reported and not state.progress else max(START_SECONDS, 2 * seconds)
        )
        if state.laps.first and now - state.laps.first >= seconds:
            break
        if began and not state.laps.first and now - began >= patience:
            break
    return state


def _reason(state: RunState, seconds: float) -> str:
    """Why there is no forecast."""
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
    """Of a job for this machine: nothing is billed."""
    return (
        Terms(seconds=target.spec.limits.max_runtime or 0, limit="limits.max_runtime")
        if _is_here(target)
        else Terms()
    )


def _is_here(target: Plan) -> bool:
    return target.is_rehearsal or target.target.cost_estimate is None


def _there(target: Plan, total: Span | None) -> There | None:
    estimate = target.target.cost_estimate
    if _is_here(target) or estimate is None:
        return None
    name = (target.target.instances or (target.target.cluster,))[0]
    allowed = estimate.max_seconds
    return There(
        machines=f"{estimate.nodes} x {name}",
        usd_per_hour=estimate.usd_per_hour,
        max_seconds=allowed,
        limit=estimate.cap,
        times_as_fast=total.scaled(1 / allowed) if total else None,
    )
