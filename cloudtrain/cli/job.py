"""The commands before a run: check, plan, submit; and schema and completion."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

from cloudtrain.cli.check_view import (
    DEFAULT_SECONDS,
    Seconds,
    first_steps_of,
    forecast_lines,
    memory_lines,
)
from cloudtrain.cli.job_command import JobCommand, job_options, load_job, target_options
from cloudtrain.cli.options import (
    data_dir,
    json_option,
    set_option,
    yes_option,
)
from cloudtrain.cli.output import count, print_json, print_message, print_output, print_prose
from cloudtrain.cli.terminal import indented, progress_bar, working, write

if TYPE_CHECKING:
    from cloudtrain.checkup import Check
    from cloudtrain.issues import Issue
    from cloudtrain.planning.plan import Plan
    from cloudtrain.submission.memory import MemoryReport


@click.command(
    "check",
    cls=JobCommand,
    epilog="""\b
Examples:
  cloudtrain check --set resources.nodes=2
  cloudtrain check --provider aws --online   also check the account
  cloudtrain check --provider aws --memory   whether it fits into the GPU's memory
  cloudtrain check --forecast                how long it takes, by its first steps here""",
)
@target_options
@set_option
@click.option(
    "--online",
    is_flag=True,
    help="Also check the account or the engine; only reads.",
)
@click.option(
    "--memory",
    is_flag=True,
    help="Estimate GPU memory: torch builds your model here.",
)
@click.option(
    "--forecast",
    "seconds",
    is_flag=False,
    flag_value=str(DEFAULT_SECONDS),
    type=Seconds(),
    metavar="[SECONDS]",
    help=(
        f"Train here for {DEFAULT_SECONDS} s (or SECONDS), and forecast the time of the whole job."
    ),
)
@json_option
@data_dir
def check_command(
    folder: str | None,
    /,
    job: Path,
    provider: str | None,
    as_: str | None,
    online: bool,
    memory: bool,
    seconds: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Report every mistake in JOB (default: job.yaml), and whether it can run here.

    For a cloud, warnings cover security: network, encryption and identity.
    """
    from cloudtrain.cli import github
    from cloudtrain.cli.plan_view import place
    from cloudtrain.errors import CloudtrainError
    from cloudtrain.submission import jobs as api
    from cloudtrain.submission.preflight import (
        offline_issues,
        preflight,
        raise_errors,
        security_issues,
        start_notes,
    )

    loaded = load_job(job, options)
    preview = memory and not as_json
    plan = api.plan(loaded, provider, as_=as_, data_dir=folder, preview=preview)
    # An estimate needs no account; the second plan reports missing settings.
    if preview and plan.target.placeholders and not plan.is_rehearsal:
        raise_errors(offline_issues(plan))
        print_prose("\n".join(memory_lines(_memory_report(plan))))
        plan = api.plan(loaded, provider, as_=as_, data_dir=folder)
    issues = [*preflight(_as_checked_here(plan), starting=False), *_sweep_issues(plan)]
    if not plan.context.strict:  # a strict preflight has them already
        issues += security_issues(plan)
    checks: Sequence[Check] = ()
    if online and not any(issue.is_error for issue in issues):
        from cloudtrain.submission.checkup import online_checks, online_issues

        checks = online_checks(plan)
        issues += online_issues(plan, checks)
    notes = start_notes(plan, issues)
    github.annotate("warning", notes)
    try:
        raise_errors(issues)
    except CloudtrainError as error:  # the notes are printed after it
        for note in notes:
            error.add_note(note)
        raise
    report = _memory_report(plan) if memory else None
    first_steps = first_steps_of(loaded, plan, seconds) if seconds else None
    if as_json:
        result = _check_result(plan, notes, checks if online else None, report)
        print_json(
            {"ok": True, **result, **({"forecast": first_steps.to_json()} if first_steps else {})}
        )
        return
    for note in notes:
        print_message(f"note: {indented(note, 6)}")
    answers = sum(check.verdict == "ok" for check in checks)
    asked_too = f"; {count(answers, 'check')} there, nothing wrong" if online else ""
    fits = report is None or report.verdict != "does not fit"
    can_run = "can run" if fits else "needs more memory than it has"
    print_prose(f"{job}: no mistakes; {plan.spec.name} {can_run} {place(plan)}{asked_too}")
    if report is not None:
        print_prose("\n".join(memory_lines(report)))
    if first_steps is not None:
        print_prose("\n".join(forecast_lines(first_steps)))


