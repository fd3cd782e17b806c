"""Which run or sweep a command is about: the one that is named, else the last run, and then it says which that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.cli.output import print_message
from cloudtrain.errors import UsageError
from cloudtrain.runs.store import RunStore
from cloudtrain.runs.sweep_ids import SWEEPS, sweep_named
from cloudtrain.settings import load_settings

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


def chosen(name: str | None, data_dir: str | None) -> Run | Sweep:
    """The run or sweep of that name; without a name the last run that this machine has started, named on stderr."""
    if name is None:
        run = find_run(data_dir=data_dir)
        print_message(f"{run.id}, the last run")
        return run
    if not name:  # such as "$RUN" where that is not set: nobody means the last run by it
        raise UsageError("the name of the run is empty", hint="cloudtrain list shows all runs")
    folder = Path(load_settings(Path.cwd(), {"data_dir": data_dir})["data_dir"]).absolute()
    sweep = sweep_named(name, folder, RunStore(folder).ids())
    if not sweep:
        return find_run(name, data_dir=data_dir)
    from cloudtrain.sweeps.journal import SweepFolder
    from cloudtrain.sweeps.sweep import Sweep

    return Sweep(SweepFolder(folder / SWEEPS / sweep))


def chosen_run(name: str | None, data_dir: str | None, *, best: bool = False) -> Run:
    """The same, and of a sweep its best trial. `best`: only that; UsageError where no sweep is named."""
    if best and name is None:
        raise _no_sweep("none is named")
    found = chosen(name, data_dir)
    if not isinstance(found, Run):
        return best_trial(found)
    if best:
        raise _no_sweep(f"{name} is none")
    return found


def best_trial(sweep: Sweep) -> Run:
    """The run of a sweep's best trial, named on stderr. RunNotFound while no trial has reported the metric."""
    trial, run = sweep.best()
    print_message(f"{run.id}, the best trial of {sweep.id}: {sweep.definition.metric} {trial.value:g}")
    return run


def _no_sweep(why: str) -> UsageError:
    return UsageError(f"--best is of a sweep, and {why}", hint="cloudtrain list shows them")
