"""The commands `check` and `doctor`: what would fail in a job, on this machine or in an account."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cloudtrain.checkup import Check
from cloudtrain.cli import error_view
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
from cloudtrain.cli.terminal import indented, mark, working
from cloudtrain.errors import CloudtrainError
from cloudtrain.planning.plan import Plan
from cloudtrain.submission import checkup
from cloudtrain.submission import jobs as api
from cloudtrain.submission.memory import MemoryReport, estimate_memory, gib
from cloudtrain.submission.preflight import (
    preflight,
    raise_errors,
    security_issues,
    start_notes,
)

UNPROVEN = "CUDA, NCCL and libraries by their documentation, not measured on this GPU"


@click.command(
    "check",
    cls=JobCommand,
    epilog="""\b
Examples:
  cloudtrain check --set resources.nodes=2
  cloudtrain check --provider aws --online   also check the account
  cloudtrain check --provider aws --memory   whether it fits into the GPU's memory""",
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
    as_json: bool,
    **options: Any,
) -> None:
    """Report every mistake in JOB (default: job.yaml), and whether it can run here.

    For a cloud, warnings cover security: network, encryption and identity.
    """
    loaded = load_job(job, options)
    preview = memory and not as_json
    plan = api.plan(loaded, provider, as_=as_, data_dir=folder, preview=preview)
    # An estimate needs no account; the second plan reports missing settings.
    if preview and plan.target.placeholders and not plan.is_rehearsal:
        raise_errors(plan.issues)
        print_prose("\n".join(memory_lines(_memory_report(plan))))
        plan = api.plan(loaded, provider, as_=as_, data_dir=folder)
    issues = [*preflight(_as_checked_here(plan), starting=False), *sweep_issues_of(plan)]
    if not plan.context.strict:  # a strict preflight has them already
        issues += security_issues(plan)
    checks: Sequence[Check] = ()
    if online and not any(issue.is_error for issue in issues):
        checks = checkup.online_checks(plan)
        issues += checkup.online_issues(plan, checks)
    notes = start_notes(plan, issues)
    error_view.annotate("warning", notes)
    try:
        raise_errors(issues)
    except CloudtrainError as error:  # the notes are printed after it
        for note in notes:
            error.add_note(note)
        raise
    report = _memory_report(plan) if memory else None
    if as_json:
        result = _check_result(plan, notes, checks if online else None, report)
        print_json({"ok": True, **result})
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
    with working("building the model, without values"):
        return estimate_memory(plan)


def memory_lines(report: MemoryReport) -> list[str]:
    """Return the need with its interval, the comparison with the machine, and remedies."""
    if report.reason:
        return [f"memory: no estimate: {report.reason}"]
    of = "GPU" if report.gpu else "process"
    lines = [
        f"memory per {of}: about {gib(report.expected)} ({gib(report.low)} to"
        f" {gib(report.high)}){_against(report)}"
    ]
    parts = ", ".join(
        f"{name} {size / 2**20:,.0f} MiB" for name, size in (report.parts or {}).items()
    )
    remainder = f"; the rest: {UNPROVEN}" if report.gpu else "; the rest: the process with torch"
    lines.append(f"  tensors: {parts}{remainder}")
    if report.host:
        lines.append(_host_line(report))
    if report.remedies:
        lines.append("  what fits:")
        lines += [f"    {remedy}" for remedy in report.remedies]
    elif report.verdict not in ("fits", ""):
        lines.append("  no sure remedy: smaller micro-batches, recomputing and sharding were tried")
    return lines


def _host_line(report: MemoryReport) -> str:
    line = f"  host memory per machine, with copies for checkpoints: about {gib(report.host)}"
    if not report.host_memory:
        return line
    fits = "" if report.host <= report.host_memory else ": warning: it does not fit"
    return f"{line} of {gib(report.host_memory)}{fits}"


def _against(report: MemoryReport) -> str:

    if not report.verdict:
        return "; how much the machine has is not known here"
    has = f" of {gib(report.memory)}{f' ({report.gpu})' if report.gpu else ''}"
    if report.verdict == "fits":
        return f"{has}: fits, at least {gib(report.memory - report.high)} are free"
    if report.verdict == "may not fit":
        return f"{has}: may not fit, by up to {gib(report.high - report.memory)}"
    return f"{has}: does not fit, by about {gib(report.expected - report.memory)}"


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


def _summary(checks: list[Check]) -> str:
    wrong = [check.name for check in checks if check.is_wrong]
    unseen = sum(check.verdict == "not allowed to look" for check in checks)
    answered = sum(check.verdict != "not applicable" for check in checks) - unseen
    end = f"; {unseen} that you are not allowed to look at" if unseen else ""
    verdict = f"{len(wrong)} wrong: {', '.join(wrong)}" if wrong else "nothing wrong"
    return f"{count(answered, 'check')}, {verdict}{end}"
