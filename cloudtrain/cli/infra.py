"""The command `infra`: the template of an account, and its settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.api.folder_settings import confirm, redirections
from cloudtrain.cli.options import cloud_option, json_option, profile_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.terminal import write
from cloudtrain.errors import RefusedError, UsageError, did_you_mean
from cloudtrain.providers import get_provider
from cloudtrain.providers.infrastructure import DEFAULT_NAME, settings_edit
from cloudtrain.settings import FILE_NAME, load_settings

if TYPE_CHECKING:
    from cloudtrain.providers.infrastructure import Infrastructure, SettingValue


@click.group(
    "infra",
    epilog="""\b
Examples:
  cloudtrain infra template --provider aws > cloudtrain.yaml
  aws cloudformation deploy --template-file cloudtrain.yaml --stack-name cloudtrain \\
      --capabilities CAPABILITY_IAM
  cloudtrain infra settings --provider aws""",
)
def infra_command() -> None:
    """Print the template of what an account needs, and write its outputs to cloudtrain.toml.

    The cloud's own command deploys the template: `aws cloudformation deploy`, `terraform apply` or
    `az deployment group create`.
    """


@infra_command.command(
    "template",
    short_help="Print the template of what an account needs.",
    epilog="""\b
Examples:
  cloudtrain infra template --provider aws > cloudtrain.yaml
  cloudtrain infra template --provider aws --format terraform > cloudtrain.tf
  cloudtrain infra template --provider azure > template.json""",
)
@cloud_option
@click.option(
    "--format", "format_", metavar="FORMAT", help="aws: cloudformation or terraform; azure: arm."
)
def template_command(provider: str, format_: str | None) -> None:
    """Print the template of what an account needs: role, storage, registry, network, budget."""
    infrastructure = _infrastructure(provider, DEFAULT_NAME, None)
    formats = infrastructure.formats
    if format_ and format_ not in formats:
        message = f"--format {format_}: unknown for {provider}{did_you_mean(format_, formats)}"
        raise UsageError(message, hint=f"one of: {', '.join(formats)}")

    write(infrastructure.template(format_ or formats[0]).rstrip("\n"))


@infra_command.command(
    "settings",
    short_help="Write the outputs of a deployed template to cloudtrain.toml.",
    epilog="""\b
Examples:
  cloudtrain infra settings --provider aws --region us-east-1
  cloudtrain infra settings --provider azure --name lab
  cloudtrain infra settings --provider aws --json            prints them, and writes nothing""",
)
@cloud_option
@click.option(
    "--name",
    default="cloudtrain",
    show_default=True,
    metavar="NAME",
    help="Stack of AWS, or deployment of Azure.",
)
@click.option("--region", metavar="REGION", help="Region of the stack (default: aws.region).")
@profile_option
@click.option("--yes", "-y", is_flag=True, help="Write without asking.")
@json_option
def settings_command(
    provider: str, name: str, region: str | None, yes: bool, as_json: bool
) -> None:
    """Read the outputs of a deployed template and write them to ./cloudtrain.toml.

    Show the changes first, and ask. Other lines of the file stay unchanged.
    """
    deployment = _infrastructure(provider, name, region).deployment()
    if as_json:
        print_json(deployment.to_json())
        return

    for meaning, value in deployment.outputs.items():
        print_output(f"{meaning}: {value}")

    _write(deployment.settings, yes=yes)
    settings = load_settings(Path.cwd())
    confirm(settings, redirections(settings, provider))
    print_message(f"next: {command('doctor', provider)} checks what a job needs there")


def _infrastructure(provider: str, name: str, region: str | None) -> Infrastructure:
    settings = load_settings(Path.cwd(), {"provider": provider})
    return get_provider(provider).infrastructure(settings, name, region or "")


def _write(settings: Mapping[str, SettingValue], *, yes: bool) -> None:
    """Show what changes in ./cloudtrain.toml, ask, and write it. Raise RefusedError on a no."""
    edit = settings_edit(Path.cwd() / FILE_NAME, settings)
    if edit.is_empty:
        print_message(f"{FILE_NAME} has these settings already")
        return

    print_message(f"{FILE_NAME}:")
    for line in edit.diff():
        print_message(f"  {line}")

    if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
        hint = "--yes writes without asking, --json only prints the settings"
        raise RefusedError(f"{FILE_NAME} was not written: there is no terminal to ask", hint=hint)

    if not yes and not click.confirm(f"Write this to {edit.path}?", err=True):
        raise RefusedError(f"{FILE_NAME} was not written")

    edit.write()
    print_message(f"wrote {edit.path}")
