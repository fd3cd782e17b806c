"""The command `check`: every mistake in a spec, and the memory that a job needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cloudtrain.checkup import Check
from cloudtrain.cli import error_view
from cloudtrain.cli.options import (
    JobCommand,
    data_dir,
    json_option,
    load_job,
    set_option,
    sweep_issues_of,
    target_options,
)
from cloudtrain.cli.output import count, print_json, print_message, print_prose
from cloudtrain.cli.plan_view import place
from cloudtrain.cli.terminal import indented, working
from cloudtrain.errors import CloudtrainError
from cloudtrain.planning.plan import Plan
from cloudtrain.submission import jobs as api
from cloudtrain.submission.checkup import online_checks, online_issues
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
        checks = online_checks(plan)
        issues += online_issues(plan, checks)
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
