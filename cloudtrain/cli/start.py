"""The start of a plan: its notes, the question of its cost, and what is followed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from cloudtrain.api.folder_settings import confirm as record_confirmation
from cloudtrain.api.folder_settings import is_confirmed, redirections
from cloudtrain.api.preflight import start_notes
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.plan_view import cost, headline, rehearsed, upload_text
from cloudtrain.cli.terminal import indented, one_line, progress_bar
from cloudtrain.errors import Issue, Outcome, RefusedError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.shared.uploads import past_upload
from cloudtrain.settings import FILE_NAME, load_settings, variable_of

UPLOAD_HINT = "--yes uploads it without a question, CLOUDTRAIN_CONFIRM=false asks none"


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
    """Start a plan that has passed its preflight; print the run id before it starts.

    `after`: the run that this one repeats. `yes`: the cost is confirmed already.
    """
    from cloudtrain.api.context import pack_source
    from cloudtrain.api.run import Run
    from cloudtrain.api.submit import submit
    from cloudtrain.cli.follow import follow
    from cloudtrain.cli.run_end import report_and_exit

    if archive is None:  # before a line is printed, which may go to a file of the source
        archive = pack_source(plan, progress_bar("packing source"))

    print_message(f"{plan.run_id}  {one_line(headline(plan))}")
    if plan.target.cost_estimate is not None and not plan.is_rehearsal:
        print_message(f"  cost: {cost(plan)[-1]}")

    if text := rehearsed(plan):
        print_message(f"  rehearsed: {indented(text, 8)}")

    def note(text: str) -> None:
        print_message(f"  note: {indented(text, 8)}")

    for text in start_notes(plan, issues):
        note(text)
    confirm(plan, yes=yes)
    try:
        folder = submit(
            plan,
            archive=archive,
            issues=issues,
            sending=progress_bar("sending", bytes_=True),
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
        document = {"run": run.id, "folder": str(run.folder.path)}
        if after:
            document["after"] = after

        print_json(document)
    else:
        print_output(run.id)
        print_message(
            f"  follow   {command('logs', run.id, '-f')}\n  wait     {command('wait', run.id)}"
        )


def confirm(plan: Plan, *, yes: bool = False) -> None:
    """Ask before a job that is redirected by its folder, or costs money. `yes`: do not ask."""
    if plan.is_rehearsal:
        return

    folder = Path(plan.context.folder)
    confirm_folder(folder, plan, yes=yes)
    confirm_uploads(folder, plan, yes=yes)
    estimate = plan.target.cost_estimate
    if estimate is not None and not yes:
        confirm_cost(folder, estimate.worst_usd)


def confirm_folder(folder: Path, plan: Plan, *, yes: bool) -> None:
    """Show which settings of the folder redirect the job, and ask once per folder on a terminal.

    Raise RefusedError for a no.
    """
    settings = load_settings(folder, {"data_dir": plan.context.data_dir})
    redirected = redirections(settings, plan.target.provider)
    if not redirected or is_confirmed(settings, redirected):
        return

    print_message(f"  {FILE_NAME} of this folder, which may be somebody else's, decides:")
    for key, value in redirected.items():
        print_message(f"    {one_line(f'{key} = {value}')}")

    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return

    if not click.confirm("Are these yours? It is asked once per folder", err=True):
        hint = f"change {FILE_NAME}, or set them in the environment: {variable_of(min(redirected))}"
        raise RefusedError("not confirmed", hint=hint, outcome=Outcome.NOT_STARTED)

    record_confirmation(settings, redirected)


def confirm_uploads(folder: Path, plan: Plan, *, yes: bool) -> None:
    """Ask before an input is uploaded for the first time. Raise RefusedError without an answer."""
    if yes or not load_settings(folder)["confirm"]:
        return

    for name, item in plan.context.uploads.items():
        if past_upload(plan, item) is not None:
            continue

        text = f"input {name}: {item.path}  {upload_text(plan, item)}"
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            message = f"inputs.{name} would be uploaded for the first time: {item.path}"
            raise RefusedError(message, hint=UPLOAD_HINT, outcome=Outcome.NOT_STARTED)

        print_message(f"  {indented(one_line(text), 4)}")
        if not click.confirm("Upload it? It is asked once per folder", err=True):
            raise RefusedError("not confirmed", hint=UPLOAD_HINT, outcome=Outcome.NOT_STARTED)


def confirm_cost(folder: Path, worst_usd: float | None) -> None:
    """Ask before money is spent, on a terminal. Raise RefusedError for a no.

    `folder`: of the job, whose settings may turn the question off. `worst_usd`: None if unknown.
    """
    if worst_usd == 0 or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    if not load_settings(folder)["confirm"]:
        return
    question = "Start it? What it will cost is not known"
    if worst_usd is not None:
        question = f"Start it, for at most {worst_usd:.2f} USD?"

    if not click.confirm(question, err=True):
        hint = "--yes starts it without a question, CLOUDTRAIN_CONFIRM=false all of them"
        raise RefusedError("not confirmed", hint=hint, outcome=Outcome.NOT_STARTED)
