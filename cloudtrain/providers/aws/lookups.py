"""One flat list of the things in a request that a Describe, Head or List tells of."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cloudtrain.catalog.machines import find_instance
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.things import Place, Things

Answer = Mapping[str, Any]

SERVICE = "sagemaker.amazonaws.com"

_ABSENT = re.compile("NotFound|NoSuch|404|Malformed")
"""Codes of services that know no such thing."""


class Lookup(NamedTuple):
    """A thing, the call that tells of it, and the possible faults of the answer."""

    question: Question
    fix: str
    service: str
    operation: str
    parameters: Mapping[str, Any]
    problem: Callable[[Answer], str] = lambda _: ""
    """Returns why the thing does not do; empty if it does."""

    def check(self, cloud: AwsClient) -> Check:
        """Ask the service."""
        try:
            answer = cloud.call(self.service, self.operation, **self.parameters)
            problem = self.problem(answer)
        except CloudError as error:
            if _ABSENT.search(error.code):
                return self.question.wrong("there is none", self.fix)
            return self.question.failed(error)

        if problem:
            return self.question.wrong(problem, self.fix)

        return self.question.found("yes")


def lookups(things: Things, network: str) -> Iterator[Lookup]:
    """Yield every thing but role and buckets. `network`: VPC of the subnets; empty for none or unknown."""
    yield from _inputs(things)
    yield from map(_key, things.keys)
    yield from _secrets(things)
    yield from _file_systems(things, network)
    yield from _machines(things)
    if things.subnets:
        yield _subnets(things)
        yield _groups(things, network)


def role_of(things: Things) -> Lookup:
    """Return the job's role, whose trust policy has to name SageMaker."""
    name = things.role.rpartition("/")[2]

    def problem(answer: Answer) -> str:
        if answer["Role"]["Arn"] != things.role:
            return f"its ARN is {answer['Role']['Arn']}, not {things.role}"
        trust = json.dumps(answer["Role"]["AssumeRolePolicyDocument"])
        if SERVICE not in trust and '"*"' not in trust:
            return f"its trust policy does not name {SERVICE}"
        return ""

    return Lookup(
        Question("execution role", f"is {name} there, for SageMaker", ("aws", "role")),
        f"name a role that {SERVICE} may assume; the template of `cloudtrain infra template"
        " --provider aws` makes one",
        *("iam", "get_role", {"RoleName": name}),
        problem,
    )


def bucket_check(cloud: AwsClient, things: Things, places: Sequence[Place]) -> Check:
    """Check that a bucket is there, in the job's region and account. `places`: those in it."""
    bucket = places[0].bucket
    question = Question(
        f"bucket {bucket}", f"is it there, yours, and in {things.region}", places[0].setting
    )
    lookup = Lookup(
        question,
        f"name a bucket of yours in {things.region}; the template of `cloudtrain infra template"
        " --provider aws` makes one for aws.bucket",
        *("s3", "head_bucket", {"Bucket": bucket, "ExpectedBucketOwner": things.account}),
        lambda answer: _elsewhere(answer, things.region),
    )
    check = lookup.check(cloud)
    if check.verdict != "not checked":
        return check

    try:
        cloud.call("s3", "head_bucket", Bucket=bucket)
    except CloudError as error:
        if any(place.is_written for place in places):  # fetch lists it
            return question.wrong(f"S3 denies it, so it is not yours, or {error.hint}", lookup.fix)
        return question.failed(error)

    return question.not_checked("it is another account's, whose policy decides on the job")


def _elsewhere(answer: Answer, region: str) -> str:
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    found = answer.get("BucketRegion") or headers.get("x-amz-bucket-region", region)
    if found == region:
        return ""

    return f"it is in {found}, and a job reads and writes in its own region"


