"""SageMaker's rules for CreateTrainingJob requests beyond its service model.

After the API reference and the developer guide; the wording is AWS's own where it is known from
reports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from tests.fakes.aws.account import Account
from tests.fakes.aws.jobs import Job, has_accelerators, instance_choices
from tests.fakes.aws.rights import check_stage
from tests.fakes.aws.wire import invalid
from tests.fakes.messages import ServiceError

Body = Mapping[str, Any]

SUPPORTED = {
    *("TrainingJobName", "HyperParameters", "AlgorithmSpecification", "RoleArn", "Tags"),
    *("InputDataConfig", "OutputDataConfig", "ResourceConfig", "VpcConfig", "StoppingCondition"),
    *("CheckpointConfig", "Environment", "RetryStrategy", "TensorBoardOutputConfig"),
    *("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption"),
    *("EnableManagedSpotTraining", "RemoteDebugConfig", "InfraCheckConfig"),
    "ExperimentConfig",
}
"""Members of a request that the imitation knows; it refuses all others."""
SUPPORTED_RESOURCES = {
    *("InstanceType", "InstanceCount", "InstancePreferences", "VolumeSizeInGB", "VolumeKmsKeyId"),
    "KeepAlivePeriodInSeconds",
}
"""The same of its ResourceConfig."""


def refuse(body: Body, account: Account, jobs: Iterable[Job]) -> None:
    """Raise the first reason against a request, if there is one."""
    unknown = {*body} - SUPPORTED | {*body.get("ResourceConfig", {})} - SUPPORTED_RESOURCES
    if unknown:
        raise invalid(f"Not part of this imitation: {', '.join(sorted(unknown))}")
    reasons = chain(
        _algorithm(body, account), _resources(body), _time(body), _places(body, account)
    )
    for message in reasons:  # the first one only: those after it may rely on what it misses
        raise invalid(message)
    role = body["RoleArn"]
    if "untrusted" in role:
        raise invalid(
            f"Could not assume role {role}. Please ensure that the role exists and allows principal"
            " 'sagemaker.amazonaws.com' to assume the role."
        )
    if lacked := check_stage("create", body, account):
        raise invalid(f"Access denied for the role {role}: {lacked}")
    _quotas(body, account, jobs)


def _algorithm(body: Body, account: Account) -> Iterator[str]:
    image = body.get("AlgorithmSpecification", {}).get("TrainingImage", "")
    address = re.fullmatch(
        r"(\d{12})\.dkr\.ecr\.([a-z0-9-]+)\.amazonaws\.com/([^/:@][^:@]*).*", image
    )
    if address is None or address[2] != account.region:
        yield (
            "Invalid training image. Please provide a valid Amazon Elastic Container Registry path"
            " of the Docker image to run."
        )
        return
    if check_stage("image", body, account):
        yield (
            f"Access denied for repository: {address[3]} in registry ID: {address[1]}. Please check"
            f" if your ECR repository and image exist and role {body['RoleArn']} has proper pull"
            " permissions for SageMaker: ecr:BatchCheckLayerAvailability, ecr:BatchGetImage,"
            " ecr:GetDownloadUrlForLayer"
        )


def _resources(body: Body) -> Iterator[str]:
    resources = body.get("ResourceConfig", {})
    spot = body.get("EnableManagedSpotTraining", False)
    preferences = resources.get("InstancePreferences")
    if preferences:
        if spot:
            yield "InstancePreferences cannot be used together with EnableManagedSpotTraining."
        if {"InstanceType", "InstanceCount"} & {*resources} or not all(
            "InstanceCount" in item for item in preferences
        ):
            yield "InstancePreferences need an InstanceCount each, and no InstanceType beside them."
    elif "InstanceType" not in resources:
        yield "ResourceConfig needs exactly one of InstanceType and InstancePreferences."
    if any(count < 1 for _, count in instance_choices(resources)):
        yield "InstanceCount must be at least 1."
    if spot and resources.get("KeepAlivePeriodInSeconds"):
        yield "KeepAlivePeriodInSeconds is not supported for managed spot training."


def _time(body: Body) -> Iterator[str]:
    stopping = body.get("StoppingCondition", {})
    if "MaxWaitTimeInSeconds" in stopping and not body.get("EnableManagedSpotTraining"):
        yield (
            "Invalid MaxWaitTimeInSeconds. It is only supported when EnableManagedSpotTraining is"
            " set to true"
        )
    if body.get("EnableManagedSpotTraining") and (
        stopping.get("MaxWaitTimeInSeconds", 0) < stopping.get("MaxRuntimeInSeconds", 86_400)
    ):
        yield (
            "Invalid MaxWaitTimeInSeconds. It must be present and be greater than or equal to"
            " MaxRuntimeInSeconds"
        )
    kinds = [kind for kind, _ in instance_choices(body["ResourceConfig"])]
    if "MaxPendingTimeInSeconds" in stopping and not all(has_accelerators(kind) for kind in kinds):
        yield f"MaxPendingTimeInSeconds is not supported for the instance type {kinds[0]}."


def _places(body: Body, account: Account) -> Iterator[str]:
    storage = account.storage
    for channel in body.get("InputDataConfig", ()):
        source = channel["DataSource"].get("S3DataSource")
        if source is None:
            yield f"The channel {channel['ChannelName']} lacks an S3DataSource."
            continue
        uri = source["S3Uri"]
        bucket = uri.partition("://")[2].partition("/")[0]
        mode = channel.get("InputMode", body["AlgorithmSpecification"]["TrainingInputMode"])
        if not storage.has_bucket(uri):
            yield no_objects(uri, bucket, body["RoleArn"], account.region)
        if mode == "FastFile" and not uri.endswith("/") and uri.count("/") > 2:
            yield (
                f"The S3 URL {uri} of the channel {channel['ChannelName']} must be a folder for"
                " FastFile mode."
            )
    names = [channel["ChannelName"] for channel in body.get("InputDataConfig", ())]
    if len(set(names)) < len(names):
        yield "Channel names must be unique."
    outputs = {"OutputDataConfig": body["OutputDataConfig"]["S3OutputPath"]}
    if "CheckpointConfig" in body:
        outputs["CheckpointConfig"] = body["CheckpointConfig"]["S3Uri"]
    for field, uri in outputs.items():
        if not storage.has_bucket(uri):
            yield (
                f"The bucket of {uri}, given in {field}, does not exist in {account.region} or"
                " cannot be accessed."
            )


def no_objects(uri: str, bucket: str, role: str, region: str) -> str:
    """Return SageMaker's error for an input without objects."""
    return (
        f'No S3 objects found under S3 URL "{uri}" given in input data source. Please ensure that'
        f" the bucket exists in the selected region ({region}), that objects exist under that S3"
        f' prefix, and that the role "{role}" has "s3:ListBucket" permissions on bucket "{bucket}".'
    )


def _quotas(body: Body, account: Account, jobs: Iterable[Job]) -> None:
    """Refuse a request without a choice that fits into the remaining quota."""
    alive = [job for job in jobs if not job.has_ended]
    usage = (
        "spot training job usage" if body.get("EnableManagedSpotTraining") else "training job usage"
    )
    refused = None
    for kind, count in instance_choices(body["ResourceConfig"]):
        used = sum(job.machines[1] for job in alive if job.machines[0] == kind)
        limit = account.quotas.get(kind)
        if limit is None or used + count <= limit:
            return
        refused = refused or ServiceError(
            "ResourceLimitExceeded",
            f"The account-level service limit '{kind} for {usage}' is {limit} Instances, with"
            f" current utilization of {used} Instances and a request delta of {count} Instances."
            " Please use AWS Service Quotas to request an increase for this quota. If AWS Service"
            " Quotas is not available, contact AWS support to request an increase for this quota.",
        )
    if refused:
        raise refused
