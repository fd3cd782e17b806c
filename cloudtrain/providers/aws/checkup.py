"""Checks of an AWS account for `cloudtrain doctor aws`, in the order of repairs. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.planning.reference import ECR, parse_address
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.rights import (
    Account,
    Caller,
    account_check,
    caller_checks,
    input_checks,
    rights_checks,
    role_check,
)
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.aws.target import format_issues

if TYPE_CHECKING:
    from cloudtrain.settings import Settings
    from cloudtrain.spec.model import JobSpec


def account_checks(settings: Settings, target: Target, spec: JobSpec) -> Iterator[Check]:  # noqa: ARG001
    """Yield each check of a job's account as its answer comes.

    Without credentials no further question is possible.
    """
    config = target.config_as(AwsConfig)
    try:
        cloud = connect(config.region, config.profile)
    except UsageError as error:
        yield Question("boto3", "is it installed").failed(error)
        return
    malformed = [*format_issues("role", config.role), *format_issues("bucket", config.bucket)]
    yield from map(Question.of_setting, malformed)
    if malformed:
        return
    account = Account(
        cloud=cloud,
        config=config,
        target=target,
        spec=spec,
    )
    for result in caller_checks(cloud):
        if isinstance(result, Caller):
            yield from _of_caller(account, result)
        else:
            yield result


def _of_caller(account: Account, caller: Caller) -> Iterator[Check]:
    account_answer = account_check(account, caller)
    yield account_answer
    if account_answer.is_wrong:  # further answers would be about another account
        return
    role = role_check(account)
    yield role
    if not role.is_wrong:
        yield from rights_checks(account, caller)
    yield from storage_checks(account)
    yield from input_checks(account)
    yield from quota_checks(account)
    yield from network_checks(account)


Resource = Mapping[str, Any]

_SUBNETS_AT = ("aws", "subnets")
_GROUPS_AT = ("aws", "security_groups")
_GATES = ("NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId")
"""Targets of a route that leads out of a network without public addresses."""


def network_checks(account: Account) -> Iterator[Check]:
    """Yield the checks, or one note for a job without subnets, in SageMaker's own network."""
    if not account.config.subnets:
        yield Question("network", "is the job's own network right").not_applicable(
            "no aws.subnets: SageMaker's own"
        )
        return
    asked = Question(
        "subnets",
        f"are {', '.join(account.config.subnets)} there, with enough addresses",
        _SUBNETS_AT,
    )
    subnets: list[Resource] = []
    yield asked.answered_by(lambda: _subnets(account, asked, subnets))
    network = subnets[0]["VpcId"] if subnets else ""
    groups_asked = Question(
        "security groups",
        f"do {', '.join(account.config.security_groups)} let the nodes reach each other",
        _GROUPS_AT,
    )
    yield groups_asked.answered_by(lambda: _groups(account, groups_asked, network))
    if subnets:
        way = Question("endpoints", f"is there a way from {network} to S3", _SUBNETS_AT)
        yield way.answered_by(lambda: _way(account, way, network))


def _subnets(account: Account, question: Question, subnets: list[Resource]) -> Check:
    """Check the subnets; add existing ones to `subnets`."""
    try:
        subnets += account.cloud.call(
            "ec2",
            "describe_subnets",
            SubnetIds=list(account.config.subnets),
        )["Subnets"]
    except CloudError as error:
        if not error.code.startswith("InvalidSubnet"):
            raise
        return question.wrong(error.what, "aws ec2 describe-subnets shows those there are")
    networks = sorted({subnet["VpcId"] for subnet in subnets})
    if len(networks) > 1:
        return question.wrong(
            f"they are in different VPCs: {', '.join(networks)}",
            "subnets of one VPC",
        )
    free = sum(subnet["AvailableIpAddressCount"] for subnet in subnets)
    if free < account.spec.machines:
        return question.wrong(
            f"{free} addresses are free, {account.demand} nodes",
            "larger or further subnets",
        )
    return question.ok(f"{free} addresses are free in {networks[0]}")


