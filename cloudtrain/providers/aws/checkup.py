"""Walk over the things in a request of SageMaker: each one's service answers. Read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError, UsageError
from cloudtrain.planning.selection import select_image
from cloudtrain.providers.aws.account import format_issues
from cloudtrain.providers.aws.config import AwsConfig, connect
from cloudtrain.providers.aws.lookups import LOOKUPS
from cloudtrain.providers.aws.quotas import quota_checks
from cloudtrain.providers.aws.rights import rights_checks
from cloudtrain.providers.aws.things import Things
from cloudtrain.providers.shared.clock import clock_check

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan

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

    things = Things(cloud, plan)
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
    yield from _things_checks(things, caller["Arn"])


def _clock_check(answer: Mapping[str, Any]) -> Check:
    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return clock_check(str(headers.get("date", "")), time.time())


def _things_checks(things: Things, caller: str) -> Iterator[Check]:
    has_role = True
    for kind, lookup in LOOKUPS.items():
        for thing in things.of(kind):
            check = lookup.check(things, thing)
            has_role &= kind != "role" or not check.is_wrong
            yield check

    yield from quota_checks(things)
    if has_role:
        yield from rights_checks(things, things.role, "role")
    yield from rights_checks(things, caller, "people")
    for untold in _untold(things):
        yield Question(*untold[:2]).not_checked(untold[2])


def _untold(things: Things) -> Iterator[tuple[str, str, str]]:
    """Yield what no call tells of a request's things: name, question, reason."""
    yield (
        "trust policy",
        "do its conditions let SageMaker assume the role",
        "no call tells what SageMaker sends for them",
    )
    buckets = ", ".join(thing.name for thing in things.of("bucket"))
    yield (
        "bucket policies",
        f"do {buckets} let the job in",
        "IAM's simulator takes no policy of a bucket for a role",
    )
    yield (
        "key policies",
        "do they, and the buckets' default keys, let the job in",
        "IAM's simulator takes no policy of a key for a role",
    )
    named = select_image(things.plan.spec.image, "aws").text
    if not things.is_built and named != things.plan.target.image_address:
        yield (
            "image",
            "is it there",
            "AWS publishes it in an account of its own, which was not asked",
        )
    for subnets in things.of("subnets"):
        yield (
            f"routes of {subnets.name}",
            "where do they lead",
            "no call tells whether routes, network ACLs, rules and policies of endpoints let the"
            " nodes reach S3, secrets and file systems",
        )
