"""Walk over the things in a request of SageMaker: each is asked of its own service. Read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers.aws.account import format_issues
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.lookups import bucket_check, lookups, role_of
from cloudtrain.providers.aws.quotas import quota_checks
from cloudtrain.providers.aws.rights import rights_checks
from cloudtrain.providers.aws.things import Things
from cloudtrain.providers.shared.account import clock_check

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.things import Place

_CREDENTIALS = Question("credentials", "whose are they")


def account_checks(plan: Plan) -> Iterator[Check]:
    """Yield each check of a request's things as its answer comes.

    Without credentials of the role's account no further question is possible.
    """
    config = plan.target.config_as(AwsConfig)
    try:
        cloud = connect(config.region, config.profile)
    except UsageError as error:
        yield Question("boto3", "is it installed").failed(error)
        return

    malformed = format_issues("role", config.role)
    malformed += format_issues("bucket", config.bucket)
    yield from map(Question.of_setting, malformed)
    if malformed:
        return

    things = Things(plan)
    try:
        caller = cloud.call("sts", "get_caller_identity")
    except CloudError as error:
        clock = _clock_check(getattr(error.__cause__, "response", {}))
        yield clock if clock.is_wrong else _CREDENTIALS.failed(error)
        return

    yield _CREDENTIALS.found(caller["Arn"])
    yield _clock_check(caller)
    account = Question("account", f"are they of the role's, {things.account}", ("aws", "role"))
    if caller["Account"] != things.account:
        fix = "credentials of that account (AWS_PROFILE, --profile), or a role of this one"
        yield account.wrong(f"they are of {caller['Account']}", fix)
        return

    yield account.found("they are")
    yield from _things_checks(cloud, things, caller["Arn"])


def _clock_check(answer: Mapping[str, Any]) -> Check:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return clock_check(str(headers.get("date", "")), time.time())


def _things_checks(cloud: AwsClient, things: Things, caller: str) -> Iterator[Check]:
    role = role_of(things).check(cloud)
    yield role

    buckets: dict[str, list[Place]] = {}
    for place in things.places:
        buckets.setdefault(place.bucket, []).append(place)

    for places in buckets.values():
        yield bucket_check(cloud, things, places)

    for lookup in lookups(things, _network(cloud, things)):
        yield lookup.check(cloud)

    yield from quota_checks(cloud, things)
    if not role.is_wrong:
        yield from rights_checks(cloud, things, things.role, "role")
    yield from rights_checks(cloud, things, caller, "people")

    yield from _untold(things, list(buckets))


def _network(cloud: AwsClient, things: Things) -> str:
    """Return the VPC of the subnets; empty without any, or if EC2 does not tell."""
    if not things.subnets:
        return ""

    try:
        answer = cloud.call("ec2", "describe_subnets", SubnetIds=things.subnets)
    except CloudError:  # the check of the subnets tells why
        return ""

    return next((str(subnet["VpcId"]) for subnet in answer["Subnets"]), "")


def _untold(things: Things, buckets: list[str]) -> Iterator[Check]:
    """Yield what no call tells of a request's things."""
    yield Question("trust policy", "do its conditions let SageMaker assume the role").not_checked(
        "no call tells what SageMaker sends for them"
    )
    yield Question("bucket policies", f"do {', '.join(buckets)} let the job in").not_checked(
        "IAM's simulator takes no policy of a bucket for a role"
    )
    yield Question(
        "key policies", "do they, and the buckets' default keys, let the job in"
    ).not_checked("IAM's simulator takes no policy of a key for a role")
    if not things.is_built and not things.is_image_named:
        yield Question("image", "is it there").not_checked(
            "AWS publishes it in an account of its own, which was not asked"
        )
    if things.subnets:
        reason = (
            "no call tells whether routes, network ACLs, rules and policies of endpoints let the"
            " nodes reach S3, secrets and file systems"
        )
        name = f"routes of {', '.join(things.subnets)}"
        yield Question(name, "where do they lead").not_checked(reason)
