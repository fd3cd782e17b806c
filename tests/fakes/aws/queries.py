"""Looking jobs up: ListTrainingJobs and Search, page by page."""

from __future__ import annotations

import base64
import operator
from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.fakes.aws.errors import invalid
from tests.fakes.aws.jobs import Job
from tests.fakes.aws.tuning import TuningJob

PAGE = 10
"""As many results has a page where the request does not say."""

SUMMARY = (
    "TrainingJobName",
    "TrainingJobArn",
    "CreationTime",
    "TrainingEndTime",
    "LastModifiedTime",
    "TrainingJobStatus",
    "SecondaryStatus",
)

Body = Mapping[str, Any]


def listed(jobs: Sequence[Job], body: Body) -> dict[str, Any]:
    """ListTrainingJobs' answer."""
    supported = {"NameContains", "StatusEquals", "SortBy", "SortOrder", "MaxResults", "NextToken"}
    if set(body) - supported:
        raise invalid(f"Not part of this imitation: {', '.join(sorted(set(body) - supported))}")
    matches = [
        job
        for job in jobs
        if body.get("NameContains", "").lower() in job.name.lower()
        and body.get("StatusEquals", job["TrainingJobStatus"]) == job["TrainingJobStatus"]
    ]
    keys = {
        "Name": "TrainingJobName",
        "CreationTime": "CreationTime",
        "Status": "TrainingJobStatus",
    }
    page, token = _page(
        matches, body, keys[body.get("SortBy", "CreationTime")], body.get("SortOrder", "Ascending")
    )
    summaries = [
        {key: value for key, value in job.describe().items() if key in SUMMARY} for job in page
    ]
    return {"TrainingJobSummaries": summaries, **token}


def listed_trials(tuning: TuningJob, body: Body) -> dict[str, Any]:
    """ListTrainingJobsForHyperParameterTuningJob's answer."""
    supported = {
        "HyperParameterTuningJobName",
        "StatusEquals",
        "SortBy",
        "SortOrder",
        "MaxResults",
        "NextToken",
    }
    if set(body) - supported or body.get("SortBy", "Name") not in ("Name", "CreationTime"):
        raise invalid("Not part of this imitation.")
    status = body.get("StatusEquals")
    jobs = [job for job in list(tuning.trials) if status in (None, job["TrainingJobStatus"])]
    key = {"Name": "TrainingJobName", "CreationTime": "CreationTime"}[body.get("SortBy", "Name")]
    page, token = _page(jobs, body, key, body.get("SortOrder", "Ascending"))
    return {"TrainingJobSummaries": [tuning.summary(job) for job in page], **token}


def searched(jobs: Sequence[Job], body: Body, members: Container[str]) -> dict[str, Any]:
    """Search's answer; `members`: what of a description a search result may hold."""
    if body["Resource"] != "TrainingJob":
        raise invalid("This imitation searches for a TrainingJob only.")
    expression = body.get("SearchExpression", {})
    if set(expression) - {"Filters", "Operator"} or expression.get("Operator", "And") != "And":
        raise invalid("This imitation knows Filters that are joined by And.")
    filters = expression.get("Filters", [])
    matches = [job for job in jobs if all(_matches(job, condition) for condition in filters)]
    key = body.get("SortBy", "LastModifiedTime")
    if key not in ("CreationTime", "LastModifiedTime", "TrainingJobName"):
        raise invalid(f"This imitation does not sort by {key}.")
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


TIMES = ("CreationTime", "LastModifiedTime")
_ORDERS = {
    "GreaterThan": operator.gt,
    "GreaterThanOrEqualTo": operator.ge,
    "LessThan": operator.lt,
    "LessThanOrEqualTo": operator.le,
}


def _matches_time(job: Job, wish: Mapping[str, str]) -> bool:
    """Times are compared, and written `YYYY-mm-dd'T'HH:MM:SS` (API reference, Filter)."""
    if wish.get("Operator") not in _ORDERS:
        raise invalid(f"This imitation compares {wish['Name']} by {', '.join(_ORDERS)} only.")
    try:
        value = (
            datetime.strptime(wish["Value"], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
        )
    except (KeyError, ValueError):
        raise invalid(
            f"The value of {wish['Name']} must have the form YYYY-mm-dd'T'HH:MM:SS."
        ) from None
    return bool(_ORDERS[wish["Operator"]](job[wish["Name"]], value))


def _matches(job: Job, wish: Mapping[str, str]) -> bool:
    name = wish["Name"]
    if name in TIMES:
        return _matches_time(job, wish)
    how = wish.get("Operator", "Equals" if "Value" in wish else "Exists")
    if name.startswith("Tags."):
        value = job.tags.get(name.removeprefix("Tags."))
    elif name in ("TrainingJobName", "TrainingJobStatus"):
        value = str(job[name])
    else:
        raise invalid(f"This imitation does not search by {name}.")
    if how not in ("Exists", "NotExists", "Equals", "NotEquals"):
        raise invalid(f"This imitation does not know the operator {how}.")
    if how.endswith("Exists") == ("Value" in wish):
        raise invalid(f"The operator {how} takes {'no' if 'Value' in wish else 'a'} Value.")
    holds = value is not None if how.endswith("Exists") else value == wish["Value"]
    return holds != how.startswith("Not")


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