def _groups(account: Account, question: Question, network: str) -> Check:
    names = list(account.config.security_groups)
    if not names:  # without names EC2 would list every group
        return question.wrong(
            "aws.security_groups is not set",
            "aws.security_groups: groups of the subnets' VPC",
        )
    try:
        groups = account.cloud.call("ec2", "describe_security_groups", GroupIds=names)[
            "SecurityGroups"
        ]
    except CloudError as error:
        if not error.code.startswith("InvalidGroup"):
            raise
        return question.wrong(error.what, "aws ec2 describe-security-groups shows those there are")
    strange = [group["GroupId"] for group in groups if network and group["VpcId"] != network]
    if strange:
        return question.wrong(
            f"{strange[0]} is not of the subnets' VPC, {network}",
            "a security group of that VPC",
        )
    if account.nodes == 1:
        return question.ok("the job has one node")
    has_efa = any(map(_has_efa, account.target.instances))
    if any(_reaches_itself(group, everything=has_efa) for group in groups):
        return question.ok("they do")
    group = groups[0]["GroupId"]
    fix = (
        "aws ec2 authorize-security-group-ingress --group-id"
        f" {group} --source-group {group} --protocol -1"
    )
    if not has_efa:
        return question.wrong("they do not let their own members in", fix)
    return question.wrong(
        "EFA needs one that allows all traffic from itself and to itself, by its own id",
        f"{fix}; and the same by authorize-security-group-egress",
    )


def _has_efa(instance: str) -> bool:
    row = find_instance("aws", instance)
    return row is not None and "efa" in row.network.lower()


def _reaches_itself(group: Resource, *, everything: bool) -> bool:
    """Return True if members of a group may reach each other.

    `everything`: by any protocol, and out by the same rule.
    """
    inward = any(
        _is_open(rule, group["GroupId"], everything=everything) for rule in group["IpPermissions"]
    )
    outward = any(
        _is_open(rule, group["GroupId"], everything=True) for rule in group["IpPermissionsEgress"]
    )
    return inward and (outward or not everything)


def _is_open(rule: Resource, group: str, *, everything: bool) -> bool:
    names_itself = any(pair.get("GroupId") == group for pair in rule.get("UserIdGroupPairs", ()))
    all_tcp = rule["IpProtocol"] in ("tcp", "6") and (rule.get("FromPort"), rule.get("ToPort")) == (
        0,
        65535,
    )
    return names_itself and (rule["IpProtocol"] == "-1" or (all_tcp and not everything))


def _way(account: Account, question: Question, network: str) -> Check:
    """Check for an endpoint of the VPC or a route that translates addresses.

    Nodes lack public addresses.
    """
    of_network = [{"Name": "vpc-id", "Values": [network]}]
    cloud = account.cloud
    service = f"com.amazonaws.{account.config.region}.s3"
    endpoints = cloud.call("ec2", "describe_vpc_endpoints", Filters=of_network)["VpcEndpoints"]
    tables = cloud.call("ec2", "describe_route_tables", Filters=of_network)["RouteTables"]
    if any(endpoint["ServiceName"].endswith(service) for endpoint in endpoints):
        return question.ok("there is an endpoint")
    routes = [route for table in tables for route in table["Routes"]]
    if any(gate in route for route in routes for gate in _GATES):
        return question.ok("there is a gateway")
    fix = (
        f"aws ec2 create-vpc-endpoint --vpc-id {network} --service-name {service}"
        " --vpc-endpoint-type Gateway --route-table-ids, with those of the subnets"
    )
    return question.wrong("no endpoint and no NAT gateway", fix)


ON_DEMAND = "training job usage"
SPOT = "spot training job usage"
WARM_POOL = "training warm pool usage"
"""Names after "Amazon SageMaker AI endpoints and quotas": `TYPE for USAGE`."""

_LISTINGS = ("list_service_quotas", "list_aws_default_service_quotas")
"""Quotas of the account, then the defaults: the first list lacks quotas never raised."""

_MISSING = ("404", "NoSuchBucket", "NotFound")


def storage_checks(account: Account) -> Iterator[Check]:
    """Yield the checks of the bucket, and of the key and the repository if the job has them."""
    yield _bucket(account)
    if account.config.kms_key:
        yield _key(account, account.config.kms_key)
    if account.target.image and account.target.image.recipe:
        yield _repository(account, account.target.image_address)


def _bucket(account: Account) -> Check:
    name = account.config.bucket
    region = account.config.region
    question = Question("bucket", f"is {name} there, and in {region}", ("aws", "bucket"))

    def ask() -> Check:
        try:
            answer = account.cloud.call("s3", "head_bucket", Bucket=name)
        except CloudError as error:
            if error.code in _MISSING:
                fix = (
                    "name yours in aws.bucket; the template of `cloudtrain infra template"
                    " --provider aws` makes one"
                )
                return question.wrong("there is no such bucket", fix)
            if error.is_denied:
                fix = (
                    "allow s3:ListBucket on it; if it is not yours, name another in aws.bucket"
                    f" ({error.what})"
                )
                return question.not_allowed("S3 does not say whether it is there", fix)
            raise
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        bucket_region = answer.get("BucketRegion") or headers.get("x-amz-bucket-region", region)
        if bucket_region != region:
            fix = f"a bucket in {region}, or aws.region: {bucket_region}"
            return question.wrong(
                f"it is in {bucket_region}, and a job reads and writes in its own region",
                fix,
            )
        return question.ok("it is")

    return question.answered_by(ask)


