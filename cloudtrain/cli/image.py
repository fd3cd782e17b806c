"""The command `image`: build an image for jobs, or push it to a registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.options import json_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.terminal import progress_bar
from cloudtrain.errors import UsageError
from cloudtrain.planning.recipe import KINDS, LOCAL, our_recipe, recipe_of
from cloudtrain.planning.reference import without_tag
from cloudtrain.planning.selection import CLOUD_PLATFORM
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker.images import build, ensure_pushed
from cloudtrain.settings import load_settings

if TYPE_CHECKING:
    from cloudtrain.planning.recipe import Recipe


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
    names = list(tags)
    if recipe.kind:
        names.insert(0, f"{LOCAL}:{recipe.kind}")

    name = build(recipe, names=names, options=options)

    if as_json:
        print_json({"image": name, "names": [name, *names], "inputs": f"sha256:{recipe.digest}"})
        return

    print_output(name)
    if names:
        print_message(f"  also called {', '.join(names)}")

    words = ["image", "push", source]
    for arg in args:
        words += ["--arg", arg]

    if platform:
        words += ["--platform", platform]

    print_message(f"  push   {command(*words, '--to', 'REPOSITORY')}")


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

    for word in options:
        if word.partition("=")[0] in _RESERVED_OPTIONS or re.match("-[A-Za-z]*[fot]", word):
            hint = (
                "before the --: a Dockerfile's path, --arg NAME=VALUE, --platform or --tag; no other"
                " context, no output"
            )
            raise UsageError(f"{word} among docker's options", hint=hint)

    return source, options


def _recipe(source: str, args: tuple[str, ...], platform: str) -> Recipe:
    wrong = [arg for arg in args if "=" not in arg]
    if wrong:
        raise UsageError(f"--arg {wrong[0]}: expected NAME=VALUE")

    settings = load_settings(Path.cwd())
    if source in KINDS:
        ours = tuple(settings.get("image.args") or ())
        return our_recipe(source, ours + args, platform)

    dockerfile = Path(source).absolute()
    if not dockerfile.is_file():
        hint = f"{' or '.join(KINDS)} for our own image, or the path of a Dockerfile"
        raise UsageError(f"there is no file {source}", hint=hint)

    own = tuple(settings.get("image.build_args") or ())
    return recipe_of(dockerfile, own + args, platform)


def _repository(provider: str | None) -> str:
    """Return the repository of a provider's settings. Raise UsageError if it is not set."""
    settings = load_settings(Path.cwd(), {"provider": provider})
    return get_provider(settings["provider"]).repository(settings)
