"""Rights that a call or a job needs, and SageMaker's rules for requests beyond its service model.

Rights are checked against policies, after the Service Authorization Reference, "Permissions
required to use the S3 API", "Using server-side encryption with KMS keys", "Image IAM permissions"
(ECR) and "SageMaker roles". Rules are after the API reference and the developer guide, in AWS's own
words where these are known from reports.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.fakes.aws.account import Account
from tests.fakes.aws.jobs import Job, has_accelerators, instance_choices
from tests.fakes.aws.policies import USER, Attempt, needed, require
from tests.fakes.aws.wire import invalid
from tests.fakes.messages import Call, Request, ServiceError

_KMS_HEADER = "x-amz-server-side-encryption-aws-kms-key-id"
PUSH = (
    "BatchCheckLayerAvailability",
    "InitiateLayerUpload",
    "UploadLayerPart",
    "CompleteLayerUpload",
    "PutImage",
)
_PULL = ("BatchCheckLayerAvailability", "GetDownloadUrlForLayer", "BatchGetImage")
_JOIN = ("CreateNetworkInterface", "CreateNetworkInterfacePermission", "DeleteNetworkInterface")
_LOOK = ("DhcpOptions", "NetworkInterfaces", "SecurityGroups", "Subnets", "Vpcs")
_KEY_USES = (
    *("Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey", "GenerateDataKeyWithoutPlaintext"),
    *("ReEncryptFrom", "ReEncryptTo"),
)
"""By "Protect data at rest using encryption" (SageMaker) and "Amazon EBS encryption", for the
machines' disks.
"""
LOG_GROUP = "/aws/sagemaker/TrainingJobs"


def check_call(request: Request, call: Call, account: Account) -> None:
    """ServiceError unless the caller may do what the call needs."""
    try:
        for attempt in _attempts(request, call, account):
            account.attempted.add(attempt.action)
            who = {"aws:username": USER.rpartition("/")[2]}
            require(
                replace(attempt, context={**attempt.context, **who}),
                account.caller_policy or [],
                USER,
            )
    except ServiceError as refused:
        if call.service == "s3":
            raise ServiceError("AccessDenied", refused.message, 403) from None
        raise


def _attempts(request: Request, call: Call, account: Account) -> Iterator[Attempt]:
    action = needed(call)
    if not action:
        return
    if call.service == "s3":
        yield from _s3(request, action, account)
        return
    body = request.document() or dict(parse_qsl(request.body.decode()))
    resource = _resource(call, body, account)
    tags = _tag_keys(call, body, account)
    if call.operation in ("SubmitServiceJob", "GetJobQueueSnapshot"):
        place = f"arn:aws:batch:{account.region}:{account.account}"
        queue = f"{place}:job-queue/{body['jobQueue']}"
        yield Attempt(action=action, resource=queue, context=tags)
        if call.operation == "SubmitServiceJob":
            job = f"{place}:service-job/new"
            yield Attempt(action=action, resource=job, context=tags)
            yield Attempt(action="batch:TagResource", resource=job, context=tags)
            context = {"iam:PassedToService": "sagemaker.amazonaws.com"}
            role = json.loads(body["serviceRequestPayload"])["RoleArn"]
            yield Attempt(action="iam:PassRole", resource=role, context=context)
        return
    yield Attempt(action=action, resource=resource, context=tags)
    if call.operation in ("CreateTrainingJob", "CreateHyperParameterTuningJob"):
        if body.get("Tags"):
            tags = {**tags, "sagemaker:TaggingAction": call.operation}
            yield Attempt(action="sagemaker:AddTags", resource=resource, context=tags)
        context = {"iam:PassedToService": "sagemaker.amazonaws.com"}
        role = {**body, **body.get("TrainingJobDefinition", {})}["RoleArn"]
        yield Attempt(action="iam:PassRole", resource=role, context=context)


def _tag_keys(call: Call, body: Mapping[str, Any], account: Account) -> dict[str, str]:
    """Return the condition keys of a job's tags, and of the tags that a call adds."""
    if call.service not in ("sagemaker", "batch"):
        return {}
    resource = _resource(call, body, account)
    present = {f"aws:ResourceTag/{key}": value for key, value in account.tags(resource).items()}
    if call.service == "batch":
        named = body.get("tags", {})
        return {**present, **{f"aws:RequestTag/{key}": value for key, value in named.items()}}
    request_tags = {f"aws:RequestTag/{tag['Key']}": tag["Value"] for tag in body.get("Tags", ())}
    return {**present, **request_tags}


