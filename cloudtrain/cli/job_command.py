"""Commands that take a job: its file, folder or script, flags that say the same, and arguments of
the program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.options import as_option, job_argument, profile_option, provider_option
from cloudtrain.cli.output import command, print_message
from cloudtrain.cli.terminal import one_line

if TYPE_CHECKING:
    from cloudtrain.submission.jobs import Job

_ARGUMENTS = "cloudtrain.program_arguments"

FLAGS = {"nodes": "nodes", "gpus": "gpus", "gpu": "gpu", "processes": "processes"}
"""The flags that are fields of `resources`, by the names of both."""


class JobCommand(click.Command):
    """A command whose words behind `--` are arguments of the job's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, without what is behind `--`; an option that we do not know may be the
        program's.
        """
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_ARGUMENTS] = tuple(args[at + 1 :])
        given = args[:at]
        try:
            return super().parse_args(ctx, list(given))
        except click.NoSuchOption as error:
            ctx.fail(f"{error.format_message()}\n{_belongs_behind(ctx, error.option_name, args)}")

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Of the usage line in --help."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


def _belongs_behind(ctx: click.Context, option: str, args: Sequence[str]) -> str:
    """How to hand an option to the program instead."""
    at = next((at for at, word in enumerate(args) if word.partition("=")[0] == option), len(args))
    words = [word for word in args[at:] if word != "--"]
    return f"If it is for the program: {command(ctx.info_name or '', *args[:at], '--', *words)}"


def program_arguments() -> tuple[str, ...]:
    """What stood behind `--`."""
    found: tuple[str, ...] = click.get_current_context().meta.get(_ARGUMENTS, ())
    return found


def resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """`--nodes`, `--gpus`, `--gpu` and `--processes`, which say what `resources` says in job.yaml."""
    for option in (
        click.option(
            "--processes",
            type=click.IntRange(1),
            metavar="N",
            help="Processes per node (default: its GPUs).",
        ),
        click.option(
            "--gpu",
            metavar="NAME",
            help="GPU model, such as A100-80GB; several in order: H100,A100-80GB.",
        ),
        click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs per node."),
        click.option("--nodes", type=click.IntRange(1), metavar="N", help="How many machines."),
    ):
        function = option(function)
    return function


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The job, where it runs, and as what: what every command about a job that has not run yet
    begins with.
    """
    for option in (resource_options, profile_option, as_option, provider_option, job_argument):
        function = option(function)
    return function


def resources_of(options: Mapping[str, Any]) -> dict[str, str]:
    """What the flags say of `resources`, each field as YAML."""
    found = {name: str(options[name]) for name in FLAGS if options.get(name) is not None}
    if "gpu" in found and "," in found["gpu"]:
        found["gpu"] = f"[{', '.join(found['gpu'].split(','))}]"
    return found


def load_job(source: Path, options: Mapping[str, Any]) -> Job:
    """The job that a command line means, `--set` last. SpecError lists its mistakes, at their lines
    and flags.
    """
    from cloudtrain.spec.sources import FILE, FlagText, is_program
    from cloudtrain.submission import jobs as api

    if is_program(source) and os.path.exists(beside := source.parent / FILE):  # noqa: PTH110
        print_message(
            f"note: {one_line(str(beside))} is not read: {one_line(str(source))} is submitted"
            " without it"
        )
    flags = [
        FlagText(f"resources.{name}={value}", f"--{name} {options[name]}")
        for name, value in resources_of(options).items()
    ]
    return api.load(source, [*flags, *options["overrides"]], arguments=program_arguments())
