"""Observe a job, stop it, and release the machines that SageMaker keeps after it (a warm pool)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers.aws.config import client_of_run, config_of
from cloudtrain.providers.aws.phases import (
    billing,
    ended_at,
    final_state,
    has_trained,
    instances_of,
    phase_event,
    phase_of,
    selected_instance,
    timestamp,
    warm_pool_events,
)
from cloudtrain.providers.aws.results import artifact_uris, existing_artifacts, new_lines
from cloudtrain.providers.aws.submit import (
    TRAINING,
    Kind,
    describe,
    reconcile,
    request_of,
    require_same_account,
)
from cloudtrain.providers.shared.idempotent_create import is_new, settle
from cloudtrain.providers.shared.log_attempt import (
    FinalState,
    LogAttempt,
    all_nodes_reported,
    ended_event,
    incomplete_shutdown,
    log_lag_is_over,
)
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import Observation, Record
from cloudtrain.runs.state import RunState
from cloudtrain_wire.events import Ended, Event, Kept, StopRequested

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

TAG_DELAY_SECONDS = 300
"""Maximum delay until policies about tags allow access to a new job (as in AWS's SDK)."""


def observe(run: RunFolder, state: RunState) -> Iterator[Observation]:
    """Yield news since the last call; update `state` with each one before taking the next.

    Of an ended job, the state of its warm pool. Raise CloudError if the job is missing and the
    credentials belong to another account.
    """
    if state.has_ended and not state.may_have_started:
        if state.keeps_machines:
            yield _warm_pool(client_of_run(run), run, state)
        return

    cloud = client_of_run(run)
    time_now = time.time()
    if state.ref is None:
        yield Observation(events=reconcile(cloud, run, request_of(run), time_now))
    if state.ref is None:
        return
    try:
        described = describe(cloud, run.run_id)
    except CloudError as error:  # a policy about tags denies until the new job has them
        error.transient |= error.is_denied and is_new(state, time_now)
        raise

    if described is None:
        require_same_account(cloud, state.ref["arn"], run.run_id)
        if is_new(state, time_now):
            return
        reason = "SageMaker does not know this job (any more)"
        yield Observation(events=[Ended(time=time_now, state="failed", reason=reason)])
        return

    yield Observation(events=list(_progress(described, state, time_now)))
    _, nodes = instances_of(described)
    log = LogAttempt(
        lambda positions: new_lines(cloud, described["TrainingJobName"], nodes, positions)
    )
    yield from log.observations(state)

    final = final_state(described)
    if final is not None:  # the lines just read may contain the nodes' own reports
        ended, poll = ended_at(described), config_of(run).poll
        waited = not has_trained(described) or log_lag_is_over(
            state, phase_of(described), ended, poll
        )
        if log.is_done(waited=waited, all_reported=all_nodes_reported(state, nodes)):
            yield Observation(events=_end_events(cloud, run, described, state, final))


def usd_per_hour(described: Mapping[str, Any], run: RunFolder) -> float | None:
    """Return US dollars per hour of all machines, by the prices in the plan; None if unknown."""
    instance, nodes = instances_of(described)
    price = config_of(run).prices.get(instance)
    if price is None:
        return None

    return price * nodes


def _progress(described: Mapping[str, Any], state: RunState, time_now: float) -> Iterator[Event]:
    """Yield the phase, and a stop that was requested elsewhere, if they are new."""
    instance = selected_instance(described)
    if phase_of(described) != state.phase or instance not in ("", state.instance):
        yield phase_event(described, time_now, state)
    if described["TrainingJobStatus"] == "Stopping" and not state.stop_requested:
        yield StopRequested(time=time_now, reason="SageMaker is stopping it")


def _end_events(
    cloud: AwsClient,
    run: RunFolder,
    described: Mapping[str, Any],
    state: RunState,
    final: FinalState,
) -> list[Event]:
    """Return the end of a job with the artifacts that exist, and its warm pool."""
    time_now = time.time()
    price = usd_per_hour(described, run)
    if final.state == "stopped":
        final = final._replace(reason=final.reason + incomplete_shutdown(state))

    end = ended_event(state, final, ended_at(described) or time_now, billing(described, price))
    artifacts = existing_artifacts(cloud, artifact_uris(request_of(run)))
    return [end.replace(left=artifacts), *warm_pool_events(described, time_now, price)]


def stop(run: RunFolder, state: RunState, record: Record, kind: Kind = TRAINING) -> bool:
    """Stop a job, unless it is stopping or over. Return False to try again."""
    cloud = client_of_run(run)
    body = request_of(run, kind)
    if settle(state, record, lambda: reconcile(cloud, run, body, time.time(), kind)) is None:
        return state.has_ended
    try:
        cloud.call("sagemaker", f"stop_{kind.operation}", **{kind.name: run.run_id})
    except CloudError as error:
        if error.is_denied and _has_new_tags(describe(cloud, run.run_id, kind)):
            return False
        if error.code not in ("ValidationException", "NotFound"):
            raise
        # SageMaker refuses to stop a job that is over; the next observation reports its end.
        try:
            described = describe(cloud, run.run_id, kind)
        except CloudError:
            raise error from None  # report the refusal, not that the status could not be read
        if described is None:
            return not is_new(state, time.time())
        if described[kind.status] == "InProgress":
            raise
        return True

    record(Observation(events=[StopRequested(time=time.time(), reason="stop requested")]))
    return True


def _has_new_tags(described: Mapping[str, Any] | None) -> bool:
    """Return True if a job is so new that AWS may deny what a policy allows for its tags."""
    created = timestamp((described or {}).get("CreationTime"))
    return time.time() < created + TAG_DELAY_SECONDS


def _warm_pool(cloud: AwsClient, run: RunFolder, state: RunState) -> Observation:
    """Return the state of the warm pool of an ended run; no events if it is unchanged."""
    described = describe(cloud, run.run_id) or {}
    pool_events = warm_pool_events(described, time.time(), usd_per_hour(described, run))
    if not pool_events:  # the description no longer mentions it
        pool_events = [Kept(time=time.time(), status="Terminated")]

    previous = ("", 0.0)
    if state.kept:
        previous = (state.kept.status, state.kept.until)

    news = [event for event in pool_events if (event.status, event.until) != previous]
    return Observation(events=news)


def release(run: RunFolder, state: RunState) -> Observation:
    """Release the machines kept after a job. Raise UsageError if there are none.

    UpdateTrainingJob with a KeepAlivePeriodInSeconds of 0, as the developer guide ends a warm pool.
    """
    cloud = client_of_run(run)
    described = describe(cloud, run.run_id)

    status = str(((described or {}).get("WarmPoolStatus") or {}).get("Status", ""))
    if described is None or status not in ("InUse", "Available"):
        why = {
            "Reused": "another job has taken them over",
            "Terminated": "they were given back",
        }.get(status)
        message = f"run {run.run_id} keeps no machines"
        if why:
            message += f": {why}"

        raise UsageError(message, hint="aws.keep_alive keeps them after a job")

    resources = {"KeepAlivePeriodInSeconds": 0}
    try:
        cloud.call(
            "sagemaker",
            "update_training_job",
            TrainingJobName=run.run_id,
            ResourceConfig=resources,
        )
    except CloudError as error:
        if error.is_denied and _has_new_tags(described):
            error.hint = (
                f"{error.hint}; or the job is too new: repeat it when the job is 5 minutes old"
            )
        raise

    time_now = time.time()
    if state.has_ended:
        released = Kept(time=time_now, status="Terminated")
    else:
        released = Kept(time=time_now, status=status, seconds=0)

    return Observation(events=[released])
