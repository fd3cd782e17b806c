"""The command `fetch`: copy what a run left."""

from __future__ import annotations

from pathlib import Path

import click

from cloudtrain.api.run import MAX_LISTED, fetched_files
from cloudtrain.cli.chosen_run import chosen_run
from cloudtrain.cli.options import best_option, data_dir, json_option, last_run_argument
from cloudtrain.cli.output import print_json, print_message, print_output
from cloudtrain.cli.terminal import one_line, progress_bar


@click.command("fetch", epilog="Example:\n\n  cloudtrain fetch ../result --checkpoints")
@last_run_argument
@click.argument("target", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@best_option
@click.option("--checkpoints", is_flag=True, help="Also copy checkpoints.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace the files of an earlier fetch in the same folder.",
)
@json_option
@data_dir
def fetch_command(
    folder: str | None,
    /,
    run: str | None,
    target: Path | None,
    best: bool,
    checkpoints: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Copy model and output of RUN (default: the newest of this folder) into DIR.

    DIR is by default a folder named like the run. A sweep means its best trial.

    A .gitignore in DIR keeps it out of commits and of the next submit.
    """
    # An id has no slash and no leading dot: it is DIR.
    if run is not None and target is None and ("/" in run or run.startswith(".")):
        target = Path(run)
        run = None
    source = chosen_run(run, folder, best=best)
    notes: list[str] = []
    bar = progress_bar("fetching", bytes_=True)
    path = source.fetch(
        target, checkpoints=checkpoints, force=force, progress=bar, note=notes.append
    )
    for note in notes[:MAX_LISTED]:
        print_message(f"note: {note}")
    if len(notes) > MAX_LISTED:
        print_message(
            f"note: and {len(notes) - MAX_LISTED} more were left out; --json names them all"
        )
    if not source.cached_status().has_ended:
        print_message(f"run {source.id} has not ended: some of these files may be incomplete")
    copied = fetched_files(path)
    if as_json:
        print_json({"run": source.id, "folder": str(path), "files": copied, "left_out": notes})
    else:
        print_output("\n".join(map(one_line, copied)))
