"""Looking jobs up: Search, and the trials of a tuning job, page by page."""

from __future__ import annotations

import base64
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.fakes.aws.errors import invalid
from tests.fakes.aws.jobs import Job
from tests.fakes.aws.tuning import TuningJob

PAGE = 10
"""As many results has a page where the request does not say."""

Body = Mapping[str, Any]


def listed_trials(tuning: TuningJob, body: Body) -> dict[str, Any]:
    """ListTrainingJobsForHyperParameterTuningJob's answer."""
    if set(body) - {"HyperParameterTuningJobName", "SortBy", "MaxResults", "NextToken"}:
        raise invalid("Not part of this imitation.")
    key = {"Name": "TrainingJobName", "CreationTime": "CreationTime"}[body.get("SortBy", "Name")]
    page, token = _page(list(tuning.trials), body, key, "Ascending")
    return {"TrainingJobSummaries": [tuning.summary(job) for job in page], **token}


def searched(jobs: Sequence[Job], body: Body, members: Container[str]) -> dict[str, Any]:
    """Search's answer; `members`: what of a description a search result may hold."""
    if body["Resource"] != "TrainingJob":
        raise invalid("This imitation searches for a TrainingJob only.")
    expression = body["SearchExpression"]
    key = body["SortBy"]
    if set(expression) != {"Filters"} or key != "LastModifiedTime":
        raise invalid("Not part of this imitation.")
    filters = expression["Filters"]
    matches = [job for job in jobs if all(_matches(job, condition) for condition in filters)]
    page, token = _page(matches, body, key, body.get("SortOrder", "Descending"))
    results = []
    for job in page:
        described = {key: value for key, value in job.describe().items() if key in members}
        results.append({"TrainingJob": described | {"Tags": job.tag_list()}})
    return {
        "Results": results,
        "TotalHits": {"Value": len(matches), "Relation": "EqualTo"},
        **token,
    }


def _matches(job: Job, wish: Mapping[str, str]) -> bool:
    """Return whether a job meets a filter (API reference, Filter)."""
    match wish["Name"], wish.get("Operator"), wish.get("Value"):
        case "LastModifiedTime", "GreaterThanOrEqualTo", str(value):
            since = datetime.strptime(value, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
            return bool(job["LastModifiedTime"] >= since.timestamp())
        case "TrainingJobName", "Equals", str(value):
            return job.name == value
        case name, "Exists", None if name.startswith("Tags."):
            return name.removeprefix("Tags.") in job.tags
    raise invalid(f"Not part of this imitation: {wish}")


def _page(
    jobs: Sequence[Job], body: Body, key: str, order: str
) -> tuple[list[Job], dict[str, str]]:
    """Return this page's jobs, and the token of the next page: the name of its last job."""
    ordered = sorted(jobs, key=lambda job: (job[key], job.name), reverse=order == "Descending")
    start = 0
    if "NextToken" in body:
        try:
            last = base64.b64decode(body["NextToken"], validate=True).decode()
            start = [job.name for job in ordered].index(last) + 1
        except ValueError:
            raise invalid("Invalid NextToken.") from None
    end = start + body.get("MaxResults", PAGE)
    more = (
        {"NextToken": base64.b64encode(ordered[end - 1].name.encode()).decode()}
        if end < len(ordered)
        else {}
    )
    return ordered[start:end], more
