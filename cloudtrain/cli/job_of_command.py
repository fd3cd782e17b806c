"""The job of a command line: a job.yaml or a script, and the options that change it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.options import (
    as_option,
    env_file_option,
    job_argument,
    profile_option,
    provider_option,
)
from cloudtrain.cli.output import command, print_message
from cloudtrain.cli.terminal import one_line

if TYPE_CHECKING:
    from cloudtrain.api.jobs import Job
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan

_ARGUMENTS = "cloudtrain.program_arguments"

FLAGS = {"nodes": "nodes", "gpus": "gpus", "gpu": "gpu", "processes": "processes"}
"""Flags that are fields of `resources`, by the names of both."""


class JobCommand(click.Command):
    """A command whose words after `--` are arguments of the job's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, up to `--`.

        The error of an unknown option shows how to pass it to the program.
        """
        if "--" in args:
            at = args.index("--")
        else:
            at = len(args)

        ctx.meta[_ARGUMENTS] = tuple(args[at + 1 :])
        own_args = args[:at]

        try:
            return super().parse_args(ctx, list(own_args))
        except click.NoSuchOption as error:
            ctx.fail(f"{error.format_message()}\n{_program_hint(ctx, error.option_name, args)}")

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add the program arguments to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[-- ARGUMENT...]"]


def _program_hint(ctx: click.Context, option: str, args: Sequence[str]) -> str:
    """Return how to pass an option to the program instead."""
    names = [word.partition("=")[0] for word in args]
    if option in names:
        at = names.index(option)
    else:
        at = len(args)

    own_words = [ctx.info_name or "", *args[:at]]
    words = [word for word in args[at:] if word != "--"]
    return f"If it is for the program: {command(*own_words, '--', *words)}"


def program_arguments() -> tuple[str, ...]:
    """Return the words after `--`."""
    arguments: tuple[str, ...] = click.get_current_context().meta.get(_ARGUMENTS, ())
    return arguments


def resource_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--nodes`, `--gpus`, `--gpu` and `--processes`, fields of `resources`."""
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
        click.option("--gpus", metavar="N", help="GPUs per node; all: this machine's."),
        click.option("--nodes", type=click.IntRange(1), metavar="N", help="How many machines."),
    ):
        function = option(function)

    return function


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the job, the provider, the rehearsal, and the resources."""
    return target_options(resource_options(function))


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the job, the provider, the rehearsal, and files of variables."""
    for option in (
        env_file_option,
        profile_option,
        as_option,
        provider_option,
        job_argument,
    ):
        function = option(function)

    return function


def resources_of(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the flags that are fields of `resources`, each as YAML."""
    resources = {name: str(options[name]) for name in FLAGS if options.get(name) is not None}
    if "gpu" in resources and "," in resources["gpu"]:
        resources["gpu"] = f"[{', '.join(resources['gpu'].split(','))}]"
    return resources


def load_job(source: Path, options: Mapping[str, Any]) -> Job:
    """Load the job of a command line, with `--set` last.

    SpecError lists its mistakes, at their lines and flags.
    """
    from cloudtrain.api import jobs as api
    from cloudtrain.spec.sources import FILE, FlagText, is_program

    if is_program(source) and os.path.exists(spec_file := source.parent / FILE):  # noqa: PTH110
        print_message(
            f"note: {one_line(str(spec_file))} is not read: {one_line(str(source))} is submitted"
            " without it"
        )

    flags: list[str] = []
    for path in options.get("env_files", ()):
        from cloudtrain.spec.env_file import variables_of

        flags += variables_of(path)

    for name, value in resources_of(options).items():
        flags.append(FlagText(f"resources.{name}={value}", f"--{name} {options[name]}"))

    if options.get("timings"):
        flags.append(FlagText("launch.timings=true", "--timings"))

    flags += options["overrides"]
    return api.load(source, flags, arguments=program_arguments())


def sweep_issues_of(plan: Plan) -> list[Issue]:
    """Return the issues of a job's search, if it has one."""
    if plan.spec.sweep is None:
        return []
    from cloudtrain.sweeps.rules import sweep_issues  # few jobs have one

    return sweep_issues(plan)
