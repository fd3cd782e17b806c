"""Find Azure ML jobs of cloudtrain, from any machine, by their tags."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.pricing import RegionalPrices, known_prices
from cloudtrain.errors import CloudError
from cloudtrain.planning.azureml import GRACE_SECONDS
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.providers.azure.config import AzureConfig, connect
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.azure.phases import billing, ended_at, final_state, phase_event
from cloudtrain.providers.azure.submit import job_reference
from cloudtrain.providers.discovered_run import DiscoveredRun, KnownRuns, adopted
from cloudtrain.providers.shared.idempotent_create import own_tags
from cloudtrain.providers.shared.log_attempt import with_billing
from cloudtrain.runs.state_names import ENDED
from cloudtrain_wire.events import Ended, Event, Submitting

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import JobInfo, Workspace
    from cloudtrain.settings import Settings

KNOWN_IN_A_ROW = 50
"""Stop after this many finished jobs in a row: the list is newest first."""


def discover_runs(
    settings: Settings, run_id: str | None, known_runs: KnownRuns
) -> list[DiscoveredRun]:
    """List jobs with our tags in the workspace of the settings."""
    from cloudtrain.catalog.regional_prices import regional_prices
    from cloudtrain.providers.azure.account import workspace_of

    subscription, resource_group, name = workspace_of(settings)
    scope = AzureConfig(
        subscription=subscription,
        resource_group=resource_group,
        workspace=name,
        location=settings.get("azure.location"),
        poll=settings["azure.poll"],
    )
    prices = regional_prices("azure", scope.location or "", settings)
    cloud = connect(subscription, resource_group, name)
    return list(_discovered_runs(cloud, scope, run_id, prices, known_runs))


def _discovered_runs(
    cloud: Workspace,
    scope: AzureConfig,
    run_id: str | None,
    prices: RegionalPrices,
    known_runs: KnownRuns,
) -> Iterator[DiscoveredRun]:
    """Yield new and changed jobs with our tags in a workspace, or the job named `run_id`.

    `scope`: the workspace, and its location if known. `prices`: of that location.
    """
    if run_id is not None:
        job = cloud.job(run_id)
        if job is not None and _is_ours(job):
            yield _discovered_run(cloud, scope, job, prices)
        return

    open_runs = {name for name, state in known_runs.states.items() if state not in ENDED}
    in_a_row = 0
    for job in cloud.jobs(f"{TAG_PREFIX}run"):
        if not _is_ours(job):
            continue
        open_runs.discard(job.name)
        if known_runs.states.get(job.name) not in ENDED:
            in_a_row = 0
            yield _discovered_run(cloud, scope, job, prices)
            continue

        in_a_row += 1
        if in_a_row >= KNOWN_IN_A_ROW and not open_runs:
            return


def _is_ours(job: JobInfo) -> bool:
    tags = own_tags(job.tags)  # a sweep job has a run's tags, too
    return tags.get("run") == job.name and "sweep" not in tags


def _discovered_run(
    cloud: Workspace,
    scope: AzureConfig,
    job: JobInfo,
    regional: RegionalPrices,
) -> DiscoveredRun:
    tags = own_tags(job.tags)
    document = {**job.document(), "name": job.name, "tags": job.tags}
    size = str((document.get("resources") or {}).get("instance_type") or "")
    prices: Mapping[str, float] = {}
    if size:
        prices = known_prices(regional, [size])

    submitting = adopted(
        DECLARATION,
        tags,
        title=tags.get("name", job.name),
        owner=tags.get("owner") or job.owner,
        nodes=nodes_of(document),
        created=job.created,
    )
    config = replace(scope, prices=prices)
    run = adopted_run(
        document,
        config,
        submitting,
        grace_seconds=_grace_seconds(document),
        ref=job_reference(job),
    )
    updates = _updates(cloud, job, run.submitting.nodes, prices)
    return replace(run, updates=updates, mlflow_run=tags.get("mlflow-run", ""))


def adopted_run(
    document: Mapping[str, Any],
    config: AzureConfig,
    submitting: Submitting,
    *,
    grace_seconds: int,
    ref: dict[str, Any],
) -> DiscoveredRun:
    """Return the run of a job that another machine or a sweep job has created.

    `document`: its command-job document.
    """
    return DiscoveredRun(
        run_id=document["name"],
        config=config,
        instance=str((document.get("resources") or {}).get("instance_type") or ""),
        grace_seconds=grace_seconds,
        request=document,
        submitting=submitting,
        ref=ref,
        spot=_is_spot(document),
    )


def _is_spot(document: Mapping[str, Any]) -> bool | None:
    """Return whether its machines are spot machines; None for a cluster, which has its own tier."""
    tier = (document.get("queue_settings") or {}).get("job_tier")
    if not tier:
        return None

    return str(tier).lower() == "spot"


def nodes_of(document: Mapping[str, Any]) -> int:
    """Return the number of nodes of a command-job document."""
    return int((document.get("resources") or {}).get("instance_count") or 1)


def _updates(
    cloud: Workspace,
    job: JobInfo,
    nodes: int,
    prices: Mapping[str, float],
) -> list[Event]:
    """Return the phase of a job and, if it is over, its end.

    The list has the status; time and reason are in the history.
    """
    time_now = time.time()
    listed = {"status": job.status}
    updates: list[Event] = [phase_event(listed, time_now)]
    if final_state(listed) is None:
        return updates
    try:
        details = cloud.details(job.name) or listed
    except CloudError:  # the list already has the end
        details = listed

    final = final_state(details) or final_state(listed)
    if final is not None:
        when = ended_at(details) or job.created or time_now
        ended = Ended(time=when, state=final.state, reason=final.reason)
        bill = billing(details, nodes, max(prices.values(), default=None))
        updates.append(with_billing(ended, bill))

    return updates


def _grace_seconds(document: Mapping[str, Any]) -> int:
    """Return the grace period in the job document of the request; else the default."""
    try:
        seconds = json.loads(document["environment_variables"]["CLOUDTRAIN_JOB"])["grace_seconds"]
    except (KeyError, TypeError, ValueError):
        return GRACE_SECONDS

    if not isinstance(seconds, int):
        return GRACE_SECONDS

    return seconds