def _key(account: Account, key: str) -> Check:
    question = Question("key", f"can {key} encrypt", ("aws", "kms_key"))

    def ask() -> Check:
        try:
            metadata = account.cloud.call("kms", "describe_key", KeyId=key)["KeyMetadata"]
        except CloudError as error:
            if error.code != "NotFoundException":
                raise
            return question.wrong(
                "there is no such key in this region",
                "aws kms list-aliases shows those there are",
            )
        if metadata["KeyState"] != "Enabled":
            return question.wrong(
                f"its state is {metadata['KeyState']}",
                f"aws kms enable-key --key-id {metadata['KeyId']}",
            )
        if metadata.get("KeyUsage", "ENCRYPT_DECRYPT") != "ENCRYPT_DECRYPT":
            return question.wrong(
                f"it is a key for {metadata['KeyUsage']}",
                "a symmetric key for ENCRYPT_DECRYPT",
            )
        return question.ok("it can")

    return question.answered_by(ask)


def _repository(account: Account, address: str) -> Check:
    """Check the repository of an image to build and push: cloudtrain creates none."""
    place = ECR.fullmatch(address)
    name = parse_address(address).repository
    question = Question(
        "repository",
        f"is {name} there for the image to be pushed to",
        ("aws", "repository"),
    )
    if place is None:
        return question.not_applicable(f"{address} is not in ECR")

    def ask() -> Check:
        try:
            account.cloud.call(
                "ecr",
                "describe_repositories",
                registryId=place[1],
                repositoryNames=[name],
            )
        except CloudError as error:
            if error.code != "RepositoryNotFoundException":
                raise
            fix = (
                f"aws ecr create-repository --repository-name {name} --region"
                f" {account.config.region}"
            )
            return question.wrong("there is no such repository", fix)
        return question.ok("it is")

    return question.answered_by(ask)


def quota_checks(account: Account) -> Iterator[Check]:
    """Yield the check of the machines' quota, and of the warm pool's if the job has one."""
    usage, name = (SPOT, "spot quota") if account.spec.resources.spot else (ON_DEMAND, "quota")
    yield _quota_check(account, name, usage, account.spec.machines_at)
    if account.spec.section(AwsSection).keep_alive:
        yield _quota_check(account, "warm pool", WARM_POOL, ("aws", "keep_alive"))


def _quota_check(account: Account, name: str, usage: str, path: tuple[str, ...]) -> Check:
    types = account.target.instances
    verb = "be kept" if usage == WARM_POOL else "run"
    question = Question(
        name,
        f"may {account.spec.machines} x {' or '.join(types)} {verb} at once",
        path,
    )

    def ask() -> Check:
        quotas = _quotas(account, {f"{kind} for {usage}" for kind in types})
        for kind in types:
            quota = quotas.get(f"{kind} for {usage}")
            if quota is not None and quota["Value"] >= account.spec.machines:
                return question.ok(
                    f"the quota '{quota['QuotaName']}' ({quota['QuotaCode']}) is"
                    f" {quota['Value']:.0f}"
                )
        if not quotas:
            return question.not_applicable(
                f"AWS lists no quota '{types[0]} for {usage}' in {account.config.region}"
            )
        return _too_small(account, question, next(iter(quotas.values())))

    return question.answered_by(ask)


def _too_small(account: Account, question: Question, quota: Mapping[str, Any]) -> Check:
    code = quota["QuotaCode"]
    command = (
        "aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code"
        f" {code} --desired-value {account.spec.machines} --region {account.config.region}"
    )
    message = f"the quota '{quota['QuotaName']}' ({code}) is {quota['Value']:.0f}, {account.demand}"
    return question.wrong(message, f"ask for more: {command}; or name another instance type")


def _quotas(account: Account, names: set[str]) -> dict[str, Mapping[str, Any]]:
    """Return quotas by name, the account's before AWS's defaults; read pages while needed."""
    quotas: dict[str, Mapping[str, Any]] = {}
    for operation in _LISTINGS:
        for page in account.cloud.pages("service-quotas", operation, ServiceCode="sagemaker"):
            for quota in page["Quotas"]:
                if quota["QuotaName"] in names:
                    quotas.setdefault(quota["QuotaName"], quota)
            if len(quotas) == len(names):
                return quotas
    return quotas
