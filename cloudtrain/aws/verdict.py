"""What is wrong with a request, at the spec line that it comes from: rules of ours, and botocore's service model."""

from __future__ import annotations

from cloudtrain.aws.blame import spec_path
from cloudtrain.aws.request import body_of
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
    notes = _rehearsal_notes(plan)
    resources = plan.spec.resources
    if resources.processes_per_node < resources.gpus:
        idle = resources.gpus - resources.processes_per_node
        notes.append(f"{idle} of {resources.gpus} GPUs per node stay idle unless a process drives several")
    return found + [Finding(severity="warning", message=message) for message in notes]


def _rehearsal_notes(plan: Plan) -> list[str]:
    """Where a rehearsal is not the real thing, or what would be refused in earnest."""
    if not plan.is_rehearsal:
        return []
    facts, spec = plan.target.facts, plan.spec
    notes = ["rehearsed with this machine's Python and torch, not in the image"]
    if facts["placeholders"]:
        notes.append(f"{', '.join(facts['placeholders'])} not set: rehearsed with a placeholder; aws will ask for it")
    notes += [f"aws will refuse it: {message}" for message in facts["unpaid"]]
    local = [name for name, item in spec.inputs.items() if "local" in item.uri]
    if local:
        notes.append(f"inputs {', '.join(local)} are the local folders themselves: what the job writes there stays")
    if spec.checkpoints.uri:
        notes.append(f"checkpoints stay here: {spec.checkpoints.uri} is neither read nor written")
    return notes


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
        findings.append(Finding(severity="error", message=message, path=path, where=place_of(plan, path)))
    return findings


def place_of(plan: Plan, path: str) -> str:
    """Where a field was set, or else the nearest field around it."""
    keys = path
    while keys and keys not in plan.origins:
        cut = max(keys.rfind("."), keys.rfind("["))
        keys = keys[:cut] if cut > 0 else ""
    return plan.origins.get(keys, "")
