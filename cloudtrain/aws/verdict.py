"""What is wrong with a request, at the spec line that it comes from: rules of ours, and botocore's service model."""

from __future__ import annotations

from cloudtrain.aws.request import body_of, spec_path
from cloudtrain.aws.rules import broken_rules
from cloudtrain.errors import dotted
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding


def rule_findings(plan: Plan) -> list[Finding]:
    """Rules across several fields. Quick, and needs no SDK."""
    found = [
        Finding(severity="error", message=message, hint=hint, path=dotted(keys), where=place_of(plan, dotted(keys)))
        for keys, message, hint in broken_rules(plan)
    ]
    placeholders = plan.target.facts["placeholders"]
    if placeholders:
        message = f"{', '.join(placeholders)} not set: rehearsed with a placeholder; submitting to aws needs it"
        found.append(Finding(severity="warning", message=message))
    return found


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
    for violation in violations(input_shape("sagemaker", "CreateTrainingJob"), body_of(plan)):
        path = spec_path(plan, violation.path)
        message = f"{violation.message}  (CreateTrainingJob.{dotted(violation.path)})"
        findings.append(Finding(severity="error", message=message, path=path, where=place_of(plan, path)))
    return findings


def place_of(plan: Plan, path: str) -> str:
    """Where a field was set, or else the nearest field around it."""
    keys = path
    while keys and keys not in plan.origins:
        cut = max(keys.rfind("."), keys.rfind("["))
        keys = keys[:cut] if cut > 0 else ""
    return plan.origins.get(keys, "")
