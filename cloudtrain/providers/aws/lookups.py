"""Lookups of the things in a request, each by the Describe, Head or List that tells of it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.checkup import Lookup, NotCheckedError, Thing, expect
from cloudtrain.errors import CloudError, RefusedError
from cloudtrain.providers.aws.request import uri_parts

if TYPE_CHECKING:
    from cloudtrain.providers.aws.things import Things

SERVICE = "sagemaker.amazonaws.com"
_TEMPLATE = "the template of `cloudtrain infra template --provider aws` makes one"


def _role(things: Things, thing: Thing) -> None:
    """Ask for the job's role, whose trust policy has to name SageMaker."""
    answer = things.cloud.call("iam", "get_role", RoleName=thing.name)["Role"]
    expect("ARN", answer["Arn"], thing.arn)
    trust = json.dumps(answer["AssumeRolePolicyDocument"])
    if SERVICE not in trust and '"*"' not in trust:
        raise RefusedError(f"its trust policy does not name {SERVICE}")


def _bucket(things: Things, thing: Thing) -> None:
    """Ask for a bucket in the job's region and account."""
    head = {"Bucket": thing.name, "ExpectedBucketOwner": things.account}
    try:
        answer = things.cloud.call("s3", "head_bucket", **head)
    except CloudError as error:
        if not error.is_denied:
            raise
        _bucket_of_others(things, thing)
        raise NotCheckedError("it is another account's, whose policy decides on the job") from error

    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    region = answer.get("BucketRegion") or headers.get("x-amz-bucket-region")
    if region not in (None, things.cloud.region):
        raise RefusedError(f"it is in {region}, and a job reads and writes in its own region")


def _bucket_of_others(things: Things, thing: Thing) -> None:
    try:
        things.cloud.call("s3", "head_bucket", Bucket=thing.name)
    except CloudError as error:
        written = {item.name for item in things.of("written bucket")}
        if thing.name in written:  # fetch lists it
            message = f"S3 denies it, so it is not yours, or {error.hint}"
            raise RefusedError(message, hint=error.hint) from error
        raise


def _objects(things: Things, thing: Thing) -> None:
    bucket, key = uri_parts(thing.name)
    first = {"Bucket": bucket, "Prefix": key, "MaxKeys": 1}
    if not things.cloud.call("s3", "list_objects_v2", **first).get("KeyCount"):
        raise RefusedError("there is nothing")


def _key(things: Things, thing: Thing) -> None:
    metadata = things.cloud.call("kms", "describe_key", KeyId=thing.name)["KeyMetadata"]
    expect("state", metadata["KeyState"], "Enabled")
    expect("use", metadata.get("KeyUsage", "ENCRYPT_DECRYPT"), "ENCRYPT_DECRYPT")


def _secret(things: Things, thing: Thing) -> None:
    answer = things.cloud.call("secretsmanager", "describe_secret", SecretId=thing.name)
    if answer.get("DeletedDate"):
        raise RefusedError("it is scheduled for deletion")


def _parameter(things: Things, thing: Thing) -> None:
    """Ask for a parameter by the call that tells of it without its value."""
    names = [re.sub(r"arn:.*:parameter(?=/)", "", thing.name)]
    filters = [{"Key": "Name", "Option": "Equals", "Values": names}]
    answer = things.cloud.call("ssm", "describe_parameters", ParameterFilters=filters)
    if not answer["Parameters"] and not answer.get("NextToken"):
        raise RefusedError("there is none")


def _subnets(things: Things, thing: Thing) -> None:
    """Ask for the subnets. Sets their VPC."""
    ids = thing.source["Subnets"]
    subnets = things.cloud.call("ec2", "describe_subnets", SubnetIds=ids)["Subnets"]
    networks = sorted({subnet["VpcId"] for subnet in subnets})
    things.network = networks[0]
    if len(networks) > 1:
        raise RefusedError(f"they are in different VPCs: {', '.join(networks)}")

    free = sum(subnet["AvailableIpAddressCount"] for subnet in subnets)
    if free < things.machines:
        raise RefusedError(f"{free} addresses are free, {things.demand} nodes")


def _groups(things: Things, thing: Thing) -> None:
    ids = thing.source["SecurityGroupIds"]
    groups = things.cloud.call("ec2", "describe_security_groups", GroupIds=ids)["SecurityGroups"]
    for group in groups:
        _expect_network(things, [group])
    if things.nodes == 1:
        return

    rows = [find_instance("aws", kind) for kind in things.types]
    has_efa = any(row is not None and "efa" in row.network.lower() for row in rows)
    if has_efa and not any(map(_names_itself, groups)):
        raise RefusedError(
            "EFA needs one that allows all traffic from and to itself, by its own id"
        )
    if not any(group["IpPermissions"] for group in groups):
        raise RefusedError("they let no node in, and the nodes of a job talk to each other")


def _names_itself(group: Mapping[str, Any]) -> bool:
    """Return True if rules in and out allow all traffic with the group's own id."""
    for way in ("IpPermissions", "IpPermissionsEgress"):
        rules = [rule for rule in group[way] if rule["IpProtocol"] == "-1"]
        pairs = [pair.get("GroupId") for rule in rules for pair in rule.get("UserIdGroupPairs", ())]
        if group["GroupId"] not in pairs:
            return False

    return True


