"""Looking at a job: one Describe, then the new log lines, and from both the events that the run folder lacks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.providers.aws.config import config_of, request_of
from cloudtrain.providers.aws.logs import new_lines
from cloudtrain.providers.aws.phases import (
    billing,
    ended_at,
    ending,
    has_trained,
    kept_event,
    machines_of,
    phase_event,
    phase_of,
    selected,
)
from cloudtrain.providers.aws.results import left, places
from cloudtrain.providers.aws.submit import describe, reconcile, same_account
from cloudtrain.providers.cloud.log_attempt import LogAttempt
from cloudtrain.providers.cloud.outcome import all_nodes_reported, cut_short, ended_event
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Event, Observation
from cloudtrain.runs.state import RunState

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import Aws

SETTLING_PAUSES = 3
"""CloudWatch lags: after the end of a job its last lines are waited for, for this many looks."""


def observe(cloud: Aws, run: RunFolder, state: RunState, pause: float) -> Iterator[Observation]:
    """What is new since the last look. `state` is kept up to date with what has been observed so far."""
    now = time.time()
    if state.ref is None:
        yield Observation(events=reconcile(cloud, run, now))
    if state.ref is None:
        return
    described = describe(cloud, run.run_id)
    if described is None:
        same_account(cloud, state.ref["arn"], run.run_id)
        reason = "SageMaker does not know this job (any more)"
        yield Observation(events=[{"type": "ended", "time": now, "state": "failed", "reason": reason}])
        return
    yield Observation(events=list(_progress(described, state, now)))
    _, count = machines_of(described)
    log = LogAttempt(lambda positions: new_lines(cloud, described["TrainingJobName"], count, positions))
    yield from log.observations(state)
    over = ending(described)
    if over is not None:  # what has just been read may hold the nodes' last words
        waited = _waited(described, state, now, pause)
        if log.is_done(waited=waited, all_reported=all_nodes_reported(state, count)):
            yield Observation(events=_end(cloud, run, described, state, over))


def _progress(described: Mapping[str, Any], state: RunState, now: float) -> Iterator[Event]:
    """How far it is, where that has changed."""
    chosen = selected(described)
    if phase_of(described) != state.phase or chosen not in ("", state.instance):
        yield phase_event(described, now)
    if described["TrainingJobStatus"] == "Stopping" and not state.stop_requested:
        yield {"type": "stop_requested", "time": now, "reason": "SageMaker is stopping it"}


def _end(
    cloud: Aws, run: RunFolder, described: Mapping[str, Any], state: RunState, over: tuple[str, str]
) -> list[Event]:
    """The end of a job, what it left, and what is known of machines that are kept after it."""
    now, price = time.time(), _usd_per_hour(described, run)
    if over[0] == "stopped":
        over = over[0], over[1] + cut_short(state)
    end = ended_event(state, over, ended_at(described) or now, billing(described, price))
    return [{**end, "left": left(cloud, places(request_of(run)))}, *kept_event(described, now, price)]


def kept(cloud: Aws, run: RunFolder, state: RunState) -> Observation:
    """What has become of the machines that are kept after a run that has ended; nothing while that is the same."""
    described = describe(cloud, run.run_id) or {}
    found = kept_event(described, time.time(), _usd_per_hour(described, run))
    if not found:  # a description that tells nothing of them any more
        found = [{"type": "kept", "time": time.time(), "status": "Terminated"}]
    return Observation(events=[event for event in found if (event["status"], event.get("until")) != _as_known(state)])


def _as_known(state: RunState) -> tuple[Any, Any]:
    return (state.kept.status, state.kept.until or None) if state.kept else (None, None)


def release(cloud: Aws, run: RunFolder, state: RunState) -> Observation:
    """Have the machines given back that are kept after a job, or would be. UsageError where there are none.

    UpdateTrainingJob with a KeepAlivePeriodInSeconds of 0, as the developer guide ends a warm pool.
    """
    described = describe(cloud, run.run_id)
    status = str(((described or {}).get("WarmPoolStatus") or {}).get("Status", ""))
    if described is None or status not in ("InUse", "Available"):
        why = {"Reused": "another job has taken them over", "Terminated": "they were given back"}.get(status)
        message = f"run {run.run_id} keeps no machines" + (f": {why}" if why else "")
        raise UsageError(message, hint="aws.keep_alive keeps them after a job")
    resources = {"KeepAlivePeriodInSeconds": 0}
    cloud.call("sagemaker", "update_training_job", TrainingJobName=run.run_id, ResourceConfig=resources)
    seen = {"status": status, "seconds": 0} if not state.has_ended else {"status": "Terminated"}
    return Observation(events=[{"type": "kept", "time": time.time(), **seen}])


def _waited(described: Mapping[str, Any], state: RunState, now: float, pause: float) -> bool:
    """Whether the last lines had their time to arrive: since the end, or since we first saw it, as clocks differ."""
    if not has_trained(described):
        return True  # it never came so far as to print anything
    patience = SETTLING_PAUSES * pause
    seen = state.phase_seen if state.phase == phase_of(described) else now
    return now - min(seen, ended_at(described) or now) > patience


def _usd_per_hour(described: Mapping[str, Any], run: RunFolder) -> float | None:
    """Of all machines of the job, by the prices of its plan; None when that of the one it got is not known."""
    kind, count = machines_of(described)
    price = config_of(run).prices.get(kind)
    return price * count if price is not None else None
