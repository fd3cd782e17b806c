"""The command `rerun`: run again, from the last checkpoint."""

from __future__ import annotations

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
from cloudtrain.cli.output import print_message


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
    folder: str | None, /, run: str | None, as_json: bool, detach: bool, **options: Any
) -> None:
    """Run source and spec of RUN (default: the newest of this folder) again, under a new id.

    A run that did not succeed continues from its last checkpoint.
    """
    from cloudtrain.api.context import archive_of
    from cloudtrain.api.preflight import preflight, raise_errors
    from cloudtrain.cli.start import start

    old = chosen_run(run, folder, best=options["best"])
    plan = old.plan_again(
        options["overrides"], fresh=options["fresh"], provider=options["provider"]
    )
    issues = preflight(plan)
    raise_errors(issues)
    print_message(
        f"again after {old.id}"
        + (f", from its checkpoints in {plan.context.resume_from}" * bool(plan.context.resume_from))
    )
    start(
        plan,
        issues,
        archive=archive_of(plan),
        detach=detach,
        as_json=as_json,
        after=old.id,
        yes=options["yes"],
    )
