"""SageMaker's rules across several fields, which its service model does not hold. Pure.

After the API reference of CreateTrainingJob and the developer guide (managed spot training, warm pools, instance
preferences); the model's own limits are walked by `cloudtrain.clouds.shapes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cloudtrain.aws.account import malformed
from cloudtrain.aws.request import has_own_disk, needs_volume, single_file
from cloudtrain.catalog.choice import Problem, find
from cloudtrain.image.address import ECR
from cloudtrain.planning import Plan
from cloudtrain.remote.request import OURS

MAX_RUNTIME_SECONDS = 28 * 86_400
_PARTITIONS = {
    "cn": "aws-cn",
    "us-gov": "aws-us-gov",
    "us-iso": "aws-iso",
    "us-isob": "aws-iso-b",
    "us-isof": "aws-iso-f",
    "eu-isoe": "aws-iso-e",
    "eusc-de": "aws-eusc",
}
"""By what the names of their regions begin with; all others are in `aws`."""


def broken_rules(plan: Plan) -> list[Problem]:
    """All of them at once, each with the field to blame."""
    return [*_places(plan), *_capacity(plan), *_time(plan), *_network(plan), *_image(plan), *_names(plan)]


def unheeded(plan_types: list[str], *, disk: bool) -> tuple[str, ...]:
    """Fields that this job's machines have no use for."""
    return ("resources.disk",) if disk and not needs_volume(plan_types) else ()


def _places(plan: Plan) -> Iterator[Problem]:
    facts, spec = plan.target.facts, plan.spec
    region = facts["region"]
    yield from malformed("role", facts["role"])
    yield from malformed("bucket", facts["bucket"])
    partition = _PARTITIONS.get(region.rpartition("-")[0].rpartition("-")[0], "aws")
    given = facts["role"].split(":")[1:2]
    if facts["role"].startswith("arn:") and given != [partition]:
        yield ("aws", "role"), f"belongs to the partition {given[0]}, the region {region} to {partition}", None
    key = facts["kms_key"] or ""
    if key.startswith("arn:"):
        there = [*key.split(":"), "", "", ""][3]
        if there != region:
            yield ("aws", "kms_key"), f"lies in {there or repr(key)}, the job runs in {region}", "a key of that region"
    if key and needs_volume(facts["instances"]) and has_own_disk(facts["instances"]):
        message = "cannot encrypt the disks of types with and without disks of their own"
        yield ("aws", "kms_key"), message, "name types of one kind"
    uri = spec.checkpoints.uri
    if uri is not None and not re.fullmatch(r"s3://[^/]+(/.*)?", uri):
        yield ("checkpoints", "uri"), f"{uri!r} is no place in S3", "s3://bucket/folder/"
    resume = plan.facts.resume_from
    if resume and not resume.startswith("s3://") and not plan.is_rehearsal:
        hint = f"start without them: cloudtrain rerun {plan.facts.resume_run} --fresh"
        yield (), f"the earlier run's checkpoints lie where SageMaker cannot read them: {resume}", hint
    for name, item in spec.inputs.items():
        place = item.on(plan.target.provider) or ""
        if item.mode == "stream" and single_file(place):
            hint = "mode: copy; or a slash at the end, if it is a folder"
            yield ("inputs", name), f"{place} is one object; only a folder can be streamed", hint


def _capacity(plan: Plan) -> Iterator[Problem]:
    resources, types = plan.spec.resources, plan.target.facts["instances"]
    blame = ("resources", "instance", plan.target.provider) if resources.instance else ("resources", "gpu")
    if resources.spot and len(types) > 1:
        hint = "name one instance type for spot, or leave spot out and let SageMaker take the first type it has"
        yield blame, f"a choice of {len(types)} instance types cannot go with spot", hint
    if plan.spec.aws.keep_alive and len(types) > 1:
        hint = "a warm pool is found again by its one instance type"
        yield blame, f"a choice of {len(types)} instance types cannot go with aws.keep_alive", hint
    for name in types:
        if re.match(r"ml\.(trn|inf)", name):
            yield blame, f"{name} has AWS's own chips, which need another PyTorch", "a type with GPUs or none"


def _time(plan: Plan) -> Iterator[Problem]:
    limits, quote = plan.spec.limits, plan.target.quote
    runtime = quote.max_seconds if quote else 0
    if runtime > MAX_RUNTIME_SECONDS:
        cap = quote.cap if quote and quote.cap else "limits.max_runtime"
        yield tuple(cap.split(".")), f"{runtime} s is longer than SageMaker runs a job: 28 days", "28 d at most"
    if limits.max_wait is None:
        return
    at = ("limits", "max_wait")
    if plan.spec.resources.spot:
        if limits.max_wait < runtime:
            message = f"{limits.max_wait} s is shorter than the job may run: {runtime} s"
            yield at, message, "for spot it counts from the submission to the end, running included"
        return
    rows = [find("aws", name) for name in plan.target.facts["instances"]]
    if any(row is not None and not row.gpus for row in rows) and not plan.is_rehearsal:
        yield at, "SageMaker limits the waiting for GPU machines and for spot only", "leave it out"


def _network(plan: Plan) -> Iterator[Problem]:
    facts, spec = plan.target.facts, plan.spec
    if bool(facts["subnets"]) != bool(facts["security_groups"]):
        missing, there = ("security_groups", "subnets") if facts["subnets"] else ("subnets", "security_groups")
        yield ("aws", there), f"needs aws.{missing} beside it", "both, or neither"
    if spec.aws.network_isolation:
        if spec.secrets:
            yield ("aws", "network_isolation"), "keeps the job from asking for its secrets", "leave one of them out"
        if spec.aws.remote_debug:
            yield ("aws", "network_isolation"), "leaves no way in for aws.remote_debug", "leave one of them out"


def _image(plan: Plan) -> Iterator[Problem]:
    image, region = plan.target.facts["image"], plan.target.facts["region"]
    match = ECR.fullmatch(image)
    hint = "push it to a repository of Elastic Container Registry in that region, and give that address"
    if match is None:
        yield ("image",), f"SageMaker cannot pull {image!r}", hint
    elif match[2] != region:
        yield ("image",), f"{image} lies in {match[2]}, the job runs in {region}", hint


def _names(plan: Plan) -> Iterator[Problem]:
    spec = plan.spec
    for name in spec.inputs:
        if name.startswith(OURS):
            yield ("inputs", name), f"names that begin with {OURS} are taken", "choose another name"
    for key in spec.tags:
        if key.lower().startswith("aws:"):
            yield ("tags", key), "names that begin with aws: belong to AWS", "choose another name"
        if key.startswith(OURS):
            yield ("tags", key), f"names that begin with {OURS} are taken", "choose another name"
    for name in spec.env:
        if name.startswith(("SAGEMAKER_", "TRAINING_JOB_")) or name == "AWS_REGION":
            yield ("env", name), "is SageMaker's own word to the container", "choose another name"
