"""Shared options and arguments, the job of a command line, and the completion of a shell."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.output import command, print_message
from cloudtrain.cli.terminal import one_line, write

if TYPE_CHECKING:
    from cloudtrain.errors import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.submission.jobs import Job

Command = Callable[..., Any]


def _run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    from cloudtrain.submission.lookup import list_runs

    runs = list_runs(data_dir=ctx.find_root().params.get("data_dir"), ask_clouds=False)
    ids = ["last", *(run["run"] for run in runs)]
    return [run_id for run_id in ids if run_id.startswith(incomplete)]


def complete_providers(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """Return the names of providers with this prefix."""
    from cloudtrain.declaration import provider_names

    return [name for name in provider_names() if name.startswith(incomplete)]


json_option = click.option("--json", "as_json", is_flag=True, help="Print only JSON on stdout.")
job_argument = click.argument(
    "job", default="job.yaml", metavar="[JOB]", type=click.Path(path_type=Path)
)
last_run_argument = click.argument("run", metavar="[RUN]", required=False, shell_complete=_run_ids)
"""Argument of `chosen_run`, by default the last run."""
runs_argument = click.argument(
    "runs",
    metavar="RUN RUN...",
    nargs=-1,
    required=True,
    shell_complete=_run_ids,
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a field, e.g. resources.nodes=4; repeatable.",
)
provider_option = click.option(
    "--provider",
    metavar="NAME",
    shell_complete=complete_providers,
    help="Provider: local (default), docker, aws or azure.",
)
as_option = click.option(
    "--as",
    "as_",
    metavar="NAME",
    shell_complete=complete_providers,
    help="Rehearse the request of that cloud here: --as aws or --as azure.",
)


def _choose_profile(ctx: click.Context, param: click.Parameter, name: str | None) -> None:  # noqa: ARG001
    """Set the variables of the clouds' own tools for this command."""
    import os

    from cloudtrain.declaration import declarations

    if name:
        os.environ.update(
            {
                variable: name
                for declaration in declarations()
                for variable in declaration.profile_variables
            }
        )


profile_option = click.option(
    "--profile",
    metavar="NAME",
    expose_value=False,
    callback=_choose_profile,
    help="Profile of the AWS CLI: credentials and region (default: AWS_PROFILE).",
)
best_option = click.option(
    "--best", is_flag=True, help="Best trial of a sweep (a sweep's name means it too)."
)
yes_option = click.option(
    "--yes", "-y", is_flag=True, help="Do not ask before a job that costs money."
)
detach_option = click.option("--detach", "-d", is_flag=True, help="Return once it has started.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Run all checks, show the plan, start nothing."
)
output_option = click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Default: in the folder of the run or the sweep.",
)
force_option = click.option("--force", is_flag=True, help="Overwrite an existing file.")
data_dir = click.pass_obj


@click.command("completion", epilog='Example:\n\n  eval "$(cloudtrain completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; add the line below to your shell's start-up file."""
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    if completer is None:
        ctx.fail(f"no completion for {shell}")

    write(completer(ctx.find_root().command, {}, "cloudtrain", "_CLOUDTRAIN_COMPLETE").source())


_ARGUMENTS = "cloudtrain.program_arguments"

FLAGS = {"nodes": "nodes", "gpus": "gpus", "gpu": "gpu", "processes": "processes"}
"""Flags that are fields of `resources`, by the names of both."""


class JobCommand(click.Command):
    """A command whose words after `--` are arguments of the job's program."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does, up to `--`.

        The error of an unknown option shows how to pass it to the program.
        """
        at = args.index("--") if "--" in args else len(args)
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
    at = next((at for at, word in enumerate(args) if word.partition("=")[0] == option), len(args))
    words = [word for word in args[at:] if word != "--"]
    return f"If it is for the program: {command(ctx.info_name or '', *args[:at], '--', *words)}"


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
        click.option("--gpus", type=click.IntRange(0), metavar="N", help="GPUs per node."),
        click.option("--nodes", type=click.IntRange(1), metavar="N", help="How many machines."),
    ):
        function = option(function)

    return function


def job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the job, the provider, the rehearsal, and the resources."""
    return target_options(resource_options(function))


def target_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the job, the provider and the rehearsal."""
    for option in (profile_option, as_option, provider_option, job_argument):
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
    from cloudtrain.spec.sources import FILE, FlagText, is_program
    from cloudtrain.submission import jobs as api

    if is_program(source) and os.path.exists(spec_file := source.parent / FILE):  # noqa: PTH110
        print_message(
            f"note: {one_line(str(spec_file))} is not read: {one_line(str(source))} is submitted"
            " without it"
        )

    flags = [
        FlagText(f"resources.{name}={value}", f"--{name} {options[name]}")
        for name, value in resources_of(options).items()
    ]

    return api.load(source, [*flags, *options["overrides"]], arguments=program_arguments())


def sweep_issues_of(plan: Plan) -> list[Issue]:
    """Return the issues of a job's search, if it has one."""
    if plan.spec.sweep is None:
        return []
    from cloudtrain.sweeps.rules import sweep_issues  # few jobs have one

    return sweep_issues(plan)