def _s3(request: Request, action: str, account: Account) -> Iterator[Attempt]:
    bucket, _, key = unquote(urlsplit(request.target).path).lstrip("/").partition("/")
    yield Attempt(
        action=action, resource=f"arn:aws:s3:::{bucket}/{key}" if key else f"arn:aws:s3:::{bucket}"
    )
    if not key:
        return
    reads = request.method in ("GET", "HEAD")
    head = account.storage.about(bucket, key)
    if reads and head is None:  # who may not list does not learn that it is missing
        yield Attempt(action="s3:ListBucket", resource=f"arn:aws:s3:::{bucket}")
    key_arn = request.headers.get(_KMS_HEADER, "")
    if key_arn:
        yield Attempt(action="kms:GenerateDataKey", resource=key_arn)
        if "uploads" in urlsplit(request.target).query:  # the parts are put together again
            yield Attempt(action="kms:Decrypt", resource=key_arn)
    if request.method == "GET" and head and head.get("SSEKMSKeyId"):
        yield Attempt(action="kms:Decrypt", resource=head["SSEKMSKeyId"])


def _resource(call: Call, body: Mapping[str, Any], account: Account) -> str:
    scope = f"{account.region}:{account.account}"
    if call.service == "sagemaker":
        name = body.get("TrainingJobName")
        sweep = body.get("HyperParameterTuningJobName")
        if sweep:
            return f"arn:aws:sagemaker:{scope}:hyper-parameter-tuning-job/{sweep}"
        return account.arn(name) if name else str(body.get("ResourceArn", "*"))
    if call.service == "batch":
        return str(body["jobId"]) if call.operation == "TerminateServiceJob" else "*"
    if call.service == "logs":
        stream = f":log-stream:{body['logStreamName']}" if "logStreamName" in body else ""
        return f"arn:aws:logs:{scope}:log-group:{body['logGroupName']}{stream}"
    if call.service == "ecr" and "repositoryName" in body:
        registry = body.get("registryId", account.account)
        return f"arn:aws:ecr:{account.region}:{registry}:repository/{body['repositoryName']}"
    if call.service == "ecr" and "repositoryNames" in body:
        return f"arn:aws:ecr:{account.region}:{body['registryId']}:repository/{body['repositoryNames'][0]}"
    if call.service == "iam":
        return str(
            body.get("PolicySourceArn") or f"arn:aws:iam::{account.account}:role/{body['RoleName']}"
        )
    if call.service == "kms":
        return str(body["KeyId"])
    if call.service == "secretsmanager":
        return f"arn:aws:secretsmanager:{scope}:secret:{body['SecretId']}-a1B2c3"
    if call.service == "ssm":
        if "Name" not in body:
            return "*"
        return f"arn:aws:ssm:{scope}:parameter/{body['Name'].lstrip('/')}"
    return "*"


def check_push(repository: str, account: Account) -> None:
    """Check ECR's actions for an image push by the registry's protocol."""
    for name in PUSH:
        arn = f"arn:aws:ecr:{account.region}:{account.account}:repository/{repository}"
        account.attempted.add(f"ecr:{name}")
        require(Attempt(action=f"ecr:{name}", resource=arn), account.caller_policy or [], USER)


def check_stage(stage: str, body: Mapping[str, Any], account: Account) -> str:
    """Why the job's role may not do what a stage of the job needs; empty if it may."""
    if account.job_policy is None:
        return ""
    who = f"arn:aws:sts::{account.account}:assumed-role/{body['RoleArn'].rpartition('/')[2]}/SageMaker"
    try:
        for attempt in _STAGES[stage](body, account):
            account.attempted.add(attempt.action)
            require(attempt, account.job_policy, who)
    except ServiceError as refused:
        return refused.message
    return ""