def _inputs(things: Things) -> Iterator[Lookup]:
    for place in things.places:
        plan = things.plan
        if place.member in plan.spec.inputs and place.member not in plan.context.uploads:
            setting = ("inputs", place.member)
            uri = f"s3://{place.bucket}/{place.key}"
            yield Lookup(
                Question(f"input {place.member}", f"is there anything at {uri}", setting),
                f"aws s3 ls s3://{place.bucket}/ shows what there is",
                *("s3", "list_objects_v2"),
                {"Bucket": place.bucket, "Prefix": place.key, "MaxKeys": 1},
                lambda answer: "" if answer.get("KeyCount") else "there is nothing",
            )


def _key(key: str) -> Lookup:
    def problem(answer: Answer) -> str:
        metadata = answer["KeyMetadata"]
        if metadata["KeyState"] != "Enabled":
            return f"its state is {metadata['KeyState']}"
        usage = metadata.get("KeyUsage", "ENCRYPT_DECRYPT")
        if usage != "ENCRYPT_DECRYPT":
            return f"it is a key for {usage}"
        return ""

    return Lookup(
        Question("key", f"is {key} there, to encrypt", ("aws", "kms_key")),
        "aws kms list-aliases shows those there are; aws kms enable-key enables one",
        *("kms", "describe_key", {"KeyId": key}),
        problem,
    )


def _secrets(things: Things) -> Iterator[Lookup]:
    """Yield each secret, by calls that tell of it without its value."""
    for variable, store, name in things.secrets:
        question = Question(f"secret {variable}", f"is {name} there", ("secrets", variable))
        fix = f"create it in {things.region}, or name another in secrets.{variable}"
        if store == "ssm":
            names = [re.sub(r"arn:.*:parameter(?=/)", "", name)]
            one = {"ParameterFilters": [{"Key": "Name", "Option": "Equals", "Values": names}]}
            yield Lookup(question, fix, store, "describe_parameters", one, _no_parameter)
        else:
            parameters = {"SecretId": name}
            yield Lookup(question, fix, store, "describe_secret", parameters, _deleted)


def _no_parameter(answer: Answer) -> str:
    return "" if answer["Parameters"] or answer.get("NextToken") else "there is none"


def _deleted(answer: Answer) -> str:
    return "it is scheduled for deletion" if answer.get("DeletedDate") else ""


def _file_systems(things: Things, network: str) -> Iterator[Lookup]:
    for name, source in things.file_systems:
        system = source["FileSystemId"]
        setting = ("inputs", name)
        question = Question(f"input {name}", f"is {system} ready in the subnets' VPC", setting)
        if source["FileSystemType"] == "EFS":
            yield Lookup(
                question,
                "aws efs describe-file-systems shows those there are; a mount target in each subnet",
                *("efs", "describe_mount_targets", {"FileSystemId": system}),
                lambda answer: _outside(answer["MountTargets"], network),
            )
        else:
            folder = source["DirectoryPath"]
            yield Lookup(
                question,
                "aws fsx describe-file-systems shows those there are, with MountName and VpcId",
                *("fsx", "describe_file_systems", {"FileSystemIds": [system]}),
                partial(_fsx_problem, folder, network),
            )


def _outside(mounted: Sequence[Answer], network: str) -> str:
    networks = {item["VpcId"] for item in mounted if "VpcId" in item}
    if not networks:
        return "it is in no VPC"
    if network and network not in networks:
        return f"it is in {', '.join(networks)}, the subnets are in {network}"

    return ""


def _fsx_problem(folder: str, network: str, answer: Answer) -> str:
    if not answer["FileSystems"]:
        return "there is none"

    system = answer["FileSystems"][0]
    mount = system.get("LustreConfiguration", {}).get("MountName", "")
    state = system.get("Lifecycle", "AVAILABLE")
    if state not in ("AVAILABLE", "UPDATING"):
        return f"its state is {state}"
    if mount and folder.split("/")[1] != mount:
        return f"its folders begin with /{mount}, not {folder}"

    return _outside([system], network)


