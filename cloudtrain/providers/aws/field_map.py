"""Map members of a CreateTrainingJob body to the fields of the spec. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.issues import Keys, dotted
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.shared.tags import tags


def spec_path(plan: Plan, path: Keys) -> Keys:
    """Return the field of the spec behind a member of the body; empty if there is none.

    `path`: of the member, such as `("Tags", 3, "Value")`.
    """
    spec = plan.spec
    head = path[0] if path else ""
    tail = path[1:]
    if head == "Environment":
        return ("env", *tail[:1])
    if head == "Tags":
        keys = list(tags(plan, plan.target.image_address))
        index = tail[0] if tail and isinstance(tail[0], int) else -1
        if 0 <= index < len(keys) and keys[index] in spec.tags:
            return ("tags", keys[index])
        return ("tags",)
    if head == "InputDataConfig":
        names = [None, None, *spec.inputs]
        index = tail[0] if tail and isinstance(tail[0], int) else 0
        name = names[index] if index < len(names) else None
        if name:
            return ("inputs", name)
        return ("aws", "bucket") if tail else ("inputs",)
    if head == "ResourceConfig":
        return _resource_path(plan, tail)
    if head == "StoppingCondition":
        return _stopping_path(plan, tail)
    return _FIELDS.get(dotted(path[:2]), _FIELDS.get(str(head), ()))


_FIELDS: Mapping[str, Keys] = {
    "TrainingJobName": ("name",),
    "RoleArn": ("aws", "role"),
    "AlgorithmSpecification.TrainingImage": ("image",),
    "OutputDataConfig.KmsKeyId": ("aws", "kms_key"),
    "OutputDataConfig": ("aws", "bucket"),
    "CheckpointConfig": ("checkpoints", "uri"),
    "RetryStrategy": ("limits", "retries"),
    "VpcConfig.Subnets": ("aws", "subnets"),
    "VpcConfig": ("aws", "security_groups"),
    "TensorBoardOutputConfig": ("aws", "bucket"),
}


def _resource_path(plan: Plan, tail: Keys) -> Keys:
    resources = plan.spec.resources
    field = str(tail[0]) if tail else ""
    if field in ("InstanceType", "InstancePreferences"):
        index = tail[1:2] if field == "InstancePreferences" else ()
        if resources.instance.get(plan.target.provider):
            return ("resources", "instance", plan.target.provider, *index)
        return ("resources", "gpu" if resources.gpu else "gpus")
    fields: Mapping[str, Keys] = {
        "InstanceCount": ("resources", "nodes"),
        "VolumeSizeInGB": ("resources", "disk"),
        "VolumeKmsKeyId": ("aws", "kms_key"),
        "KeepAlivePeriodInSeconds": ("aws", "keep_alive"),
    }
    return fields.get(field, ("resources",))


def _stopping_path(plan: Plan, tail: Keys) -> Keys:
    if tail and tail[0] == "MaxRuntimeInSeconds":
        cap = plan.target.cost_estimate.cap if plan.target.cost_estimate else ""
        return tuple((cap or "limits.max_runtime").split("."))
    return ("limits", "max_wait")
