"""Observe a job, stop it, and release the machines that SageMaker keeps after it (a warm pool)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers.aws import queue
from cloudtrain.providers.aws.attempts import Attempts, attempts_in_queue, attempts_without_queue
from cloudtrain.providers.aws.config import client_of_run, config_of
from cloudtrain.providers.aws.phases import (
    ended_at,
    has_trained,
    instances_of,
    phase_of,
    timestamp,
    warm_pool_events,
)
from cloudtrain.providers.aws.queue import name_of
from cloudtrain.providers.aws.results import artifacts, existing_artifacts, lines_of_attempts
from cloudtrain.providers.aws.submit import (
    QUEUE,
    TRAINING,
    Kind,
    describe,
    document_of,
    reconcile,
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
from cloudtrain.runs.logs import Observation, Record
from cloudtrain_wire.events import Ended, Event, Kept, StopRequested

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

TAG_DELAY_SECONDS = 300
"""Maximum delay until policies about tags allow access to a new job (as in AWS's SDK)."""


def observe(run: RunFolder, state: RunState) -> Iterator[Observation]:
    """Yield news since the last call; update `state` with each one before taking the next.

    For an ended job it is the state of the warm pool. Raise CloudError if the job is missing and the
    credentials belong to another account.
    """
    if state.has_ended and not state.may_have_started:
        if state.keeps_machines:
            yield _warm_pool(client_of_run(run), run, state)
        return

    cloud = client_of_run(run)
    time_now = time.time()
    if state.ref is None:
        yield Observation(events=reconcile(cloud, run, document_of(run), time_now))
    if state.ref is None:
        return
    try:
        job = _attempts(cloud, run, state, state.ref["arn"])
    except CloudError as error:  # a policy about tags denies until the new job has them
        error.transient |= error.is_denied and is_new(state, time_now)
        raise

    if job is None:
        require_same_account(cloud, state.ref["arn"], run.run_id)
        if is_new(state, time_now):
            return
        reason = "SageMaker does not know this job (any more)"
        if config_of(run).queue:
            reason = "AWS Batch has forgotten it, and SageMaker knows no training job of it"
        yield Observation(events=[Ended(time=time_now, state="failed", reason=reason)])
        return

    yield Observation(events=list(_progress(job, state, time_now)))
    names = [name_of(arn) for arn in job.arns] or [run.run_id]
    nodes = state.nodes
    if job.described:
        nodes = instances_of(job.described)[1]

    log = LogAttempt(lambda positions: lines_of_attempts(cloud, names, nodes, positions))
    if job.described:
        yield from log.observations(state)

    final = job.final
    if final is not None:  # the lines just read may contain the nodes' own reports
        described = job.described or {}
        ended, poll = ended_at(described), config_of(run).poll
        waited = not has_trained(described) or log_lag_is_over(
            state, phase_of(described), ended, poll
        )
        # after a restart by a queue, the reports may be of the training job before
        is_told = len(names) == 1 and all_nodes_reported(state, nodes)
        if not described or log.is_done(waited=waited, all_reported=is_told):
            yield Observation(events=_end_events(cloud, run, job, state, final))


def _attempts(cloud: AwsClient, run: RunFolder, state: RunState, arn: str) -> Attempts | None:
    """Return the training jobs of a run; None if its job does not exist."""
    if not config_of(run).queue:
        described = describe(cloud, run.run_id)
        return Attempts(described) if described else None

    service_job = queue.describe(cloud, arn)
    if service_job:
        return attempts_in_queue(cloud, service_job)

    tags = document_of(run)["tags"]
    return attempts_without_queue(cloud, run.run_id, tags, state.attempts)


def usd_per_hour(described: Mapping[str, Any], run: RunFolder) -> float | None:
    """Return US dollars per hour of all machines, by the prices in the plan; None if unknown."""
    instance, nodes = instances_of(described)
    price = config_of(run).prices.get(instance)
    if price is None:
        return None

    return price * nodes


def _progress(job: Attempts, state: RunState, time_now: float) -> Iterator[Event]:
    """Yield the phase, and a stop that was requested elsewhere, if they are new."""
    yield from job.phases(time_now, state)
    if state.stop_requested:
        return
    if job.in_queue.get("isTerminated"):
        yield StopRequested(time=time_now, reason="AWS Batch is stopping it")
    elif job.described and job.described["TrainingJobStatus"] == "Stopping" and not job.in_queue:
        yield StopRequested(time=time_now, reason="SageMaker is stopping it")


def _end_events(
    cloud: AwsClient,
    run: RunFolder,
    job: Attempts,
    state: RunState,
    final: FinalState,
) -> list[Event]:
    """Return the end of a job with the artifacts that exist, and its warm pool."""
    time_now = time.time()
    described = job.described or {}
    if final.state == "stopped":
        final = final._replace(reason=final.reason + incomplete_shutdown(state))

    bill = job.bill(cloud, lambda training_job: usd_per_hour(training_job, run))
    end = ended_event(state, final, ended_at(described) or time_now, bill)
    existing = existing_artifacts(cloud, artifacts(run, state))
    return [
        end.replace(left=existing),
        *warm_pool_events(described, time_now, usd_per_hour(described, run)),
    ]


def stop(run: RunFolder, state: RunState, record: Record, kind: Kind = TRAINING) -> bool:
    """Stop a job, unless it is stopping or over. Return False to try again."""
    cloud = client_of_run(run)
    body = document_of(run, kind)
    ref = settle(state, record, lambda: reconcile(cloud, run, body, time.time(), kind))
    if ref is None:
        return state.has_ended

    arn = ref["arn"] if QUEUE in body else ""
    try:
        if arn:
            queue.terminate(cloud, arn)
        else:
            cloud.call("sagemaker", f"stop_{kind.operation}", **{kind.name: run.run_id})
    except CloudError as error:
        if error.is_denied and _has_new_tags(describe(cloud, run.run_id, kind)):
            return False
        if error.code not in ("ValidationException", "NotFound", queue.CLIENT_ERROR):
            raise
        # SageMaker refuses to stop a job that is over; the next observation reports its end.
        try:
            described = queue.describe(cloud, arn) if arn else describe(cloud, run.run_id, kind)
        except CloudError:
            raise error from None  # report the refusal, not that the status could not be read
        if described is None:
            return not is_new(state, time.time())
        if arn and described["status"] not in queue.ENDED:
            raise
        if not arn and described[kind.status] == "InProgress":
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