def _created(body: Mapping[str, Any], account: Account) -> Iterator[Attempt]:
    """Check network and key when the job is created."""
    scope = f"arn:aws:ec2:{account.region}:{account.account}"
    network = body.get("VpcConfig", {"Subnets": [], "SecurityGroupIds": []})
    for name in _LOOK if network["Subnets"] else ():
        yield Attempt(action=f"ec2:Describe{name}")
    interfaces = [f"{scope}:network-interface/eni-1"] if network["Subnets"] else []
    for name in (*_JOIN, "DeleteNetworkInterfacePermission"):
        for arn in interfaces:
            yield Attempt(action=f"ec2:{name}", resource=arn)
    for arn in (
        *(f"{scope}:subnet/{subnet}" for subnet in network["Subnets"]),
        *(f"{scope}:security-group/{group}" for group in network["SecurityGroupIds"]),
    ):
        yield Attempt(action="ec2:CreateNetworkInterface", resource=arn)
    keys = {
        body["ResourceConfig"].get("VolumeKmsKeyId"),
        body["OutputDataConfig"].get("KmsKeyId"),
    } - {None}
    for key in sorted(keys):
        for name in _KEY_USES:
            yield Attempt(action=f"kms:{name}", resource=key)
        # SageMaker creates the grant, on the role's behalf.
        lent = {"kms:GrantIsForAWSResource": "true"}
        yield Attempt(action="kms:CreateGrant", resource=key, context=lent)


def _image(body: Mapping[str, Any], account: Account) -> Iterator[Attempt]:
    registry, _, remaining = body["AlgorithmSpecification"]["TrainingImage"].partition(".")
    name = remaining.partition("/")[2].partition(":")[0].partition("@")[0]
    yield Attempt(action="ecr:GetAuthorizationToken")
    for action in _PULL:
        arn = f"arn:aws:ecr:{account.region}:{registry}:repository/{name}"
        yield Attempt(action=f"ecr:{action}", resource=arn)


def _download(body: Mapping[str, Any], account: Account) -> Iterator[Attempt]:
    for channel in body.get("InputDataConfig", ()):
        if "S3DataSource" not in channel["DataSource"]:
            continue
        bucket, _, key = (
            channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix("s3://").partition("/")
        )
        yield Attempt(action="s3:ListBucket", resource=f"arn:aws:s3:::{bucket}")
        yield Attempt(action="s3:GetObject", resource=f"arn:aws:s3:::{bucket}/{key}")


def _checkpoints(body: Mapping[str, Any], account: Account) -> Iterator[Attempt]:
    uri = body.get("CheckpointConfig", {}).get("S3Uri", "")
    for action in ("PutObject", "DeleteObject") if uri else ():
        yield Attempt(action=f"s3:{action}", resource=f"arn:aws:s3:::{uri.removeprefix('s3://')}x")


def _results(body: Mapping[str, Any], account: Account) -> Iterator[Attempt]:
    place = f"{body['OutputDataConfig']['S3OutputPath'].removeprefix('s3://').rstrip('/')}/{body['TrainingJobName']}"
    yield Attempt(action="s3:PutObject", resource=f"arn:aws:s3:::{place}/output/model.tar.gz")


def _logs(body: Mapping[str, Any], account: Account) -> Iterator[Attempt]:
    group = f"arn:aws:logs:{account.region}:{account.account}:log-group:{LOG_GROUP}"
    for action in ("CreateLogGroup", "DescribeLogStreams", "CreateLogStream"):
        yield Attempt(action=f"logs:{action}", resource=group)
    yield Attempt(
        action="logs:PutLogEvents", resource=f"{group}:log-stream:{body['TrainingJobName']}/algo-1"
    )


_STAGES = {
    "create": _created,
    "image": _image,
    "download": _download,
    "checkpoints": _checkpoints,
    "results": _results,
    "logs": _logs,
}


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
    *("KeepAlivePeriodInSeconds", "TrainingPlanArn"),
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
        types = [item["InstanceType"] for item in preferences]
        if len(types) > len({*types}):
            yield "An instance type can appear only once in InstancePreferences."
        if "TrainingPlanArn" in resources:
            yield "TrainingPlanArn cannot be used together with InstancePreferences."
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
            if "VpcConfig" not in body:
                yield f"The channel {channel['ChannelName']} has a file system, so VpcConfig is required."
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
