"""The commands `check` and `doctor`: what would fail in a job, on this machine or in an account."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cloudtrain.checkup import Check
from cloudtrain.cli.options import (
    JobCommand,
    complete_providers,
    data_dir,
    json_option,
    load_job,
    profile_option,
    set_option,
    sweep_issues_of,
    target_options,
)
from cloudtrain.cli.output import count, print_json, print_message, print_output, print_prose
from cloudtrain.cli.plan_view import place
from cloudtrain.cli.terminal import indented, mark
from cloudtrain.errors import CloudtrainError
from cloudtrain.planning.plan import Plan
from cloudtrain.submission import checkup
from cloudtrain.submission import jobs as api
from cloudtrain.submission.preflight import preflight, raise_errors, security_issues, start_notes


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
    help="Also check the account or the engine; only reads.",
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
    """Report every mistake in JOB (default: job.yaml), and whether it can run here.

    For a cloud, warnings cover security: network, encryption and identity.
    """
    loaded = load_job(job, options)
    plan = api.plan(loaded, provider, as_=as_, data_dir=folder)
    issues = [*preflight(_as_checked_here(plan), starting=False), *sweep_issues_of(plan)]

    if not plan.context.strict:  # a strict preflight has them already
        issues += security_issues(plan)

    checks: Sequence[Check] = ()
    if online and not any(issue.is_error for issue in issues):
        checks = checkup.online_checks(plan)
        issues += checkup.online_issues(plan, checks)

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

    asked_too = f"; {_summary(checks)}" if online else ""
    print_prose(f"{job}: no mistakes; {plan.spec.name} can run {place(plan)}{asked_too}")


def _check_result(plan: Plan, notes: list[str], checks: Sequence[Check] | None) -> dict[str, Any]:
    """Return the JSON document of a job without mistakes."""
    result: dict[str, Any] = {"name": plan.spec.name, "provider": plan.provider, "warnings": notes}
    result |= {} if checks is None else {"checks": [check.to_json() for check in checks]}
    choice = plan.to_json()["target"]["choice"]

    return result | ({"machine": choice} if choice and not plan.is_rehearsal else {})


def _as_checked_here(plan: Plan) -> Plan:
    """Return the plan without the requirements of its sweep's cluster."""
    if plan.spec.sweep is None:
        return plan
    from cloudtrain.sweeps.rules import as_checked_here

    return as_checked_here(plan)


WORDS = {"ok": "ok", "wrong": "wrong", "not allowed to look": "-", "not applicable": "-"}
"""Prefix of a check without a terminal."""


@click.command(
    "doctor",
    epilog="""\b
Examples:
  cloudtrain doctor                          this machine alone
  cloudtrain doctor docker                   and its Docker engine
  cloudtrain doctor aws                      and the account, for the job.yaml of this folder if there is one
  cloudtrain doctor azure --job big.yaml     and the workspace, for the machines of that job""",
)
@click.argument("provider", required=False, metavar="[PROVIDER]", shell_complete=complete_providers)
@click.option(
    "--job",
    type=click.Path(path_type=Path),
    metavar="JOB",
    help="Check for the machines of this job.",
)
@profile_option
@set_option
@json_option
@data_dir
def doctor_command(
    folder: str | None,
    /,
    provider: str | None,
    job: Path | None,
    overrides: tuple[str, ...],
    as_json: bool,
) -> int:
    """Check that this machine and the account of PROVIDER are ready for a job.

    PROVIDER is docker, aws or azure. Each question is shown with its answer and, if it is wrong,
    the fix. Checks only read: they start, change and cost nothing. Checks that you lack permission
    for are skipped. Without a job.yaml the smallest job is assumed.
    """
    all_checks: list[Check] = []
    shown: list[dict[str, Any]] = []
    last_where = ""

    for where, check in checkup.doctor(provider, job, overrides, data_dir=folder):
        all_checks.append(check)
        shown.append({"where": where, **check.to_json()})

        if as_json:
            continue

        if where != last_where:
            print_output(where)
            last_where = where

        print_prose(_row(check))

    code = checkup.exit_code(all_checks)
    if as_json:
        print_json({"ok": code == 0, "checks": shown})
    else:
        print_prose(_summary(all_checks))

    return code


def _row(check: Check) -> str:
    on_terminal = sys.stdout.isatty()
    sign = mark(check.verdict) if on_terminal else f"{WORDS[check.verdict]:<5}"
    answer = (
        f"not allowed to look: {check.answer}"
        if check.verdict == "not allowed to look"
        else check.answer
    )
    lines = f"  {sign} {check.name:<15} {indented(check.question, 4)}? {indented(answer, 4)}"

    return lines + (
        f"\n{' ' * (4 if on_terminal else 8)}fix: {indented(check.fix, 9)}" if check.fix else ""
    )


def _summary(checks: Sequence[Check]) -> str:
    wrong = [check.name for check in checks if check.is_wrong]
    unseen = sum(check.verdict == "not allowed to look" for check in checks)
    answered = sum(check.verdict != "not applicable" for check in checks) - unseen
    end = f"; {unseen} skipped for lack of a permission" if unseen else ""
    verdict = f"{len(wrong)} wrong: {', '.join(wrong)}" if wrong else "nothing wrong"

    return f"{count(answered, 'check')}, {verdict}{end}"
