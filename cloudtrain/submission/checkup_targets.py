"""Questions to a machine or an account before a job: what `cloudtrain doctor` shows, for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from cloudtrain.checkup import Check
from cloudtrain.settings import load_settings
from cloudtrain.spec.sources import FILE
from cloudtrain.submission import jobs
from cloudtrain.submission.checkup import MACHINE, Section, sections


def doctor(
    provider: str | None = None,
    job: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    data_dir: str | None = None,
) -> Iterator[Section]:
    """Ask this machine and the platform of a provider what a job needs; each check is asked when it
    is read.

    `provider`: None for this machine alone. `job`: whose machines are asked for; None: the job.yaml
    of this folder, or the smallest job where there is none. SpecError for mistakes in it. Only
    calls that read are made.
    """
    source = job if job is not None else (FILE if Path(FILE).is_file() else None)
    loaded = (
        jobs.load(source, overrides)
        if source is not None
        else jobs.load({"name": "doctor"}, overrides)
    )
    settings = load_settings(loaded.folder, {"data_dir": data_dir})
    return sections(provider or MACHINE, settings, loaded.spec)


def exit_code(checks: Sequence[Check]) -> int:
    """0 if nothing is wrong; 2 if something is to be set right; 4 if a cloud did not answer, or not
    to these credentials.
    """
    return min((check.exit_code for check in checks if check.is_wrong), default=0)
