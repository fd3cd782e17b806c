"""The command `doctor`: is each thing there that a job needs of a machine or an account?"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cloudtrain.api import doctor
from cloudtrain.checkup import Check
from cloudtrain.cli.options import (
    complete_providers,
    data_dir,
    json_option,
    profile_option,
    set_option,
)
from cloudtrain.cli.output import count, print_json, print_output, print_prose
from cloudtrain.cli.terminal import indented, mark

WORDS = {"found": "found", "wrong": "wrong", "not checked": "-"}
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
    help="Check for this job.",
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
    """Check each thing that a job needs of this machine and of the account of PROVIDER.

    PROVIDER is docker, aws or azure. Each question is shown with its answer and, if it is wrong,
    the fix. Checks only read: they start, change and cost nothing. What no call tells, or you lack
    permission to ask, is not checked, and named. Without a job.yaml the smallest job is assumed.
    """
    all_checks: list[Check] = []
    shown: list[dict[str, Any]] = []
    last_where = ""

    for where, check in doctor.doctor(provider, job, overrides, data_dir=folder):
        all_checks.append(check)
        shown.append({"where": where, **check.to_json()})

        if as_json:
            continue

        if where != last_where:
            print_output(where)
            last_where = where

        print_prose(_row(check))

    code = doctor.exit_code(all_checks)
    if as_json:
        print_json({"ok": code == 0, "checks": shown})
    else:
        print_prose(summary_of(all_checks))

    return code


def _row(check: Check) -> str:
    if sys.stdout.isatty():
        sign = mark(check.verdict)
        indent = 4
    else:
        sign = f"{WORDS[check.verdict]:<5}"
        indent = 8

    if check.verdict == "not checked":
        answer = f"not checked: {check.answer}"
    else:
        answer = check.answer

    lines = f"  {sign} {check.name:<15} {indented(check.question, 4)}? {indented(answer, 4)}"
    if check.fix:
        lines += f"\n{' ' * indent}fix: {indented(check.fix, 9)}"

    return lines


def summary_of(checks: Sequence[Check]) -> str:
    """Return `3 things checked, all found; not checked: bucket policies`."""
    wrong = [check.name for check in checks if check.is_wrong]
    unchecked = dict.fromkeys(check.name for check in checks if check.verdict == "not checked")
    checked = sum(check.verdict != "not checked" for check in checks)

    result = "all found"
    if wrong:
        result = f"{len(wrong)} wrong: {', '.join(wrong)}"

    end = ""
    if unchecked:
        end = f"; not checked: {', '.join(unchecked)}"

    return f"{count(checked, 'thing')} checked, {result}{end}"
