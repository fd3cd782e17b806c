"""What to know before a stack is made or deleted, and choices that can be refused before
CloudFormation is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, UsageError
from cloudtrain.infrastructure.changes import Change
from cloudtrain.infrastructure.parameters import NONE
from cloudtrain.providers.aws.infra_parameters import LOG_GROUP, NEW

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

_EXISTING = {
    "bucket": ("AWS::S3::Bucket", "bucket"),
    "repository": ("AWS::ECR::Repository", "ECR repository"),
}
"""Parameter -> the type of what it may name, and what people call that."""


def refuse_impossible(
    cloud: AwsClient, chosen: Mapping[str, str], given: Mapping[str, str]
) -> None:
    """UsageError for choices that do not go together, and for one that names what is not there.

    `chosen`: all values in force; `given`: those of this command. What AWS does not let these
    credentials look at is not refused.
    """
    from cloudtrain.providers.aws.stored_data import exists

    if (chosen["budget"] == "0") != (chosen["alarm_email"] == NONE):
        raise UsageError(
            "budget and alarm_email go together",
            hint="--set budget=50 --set alarm_email=me@example.org",
        )
    for name, (type_, kind) in _EXISTING.items():
        value = given.get(name, NEW)
        try:
            is_there = value == NEW or exists(cloud, type_, value)
        except CloudError as error:
            if not error.is_denied:
                raise
            continue
        if not is_there:
            hint = f"look at its name and region, or --set {name}={NEW} for a new one"
            raise UsageError(f"--set {name}={value}: there is no such {kind}", hint=hint)


def notes_of_choices(chosen: Mapping[str, str]) -> Iterator[str]:
    """What a choice means that one may not expect."""
    if chosen["network"] != NEW and chosen["secret_endpoints"] == "yes":  # noqa: S105  (no password)
        yield "secret_endpoints=yes makes nothing without network=new"
    if chosen["network"] == NEW:
        yield (
            "the new network has no way to the internet: jobs cannot install packages, the image"
            " must have them"
        )


def notes_of_remains(
    left: Iterable[Mapping[str, Any]], chosen: Mapping[str, str], keys: str
) -> Iterator[str]:
    """What earlier stacks have left, and how it is used again. `keys`: what a key's id is appended
    to for its ARN.
    """
    for each in left:
        identity = each["PhysicalResourceId"]
        type_ = each["ResourceType"]
        if type_ == "AWS::KMS::Key" and chosen["kms_key"] in (NONE, NEW):
            yield (
                f"an earlier stack has left a key: --set kms_key={keys}{identity} uses it, and"
                " reads what it encrypts"
            )
        for name, (wanted, _) in _EXISTING.items():
            if type_ == wanted and chosen[name] == NEW:
                yield f"an earlier stack has left {identity}: --set {name}={identity} uses it again"


def notes_of_removal(changes: Iterable[Change]) -> Iterator[str]:
    """What stays when a stack goes, and that it goes on costing."""
    kept = [
        each
        for each in changes
        if each.action == "keep" and each.holds_data and each.identity != LOG_GROUP
    ]
    if kept:
        named = ", ".join(f"{each.kind} {each.identity}" for each in kept)
        usd = sum(each.idle_cost.usd_per_month or 0.0 for each in kept if each.idle_cost)
        price = f"{usd:.2f} USD a month and by what is stored" if usd else "by what is stored"
        yield f"kept, and billed {price}: {named}; --delete-data deletes them"
