"""The command `report`: a run or a sweep as one HTML page."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.options import data_dir
from cloudtrain.cli.output import print_output
from cloudtrain.cli.sweep_files import FORCE, output_file, write_plot
from cloudtrain.runs.files import replace_text, storing
from cloudtrain.submission.run import Run


@click.command("report", epilog="Example:\n\n  cloudtrain report last -o run.html")
@click.argument("run", required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Default: in the folder of the run.",
)
@FORCE
@data_dir
def report_command(
    folder: str | None, /, run: str | None, output: Path | None, force: bool
) -> None:
    """Write RUN (default: the newest of this folder) as one HTML page.

    The page is standalone: open it, send it, keep it.

    It has curves, throughput, utilisation of GPUs or ranks, a timeline of states, phases and
    restarts, the cost, the failure, spec and request. For a sweep: the page of `sweep plot`. It also
    works before the run has ended.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        write_plot(target, output, force)
        return
    from cloudtrain.pages.run_page import page

    target.last_known()
    file = output_file(output, target.folder.path / f"{target.id}.html", force)
    with storing(file, "write it elsewhere with -o"):
        replace_text(file, page(target, time.time()))
    print_output(str(file))
