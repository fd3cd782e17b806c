"""Checks of a job's own network: subnets, security groups, ways to S3.

After "Give SageMaker training jobs access to resources in your VPC" (developer guide) and "Get
started with EFA and NCCL" (EC2 user guide).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.account_checks.identity import Account

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
            "ec2", "describe_subnets", SubnetIds=list(account.config.subnets)
        )["Subnets"]
    except CloudError as error:
        if not error.code.startswith("InvalidSubnet"):
            raise
        return question.wrong(error.what, "aws ec2 describe-subnets shows those there are")
    networks = sorted({subnet["VpcId"] for subnet in subnets})
    if len(networks) > 1:
        return question.wrong(
            f"they are in different VPCs: {', '.join(networks)}", "subnets of one VPC"
        )
    free = sum(subnet["AvailableIpAddressCount"] for subnet in subnets)
    if free < account.spec.machines:
        return question.wrong(
            f"{free} addresses are free, {account.demand} nodes", "larger or further subnets"
        )
    return question.ok(f"{free} addresses are free in {networks[0]}")


def _groups(account: Account, question: Question, network: str) -> Check:
    names = list(account.config.security_groups)
    if not names:  # without names EC2 would list every group
        return question.wrong(
            "aws.security_groups is not set", "aws.security_groups: groups of the subnets' VPC"
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
            f"{strange[0]} is not of the subnets' VPC, {network}", "a security group of that VPC"
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
