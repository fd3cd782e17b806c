"""Account settings of a job, from the spec, the settings or the AWS CLI. No network."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cloudtrain.catalog import dlc_regions
from cloudtrain.errors import Issue, UsageError, did_you_mean
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.shared.account import (
    CliDefault,
    RequiredSetting,
    SettingsReader,
    environment_value,
    ini_value,
)
from cloudtrain.settings import Settings

_REGION = RequiredSetting("us-east-1", "where to run", placeholder="us-east-1")

_ROLE = RequiredSetting(
    "arn:aws:iam::ACCOUNT:role/NAME",
    "the role that the job runs as",
    placeholder="arn:aws:iam::123456789012:role/not-set-yet",
)

_BUCKET = RequiredSetting(
    "my-bucket",
    "where source, checkpoints and models are kept",
    placeholder="not-set-yet",
)

_FORMS = {
    "region": re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+"),
    "role": re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+"),
    "bucket": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
}


def account(
    aws: AwsSection,
    settings: Settings,
    *,
    rehearsal: bool,
) -> tuple[AwsConfig, SettingsReader]:
    """Return the account's settings, and the reader with origins and missing settings.

    In a rehearsal placeholders replace missing settings; `placeholders` names them.
    """
    reader = SettingsReader("aws", aws, settings, _cli_defaults, rehearsal=rehearsal)
    config = AwsConfig(
        region=reader.required("region", _REGION),
        profile=cli_profile(),
        role=reader.required("role", _ROLE),
        bucket=reader.required("bucket", _BUCKET),
        repository=reader.optional("repository"),
        subnets=reader.list_of("subnets"),
        security_groups=reader.list_of("security_groups"),
        kms_key=reader.optional("kms_key"),
        queue=reader.optional("queue") or "",
        placeholders=tuple(reader.placeholders),
    )
    if config.profile and not rehearsal:
        reader.origins["aws.profile"] = "environment AWS_PROFILE"
    if config.region:  # prices and images depend on it; the other settings are checked by the rules
        reader.problems += format_issues("region", config.region)

    return config, reader


def format_issues(name: str, value: str) -> list[Issue]:
    """Return issues with the format of a region, a role ARN or a bucket name."""
    if _FORMS[name].fullmatch(value):
        return []

    path = ("aws", name)
    if name == "region":
        return [
            Issue(
                path,
                f"{value!r} is not a region{did_you_mean(value, dlc_regions())}",
                "such as us-east-1",
            )
        ]
    if name == "role":
        hint = f"the full ARN: arn:aws:iam::ACCOUNT:role/{value.rpartition('/')[2] or 'NAME'}"
        return [Issue(path, f"{value!r} is not a role ARN", hint)]

    hint = "the bucket's name alone: 3 to 63 lower-case letters, digits, dots and hyphens"
    return [Issue(path, f"{value!r} is not a valid bucket name", hint)]


def region_of(settings: Settings) -> str:
    """Return the region without a spec. Raise UsageError if it is not set."""
    region = configured_region(settings)
    if not region:
        raise UsageError(
            "aws.region is not set",
            hint="export CLOUDTRAIN_AWS_REGION=us-east-1, or cloudtrain.toml",
        )

    return region


def configured_region(settings: Settings) -> str:
    """Return the region without a spec; empty if it is not set."""
    return str(settings.get("aws.region") or (cli_default_region() or [""])[0])


def cli_profile() -> str:
    """Return the profile that the AWS CLI would use, by its variables; empty for the default."""
    return os.environ.get("AWS_DEFAULT_PROFILE") or os.environ.get("AWS_PROFILE") or ""


def _cli_defaults() -> dict[str, CliDefault]:
    region = cli_default_region()
    if not region:
        return {}

    return {"region": region}


def cli_default_region() -> CliDefault | None:
    """Return the region that the AWS CLI would use, or None.

    Environment variables come first, then the profile in `~/.aws/config`, as in "Configuration and
    credential file settings" of the AWS documentation. Newer SDKs read `AWS_REGION` and boto3 reads
    `AWS_DEFAULT_REGION`: both count here.
    """
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if default := environment_value(name):
            return default

    profile = cli_profile() or "default"
    path = Path(os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    sections = [f"profile {profile}"]
    if profile == "default":
        sections.append("default")
    for section in sections:
        if default := ini_value(path, section, "region"):
            return default[0], f"{default[1]}, profile {profile}"

    return None
