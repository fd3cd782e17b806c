"""What is wrong with a request, at the spec line that it comes from: rules of ours, and SageMaker's service model."""

from __future__ import annotations

import re
from importlib.util import find_spec

from cloudtrain.issues import Issue, warning
from cloudtrain.planning import Plan
from cloudtrain.providers.aws.field_map import spec_path
from cloudtrain.providers.aws.request import body_of
from cloudtrain.providers.aws.rules import broken_rules, notes
from cloudtrain.providers.aws.service_model import request_violations
from cloudtrain.providers.cloud.image_notes import image_notes
from cloudtrain.providers.cloud.request import idle_note, rehearsal_notes
from cloudtrain.units import exact_duration

INSTALL = 'pip install "cloudtrain[aws]"'


def rule_issues(plan: Plan) -> list[Issue]:
    """Rules across several fields, and every member of the request held against SageMaker's model. Imports no SDK."""
    found = [plan.located(issue) for issue in broken_rules(plan)]
    found += _told(plan, request_violations(body_of(plan)), found)
    said = [*rehearsal_notes(plan), *notes(plan), *image_notes(plan), *idle_note(plan)]
    if not plan.is_rehearsal and find_spec("boto3") is None:
        said.append(f"boto3 is not installed, and a submit needs it: {INSTALL}")
    return found + [warning(message) for message in said]


def model_issues(plan: Plan) -> list[Issue]:
    """The same by the model of the boto3 that will send it: an older one may not know all that the request holds."""
    if plan.is_rehearsal:
        return []  # nothing is sent
    try:
        from cloudtrain.providers.aws.client import input_shape
        from cloudtrain.providers.aws.shapes import violations
    except ImportError:
        return [Issue((), "boto3 is not installed", INSTALL)]
    return _told(plan, violations(input_shape("sagemaker", "CreateTrainingJob"), body_of(plan)), rule_issues(plan))


def _told(plan: Plan, violations: list[Issue], others: list[Issue]) -> list[Issue]:
    """Violations of the model at the fields of the spec, less those of fields that others tell in better words."""
    told, issues = {other.path for other in others if other.path}, []
    for violation in violations:
        path = spec_path(plan, violation.path)
        if path in told:
            continue
        message = f"{_in_units(violation)}{_own_share(plan, violation)}  (CreateTrainingJob.{violation.field})"
        issues.append(plan.located(Issue(path, message)))
    return issues


def _own_share(plan: Plan, violation: Issue) -> str:
    """Of entries that are too many those that are not the user's: `, 10 of them cloudtrain's own`."""
    body = body_of(plan)
    mine: dict[tuple[str, ...], int] = {
        ("Tags",): len(body["Tags"]) - len(plan.spec.tags),
        ("Environment",): len(body["Environment"]) - len(plan.spec.env),
        ("InputDataConfig",): len(body["InputDataConfig"]) - len(plan.spec.inputs),
    }
    count = mine.get(tuple(str(key) for key in violation.path), 0)
    return f", {count} of them cloudtrain's own" if count else ""


def _in_units(violation: Issue) -> str:
    """`is 7 h, at most 6 h` where the model counts seconds."""
    name = str(violation.path[-1]) if violation.path else ""
    if name.endswith("InSeconds"):
        return re.sub(r"\d+", lambda number: exact_duration(int(number[0])), violation.message)
    if name.endswith("InGB"):
        return re.sub(r"(\d+)", r"\1 GB", violation.message)
    return violation.message
