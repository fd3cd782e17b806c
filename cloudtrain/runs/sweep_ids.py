"""Ids of sweeps, and which runs are trials of one: by names alone, so that listing runs reads
nothing of a sweep.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from cloudtrain.errors import StorageError

SWEEPS = "sweeps"
"""The folder of all sweeps, beside that of all runs."""

_TRIAL = re.compile(r"(.+)-(?:t[0-9]{3,}(?:-[0-9]+)?|[0-9]{3,}-[0-9a-z]{8})")
"""The second form is SageMaker's, for the training jobs of a tuning job."""


def trial_run_id(sweep_id: str, trial: int, attempt: int) -> str:
    """The id of a trial's run, by which it is found again: `digits-k2x9-t007`, `digits-k2x9-t007-2`
    for its second.
    """
    return f"{sweep_id}-t{trial:03}" + (f"-{attempt}" if attempt > 1 else "")


def sweep_of_run(run_id: str, sweeps: Iterable[str]) -> str:
    """The sweep, of these, that a run is a trial of; empty for none."""
    match = _TRIAL.fullmatch(run_id)
    return match[1] if match and match[1] in sweeps else ""


def sweep_ids(data_dir: Path) -> set[str]:
    """The ids of all sweeps of a data folder. StorageError when their folder cannot be read."""
    root = data_dir / SWEEPS
    try:
        with os.scandir(root) as entries:
            return {
                entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()
            }
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise StorageError(f"{root}: {error.strerror}") from None


def sweep_named(name: str, data_dir: Path, runs: Iterable[str]) -> str:
    """The sweep that a name means: its id, or a beginning that only it and its own trials have;
    empty for none.
    """
    sweeps = sweep_ids(data_dir)
    if name in sweeps:
        return name
    begun = [sweep for sweep in sweeps if name and sweep.startswith(name)]
    single_runs = [run for run in runs if run.startswith(name) and sweep_of_run(run, begun) == ""]
    return begun[0] if len(begun) == 1 and not single_runs else ""
