"""Checks of the network of a job with `aws.subnets`: addresses, groups, and a way to S3."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.policies import effects
from cloudtrain.providers.aws.rights import inputs_of
from cloudtrain.providers.shared.paths import PREFIX

if TYPE_CHECKING:
    from cloudtrain.providers.aws.rights import Account

Resource = Mapping[str, Any]

_SUBNETS_AT = ("aws", "subnets")
_GROUPS_AT = ("aws", "security_groups")
_GATES = ("NatGatewayId", "TransitGatewayId", "NetworkInterfaceId", "InstanceId")
"""Targets of a route that leads out of a network without public addresses."""


def network_checks(account: Account) -> Iterator[Check]:
    """Yield the checks, or one note for a job without subnets, in SageMaker's own network."""
    if not account.config.subnets:
        yield Question("network", "is the job's own network right").not_checked(
            "no aws.subnets: SageMaker's own"
        )
        return
    subnets_question = Question(
        "subnets",
        f"are {', '.join(account.config.subnets)} there, with enough addresses",
        _SUBNETS_AT,
    )
    subnets: list[Resource] = []
    yield subnets_question.answered_by(lambda: _subnets(account, subnets_question, subnets))
    network = ""
    if subnets:
        network = subnets[0]["VpcId"]

    groups_question = Question(
        "security groups",
        f"do {', '.join(account.config.security_groups)} let the nodes reach each other",
        _GROUPS_AT,
    )
    yield groups_question.answered_by(lambda: _groups(account, groups_question, network))
    if subnets:
        route_question = Question("endpoints", f"is there a way from {network} to S3", _SUBNETS_AT)
        yield route_question.answered_by(lambda: _way(account, route_question, subnets))


def _subnets(account: Account, question: Question, subnets: list[Resource]) -> Check:
    """Check the subnets; add existing ones to `subnets`."""
    try:
        names = list(account.config.subnets)
        answer = account.cloud.call("ec2", "describe_subnets", SubnetIds=names)
        subnets += answer["Subnets"]
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
    return question.found(f"{free} addresses are free in {networks[0]}")


def _groups(account: Account, question: Question, network: str) -> Check:
    names = list(account.config.security_groups)
    if not names:  # without names EC2 would list every group
        return question.wrong(
            "aws.security_groups is not set",
            "aws.security_groups: groups of the subnets' VPC",
        )
    try:
        answer = account.cloud.call("ec2", "describe_security_groups", GroupIds=names)
        groups = answer["SecurityGroups"]
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
        return question.found("the job has one node")
    has_efa = any(map(_has_efa, account.target.instances))
    if any(_reaches_itself(group, everything=has_efa) for group in groups):
        return question.found("they do")
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
    name = group["GroupId"]
    inward = any(_is_open(rule, name, everything=everything) for rule in group["IpPermissions"])
    outward = any(_is_open(rule, name, everything=True) for rule in group["IpPermissionsEgress"])
    return inward and (outward or not everything)


def _is_open(rule: Resource, group: str, *, everything: bool) -> bool:
    names_itself = any(pair.get("GroupId") == group for pair in rule.get("UserIdGroupPairs", ()))
    ports = (rule.get("FromPort"), rule.get("ToPort"))
    all_tcp = rule["IpProtocol"] in ("tcp", "6") and ports == (0, 65535)
    return names_itself and (rule["IpProtocol"] == "-1" or (all_tcp and not everything))


def _way(account: Account, question: Question, subnets: Sequence[Resource]) -> Check:
    """Check that each subnet has an endpoint or a route that translates addresses.

    Nodes lack public addresses. An endpoint's policy must allow the job's buckets.
    """
    network = subnets[0]["VpcId"]
    of_network = [{"Name": "vpc-id", "Values": [network]}]
    cloud = account.cloud
    service = f"com.amazonaws.{account.config.region}.s3"
    answer = cloud.call("ec2", "describe_vpc_endpoints", Filters=of_network)
    endpoints = [item for item in answer["VpcEndpoints"] if item["ServiceName"].endswith(service)]
    tables = cloud.call("ec2", "describe_route_tables", Filters=of_network)["RouteTables"]
    for subnet in subnets:
        table = _table_of(subnet, tables)
        ways = [endpoint for endpoint in endpoints if _serves(endpoint, table)]
        if not ways and not any(map(_leads_out, table.get("Routes", ()))):
            fix = (
                f"aws ec2 create-vpc-endpoint --vpc-id {network} --service-name {service}"
                f" --vpc-endpoint-type Gateway --route-table-ids {table.get('RouteTableId', '…')}"
            )
            return question.wrong(f"no endpoint and no NAT gateway for {subnet['SubnetId']}", fix)

        for endpoint in ways:
            refused = _refused_by(account, endpoint)
            if refused:
                name = endpoint["VpcEndpointId"]
                fix = f"allow it: aws ec2 modify-vpc-endpoint --vpc-endpoint-id {name}"
                return question.wrong(f"the policy of {name} does not allow {refused}", fix)

    if endpoints:
        return question.found("there is an endpoint")

    return question.found("there is a gateway")


def _leads_out(route: Resource) -> bool:
    return any(gate in route for gate in _GATES)


def _table_of(subnet: Resource, tables: Sequence[Resource]) -> Resource:
    """Return the route table of a subnet: its own, else the main one."""
    tables_by_subnet: dict[str, Resource] = {}
    for table in tables:
        for association in table.get("Associations", ()):
            if association.get("Main"):
                tables_by_subnet["main"] = table
            else:
                tables_by_subnet[association.get("SubnetId", "")] = table

    return tables_by_subnet.get(subnet["SubnetId"]) or tables_by_subnet.get("main") or {}


def _serves(endpoint: Resource, table: Resource) -> bool:
    """Return whether an endpoint is in the network, or a gateway is in this route table."""
    is_gateway = endpoint.get("VpcEndpointType", "Gateway") == "Gateway"
    return not is_gateway or table.get("RouteTableId") in endpoint.get("RouteTableIds", ())


def _refused_by(account: Account, endpoint: Resource) -> str:
    """Return what an endpoint's policy does not allow the job in S3; empty if it allows all."""
    policy = json.loads(endpoint.get("PolicyDocument") or "{}")
    if not policy:  # the default allows everything
        return ""

    own_bucket = account.config.bucket
    needs = [("GetObject", own_bucket, f"{PREFIX}/job"), ("PutObject", own_bucket, f"{PREFIX}/job")]
    needs += [("GetObject", bucket, f"{key}*") for bucket, key in inputs_of(account).values()]
    for action, bucket, key in needs:
        place = f"arn:{account.partition}:s3:::{bucket}/{key}"
        if effects(policy, f"s3:{action}", place, account.principals) != {"Allow"}:
            return f"s3:{action} on {place}"

    return ""
