"""Settings of the AWS account, from the spec, the settings or the AWS CLI."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from cloudtrain.catalog.dlc import dlc_regions
from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue, did_you_mean
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.image import repository_of
from cloudtrain.providers.aws.section import AwsSection
from cloudtrain.providers.shared.account import (
    CliDefault,
    RequiredSetting,
    SettingsReader,
    configured_repository,
    display_path,
    environment_value,
    ini_sections,
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
    "my-bucket", "where source, checkpoints and models are kept", placeholder="not-set-yet"
)


def account(
    aws: AwsSection, settings: Settings, *, rehearsal: bool
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
        placeholders=tuple(reader.placeholders),
    )
    if config.profile and not rehearsal:
        reader.origins["aws.profile"] = "environment AWS_PROFILE"
        reader.problems += _profile_issues(config.profile)
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


def misspelt_region(region: str) -> list[Issue]:
    """Return an issue if the region looks like a misspelt known one.

    That is the likely cause of a missing image or price.
    """
    suggestion = "" if region in dlc_regions() else did_you_mean(region, dlc_regions())
    hint = (
        "if it is right: an image in your repository there, by its address, and limits.max_runtime"
    )
    if not suggestion:
        return []
    return [Issue(("aws", "region"), f"{region!r} is not a known region{suggestion}", hint)]


_FORMS = {
    "region": re.compile(r"[a-z]{2,4}(-[a-z]+)+-\d+"),
    "role": re.compile(r"arn:aws[a-z-]*:iam::\d{12}:role/?[a-zA-Z_0-9+=,.@\-_/]+"),
    "bucket": re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
}


def region_of(settings: Settings) -> str:
    """Return the region without a spec. Raise UsageError if it is not set."""
    region = configured_region(settings)
    if not region:
        raise UsageError(
            "aws.region is not set",
            hint="export CLOUDTRAIN_AWS_REGION=us-east-1, or cloudtrain.toml",
        )
    return region


def refuse_unusable(region: str) -> None:
    """Raise UsageError for a malformed region or a missing profile, as boto3 needs both."""
    profile = cli_profile()
    for issue in [*format_issues("region", region), *(_profile_issues(profile) if profile else [])]:
        raise UsageError(issue.line(), hint=issue.hint)


def image_repository(settings: Settings) -> str:
    """Return the ECR repository to push images to, for commands that read no spec.

    Raise UsageError if it is not set or invalid.
    """
    name = configured_repository(settings, "aws")
    role = str(settings.get("aws.role") or "")
    repository, problems = repository_of(
        AwsConfig(region=configured_region(settings), role=role, repository=name)
    )
    for issue in problems:
        raise UsageError(issue.line(), hint=issue.hint)
    return repository


def configured_region(settings: Settings) -> str:
    """Return the region without a spec; empty if it is not set."""
    return str(settings.get("aws.region") or (cli_default_region() or [""])[0])


def cli_profile(environ: Mapping[str, str] = os.environ) -> str:
    """Return the profile that the AWS CLI would use, by its variables; empty for the default."""
    return environ.get("AWS_DEFAULT_PROFILE") or environ.get("AWS_PROFILE") or ""


def _profile_issues(profile: str, environ: Mapping[str, str] = os.environ) -> list[Issue]:
    """Return an issue if the AWS CLI lacks this profile, which boto3 would need."""
    config = Path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    credentials = Path(
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    ).expanduser()
    profiles = {name.removeprefix("profile ") for name in ini_sections(config)} | set(
        ini_sections(credentials)
    )
    if profile in profiles or profile == "default":
        return []
    message = f"there is no profile {profile!r} in {display_path(config)}{did_you_mean(profile, profiles)}"
    return [Issue(("aws", "profile"), message, f"aws configure --profile {profile}")]


def _cli_defaults() -> dict[str, CliDefault]:
    region = cli_default_region()
    return {"region": region} if region else {}


def cli_default_region(environ: Mapping[str, str] = os.environ) -> CliDefault | None:
    """Return the region that the AWS CLI would use, or None.

    Environment variables come first, then the profile in `~/.aws/config`, as in "Configuration and
    credential file settings" of the AWS documentation. Newer SDKs read `AWS_REGION` and boto3 reads
    `AWS_DEFAULT_REGION`: both count here.
    """
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        if default := environment_value(environ, name):
            return default
    profile = cli_profile(environ) or "default"
    path = Path(environ.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser()
    for section in (f"profile {profile}", *(["default"] if profile == "default" else [])):
        if default := ini_value(path, section, "region"):
            return default[0], f"{default[1]}, profile {profile}"
    return None
