"""Ids of runs, sweeps and trials: by name only, so that listing runs reads no sweep."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from cloudtrain.errors import StorageError

_LETTERS = "23456789abcdefghjkmnpqrstvwxyz"
"""Letters and digits that are not confused when read aloud or copied by hand."""


def new_run_id(data_dir: Path, name: str) -> str:
    """Return an unused run id: the job's name and four random characters, `digits-k2x9`."""
    while True:
        run_id = f"{name}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in os.urandom(4))}"
        if not (data_dir / "runs" / run_id).exists():
            return run_id


SWEEPS = "sweeps"
"""Folder of all sweeps in a data folder."""

_TRIAL = re.compile(r"(.+)-(?:t[0-9]{3,}(?:-[0-9]+)?|[0-9]{3,}-[0-9a-z]{8})")
"""Second form: training jobs of SageMaker's tuning jobs."""


def trial_run_id(sweep_id: str, trial: int, attempt: int) -> str:
    """Return the id of a trial's run: `digits-k2x9-t007`, then `digits-k2x9-t007-2`."""
    return f"{sweep_id}-t{trial:03}" + (f"-{attempt}" if attempt > 1 else "")


def sweep_of_run(run_id: str, sweeps: Iterable[str]) -> str:
    """Return the sweep of a trial's run among these, or ""."""
    match = _TRIAL.fullmatch(run_id)
    return match[1] if match and match[1] in sweeps else ""


def sweep_ids(data_dir: Path) -> set[str]:
    """Return the ids of all sweeps. Raise StorageError if their folder cannot be read."""
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
    """Return the sweep of that id or unique beginning, which only its own trials share, or ""."""
    sweeps = sweep_ids(data_dir)
    if name in sweeps:
        return name
    begun = [sweep for sweep in sweeps if name and sweep.startswith(name)]
    single_runs = [run for run in runs if run.startswith(name) and sweep_of_run(run, begun) == ""]
    return begun[0] if len(begun) == 1 and not single_runs else ""
