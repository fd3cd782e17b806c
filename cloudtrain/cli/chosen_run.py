"""The run or sweep of a command: the named one, or the newest of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.cli.output import print_message
from cloudtrain.errors import CloudtrainError, RunNotFound, UsageError
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state_names import DAMAGED, ENDED
from cloudtrain.runs.store import SWEEPS, RunStore, summaries, sweep_named
from cloudtrain.runs.submissions import Submission, submissions
from cloudtrain.settings import data_folder

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep

LAST = "last"


def chosen(name: str | None, data_dir: str | None) -> Run | Sweep:
    """Return the run or sweep of that name.

    `last` means the newest submission from this folder, and so does None. For None raise UsageError
    if several are running: the command may stop or repeat the wrong one. Print on stderr what was
    chosen.
    """
    if name is not None and not name:  # such as "$RUN" without a value
        raise UsageError("the name of the run is empty", hint="cloudtrain list shows all runs")

    folder = data_folder(data_dir)
    store = RunStore(folder)

    if name is None or name == LAST:
        return _newest(store, refuse_several=name is None)

    sweep = sweep_named(name, folder, store.ids())
    if sweep:
        return _open_sweep(folder / SWEEPS / sweep)

    return find_run(name, data_dir=data_dir)


def _newest(store: RunStore, *, refuse_several: bool) -> Run | Sweep:
    """Return the newest submission of the current folder. Raise RunNotFound if there is none."""
    folder = Path.cwd()
    candidates = (submission for submission in submissions(store) if submission.is_from(folder))
    newest = next(candidates, None)
    if newest is None:
        raise _nothing_from(folder, store)

    if refuse_several:
        running = _running(folder, newest, store)
        if len(running) > 1:
            names = ", ".join(submission.id for submission in running)
            raise UsageError(
                f"{len(running)} submissions from this folder are running: {names}",
                hint="name the one you mean",
            )

        for submission in running:
            if submission.id != newest.id:
                print_message(f"note: {submission.id} from this folder is still running")

    kind = "sweep" if newest.is_sweep else "run"
    print_message(f"{newest.id}, the last {kind} from this folder")
    return _open(newest)


def newest_of_job(data_dir: str | None, most: int) -> list[Run | Sweep]:
    """Return the newest submission of the current folder; for a run, the newest of its job.

    Print on stderr what was chosen. Raise RunNotFound if there is none.
    """
    store = RunStore(data_folder(data_dir))
    candidates = (submission for submission in submissions(store) if submission.is_from(Path.cwd()))
    newest = next(candidates, None)
    if newest is None:
        raise _nothing_from(Path.cwd(), store)

    chosen_ones = [newest]
    job = RunRecord(newest.folder).name
    for submission in candidates:
        if newest.is_sweep or len(chosen_ones) == most:
            break
        if not submission.is_sweep and RunRecord(submission.folder).name == job:
            chosen_ones.append(submission)

    names = ", ".join(submission.id for submission in chosen_ones)
    print_message(f"{names}: the newest of {job} from this folder")
    return [_open(submission) for submission in chosen_ones]


def _running(folder: Path, newest: Submission, store: RunStore) -> list[Submission]:
    """Return the submissions from a folder that run; empty if only the newest one may.

    Those last seen running are asked about again.
    """
    over = {run["run"] for run in summaries(store) if run["state"] in (*ENDED, DAMAGED)}
    candidates = [one for one in submissions(store, without=over) if one.is_from(folder)]
    if all(submission.id == newest.id for submission in candidates):
        return []

    return [submission for submission in candidates if not _has_ended(_open(submission))]


def _has_ended(candidate: Run | Sweep) -> bool:
    try:
        if isinstance(candidate, Run):
            return candidate.status().has_ended
        candidate.status()
        return candidate.has_ended
    except CloudtrainError:  # unknown: it may be running
        return False


def _nothing_from(folder: Path, store: RunStore) -> RunNotFound:
    """Return an error that names the newest submission of any folder."""
    newest = next(submissions(store), None)
    if newest is None:
        return RunNotFound(
            f"there are no runs in {store.runs_dir}", hint="cloudtrain submit starts one"
        )

    return RunNotFound(
        f"nothing was submitted from this folder, {folder}",
        hint=(
            f"name a run; the newest is {newest.id}, from"
            f" {', '.join(sorted(newest.places)) or 'an unknown folder'}"
        ),
    )


def _open(submission: Submission) -> Run | Sweep:
    if submission.is_sweep:
        return _open_sweep(submission.folder.path)

    return Run(submission.folder)


def _open_sweep(path: Path) -> Sweep:
    from cloudtrain.sweeps.journal import SweepFolder
    from cloudtrain.sweeps.sweep import Sweep

    return Sweep(SweepFolder(path))


def chosen_run(name: str | None, data_dir: str | None, *, best: bool = False) -> Run:
    """Return the run of that name, or the best trial of a sweep.

    `best`: raise UsageError if it is not a sweep.
    """
    candidate = chosen(name, data_dir)
    if not isinstance(candidate, Run):
        return best_trial(candidate)

    if best:
        raise UsageError(
            f"--best is for a sweep; {candidate.id} is a run", hint="cloudtrain list shows both"
        )

    return candidate


def best_trial(sweep: Sweep) -> Run:
    """Return the run of a sweep's best trial, and name it on stderr.

    Raise RunNotFound while no trial has reported the metric.
    """
    trial, run = sweep.best()
    print_message(
        f"{run.id}, the best trial of {sweep.id}: {sweep.definition.metric} {trial.value:g}"
    )
    return run