def _machines(things: Things) -> Iterator[Lookup]:
    """Yield the repository of an image that is pushed first, and the training plan."""
    if things.is_built and things.repository:
        registry, region, name = things.repository
        yield Lookup(
            Question("repository", f"is {name} there, to push to", ("aws", "repository")),
            f"aws ecr create-repository --repository-name {name} --region {region}",
            *("ecr", "describe_repositories"),
            {"registryId": registry, "repositoryNames": [name]},
        )

    plan = things.resources.get("TrainingPlanArn")
    if plan:
        name = plan.rpartition("/")[2]
        yield Lookup(
            Question("training plan", f"has {name} the machines", ("aws", "training_plan")),
            "aws sagemaker list-training-plans shows those there are",
            *("sagemaker", "describe_training_plan", {"TrainingPlanName": name}),
            lambda answer: _plan_problem(answer, things),
        )


def _plan_problem(answer: Answer, things: Things) -> str:
    types = {item["InstanceType"] for item in answer.get("ReservedCapacitySummaries", ())}
    if answer["Status"] not in ("Active", "Scheduled"):
        return f"its status is {answer['Status']}"
    if types and not types.intersection(things.types):
        return f"it reserves {', '.join(types)}, not {' or '.join(things.types)}"
    if answer.get("TotalInstanceCount", things.machines) < things.machines:
        return f"it reserves {answer['TotalInstanceCount']} machines, {things.demand}"

    return ""


def _subnets(things: Things) -> Lookup:
    def problem(answer: Answer) -> str:
        networks = {subnet["VpcId"] for subnet in answer["Subnets"]}
        if len(networks) > 1:
            return f"they are in different VPCs: {', '.join(sorted(networks))}"
        free = sum(subnet["AvailableIpAddressCount"] for subnet in answer["Subnets"])
        if free < things.machines:
            return f"{free} addresses are free, {things.demand} nodes"
        return ""

    names = ", ".join(things.subnets)
    return Lookup(
        Question("subnets", f"are {names} there, with addresses", ("aws", "subnets")),
        "aws ec2 describe-subnets shows those there are; name some of one VPC",
        *("ec2", "describe_subnets", {"SubnetIds": things.subnets}),
        problem,
    )


def _groups(things: Things, network: str) -> Lookup:
    def problem(answer: Answer) -> str:
        groups = answer["SecurityGroups"]
        strange = [group["GroupId"] for group in groups if group["VpcId"] != network]
        if strange and network:
            return f"{strange[0]} is not of the subnets' VPC, {network}"
        if things.nodes > 1 and _has_efa(things) and not any(map(_names_itself, groups)):
            return "EFA needs one that allows all traffic from and to itself, by its own id"
        if things.nodes > 1 and not any(group["IpPermissions"] for group in groups):
            return "they let no node in, and the nodes of a job talk to each other"
        return ""

    names = ", ".join(things.groups)
    return Lookup(
        Question("security groups", f"are {names} right", ("aws", "security_groups")),
        "one of that VPC; aws ec2 authorize-security-group-ingress --group-id ID --source-group ID"
        " --protocol -1 lets its members in, for EFA the same by authorize-security-group-egress",
        *("ec2", "describe_security_groups", {"GroupIds": things.groups}),
        problem,
    )


def _has_efa(things: Things) -> bool:
    rows = [find_instance("aws", kind) for kind in things.types]
    return any(row is not None and "efa" in row.network.lower() for row in rows)


def _names_itself(group: Answer) -> bool:
    """Return True if rules in and out allow all traffic with the group's own id."""
    ways = []
    for rules in (group["IpPermissions"], group["IpPermissionsEgress"]):
        open_rules = [rule for rule in rules if rule["IpProtocol"] == "-1"]
        pairs = [pair for rule in open_rules for pair in rule.get("UserIdGroupPairs", ())]
        ways.append(any(pair.get("GroupId") == group["GroupId"] for pair in pairs))

    return all(ways)
