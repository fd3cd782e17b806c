"""Submit a request so that it creates exactly one job or none.

Check, upload, record, create, and look when in doubt.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import NAME_TAKEN, CloudError, RunExists
from cloudtrain.planning.target import Target
from cloudtrain.providers import Progress
from cloudtrain.providers.azure.config import AzureConfig, request_of
from cloudtrain.providers.azure.inputs import with_uploaded_inputs
from cloudtrain.providers.azure.quota import refuse_machines
from cloudtrain.providers.shared import idempotent_create
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.providers.shared.tags import own_tags, same_submission
from cloudtrain.runs.files import make_private_folder, storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Record
from cloudtrain_launcher.events import Event

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.providers.azure.resources import JobInfo

ATTEMPTS = 5
"""Attempts to create the job, with one request each: as many as the SDK makes."""


def submit_job(
    cloud: Workspace,
    target: Target,
    document: Mapping[str, Any],
    run: RunFolder,
    archive: Path,
    progress: Progress | None,
    record: Record,
) -> dict[str, Any]:
    """Check machines and name, upload new parts of source and inputs, then create the job.

    A sweep job has code and resources in its `trial`; the rest is the same. Return the job's
    reference. Raise RefusedError if the compute cannot run the job, CloudError with
    `Outcome.UNKNOWN` if it is unknown whether the job exists; `reconcile` finds out later.
    """
    config = target.config_as(AzureConfig)
    command_job = {**document, **document.get("trial", {})}
    refuse_machines(cloud, command_job, config, next(iter(target.instances), ""), target.gpus or 0)
    _prepare_code_folder(Path(command_job["code"]), archive)
    name = document["name"]
    reference = _find(cloud, name, document)  # a PUT would change the tags of an existing job
    if reference is not None:
        return reference

    cache = run.path.parents[1] / "cache"
    complete = with_uploaded_inputs(cloud, document, config.datastore, cache, progress)

    return idempotent_create.create(
        name,
        lambda attempt: job_reference(cloud.create(complete, attempt)),
        lambda: _find(cloud, name, document),
        record=record,
        attempts=ATTEMPTS,
        name_taken_codes=(NAME_TAKEN,),
    )


def reconcile(cloud: Workspace, run: RunFolder, time_now: float) -> list[Event]:
    """Return events about the result of an interrupted submission; empty while in progress."""
    document = request_of(run)
    return idempotent_create.reconcile(
        run, time_now, lambda: _find(cloud, run.run_id, document), "Azure ML"
    )


def job_reference(job: JobInfo) -> dict[str, Any]:
    """Return the reference of a job: its name and the URL of the studio."""
    return {"name": job.name, "url": job.url}


def job_not_found(cloud: Workspace, name: str) -> CloudError:
    """Return the error for a missing job: most likely the workspace is the wrong one."""
    message = f"the workspace {cloud.name} knows no job {name} (any more)"
    return CloudError(
        message, hint="look at azure.workspace and az account show, then try again", code="NoJob"
    )


def _find(cloud: Workspace, name: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the job's reference if it is of this submission, or None.

    Raise RunExists if it is of another one.
    """
    job = cloud.job(name)
    if job is None:
        return None
    if same_submission(own_tags(document["tags"]), own_tags(job.tags)):
        return job_reference(job)
    message = f"a job {name} exists already in the workspace {cloud.name}"
    raise RunExists(message, hint="choose another --run-id")


def _prepare_code_folder(folder: Path, archive: Path) -> None:
    """Create the folder with only the source archive; the SDK uploads it once, by content."""
    target = folder / ARCHIVE
    with storing(folder):
        make_private_folder(folder)
        if target.exists():
            return
        draft = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
        with suppress(FileExistsError):  # another process has just created it
            try:
                draft.hardlink_to(archive)
            except OSError:  # a disk without links
                shutil.copyfile(archive, draft)
            draft.rename(target)
        draft.unlink(missing_ok=True)
