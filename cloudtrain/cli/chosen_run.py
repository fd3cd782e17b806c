"""Which run or sweep a command is about: the one that is named, else the last run, and then it says which that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.cli.output import print_message
from cloudtrain.errors import UsageError
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.sweep_ids import sweep_named
from cloudtrain.settings import load_settings

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


def chosen_run(name: str | None, data_dir: str | None, *, best: bool = False) -> Run:
    """The run of that name; without a name the last one that this machine has started, named on stderr.

    Of a sweep, its best trial. `best`: only that; UsageError where no sweep is named.
    """
    if sweep := chosen_sweep(name, data_dir):
        trial, run = sweep.best()
        print_message(f"{run.id}, the best trial of {sweep.id}: {sweep.definition.metric} {trial.value:g}")
        return run
    if best:
        named = f"{name} is none" if name else "none is named"
        raise UsageError(f"--best is of a sweep, and {named}", hint="cloudtrain list shows them")
    run = find_run(name or "last", data_dir=data_dir)
    if name is None:
        print_message(f"{run.id}, the last run")
    return run


def chosen_sweep(name: str | None, data_dir: str | None) -> Sweep | None:
    """The sweep that a name means; None where it means a run, or nothing is named."""
    if name is None:
        return None
    folder = Path(load_settings(Path.cwd(), {"data_dir": data_dir})["data_dir"]).absolute()
    found = sweep_named(name, folder, RunStore(folder).ids())
    if not found:
        return None
    from cloudtrain.sweeps.sweep import find_sweep

    return find_sweep(found, data_dir=data_dir)
