"""Which run a command is about: the one that is named, else the last one, and then it says which that is."""

from __future__ import annotations

from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.cli.output import print_message


def chosen_run(name: str | None, data_dir: str | None) -> Run:
    """The run of that name; without a name the last one that this machine has started, named on stderr."""
    run = find_run(name or "last", data_dir=data_dir)
    if name is None:
        print_message(f"{run.id}, the last run")
    return run
