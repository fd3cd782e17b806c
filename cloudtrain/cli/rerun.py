"""The command `rerun`: run again, from the last checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cloudtrain.cli.chosen_run import chosen_run
from cloudtrain.cli.options import (
    best_option,
    data_dir,
    detach_option,
    json_option,
    last_run_argument,
    profile_option,
    provider_option,
    set_option,
    yes_option,
)
from cloudtrain.cli.output import command, print_message
from cloudtrain.cli.terminal import one_line
from cloudtrain.runs.in_use import in_use


@click.command("rerun", epilog="Example:\n\n  cloudtrain rerun --set limits.max_runtime='2 h'")
@last_run_argument
@best_option
@set_option
@provider_option
@profile_option
@yes_option
@click.option("--fresh", is_flag=True, help="Ignore checkpoints, and start from the beginning.")
@detach_option
@json_option
@data_dir
def rerun_command(
    data_folder: str | None, /, run: str | None, as_json: bool, detach: bool, **options: Any
) -> None:
    """Run source and spec of RUN (default: the newest of this folder) again, under a new id.

    A run that did not succeed continues from its last checkpoint.
    """
    from cloudtrain.api.context import archive_of, changed_files
    from cloudtrain.api.preflight import preflight, raise_errors
    from cloudtrain.cli.start import start
    from cloudtrain.shown_text import listed

    old = chosen_run(run, data_folder, best=options["best"])
    with in_use(old.folder.path):
        plan = old.plan_again(
            options["overrides"], fresh=options["fresh"], provider=options["provider"]
        )
        issues = preflight(plan)
        raise_errors(issues)
        print_message(
            f"again after {old.id}"
            + (
                f", from its checkpoints in {plan.context.resume_from}"
                * bool(plan.context.resume_from)
            )
        )
        archive = archive_of(plan)
        if changed := changed_files(plan):
            folder = plan.context.folder
            submit = command("submit") if Path(folder) == Path.cwd() else command("submit", folder)
            without = ", without these checkpoints" if plan.context.resume_from else ""
            print_message(
                f"  note: runs the source of {old.id}; changed since: {one_line(listed(changed))}."
                f" {submit} takes the present source{without}"
            )
        start(
            plan,
            issues,
            archive=archive,
            detach=detach,
            as_json=as_json,
            after=old.id,
            yes=options["yes"],
        )
