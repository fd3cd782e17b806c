"""The command `plan`: the exact request of a job, without starting it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cloudtrain.api import jobs as api
from cloudtrain.api.preflight import plain_secret_issues, raise_errors
from cloudtrain.cli.job_of_command import JobCommand, job_options, load_job, sweep_issues_of
from cloudtrain.cli.options import data_dir, json_option, set_option
from cloudtrain.cli.output import print_json, print_message, print_output, print_prose
from cloudtrain.cli.plan_view import difference, overview
from cloudtrain.cli.terminal import progress_bar, write_script
from cloudtrain.errors import UsageError
from cloudtrain.planning.plan import Plan


@click.command("plan", cls=JobCommand, epilog="Example:\n\n  cloudtrain plan --json > request.json")
@job_options
@set_option
@click.option(
    "--diff",
    "against",
    metavar="RUN|FILE",
    help="Compare the request with a run or a file.",
)
@click.option(
    "--export",
    "target",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write request, source and a script of the cloud's own commands that starts the job.",
)
@click.option("--script", "as_script", is_flag=True, help="Print the batch script alone, on Slurm.")
@json_option
@data_dir
def plan_command(
    folder: str | None,
    /,
    job: Path,
    provider: str | None,
    as_: str | None,
    against: str | None,
    target: Path | None,
    as_script: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show the exact request of JOB and what submit would refuse, offline.

    Nothing is started. Without an account it shows machines and price too, with placeholders for
    missing settings. --json prints what submit sends: secrets in `env` and `args` as they are,
    each with a note on stderr. The other outputs mask them.
    """
    if target is not None and against is not None:
        raise UsageError("--export and --diff are two commands", hint="run plan once with each")

    bar = progress_bar("reading source")
    # Placeholders are for people only: no other tool gets them, and no diff compares them.
    preview = not (as_json or as_script) and against is None and target is None
    plan = api.plan(
        load_job(job, options), provider, as_=as_, data_dir=folder, progress=bar, preview=preview
    )
    issues = list(plan.issues) + sweep_issues_of(plan)
    if as_json or as_script or target:  # a request that would be refused is handed to no other tool
        raise_errors(issues)
    if target is not None:
        _name_secrets(plan)
        script = str(api.export(plan, target, bar))
        if as_json:
            print_json({"script": script})
        else:
            what = "one job, not the sweep," if plan.spec.sweep else "this job"
            print_output(f"{script} starts {what} without cloudtrain")
    elif against is not None:
        lines = difference(plan, against, folder)
        if as_json:
            print_json({"against": against, "same": not lines, "diff": lines})
        else:
            print_output("\n".join(lines) or f"the same request as {against}")
    elif as_script:
        write_script(_script_of(plan))
    elif as_json:
        print_request(plan)
    else:
        print_prose(overview(plan, issues))
    raise_errors(issues)


def _script_of(plan: Plan) -> str:
    """Return the script that is the request. Raise UsageError for another kind of request."""
    if "script" not in plan.request.document:
        raise UsageError(f"the request of {plan.target.provider} is no script", hint="--json")

    _name_secrets(plan)
    return str(plan.request.document["script"])


def print_request(plan: Plan) -> None:
    """Print the exact request."""
    _name_secrets(plan)
    print_json(dict(plan.request.document), exact=True)


def _name_secrets(plan: Plan) -> None:
    """Name secrets in the request on stderr: with a mask the job would fail."""
    for issue in plain_secret_issues(plan):
        print_message(f"note: not masked: {issue.line()}")
