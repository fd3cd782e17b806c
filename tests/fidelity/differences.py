"""Differences between the imitations and recorded reality that are kept, each with its reason."""

from __future__ import annotations

import re
from typing import NamedTuple


class Kept(NamedTuple):
    """A kind of difference: expressions for the call and for the difference itself."""

    call: str
    difference: str
    reason: str


AZURE = (
    Kept(
        "(PUT|DELETE) .*/computes/|computeOperations|GET .*/computes/{name}",
        ".*",
        "cloudtrain creates no clusters",
    ),
    Kept("mfeOperationResults", ".*", "cloudtrain does not wait for a cancellation"),
    Kept(
        "PUT .*/datastores/|/datastores/{name}|/datastores\\?",
        ".*",
        "cloudtrain creates and lists no datastores",
    ),
    Kept("pipeline_job.* (PUT|GET) .*/(jobs|runs)/", ".*", "cloudtrain submits no pipelines"),
    Kept("command_job_local PUT", ".*", "local jobs of azure-ai-ml run on the user's machine"),
    Kept(
        "GET .*/computes/",
        "identity is not",
        "role assignments of the imitation belong to the cluster's identity",
    ),
    Kept(
        "GET .*/computes/",
        "enableNodePublicIp|description",
        "clusters differ by the way they were created",
    ),
    Kept("GET .*/datastores/", "systemData.createdBy", "only workspaces of 2023 show it"),
    Kept("/jobs", "_azureml.ClusterName is not", "shown since 2024"),
    Kept("2022-\\d\\d-\\d\\d", ".*", "API versions before 2023 are not imitated"),
)


def reason(kept: tuple[Kept, ...], call: str, difference: str) -> str:
    """Return why a difference is kept; empty for one that is not."""
    for row in kept:
        if re.search(row.call, call) and re.search(row.difference, difference):
            return row.reason
    return ""
