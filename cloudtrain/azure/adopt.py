"""Jobs of ours that another machine started, found by their tags, as run folders of this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__
from cloudtrain.azure.start import ref_of
from cloudtrain.contracts.azureml import GRACE_SECONDS
from cloudtrain.provider import Adopted
from cloudtrain.quote import Price, known_prices
from cloudtrain.remote.request import OURS, ours
from cloudtrain.runs.store import as_text

if TYPE_CHECKING:
    from cloudtrain.clouds.azure import Workspace


def adopted(
    cloud: Workspace, scope: Mapping[str, str], run_id: str | None, pause: float, own: Mapping[tuple[str, str], Price]
) -> Iterator[Adopted]:
    """Every job of ours in a workspace, or the one of that name. How it goes, or has ended, is told by looking at it.

    `scope`: subscription, resource group, workspace and, if it is known, its location. `own`: the user's own prices.
    """
    if run_id is not None:
        found = cloud.job_with_document(run_id)
        jobs = [found] if found is not None else []
    else:
        jobs = cloud.jobs(f"{OURS}run")
    for job in jobs:
        if ours(job["tags"]).get("run") == job["name"]:
            yield _adopt(scope, job, pause, own)


def _adopt(
    scope: Mapping[str, str], job: Mapping[str, Any], pause: float, own: Mapping[tuple[str, str], Price]
) -> Adopted:
    tags, document, name = ours(job["tags"]), dict(job["document"]), job["name"]
    document |= {"name": name, "tags": job["tags"]}
    resources = document.get("resources") or {}
    nodes, size = int(resources.get("instance_count") or 1), str(resources.get("instance_type") or "")
    prices = known_prices("azure", [size], scope["location"], own) if size else {}
    plan = {
        "version": __version__,
        "run_id": name,
        "provider": "azure",
        "host": None,
        "spec": {"name": tags.get("name", name)},
        "target": {
            "provider": "azure",
            "contract": "azureml",
            "grace_seconds": GRACE_SECONDS,
            "facts": {**scope, "instances": [size], "prices": prices, "poll": pause},
        },
        "adopted": time.time(),
    }
    born = {
        "type": "submitting",
        "adopted": True,
        "time": job["created"] or time.time(),
        "name": tags.get("name", name),
        "provider": "azure",
        "contract": "azureml",
        "nodes": nodes,
        "processes": int(tags["processes"]) if tags.get("processes", "").isdecimal() else 1,
    }
    events: list[dict[str, Any]] = [born, {"type": "submitted", "time": time.time(), "ref": ref_of(job)}]
    documents = {"plan.json": as_text(plan), "request.json": as_text(document)}
    return Adopted(run_id=name, documents=documents, events=events)