def _check_result(
    plan: Plan, notes: list[str], checks: Sequence[Check] | None, report: MemoryReport | None
) -> dict[str, Any]:
    """Return the JSON document of a job without mistakes."""
    result: dict[str, Any] = {"name": plan.spec.name, "provider": plan.provider, "warnings": notes}
    result |= {} if checks is None else {"checks": [check.to_json() for check in checks]}
    choice = plan.to_json()["target"]["choice"]
    result |= {"machine": choice} if choice and not plan.is_rehearsal else {}
    return result | ({"memory": report.to_json()} if report else {})


def _memory_report(plan: Plan) -> MemoryReport:
    """Return the estimate, which takes up to a minute; a terminal shows a line meanwhile."""
    from cloudtrain.submission.memory import estimate_memory

    with working("building the model, without values"):
        return estimate_memory(plan)


@click.command("plan", cls=JobCommand, epilog="Example:\n\n  cloudtrain plan --json > request.json")
@job_options
@set_option
@click.option(
    "--diff",
    "against",
    metavar="RUN|FILE",
    help="Compare the request with a run or a file.",
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
    as_json: bool,
    **options: Any,
) -> None:
    """Show the exact request of JOB and what submit would refuse, offline.

    Nothing is started. Without an account it shows machines and price too, with placeholders for
    missing settings.
    """
    from cloudtrain.cli.plan_view import difference, overview
    from cloudtrain.submission import jobs as api
    from cloudtrain.submission.preflight import offline_issues, raise_errors

    bar = progress_bar("reading source")
    # Placeholders are for people only: no other tool gets them, and no diff compares them.
    preview = not as_json and against is None
    plan = api.plan(
        load_job(job, options), provider, as_=as_, data_dir=folder, progress=bar, preview=preview
    )
    issues = [*offline_issues(plan), *_sweep_issues(plan)]
    if as_json:  # a request that would be refused is handed to no other tool
        raise_errors(issues)
    if against is not None:
        lines = difference(plan, against, folder)
        if as_json:
            print_json({"against": against, "same": not lines, "diff": lines})
        else:
            print_output("\n".join(lines) or f"the same request as {against}")
    elif as_json:
        print_json(dict(plan.request.document))
    else:
        print_prose(overview(plan, issues))
    raise_errors(issues)


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
@click.option("--detach", "-d", is_flag=True, help="Return once the run has started.")
@click.option("--dry-run", is_flag=True, help="Run all checks, show the plan, start nothing.")
@json_option
@data_dir
def submit_command(
    folder: str | None, /, job: Path, as_json: bool, dry_run: bool, detach: bool, **options: Any
) -> None:
    """Start JOB and follow it.

    JOB is a job.yaml (default: ./job.yaml), a folder with one, or a script. Words after --
    are arguments of the program. Ctrl-C stops following, not the job.
    """
    from cloudtrain.cli.plan_view import overview
    from cloudtrain.cli.start import start
    from cloudtrain.issues import warning
    from cloudtrain.submission import jobs as api
    from cloudtrain.submission.preflight import preflight, raise_errors

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
            print_json(dict(plan.request.document))
        return
    start(plan, issues, detach=detach, as_json=as_json, yes=options["yes"])


def _as_checked_here(plan: Plan) -> Plan:
    """Return the plan without the requirements of its sweep's cluster."""
    if plan.spec.sweep is None:
        return plan
    from cloudtrain.sweeps.rules import as_checked_here

    return as_checked_here(plan)


def _sweep_issues(plan: Plan) -> list[Issue]:
    """Return the issues of a job's search, if it has one."""
    if plan.spec.sweep is None:
        return []
    from cloudtrain.sweeps.rules import sweep_issues  # few jobs have one

    return sweep_issues(plan)


@click.command("schema", epilog="Example:\n\n  cloudtrain schema > job.schema.json")
@json_option
def schema_command(as_json: bool) -> None:  # noqa: ARG001  (it is JSON either way)
    """Print the JSON Schema of job.yaml, for editors."""
    from cloudtrain.spec.model import json_schema

    print_json(json_schema())


@click.command("completion", epilog='Example:\n\n  eval "$(cloudtrain completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; add the line below to your shell's start-up file."""
    completer = get_completion_class(shell)
    if completer is None:
        ctx.fail(f"no completion for {shell}")
    write(completer(ctx.find_root().command, {}, "cloudtrain", "_CLOUDTRAIN_COMPLETE").source())