def _efs(things: Things, thing: Thing) -> None:
    answer = things.cloud.call("efs", "describe_mount_targets", FileSystemId=thing.name)
    _expect_network(things, answer["MountTargets"])


def _fsx(things: Things, thing: Thing) -> None:
    answer = things.cloud.call("fsx", "describe_file_systems", FileSystemIds=[thing.name])
    if not answer["FileSystems"]:
        raise RefusedError("there is none")

    system = answer["FileSystems"][0]
    expect("state", system.get("Lifecycle", "AVAILABLE"), "AVAILABLE", "UPDATING")
    mount = system.get("LustreConfiguration", {}).get("MountName")
    folder = thing.source["DirectoryPath"]
    if mount and folder.split("/")[1] != mount:
        raise RefusedError(f"its folders begin with /{mount}, not {folder}")

    _expect_network(things, [system])


def _expect_network(things: Things, placed: Sequence[Mapping[str, Any]]) -> None:
    """Raise RefusedError unless one of these is in the subnets' VPC, or in any if that is unknown."""
    networks = {item["VpcId"] for item in placed if "VpcId" in item}
    if not networks:
        raise RefusedError("it is in no VPC")
    if things.network and things.network not in networks:
        message = f"{', '.join(networks)} is not of the subnets' VPC, {things.network}"
        raise RefusedError(message)


def _repository(things: Things, thing: Thing) -> None:
    registry = thing.arn.split(":")[4]
    names = {"registryId": registry, "repositoryNames": [thing.name]}
    things.cloud.call("ecr", "describe_repositories", **names)


def _training_plan(things: Things, thing: Thing) -> None:
    plan = things.cloud.call("sagemaker", "describe_training_plan", TrainingPlanName=thing.name)
    expect("status", plan["Status"], "Active", "Scheduled")
    types = {item["InstanceType"] for item in plan.get("ReservedCapacitySummaries", ())}
    if types and thing.source["InstanceType"] not in types:
        raise RefusedError(f"it reserves {', '.join(types)}, not {thing.source['InstanceType']}")
    if plan.get("TotalInstanceCount", things.machines) < things.machines:
        raise RefusedError(f"it reserves {plan['TotalInstanceCount']} machines, {things.demand}")


def _queue(things: Things, thing: Thing) -> None:
    """Ask for the queue of a job: of training jobs, open, and with the shares that the job names."""
    answer = things.cloud.call("batch", "describe_job_queues", jobQueues=[thing.name])
    if not answer.get("jobQueues"):
        raise RefusedError("there is none")

    queue = answer["jobQueues"][0]
    expect("type", queue.get("jobQueueType"), "SAGEMAKER_TRAINING")
    expect("status", queue.get("status", "VALID"), "VALID", "UPDATING")
    expect("state", queue["state"], "ENABLED")

    has_shares = bool(queue.get("schedulingPolicyArn"))
    names_share = "shareIdentifier" in thing.source or "quotaShareName" in thing.source
    if has_shares and not names_share:
        raise RefusedError("it has a scheduling policy: name aws.share or aws.quota_share")
    if names_share and not has_shares:
        raise RefusedError("it has no scheduling policy, so no shares")


LOOKUPS: Mapping[str, Lookup] = {
    "role": Lookup(
        _role, "is {name} there, for SageMaker", f"a role that {SERVICE} may assume; {_TEMPLATE}"
    ),
    "bucket": Lookup(
        _bucket,
        "is it there, yours, and in the job's region",
        f"name a bucket of yours in the job's region; {_TEMPLATE} for aws.bucket",
    ),
    "input": Lookup(_objects, "is there anything at {name}", "aws s3 ls shows what there is"),
    "key": Lookup(
        _key,
        "is {name} there, to encrypt",
        "aws kms list-aliases shows those there are; aws kms enable-key enables one",
    ),
    "secretsmanager": Lookup(
        _secret, "is {name} there", "create it in the job's region, or name another in {setting}"
    ),
    "ssm": Lookup(
        _parameter, "is {name} there", "create it in the job's region, or name another in {setting}"
    ),
    "repository": Lookup(
        _repository,
        "is {name} there, to push to",
        "aws ecr create-repository --repository-name {name}, in the region of its address",
    ),
    "training plan": Lookup(
        _training_plan,
        "has {name} the machines",
        "aws sagemaker list-training-plans shows those there are",
    ),
    "queue": Lookup(
        _queue,
        "does {name} take the job",
        "aws batch describe-job-queues shows those there are; Queue of the template makes one",
    ),
    "subnets": Lookup(
        _subnets,
        "are {name} there, with addresses",
        "aws ec2 describe-subnets shows those there are; name some of one VPC",
    ),
    "security groups": Lookup(
        _groups,
        "are {name} right",
        "one of that VPC; aws ec2 authorize-security-group-ingress --group-id ID --source-group ID"
        " --protocol -1 lets its members in, for EFA the same by authorize-security-group-egress",
    ),
    "efs": Lookup(
        _efs,
        "is {name} ready in the subnets' VPC",
        "aws efs describe-file-systems shows those there are; a mount target in each subnet",
    ),
    "fsx": Lookup(
        _fsx,
        "is {name} ready in the subnets' VPC",
        "aws fsx describe-file-systems shows those there are, with MountName and VpcId",
    ),
}
"""Kind of a thing -> how it is looked up, in the order of questions."""
