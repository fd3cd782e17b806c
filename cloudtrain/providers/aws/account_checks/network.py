"""True if a job's own network lets its nodes reach each other and S3: subnets, security groups,
endpoints.

After "Give SageMaker training jobs access to resources in your VPC" (developer guide) and "Get
started with EFA and NCCL" (EC2 user guide).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.account_checks import Account

Resource = Mapping[str, Any]

_SUBNETS_AT = ("aws", "subnets")
_GROUPS_AT = ("aws", "security_groups")


def network_checks(account: Account) -> Iterator[Check]:
    """Nothing to ask for a job without subnets: SageMaker's own network has all of this."""
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
        for service in _services(account):
            way = Question(
                "endpoints", f"is there a way from the subnets to {service}", _SUBNETS_AT
            )
            yield way.answered_by(partial(_way, account, way, subnets, service))


def _subnets(account: Account, asked: Question, found: list[Resource]) -> Check:
    """`found`: takes the subnets that there are."""
    try:
        found += account.cloud.call(
            "ec2", "describe_subnets", SubnetIds=list(account.config.subnets)
        )["Subnets"]
    except CloudError as error:
        if not error.code.startswith("InvalidSubnet"):
            raise
        return asked.wrong(error.what, "aws ec2 describe-subnets shows those there are")
    networks = sorted({each["VpcId"] for each in found})
    if len(networks) > 1:
        return asked.wrong(
            f"they are in different VPCs: {', '.join(networks)}", "subnets of one VPC"
        )
    free = sum(each["AvailableIpAddressCount"] for each in found)
    if free < account.spec.machines:
        return asked.wrong(
            f"{free} addresses are free, {account.demand} nodes", "larger or further subnets"
        )
    return asked.ok(f"{free} addresses are free in {networks[0]}")


def _groups(account: Account, asked: Question, network: str) -> Check:
    names = list(account.config.security_groups)
    if not names:  # without names EC2 would tell all that there are
        return asked.wrong(
            "aws.security_groups is not set", "aws.security_groups: those of the subnets' VPC"
        )
    try:
        groups = account.cloud.call("ec2", "describe_security_groups", GroupIds=names)[
            "SecurityGroups"
        ]
    except CloudError as error:
        if not error.code.startswith("InvalidGroup"):
            raise
        return asked.wrong(error.what, "aws ec2 describe-security-groups shows those there are")
    strange = [each["GroupId"] for each in groups if network and each["VpcId"] != network]
    if strange:
        return asked.wrong(
            f"{strange[0]} is not of the subnets' VPC, {network}", "a security group of that VPC"
        )
    if account.nodes == 1:
        return asked.ok("the job has one node")
    efa = [name for name in account.target.instances if _has_efa(name)]
    if any(_reaches_itself(each, everything=bool(efa)) for each in groups):
        return asked.ok("they do" + (", also by EFA" if efa else ""))
    return _closed(asked, groups[0]["GroupId"], efa)


def _closed(asked: Question, group: str, efa: Sequence[str]) -> Check:
    same = f"--group-id {group} --source-group {group} --protocol -1"
    if not efa:
        message = "none of them lets its own members in"
        return asked.wrong(message, f"aws ec2 authorize-security-group-ingress {same}")
    message = (
        f"EFA of {efa[0]} needs one that allows all traffic from itself and to itself, by its"
        " own id"
    )
    pair = f"UserIdGroupPairs=[{{GroupId={group}}}]"
    more = (
        f"aws ec2 authorize-security-group-egress --group-id {group} --ip-permissions"
        f" 'IpProtocol=-1,{pair}'"
    )
    return asked.wrong(message, f"aws ec2 authorize-security-group-ingress {same}; {more}")


def _has_efa(instance: str) -> bool:
    row = find_instance("aws", instance)
    return row is not None and "efa" in row.network.lower()


def _reaches_itself(group: Resource, *, everything: bool) -> bool:
    """Return True if members of a group may reach each other; `everything`: by any protocol, and out by
    the same rule.
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


def _services(account: Account) -> list[str]:
    """What the nodes of this job must reach: S3, and where its secrets are."""
    stores = {
        places.get(account.target.provider, "").partition(":")[0]
        for places in account.spec.secrets.values()
    }
    return ["s3", *sorted(stores & {"secretsmanager", "ssm"})]


def _way(account: Account, asked: Question, subnets: Sequence[Resource], service: str) -> Check:
    """An endpoint of the VPC, or a default route to something that translates addresses: nodes have
    no public ones.
    """
    network = subnets[0]["VpcId"]
    of_network = [{"Name": "vpc-id", "Values": [network]}]
    tables = account.cloud.call("ec2", "describe_route_tables", Filters=of_network)["RouteTables"]
    name = f"com.amazonaws.{account.config.region}.{service}"
    listed = account.cloud.call("ec2", "describe_vpc_endpoints", Filters=of_network)["VpcEndpoints"]
    endpoints = [
        each
        for each in listed
        if each["ServiceName"].endswith(name) and each["State"].lower() == "available"
    ]
    for subnet in subnets:
        table = _table_of(tables, subnet["SubnetId"])
        if not (_leads_out(table) or any(_serves(each, table) for each in endpoints)):
            kind = "Gateway" if service == "s3" else "Interface"
            fix = (
                f"aws ec2 create-vpc-endpoint --vpc-id {network} --service-name {name}"
                f" --vpc-endpoint-type {kind}"
                f"{' --route-table-ids ' + table['RouteTableId'] if kind == 'Gateway' and table else ''}"
            )
            return asked.wrong(
                f"none from {subnet['SubnetId']}: no endpoint and no NAT gateway", fix
            )
    return asked.ok("there is")


def _table_of(tables: Sequence[Resource], subnet: str) -> Resource:
    """The subnet's own route table, or else the main one of the VPC."""
    own = [
        each for each in tables if any(a.get("SubnetId") == subnet for a in each["Associations"])
    ]
    main = [each for each in tables if any(a.get("Main") for a in each["Associations"])]
    return next(iter([*own, *main]), {})


def _leads_out(table: Resource) -> bool:
    gates = (
        "NatGatewayId",
        "TransitGatewayId",
        "NetworkInterfaceId",
        "InstanceId",
        "VpcPeeringConnectionId",
    )
    routes = [
        route
        for route in table.get("Routes", ())
        if route.get("DestinationCidrBlock") == "0.0.0.0/0"
    ]
    return any(route.get(gate) for route in routes for gate in gates)


def _serves(endpoint: Resource, table: Resource) -> bool:
    is_gateway = endpoint.get("VpcEndpointType", "Gateway") == "Gateway"
    return not is_gateway or table.get("RouteTableId") in endpoint.get("RouteTableIds", ())
