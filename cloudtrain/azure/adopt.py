"""Jobs of ours that another machine started, found by their tags, as run folders of this one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain import __version__
from cloudtrain.azure.phases import billing, ended_at, ending
from cloudtrain.azure.start import ref_of
from cloudtrain.contracts.azureml import GRACE_SECONDS
from cloudtrain.provider import Adopted
from cloudtrain.quote import price_of
from cloudtrain.remote.request import OURS, ours
from cloudtrain.runs.store import as_text

if TYPE_CHECKING:
    from cloudtrain.clouds.azure import Workspace


def adopted(cloud: Workspace, scope: Mapping[str, str], run_id: str | None, pause: float) -> Iterator[Adopted]:
    """Every job of ours in a workspace, or the one of that name.

    `scope`: subscription, resource group, workspace and, if it is known, its location.
    """
    if run_id is not None:
        found = cloud.job_with_document(run_id)
        jobs: Iterator[Mapping[str, Any]] = iter([found] if found is not None else [])
    else:
        jobs = cloud.jobs(f"{OURS}run")
    for job in jobs:
        if ours(job["tags"]).get("run") == job["name"]:
            yield _adopt(cloud, scope, job, pause)


def _adopt(cloud: Workspace, scope: Mapping[str, str], job: Mapping[str, Any], pause: float) -> Adopted:
    tags, document, name = ours(job["tags"]), dict(job["document"]), job["name"]
    document |= {"name": name, "tags": job["tags"]}
    resources = document.get("resources") or {}
    nodes, size = int(resources.get("instance_count") or 1), str(resources.get("instance_type") or "")
    price = price_of("azure", [size], scope["location"]) if size else None
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
            "facts": {**scope, "instances": [size], "prices": {size: price.usd} if price else {}, "poll": pause},
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
    over = ending(job)
    if over is not None:  # its log is brought when somebody wants to see it
        details = cloud.details(name) or {}
        final, reason = ending(details) or over
        bill = billing(details, nodes, price.usd if price else None)
        when = ended_at(details) or time.time()
        events.append({"type": "ended", "time": when, "state": final, "reason": reason, "billing": bill})
    documents = {"plan.json": as_text(plan), "request.json": as_text(document)}
    return Adopted(run_id=name, documents=documents, events=events)
