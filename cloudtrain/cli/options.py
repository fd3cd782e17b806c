"""Options and arguments that several commands share, with their completion."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from cloudtrain.errors import UsageError
from cloudtrain.units import parse_duration

Command = Callable[..., Any]


def _run_ids(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    from cloudtrain.api.listing import list_runs

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
    metavar="[RUN...]",
    nargs=-1,
    shell_complete=_run_ids,
)
set_option = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a field, e.g. resources.nodes=4; repeatable.",
)
env_file_option = click.option(
    "--env-file",
    "env_files",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Add the variables of a file, such as .env, to env; repeatable.",
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

    if not name:
        return

    for declaration in declarations():
        for variable in declaration.profile_variables:
            os.environ[variable] = name


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
    "--yes", "-y", is_flag=True, help="Do not ask before a job that costs money, or a first upload."
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
cloud_option = click.option("--provider", required=True, metavar="NAME", help="aws or azure.")


def parse_since(text: str) -> float:
    """Return the Unix timestamp that `--since` means. Raise UsageError."""
    try:
        return time.time() - parse_duration(text)
    except ValueError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        hint = "a duration such as 10 min, or a time such as 2026-11-21T10:00"
        raise UsageError(f"--since {text!r} is neither a duration nor a time", hint=hint) from None
