"""The command `submit`: start a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cloudtrain.api import jobs as api
from cloudtrain.api.preflight import preflight, raise_errors
from cloudtrain.cli.job_of_command import JobCommand, job_options, load_job
from cloudtrain.cli.options import (
    data_dir,
    detach_option,
    dry_run_option,
    json_option,
    set_option,
    yes_option,
)
from cloudtrain.cli.output import print_prose
from cloudtrain.cli.plan import print_request
from cloudtrain.cli.plan_view import overview
from cloudtrain.cli.start import start
from cloudtrain.cli.terminal import progress_bar
from cloudtrain.errors import warning


@click.command(
    "submit",
    cls=JobCommand,
    epilog="Example:\n\n  cloudtrain submit train.py --processes 2 -- --epochs 3",
)
@job_options
@set_option
@yes_option
@click.option(
    "--run-id",
    metavar="ID",
    help="Set the run id; a second submit with the same id starts nothing.",
)
@click.option("--timings", is_flag=True, help="Measure what the program's steps wait for.")
@detach_option
@dry_run_option
@json_option
@data_dir
def submit_command(
    folder: str | None, /, job: Path, as_json: bool, dry_run: bool, detach: bool, **options: Any
) -> None:
    """Start JOB and follow it.

    JOB is a job.yaml (default: ./job.yaml), a folder with one, or a script. Words after --
    are arguments of the program. Ctrl-C stops following, not the job.
    """
    loaded = load_job(job, options)
    bar = progress_bar("reading source")
    plan = api.plan(
        loaded,
        options["provider"],
        as_=options["as_"],
        run_id=options["run_id"],
        data_dir=folder,
        progress=bar,
    )
    issues = preflight(plan, starting=not dry_run)
    if plan.spec.sweep is not None:
        message = "one job is run, with its own values: cloudtrain sweep runs the search"
        issues.append(plan.located(warning(message, path=("sweep",))))
    if dry_run and not as_json:
        print_prose(overview(plan, issues))
    raise_errors(issues)
    if dry_run:
        if as_json:
            print_request(plan)
        return
    start(plan, issues, detach=detach, as_json=as_json, yes=options["yes"])
