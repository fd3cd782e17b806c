"""The commands that write a sweep into a file: `sweep plot` for people, `sweep export` for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from cloudtrain.cli.options import data_dir
from cloudtrain.cli.output import print_output
from cloudtrain.errors import UsageError
from cloudtrain.runs.files import replace_text, storing

FORCE = click.option("--force", is_flag=True, help="Write over a file that is there.")


@click.command("plot", epilog="Example:\n\n  cloudtrain sweep plot digits-k2x9 -o digits.html")
@click.argument("sweep", metavar="SWEEP")
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Default: SWEEP.html.")
@FORCE
@data_dir
def plot_command(folder: str | None, /, sweep: str, output: Path | None, force: bool) -> None:
    """Draw SWEEP as one HTML page that needs nothing else: it can be opened, sent, and kept.

    It has the objective over trials and over money or time, the curves of all trials with the rungs, the settings
    beside the objective, and how much each setting matters. It can be drawn while the sweep goes on.
    """
    from cloudtrain.sweeps.history import history
    from cloudtrain.sweeps.importance import importance
    from cloudtrain.sweeps.plot.page import page
    from cloudtrain.sweeps.sweep import find_sweep

    found = find_sweep(sweep, data_dir=folder)
    file = _target(output or Path(f"{found.id}.html"), force)
    events = [event for event, _ in found.folder.events_from()]
    state = found.status()
    with storing(file, "write it elsewhere with -o"):
        replace_text(file, page(state, history(found.definition, events), importance(state)))
    print_output(str(file))


def _target(file: Path, force: bool) -> Path:
    """The file to write. UsageError where something is there already."""
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint=f"-o {file / 'sweep.html'} names a file in it")
    if file.exists() and not force:
        raise UsageError(f"{file} is there already", hint="--force writes over it, -o names another file")
    return file
