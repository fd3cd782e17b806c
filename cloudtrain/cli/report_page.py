"""The command `report`: a run, two runs side by side, or a sweep, as one HTML page."""

from __future__ import annotations

import time
from pathlib import Path

import click

from cloudtrain.cli.chosen_run import chosen, chosen_run
from cloudtrain.cli.options import data_dir
from cloudtrain.cli.output import print_output
from cloudtrain.cli.sweep_files import FORCE, output_file, write_plot
from cloudtrain.errors import UsageError
from cloudtrain.runs.files import replace_text, storing
from cloudtrain.submission.run import Run


@click.command("report", epilog="Example:\n\n  cloudtrain report last -o run.html")
@click.argument("run", required=False)
@click.argument("other", metavar="[OTHER]", required=False)
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
    folder: str | None, /, run: str | None, other: str | None, output: Path | None, force: bool
) -> None:
    """Write RUN (default: the newest of this folder) as one HTML page.

    The page is standalone: open it, send it, keep it.

    It has curves, throughput, utilisation of GPUs or ranks, a timeline of states, phases and
    restarts, the cost, the failure, spec and request. With OTHER: both side by side. For a sweep:
    the page of `sweep plot`. It also works before the run has ended.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        if other is not None:
            raise UsageError(
                "a sweep is not put beside another",
                hint=f"cloudtrain compare {run} shows its trials",
            )
        write_plot(target, output, force)
        return
    from cloudtrain.pages.run_page import page

    runs = [target, *([chosen_run(other, folder)] if other is not None else [])]
    if len({reported.id for reported in runs}) < len(runs):
        raise UsageError(
            f"{run} and {other} are the same run", hint="cloudtrain list shows the others"
        )
    for reported in runs:
        reported.last_known()
    name = f"{'-and-'.join(reported.id for reported in runs)}.html"
    file = output_file(output, target.folder.path / name, force)
    with storing(file, "write it elsewhere with -o"):
        replace_text(file, page(runs, time.time()))
    print_output(str(file))
