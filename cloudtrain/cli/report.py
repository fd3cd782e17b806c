"""The command `report`: a run or a sweep as one page of HTML."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.options import data_dir, force_option, output_option
from cloudtrain.cli.output import print_output
from cloudtrain.cli.output_file import output_file
from cloudtrain.cli.terminal import progress_bar
from cloudtrain.runs.files import replace_text, storing
from cloudtrain.sweeps.importance import importance


@click.command("report", epilog="Example:\n\n  cloudtrain report last -o run.html")
@click.argument("run", required=False)
@output_option
@force_option
@data_dir
def report_command(
    folder: str | None, /, run: str | None, output: Path | None, force: bool
) -> None:
    """Write RUN (default: the newest of this folder) as one HTML page.

    The page is standalone: open it, send it, keep it.

    It has results, settings, curves, throughput, the cost, the failure, spec and request. For a
    sweep: the objective over trials, the curves of all trials with the rungs, and the importance
    of each setting. It also works before the end.
    """
    from cloudtrain.pages import run_page, sweep_page  # with a library of templates

    target = chosen(run, folder)
    file = output_file(output, target.folder.path / f"{target.id}.html", force)

    if isinstance(target, Run):
        target.last_known()
        bar = progress_bar("reading the log", bytes_=True)
        html = run_page.page(target, time.time(), bar)
    else:
        state = target.status()
        html = sweep_page.page(state, importance(state))

    with storing(file, "write it elsewhere with -o"):
        replace_text(file, html)

    print_output(str(file))
