"""The commands `plan` and `submit`, and the start of a plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cloudtrain.cli.job_of_command import JobCommand, job_options, load_job, sweep_issues_of
from cloudtrain.cli.options import (
    data_dir,
    detach_option,
    dry_run_option,
    json_option,
    set_option,
    yes_option,
)
from cloudtrain.cli.output import command, print_json, print_message, print_output, print_prose
from cloudtrain.cli.plan_view import cost, difference, headline, overview, rehearsed
from cloudtrain.cli.terminal import indented, one_line, progress_bar
from cloudtrain.errors import Issue, Outcome, RefusedError, UsageError, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.settings import load_settings
from cloudtrain.submission import jobs as api
from cloudtrain.submission.preflight import (
    plain_secret_issues,
    preflight,
    raise_errors,
    start_notes,
)


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
    preview = not as_json and against is None and target is None
    plan = api.plan(
        load_job(job, options), provider, as_=as_, data_dir=folder, progress=bar, preview=preview
    )
    issues = [*plan.issues, *sweep_issues_of(plan)]
    if as_json or target:  # a request that would be refused is handed to no other tool
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
    elif as_json:
        _print_request(plan)
    else:
        print_prose(overview(plan, issues))
    raise_errors(issues)


def _print_request(plan: Plan) -> None:
    """Print the exact request."""
    _name_secrets(plan)
    print_json(dict(plan.request.document))


def _name_secrets(plan: Plan) -> None:
    """Name secrets in the request on stderr: with a mask the job would fail."""
    for issue in plain_secret_issues(plan):
        print_message(f"note: not masked: {issue.line()}")


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
            _print_request(plan)
        return
    start(plan, issues, detach=detach, as_json=as_json, yes=options["yes"])


def start(
    plan: Plan,
    issues: Sequence[Issue],
    *,
    archive: Path | None = None,
    detach: bool,
    as_json: bool,
    after: str | None = None,
    yes: bool = False,
) -> None:
    """Start a plan that has passed its preflight; print the run id first.

    `after`: the run that this one repeats. `yes`: the cost is confirmed already.
    """
    from cloudtrain.cli.follow import follow
    from cloudtrain.cli.run_end import report_and_exit
    from cloudtrain.submission.run import Run
    from cloudtrain.submission.submit import submit

    print_message(f"{plan.run_id}  {one_line(headline(plan))}")
    if plan.target.cost_estimate is not None and not plan.is_rehearsal:
        print_message(f"  cost: {cost(plan)[-1]}")

    if text := rehearsed(plan):
        print_message(f"  rehearsed: {indented(text, 8)}")

    def note(text: str) -> None:
        print_message(f"  note: {indented(text, 8)}")

    for text in start_notes(plan, issues):
        note(text)
    if not yes:
        confirm(plan)
    try:
        folder = submit(
            plan,
            archive=archive,
            issues=issues,
            progress=progress_bar("packing source"),
            sending=progress_bar("sending source", bytes_=True),
            pushing=progress_bar("pushing image", bytes_=True),
            note=note,
        )
    except KeyboardInterrupt:
        print_message(
            f"\ninterrupted; {command('status', plan.run_id)} tells whether the job was started"
        )
        raise click.exceptions.Exit(130) from None
    run = Run(folder)
    if not detach:
        report_and_exit(run, follow(run), as_json)
    if as_json:
        print_json(
            {"run": run.id, "folder": str(run.folder.path), **({"after": after} if after else {})}
        )
    else:
        print_output(run.id)
        print_message(
            f"  follow   {command('logs', run.id, '-f')}\n  wait     {command('wait', run.id)}"
        )


def confirm(plan: Plan) -> None:
    """Ask before a job that costs money."""
    estimate = plan.target.cost_estimate
    if estimate is not None and not plan.is_rehearsal:
        confirm_cost(Path(plan.context.folder), estimate.worst_usd)


def confirm_cost(folder: Path, worst_usd: float | None) -> None:
    """Ask before money is spent, on a terminal. Raise RefusedError for a no.

    `folder`: of the job, whose settings may turn the question off. `worst_usd`: None if unknown.
    """
    if worst_usd == 0 or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not load_settings(folder)["confirm"]:
        return
    question = "Start it? What it will cost is not known"
    if not click.confirm(
        question if worst_usd is None else f"Start it, for at most {worst_usd:.2f} USD?", err=True
    ):
        hint = "--yes starts it without a question, confirm = false in cloudtrain.toml all of them"
        raise RefusedError("not confirmed", hint=hint, outcome=Outcome.NOT_STARTED)
