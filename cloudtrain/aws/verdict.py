"""What is wrong with a request, at the spec line that it comes from: rules of ours, and botocore's service model."""

from __future__ import annotations

from cloudtrain.aws.blame import spec_path
from cloudtrain.aws.request import body_of
from cloudtrain.aws.rules import broken_rules
from cloudtrain.errors import dotted
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding, finding
from cloudtrain.remote.request import idle_note, rehearsal_notes


def rule_findings(plan: Plan) -> list[Finding]:
    """Rules across several fields. Quick, and needs no SDK."""
    notes = [*rehearsal_notes(plan), *idle_note(plan)]
    found = [finding(plan, *problem) for problem in broken_rules(plan)]
    return found + [Finding(severity="warning", message=message) for message in notes]


def model_findings(plan: Plan) -> list[Finding]:
    """Every member of the request held against the model: required, unknown, type, min, max, enum, pattern."""
    try:
        from cloudtrain.clouds.aws import input_shape
        from cloudtrain.clouds.shapes import violations
    except ImportError:
        message = "boto3 is not installed, so the request was not held against SageMaker's own model"
        severity = "warning" if plan.is_rehearsal else "error"
        return [Finding(severity=severity, message=message, hint='pip install "cloudtrain[aws]"')]
    findings = []
    told = {dotted(keys) for keys, _, _ in broken_rules(plan)}  # in better words than the model's
    for violation in violations(input_shape("sagemaker", "CreateTrainingJob"), body_of(plan)):
        path = spec_path(plan, violation.path)
        if path in told:
            continue
        message = f"{violation.message}  (CreateTrainingJob.{dotted(violation.path)})"
        findings.append(Finding(severity="error", message=message, path=path, where=plan.where(path)))
    return findings
