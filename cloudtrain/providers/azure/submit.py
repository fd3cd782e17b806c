"""Sending a request so that exactly one job comes of it, or none: look, record, create, and ask when in doubt."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, RunExists
from cloudtrain.planning.target import Target
from cloudtrain.providers import Progress
from cloudtrain.providers.azure.config import AzureConfig, request_of
from cloudtrain.providers.azure.inputs import with_uploaded_inputs
from cloudtrain.providers.azure.quota import refuse_machines
from cloudtrain.providers.cloud import idempotent_create as arrival
from cloudtrain.providers.cloud.request import ARCHIVE, ours, same_submission
from cloudtrain.runs.files import make_private_folder, storing
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Observation, Record

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

ATTEMPTS = 2
"""On top of the SDK's own tries of each call."""

_TAKEN = ("NameTaken",)


def send(
    cloud: Workspace,
    target: Target,
    document: Mapping[str, Any],
    run: RunFolder,
    archive: Path,
    progress: Progress | None,
    record: Record,
) -> dict[str, Any]:
    """Look at the machines and at the name, upload source and inputs where they are new, create the job.

    The answer finds it again. CloudError with `Outcome.UNKNOWN` when it cannot be told whether the job exists;
    `reconcile` tells later. RefusedError when the machines cannot run it.
    """
    config = target.config_as(AzureConfig)
    refuse_machines(cloud, document, config, next(iter(target.instances), ""), target.gpus or 0)
    _lay_out(Path(document["code"]), archive)
    name = document["name"]
    found = _find(cloud, name, document)  # a PUT of a name that exists would change that job's tags
    if found is not None:
        return found

    cache = run.path.parents[1] / "cache"
    complete = with_uploaded_inputs(cloud, document, config.datastore, cache, progress)

    def creating() -> None:
        record(Observation(events=[{"type": "creating", "time": time.time()}]))

    def create() -> dict[str, Any]:
        return ref_of(cloud.create(complete, creating))

    return arrival.create(name, create, lambda: _find(cloud, name, document), attempts=ATTEMPTS, taken=_TAKEN)


def reconcile(cloud: Workspace, run: RunFolder, now: float) -> list[dict[str, Any]]:
    """What became of a submission that nobody has seen the end of. Nothing, while it may still be under way."""
    document = request_of(run)
    return arrival.reconcile(run, now, lambda: _find(cloud, run.run_id, document), "Azure ML")


def ref_of(described: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a job to find it again."""
    return {"name": described["name"], "url": described["url"]}


def gone(cloud: Workspace, name: str) -> CloudError:
    """Of a job that was there and is not seen any more: most likely it is another workspace that was asked."""
    message = f"the workspace {cloud.name} knows no job {name} (any more)"
    return CloudError(message, hint="look at azure.workspace and az account show, then try again", code="NoJob")


def _find(cloud: Workspace, name: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """The job, if it is there and ours: perhaps from a try whose answer was lost. RunExists if it is another's."""
    described = cloud.job(name)
    if described is None:
        return None
    if same_submission(ours(document["tags"]), ours(described["tags"])):
        return ref_of(described)
    message = f"a job {name} exists already in the workspace {cloud.name}"
    raise RunExists(message, hint="choose another --run-id")


def _lay_out(folder: Path, archive: Path) -> None:
    """A folder with the source archive and nothing else. The SDK knows it by its content, and uploads it once."""
    target = folder / ARCHIVE
    with storing(folder):
        make_private_folder(folder)
        if target.exists():
            return
        draft = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}")
        with suppress(FileExistsError):  # laid out in this moment by another
            try:
                draft.hardlink_to(archive)
            except OSError:  # a disk without links
                shutil.copyfile(archive, draft)
            draft.rename(target)
        draft.unlink(missing_ok=True)
