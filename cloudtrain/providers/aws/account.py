"""The settings of the account in force: region, role, bucket and network, from the spec or else from the settings."""

from __future__ import annotations

import re

from cloudtrain.catalog.dlc import dlc_regions
from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue, did_you_mean
from cloudtrain.providers.aws.cli_defaults import region_around
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.image import repository_of
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.cloud.account import Account, Needed, repository_in
from cloudtrain.providers.cloud.cli_defaults import Found
from cloudtrain.settings import Settings

_REGION = Needed("us-east-1", "where to run", placeholder="us-east-1")
_ROLE = Needed(
    "arn:aws:iam::ACCOUNT:role/NAME",
    "the role that the job runs as",
    placeholder="arn:aws:iam::123456789012:role/not-set-yet",
)
_BUCKET = Needed("my-bucket", "where source, checkpoints and models are kept", placeholder="not-set-yet")


def account(aws: AwsSection, settings: Settings, *, rehearsal: bool) -> tuple[AwsConfig, Account]:
    """The settings of the account, and what there is to say of them: origins, and what is missing.

    A rehearsal may go without: placeholders stand in, and the settings name them.
    """
    said = Account("aws", aws, settings, _cli_defaults, rehearsal=rehearsal)
    config = AwsConfig(
        region=said.required("region", _REGION),
        role=said.required("role", _ROLE),
        bucket=said.required("bucket", _BUCKET),
        repository=said.optional("repository"),
        subnets=said.several("subnets"),
        security_groups=said.several("security_groups"),
        kms_key=said.optional("kms_key"),
        placeholders=tuple(said.placeholders),
    )
    if config.region:  # prices and images depend on it; the others are held against the rules, with all else
        said.problems += malformed("region", config.region)
    return config, said


def malformed(name: str, value: str) -> list[Issue]:
    """What is wrong with the form of a region, a role or a bucket."""
    if _FORMS[name].fullmatch(value):
        return []
    at = ("aws", name)
    if name == "region":
        return [Issue(at, f"{value!r} is not a region{did_you_mean(value, dlc_regions())}", "such as us-east-1")]
    if name == "role":
        hint = f"the full ARN: arn:aws:iam::ACCOUNT:role/{value.rpartition('/')[2] or 'NAME'}"
        return [Issue(at, f"{value!r} is no ARN of a role", hint)]
    hint = "the bucket's name alone: 3 to 63 lower-case letters, digits, dots and hyphens"
    return [Issue(at, f"{value!r} is not a valid bucket name", hint)]


def unlikely(region: str) -> list[Issue]:
    """What is to blame when image or price of an unknown region are not known: most likely the region's name."""
    meant = "" if region in dlc_regions() else did_you_mean(region, dlc_regions())
    hint = "if it is right: an image in a repository of your own there, by its address, and limits.max_runtime"
    return [Issue(("aws", "region"), f"{region!r} is not a known region{meant}", hint)] if meant else []


_FORMS = {
    "region": re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+"),
    "role": re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+"),
    "bucket": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
}


def region_of(settings: Settings) -> str:
    """The region where no spec is at hand. UsageError when nobody has said one."""
    region = region_known(settings)
    if not region:
        raise UsageError("aws.region is not set", hint="export CLOUDTRAIN_AWS_REGION=us-east-1, or cloudtrain.toml")
    return region


def pushed_to(settings: Settings) -> str:
    """The address of the repository for images, where no spec is at hand. UsageError when it cannot be told."""
    name, role = repository_in(settings, "aws"), str(settings.get("aws.role") or "")
    found, problems = repository_of(AwsConfig(region=region_known(settings), role=role, repository=name))
    for issue in problems:
        raise UsageError(issue.line(), hint=issue.hint)
    return found


def region_known(settings: Settings) -> str:
    """The same; empty when nobody has said one."""
    return str(settings.get("aws.region") or (region_around() or [""])[0])


def _cli_defaults() -> dict[str, Found]:
    region = region_around()
    return {"region": region} if region else {}
