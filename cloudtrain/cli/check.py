"""The command `check`: every mistake in a job, and with `--online` in what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cloudtrain.api import doctor
from cloudtrain.api import jobs as api
from cloudtrain.api.preflight import preflight, raise_errors, security_issues, start_notes
from cloudtrain.checkup import Check
from cloudtrain.cli.doctor import summary_of
from cloudtrain.cli.job_of_command import JobCommand, load_job, sweep_issues_of, target_options
from cloudtrain.cli.options import data_dir, json_option, set_option
from cloudtrain.cli.output import print_json, print_message, print_prose
from cloudtrain.cli.plan_view import place
from cloudtrain.cli.terminal import indented
from cloudtrain.errors import CloudtrainError
from cloudtrain.planning.plan import Plan


@click.command(
    "check",
    cls=JobCommand,
    epilog="""\b
Examples:
  cloudtrain check --set resources.nodes=2
  cloudtrain check --provider aws --online   also check the account""",
)
@target_options
@set_option
@click.option(
    "--online",
    is_flag=True,
    help="Also check each thing that it needs of the account or the machine; only reads.",
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
    as_json: bool,
    **options: Any,
) -> None:
    """Report every mistake in JOB (default: job.yaml).

    For a cloud, warnings cover security: network, encryption and identity.
    """
    loaded = load_job(job, options)
    plan = api.plan(loaded, provider, as_=as_, data_dir=folder)
    issues = preflight(_as_checked_here(plan), starting=False)
    issues += sweep_issues_of(plan)

    if not plan.context.strict:  # a strict preflight has them already
        issues += security_issues(plan)

    checks: Sequence[Check] = ()
    if online and not any(issue.is_error for issue in issues):
        checks = list(doctor.platform_checks(plan))
        issues += doctor.online_issues(plan, checks)

    notes = start_notes(plan, issues)

    try:
        raise_errors(issues)
    except CloudtrainError as error:  # the notes are printed after it
        for note in notes:
            error.add_note(note)

        raise

    if as_json:
        result = _check_result(plan, notes, checks if online else None)
        print_json({"ok": True, **result})
        return

    for note in notes:
        print_message(f"note: {indented(note, 6)}")

    asked = ""
    if online:
        asked = f"; {summary_of(checks)}"
    elif plan.host.declaration.is_remote:
        asked = "; not checked: the account (--online does)"

    print_prose(f"{job}: no mistakes found; {plan.spec.name} is planned {place(plan)}{asked}")


def _check_result(plan: Plan, notes: list[str], checks: Sequence[Check] | None) -> dict[str, Any]:
    """Return the JSON document of a job without mistakes."""
    result: dict[str, Any] = {"name": plan.spec.name, "provider": plan.provider, "warnings": notes}
    if checks is not None:
        result["checks"] = [check.to_json() for check in checks]

    choice = plan.to_json()["target"]["choice"]
    if choice and not plan.is_rehearsal:
        result["machine"] = choice

    return result


def _as_checked_here(plan: Plan) -> Plan:
    """Return the plan without the requirements of its sweep's cluster."""
    if plan.spec.sweep is None:
        return plan
    from cloudtrain.sweeps.rules import as_checked_here

    return as_checked_here(plan)
