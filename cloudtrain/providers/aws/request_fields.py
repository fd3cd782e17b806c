"""Lead from a member of the request back to the field of the spec that sets it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from cloudtrain.errors import Issue, Keys, dotted
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import override_path
from cloudtrain.planning.sagemaker import training_request
from cloudtrain.providers.aws.request import FORM, section_of
from cloudtrain.providers.aws.service_model import model_name
from cloudtrain.providers.shared.idempotent_create import tags
from cloudtrain.units import exact_duration

_FIELDS: Mapping[str, Keys] = {
    "TrainingJobName": ("name",),
    "RoleArn": ("aws", "role"),
    "AlgorithmSpecification.TrainingImage": ("image",),
    "OutputDataConfig.KmsKeyId": ("aws", "kms_key"),
    "OutputDataConfig": ("aws", "output"),
    "CheckpointConfig": ("checkpoints", "uri"),
    "RetryStrategy": ("limits", "retries"),
    "VpcConfig.Subnets": ("aws", "subnets"),
    "VpcConfig": ("aws", "security_groups"),
    "TensorBoardOutputConfig": ("aws", "bucket"),
}
"""Member of CreateTrainingJob -> field of the spec that sets it."""


def spec_issues(
    operation: str,
    violations: list[Issue],
    path_of: Callable[[Keys], Keys],
    reported: set[Keys],
) -> list[Issue]:
    """Map violations of the service model to fields of the spec; skip `reported` fields."""
    issues = []
    for violation in violations:
        path = path_of(violation.path)
        if path in reported:
            continue
        member = f"{operation}.{violation.field}"
        if not violation.is_error:
            member += (
                f" in the service model of {model_name()}, which may be older than the service"
            )
        message = f"{_in_units(violation)}  ({member})"
        issues.append(replace(violation, path=path, message=message))

    return issues


def _in_units(violation: Issue) -> str:
    """Return `is 7 h, at most 6 h` if the model counts seconds."""
    name = str(violation.path[-1]) if violation.path else ""
    if name.endswith("InSeconds"):
        return re.sub(r"\d+", lambda number: exact_duration(int(number[0])), violation.message)
    return violation.message


def spec_path(plan: Plan, path: Keys) -> Keys:
    """Return the field of the spec behind a member of the body; empty if there is none.

    `path`: of the member, such as `("Tags", 3, "Value")`.
    """
    spec = plan.spec
    body = training_request(plan.request.document)
    override = override_path(section_of(plan).request, body, path, FORM)
    if override is not None:
        return override

    head = path[0] if path else ""
    tail = path[1:]
    if head == "Environment":
        return ("env", *tail[:1])
    if head == "Tags":
        key = _item_at(list(tags(plan, plan.target.image_address)), tail)
        if key in spec.tags:
            return ("tags", key)
        return ("tags",)

    if head == "InputDataConfig":
        name = _item_at(["", "", *spec.inputs], tail)  # our own two channels come first
        if name:
            return ("inputs", name)
        if tail:
            return ("aws", "bucket")
        return ("inputs",)

    if head == "ResourceConfig":
        return _resource_path(plan, tail)
    if head == "StoppingCondition":
        return _stopping_path(plan, tail)

    return _FIELDS.get(dotted(path[:2]), _FIELDS.get(str(head), ()))


def _item_at(items: list[str], tail: Keys) -> str:
    """Return the item that the rest of a path leads to; empty for none."""
    if not tail:
        return ""

    index = tail[0]
    if not isinstance(index, int) or not 0 <= index < len(items):
        return ""

    return items[index]


def _resource_path(plan: Plan, tail: Keys) -> Keys:
    resources = plan.spec.resources
    field = str(tail[0]) if tail else ""
    if "TrainingPlanArns" in tail:
        return ("aws", "training_plan", plan.target.instances[int(tail[1])])
    if field in ("InstanceType", "InstancePreferences"):
        if resources.instance.get(plan.target.provider):
            path: Keys = ("resources", "instance", plan.target.provider)
            if field == "InstancePreferences":
                path += tail[1:2]
            return path
        if resources.gpu:
            return ("resources", "gpu")
        return ("resources", "gpus")

    fields: Mapping[str, Keys] = {
        "InstanceCount": ("resources", "nodes"),
        "VolumeSizeInGB": ("resources", "disk"),
        "VolumeKmsKeyId": ("aws", "kms_key"),
        "KeepAlivePeriodInSeconds": ("aws", "keep_alive"),
        "TrainingPlanArn": ("aws", "training_plan"),
    }
    return fields.get(field, ("resources",))


def _stopping_path(plan: Plan, tail: Keys) -> Keys:
    if tail and tail[0] == "MaxRuntimeInSeconds":
        cap = "limits.max_runtime"
        if plan.target.cost_estimate:
            cap = plan.target.cost_estimate.cap or cap
        return tuple(cap.split("."))

    return ("limits", "max_wait")
