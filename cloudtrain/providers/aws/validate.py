"""Check a request by our rules and SageMaker's service model; issues name lines of the spec."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec

from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.aws.field_map import spec_path
from cloudtrain.providers.aws.rules import broken_rules, notes
from cloudtrain.providers.aws.service_model import models, request_violations
from cloudtrain.providers.shared.notes import idle_note, image_notes, rehearsal_notes
from cloudtrain.units import exact_duration

INSTALL = 'pip install "cloudtrain[aws]"'


def rule_issues(plan: Plan) -> list[Issue]:
    """Return broken rules and violations of SageMaker's service model. Imports no SDK.

    A violation of an enum, a pattern or a maximum is a warning: the service may be newer than the
    model.
    """
    issues = [plan.located(issue) for issue in broken_rules(plan)]
    issues += _spec_issues(plan, request_violations(plan.request.document), issues)
    messages = [*rehearsal_notes(plan), *notes(plan), *image_notes(plan), *idle_note(plan)]
    if not plan.is_rehearsal and find_spec("boto3") is None:
        messages.append(f"boto3 is not installed, and a submit needs it: {INSTALL}")
    return issues + [warning(message) for message in messages]


def model_issues(plan: Plan) -> list[Issue]:
    """Return members of the request that the installed boto3 would reject.

    An older one may not know them all. Empty for a rehearsal, which sends no request; an error if
    boto3 is not installed.
    """
    if plan.is_rehearsal:
        return []  # no request is sent
    try:
        from cloudtrain.providers.aws.client import input_shape
        from cloudtrain.providers.aws.shapes import violations
    except ImportError:
        return [Issue((), "boto3 is not installed", INSTALL)]
    shape = input_shape("sagemaker", "CreateTrainingJob")
    errors = [issue for issue in violations(shape, plan.request.document) if issue.is_error]
    refused = _spec_issues(plan, errors, [])
    return [replace(issue, hint="pip install --upgrade boto3") for issue in refused]


def _spec_issues(plan: Plan, violations: list[Issue], known_issues: list[Issue]) -> list[Issue]:
    """Map violations of the service model to fields of the spec.

    Skip fields that `known_issues` reports as errors.
    """
    reported = {issue.path for issue in known_issues if issue.path and issue.is_error}
    issues = []
    for violation in violations:
        path = spec_path(plan, violation.path)
        if path in reported:
            continue
        member = f"CreateTrainingJob.{violation.field}"
        if not violation.is_error:
            member += f" in the service model of {models()}, which may be older than the service"
        message = f"{_in_units(violation)}{_own_share(plan, violation)}  ({member})"
        issues.append(plan.located(replace(violation, path=path, message=message)))
    return issues


def _own_share(plan: Plan, violation: Issue) -> str:
    """Return `, 10 of them set by cloudtrain` if a list is too long and partly ours, or ""."""
    body = plan.request.document
    ours: dict[tuple[str, ...], int] = {
        ("Tags",): len(body["Tags"]) - len(plan.spec.tags),
        ("Environment",): len(body["Environment"]) - len(plan.spec.env),
        ("InputDataConfig",): len(body["InputDataConfig"]) - len(plan.spec.inputs),
    }
    count = ours.get(tuple(str(key) for key in violation.path), 0)
    return f", {count} of them set by cloudtrain" if count else ""


def _in_units(violation: Issue) -> str:
    """Return `is 7 h, at most 6 h` if the model counts seconds."""
    name = str(violation.path[-1]) if violation.path else ""
    if name.endswith("InSeconds"):
        return re.sub(r"\d+", lambda number: exact_duration(int(number[0])), violation.message)
    if name.endswith("InGB"):
        return re.sub(r"(\d+)", r"\1 GB", violation.message)
    return violation.message
