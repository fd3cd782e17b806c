"""Jobs of ours that another machine started, found by their tags, as run folders of this one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__
from cloudtrain.catalog.pricing import Price, known_prices
from cloudtrain.contracts.azureml import GRACE_SECONDS
from cloudtrain.errors import CloudError
from cloudtrain.providers import DiscoveredRun, KnownRuns
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.phases import billing, ended_at, ending, phase_event
from cloudtrain.providers.azure.submit import ref_of
from cloudtrain.providers.cloud.request import OURS, ours
from cloudtrain.runs.files import as_text
from cloudtrain.runs.state import ENDED

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace


KNOWN_IN_A_ROW = 50
"""So many jobs of which the end is known already, one after the other, and no older one is asked for."""


def discovered_runs(
    cloud: Workspace,
    scope: AzureConfig,
    run_id: str | None,
    own: Mapping[tuple[str, str], Price],
    known: KnownRuns,
) -> Iterator[DiscoveredRun]:
    """The jobs of ours in a workspace that are new or have changed, or the one of that name.

    `scope`: the workspace, and its location if that is known. `own`: the user's own prices.
    """
    if run_id is not None:
        found = cloud.job_with_document(run_id)
        if found is not None and _is_ours(found):
            yield _discovered_run(cloud, scope, found, own)
        return
    waiting = {name for name, state in known.states.items() if state not in ENDED}
    in_a_row = 0
    for job in cloud.jobs(f"{OURS}run"):
        if not _is_ours(job):
            continue
        waiting.discard(job["name"])
        last_state = known.states.get(job["name"])
        in_a_row = in_a_row + 1 if last_state in ENDED else 0
        if last_state not in ENDED:
            yield _discovered_run(cloud, scope, job, own)
        elif in_a_row >= KNOWN_IN_A_ROW and not waiting:
            return


def _is_ours(job: Mapping[str, Any]) -> bool:
    return bool(ours(job["tags"]).get("run") == job["name"])


def _updates(cloud: Workspace, job: Mapping[str, Any], nodes: int, prices: Mapping[str, float]) -> list[dict[str, Any]]:
    """How a job stands. The list tells its status; when it ended, and why, the run history tells."""
    now = time.time()
    listed = {"status": job["status"]}
    updates = [phase_event(listed, now)]
    if ending(listed) is None:
        return updates
    try:
        details = cloud.details(job["name"]) or listed
    except CloudError:  # that it is over is known all the same
        details = listed
    over = ending(details) or ending(listed)
    if over is not None:
        when = ended_at(details) or job["created"] or now
        bill = billing(details, nodes, max(prices.values(), default=None))
        updates.append({"type": "ended", "time": when, "state": over[0], "reason": over[1], "billing": bill})
    return updates


def _discovered_run(
    cloud: Workspace, scope: AzureConfig, job: Mapping[str, Any], own: Mapping[tuple[str, str], Price]
) -> DiscoveredRun:
    tags, document, name = ours(job["tags"]), dict(job["document"]()), job["name"]
    document |= {"name": name, "tags": job["tags"]}
    resources = document.get("resources") or {}
    nodes, size = int(resources.get("instance_count") or 1), str(resources.get("instance_type") or "")
    prices = known_prices("azure", [size], scope.location or "", own) if size else {}
    plan = {
        "version": __version__,
        "run_id": name,
        "provider": "azure",
        "host": None,
        "spec": {"name": tags.get("name", name)},
        "target": {
            "provider": "azure",
            "contract": "azureml",
            "grace_seconds": _grace_seconds(document),
            "facts": {**replace(scope, prices=prices).to_json(), "instances": [size]},
        },
        "adopted": time.time(),
    }
    born = {
        "type": "submitting",
        "adopted": True,
        "owner": tags.get("owner") or job["owner"],
        "time": job["created"] or time.time(),
        "name": tags.get("name", name),
        "provider": "azure",
        "contract": "azureml",
        "nodes": nodes,
        "processes": int(tags["processes"]) if tags.get("processes", "").isdecimal() else 1,
    }
    events: list[dict[str, Any]] = [born, {"type": "submitted", "time": time.time(), "ref": ref_of(job)}]
    documents = {"plan.json": as_text(plan), "request.json": as_text(document)}
    return DiscoveredRun(run_id=name, documents=documents, history=events, updates=_updates(cloud, job, nodes, prices))


def _grace_seconds(document: Mapping[str, Any]) -> int:
    """As the job itself was told."""
    try:
        found = json.loads(document["environment_variables"]["CLOUDTRAIN_JOB"])["grace_seconds"]
    except (KeyError, TypeError, ValueError):
        return GRACE_SECONDS
    return found if isinstance(found, int) else GRACE_SECONDS
