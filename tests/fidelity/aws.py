"""Observations of the real SageMaker, read by the client and compared with the imitation.

Each row of tests/data/sagemaker-observed.jsonl names its public source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from botocore.exceptions import ClientError

from cloudtrain.planning.sagemaker import training_job
from cloudtrain.providers.aws.errors import NOT_FOUND, translated
from cloudtrain.providers.aws.phases import billing, final_state, phase_of
from cloudtrain.providers.aws.results import with_control_characters

DATA = Path(__file__).parents[1] / "data" / "sagemaker-observed.jsonl"
PHASES = {
    "capacity": "waiting for capacity",
    "image download completed": "training",
    "training image": "downloading the image",
    "input data": "downloading inputs",
    "Preparing the instances": "preparing machines",
    "Launching requested": "launching machines",
    "Starting the training job": "starting",
    "^Uploading": "uploading the model",
    "^Stopping": "stopping",
    "^(Completed|Failed|Stopped|Max)": "bringing the last lines",
}
"""Expression for status and message -> what a person would call it."""
_STEP = re.compile(r"(?:[\d\-: .]+ )?([A-Z]\w+) - (.*)")


class Observation(NamedTuple):
    """One row of the data."""

    number: int
    kind: str
    value: Any


def observations(path: Path = DATA) -> list[Observation]:
    """Return all rows of a file."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Observation(number, row["kind"], row["value"]) for number, row in enumerate(rows, 1)]


def differences(observation: Observation) -> list[str] | None:
    """Return what the client would get wrong; None if nothing reads such a row."""
    check = _CHECKS.get(observation.kind)
    if check is None:
        return None
    try:
        return list(check(observation.value))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        return [f"{type(error).__name__}: {error}"]


def steps(value: Any) -> Iterator[tuple[str, str]]:
    """Yield secondary status and message of each step of a history."""
    for step in value if isinstance(value, list) else value.splitlines():
        match = _STEP.match(step) if isinstance(step, str) else None
        if match:
            yield match[1], match[2]


def _phases(value: Any) -> Iterator[str]:
    for status, message in steps(value):
        transition = {"Status": status, "StatusMessage": message}
        job = {"SecondaryStatus": status, "SecondaryStatusTransitions": [transition]}
        text = f"{status} {message}"
        candidates = (phase for words, phase in PHASES.items() if re.search(words, text))
        expected = next(candidates, phase_of(job))
        if phase_of(job) != expected:
            yield f"{text}: {phase_of(job)!r} for {expected!r}"


def _errors(value: Any) -> Iterator[str]:
    answer: Any = {
        "Error": {"Code": value["Code"], "Message": value["Message"]},
        "ResponseMetadata": {"HTTPStatusCode": value.get("HTTPStatusCode")},
    }
    error = translated(
        ClientError(answer, value["Operation"]), _snake(value["Operation"]), "us-east-1"
    )
    message = value["Message"]
    if value["Code"] == "ThrottlingException" and not error.transient:
        yield "throttling is not transient"
    if value["Code"] == "AccessDeniedException" and "permission" not in str(error.hint):
        yield f"no permission is named: {error.hint}"
    limit = re.search(r"service limit '([^']+)'", message)
    if limit and limit[1] not in str(error.hint):
        yield f"the quota {limit[1]} is not named: {error.hint}"
    is_missing = re.search("not found|could not find|does not exist", message, re.IGNORECASE)
    if is_missing and "TrainingJob" in value["Operation"] and error.code != NOT_FOUND:
        yield f"{error.code} for a missing job"
    if re.search("registry ID|training image", message, re.IGNORECASE) and not error.hint:
        yield "no remedy for a refused image"
    if "InternalFailure" in value["Code"] and not error.transient:
        yield "an internal failure is not transient"


def _reasons(value: Any) -> Iterator[str]:
    final = final_state({"TrainingJobStatus": "Failed", "FailureReason": value})
    if final is None or final.state != "failed" or not final.reason:
        yield "no reason"
    elif re.match("AlgorithmError|ClientError|InternalServerError", final.reason):
        yield f"an exception's name: {final.reason[:60]}"


def _descriptions(value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or "TrainingJobStatus" not in value:
        return
    job = dict(value)
    ended = value["TrainingJobStatus"] in ("Completed", "Failed", "Stopped")
    for name in ("TrainingStartTime", "TrainingEndTime", "LastModifiedTime", "CreationTime"):
        if str(job.get(name, "")).startswith("20"):
            job[name] = datetime.fromisoformat(job[name])
    job["SecondaryStatusTransitions"] = [
        {"Status": item[0], "StatusMessage": item[-1]} if isinstance(item, list) else item
        for item in job.get("SecondaryStatusTransitions", ())
    ]
    final = final_state(job)
    if (final is not None) != ended:
        yield f"{final} for {value['TrainingJobStatus']}"
    bill = billing(job, 3600.0)
    billed = value.get("BillableTimeInSeconds")
    if billed is not None and (bill is None or bill.usd != billed):
        yield f"{bill} for {billed} s"


def _lines(value: Any) -> Iterator[str]:
    for line in str(value).splitlines():
        if re.search(r"#(011|015|033\[)", with_control_characters(line)):
            yield f"a control character as text: {line[:60]}"


def _config_files(value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        return
    observed = value.get("resourceconfig.json") or value.get("resource_config") or {}
    body = {
        "TrainingJobName": "job",
        "AlgorithmSpecification": {"TrainingInputMode": "File"},
        "ResourceConfig": {"InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
        "OutputDataConfig": {"S3OutputPath": "s3://bucket"},
    }
    job = training_job(body, interface="eth0", region="us-east-1", account="123456789012")
    container = job.containers[0]
    written = json.loads(container.files["input/config/resourceconfig.json"])
    for name in observed.keys() - written.keys():
        yield f"resourceconfig.json lacks {name}"


def _snake(operation: str) -> str:
    return re.sub(r"(?<!^)([A-Z])", r"_\1", operation).lower()


_CHECKS: dict[str, Callable[[Any], Iterator[str]]] = {
    "transitions": _phases,
    "error": _errors,
    "failure_reason": _reasons,
    "describe_training_job": _descriptions,
    "log_lines": _lines,
    "config_files": _config_files,
}
