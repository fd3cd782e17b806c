"""The commands `image` and `infra`: images for jobs, and the template of an account."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.options import json_option, profile_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.terminal import progress_bar, write
from cloudtrain.errors import RefusedError, UsageError, did_you_mean
from cloudtrain.planning.recipe import KINDS, LOCAL, our_recipe, recipe_of
from cloudtrain.planning.reference import without_tag
from cloudtrain.planning.selection import CLOUD_PLATFORM
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker.images import build, ensure_pushed
from cloudtrain.providers.infrastructure import DEFAULT_NAME, settings_edit
from cloudtrain.settings import FILE_NAME, load_settings

if TYPE_CHECKING:
    from cloudtrain.planning.recipe import Recipe
    from cloudtrain.providers.infrastructure import Infrastructure, SettingValue


_RESERVED_OPTIONS = (
    "--build-arg",
    "--build-context",
    "--file",
    "--output",
    "--platform",
    "--push",
    "--tag",
    "--target",
)
_image_argument = click.argument("source", default="cuda", metavar="[cuda|cpu|DOCKERFILE]")
_arguments = click.option(
    "--arg",
    "args",
    multiple=True,
    metavar="NAME=VALUE",
    help="A build argument; it overrides the settings.",
)
_platform = click.option(
    "--platform",
    metavar="OS/ARCH",
    help="Platform of the image [build: this machine's; push: linux/amd64].",
)
_options = click.argument("options", nargs=-1, metavar="[-- OPTIONS OF DOCKER BUILD]")


@click.group("image")
def image_command() -> None:
    """Build the image that jobs run in, and push it to a cloud's registry.

    A submit does both if `image:` asks for it and the image is new.
    """


@image_command.command(
    "build",
    epilog="""\b
Examples:
  cloudtrain image build                       ours for GPUs: cloudtrain:cuda
  cloudtrain image build cpu                   ours for CPUs: cloudtrain:cpu
  cloudtrain image build docker/Dockerfile     your own; the build sees its folder
  cloudtrain image build cpu -- --no-cache --pull""",
)
@_image_argument
@_options
@_arguments
@click.option(
    "--tag", "tags", multiple=True, metavar="NAME", help="Another name for it; repeatable."
)
@_platform
@json_option
def build_command(
    source: str, options: tuple[str, ...], args: tuple[str, ...], tags: tuple[str, ...], platform: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Build an image, and print its name.

    Our own image is for GPUs (cuda) or for CPUs (cpu); a DOCKERFILE builds yours.
    """
    source, options = _split(source, options)
    recipe = _recipe(source, args, platform or "")
    names = (*((f"{LOCAL}:{recipe.kind}",) if recipe.kind else ()), *tags)
    name = build(recipe, names=names, options=options)

    if as_json:
        print_json({"image": name, "names": [name, *names], "inputs": f"sha256:{recipe.digest}"})
        return

    print_output(name)
    if len(names):
        print_message(f"  also called {', '.join(names)}")

    flags = [word for arg in args for word in ("--arg", arg)] + (
        ["--platform", platform] if platform else []
    )
    print_message(f"  push   {command('image', 'push', source, *flags, '--to', 'REPOSITORY')}")


@image_command.command(
    "push",
    epilog="""\b
Examples:
  cloudtrain image push --provider aws                        to aws.repository of the settings
  cloudtrain image push cpu --to 127.0.0.1:5000/train         to any registry
  cloudtrain image push --provider aws --again -- --pull      built again on today's base image""",
)
@_image_argument
@_options
@_arguments
@click.option(
    "--to",
    "repository",
    metavar="REPOSITORY",
    help="Repository, without a tag (default: the provider's).",
)
@click.option("--tag", metavar="TAG", help="Tag (default: made from the content).")
@click.option("--again", is_flag=True, help="Build and push even if the tag exists.")
@_platform
@click.option(
    "--provider", metavar="NAME", help="Use the repository of the settings: aws or azure."
)
@json_option
def push_command(
    source: str, options: tuple[str, ...], args: tuple[str, ...], repository: str | None, tag: str | None, again: bool,
    platform: str | None, provider: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Push an image to a registry, and print its address for `image:`.

    A new image is built first. For ECR and ACR it logs in with your credentials; for other
    registries log in with `docker login`.
    """
    source, options = _split(source, options)
    where = repository or _repository(provider)
    if without_tag(where) != where:
        raise UsageError(
            f"{where} ends in a tag or a digest", hint=f"--to {without_tag(where)} --tag TAG"
        )

    recipe = _recipe(source, args, platform or CLOUD_PLATFORM)
    bar = progress_bar("pushing image", bytes_=True)
    again |= tag not in (None, recipe.tag)  # only our own tags are made from the content
    address = ensure_pushed(
        recipe, f"{where}:{tag or recipe.tag}", bar, rebuild=again, options=options
    )

    if as_json:
        print_json(
            {"image": address, "tag": tag or recipe.tag, "inputs": f"sha256:{recipe.digest}"}
        )
    else:
        print_output(address)


def _split(source: str, options: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Return the source of the image, and the options of `docker build`.

    click takes the first word after `--` as the source if it is missing. Raise UsageError for an
    option that would make another image.
    """
    if source.startswith("-"):
        options = (source, *options)
        source = "cuda"

    wrong = [
        word
        for word in options
        if word.partition("=")[0] in _RESERVED_OPTIONS or re.match("-[A-Za-z]*[fot]", word)
    ]
    if wrong:
        hint = (
            "before the --: a Dockerfile's path, --arg NAME=VALUE, --platform or --tag; no other"
            " context, no output"
        )
        raise UsageError(f"{wrong[0]} among docker's options", hint=hint)

    return source, options


def _recipe(source: str, args: tuple[str, ...], platform: str) -> Recipe:
    wrong = [arg for arg in args if "=" not in arg]
    if wrong:
        raise UsageError(f"--arg {wrong[0]}: expected NAME=VALUE")

    settings = load_settings(Path.cwd())
    if source in KINDS:
        return our_recipe(source, (*(settings.get("image.args") or ()), *args), platform)

    dockerfile = Path(source).absolute()
    if not dockerfile.is_file():
        hint = f"{' or '.join(KINDS)} for our own image, or the path of a Dockerfile"
        raise UsageError(f"there is no file {source}", hint=hint)

    return recipe_of(dockerfile, (*(settings.get("image.build_args") or ()), *args), platform)


def _repository(provider: str | None) -> str:
    """Return the repository of a provider's settings. Raise UsageError if it is not set."""
    settings = load_settings(Path.cwd(), {"provider": provider})
    return get_provider(settings["provider"]).repository(settings)


_provider = click.option("--provider", required=True, metavar="NAME", help="aws or azure.")


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
@_provider
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
@_provider
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
    print_message(f"next: {command('doctor', provider)} checks that a job can run there")


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
