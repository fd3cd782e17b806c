"""Stopping a job: first so that it can save, then for good.

Azure ML promises no signal before it takes a job's processes away. So the job is told through its own storage, where
its launcher looks, and is cancelled when it has ended by itself, or the time for that is over.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudtrain.azure.fetch import parts
from cloudtrain.azure.observe import observe
from cloudtrain.azure.phases import ending, status_of
from cloudtrain.azure.start import gone, settle
from cloudtrain.contracts.azureml import GRACE_SECONDS, STOP_FILE
from cloudtrain.errors import CloudError, StorageError
from cloudtrain.remote.ending import all_told
from cloudtrain.runs.state import RunState, fold
from cloudtrain.runs.store import RunFolder

if TYPE_CHECKING:
    from cloudtrain.clouds.azure import Workspace

LOOK_SECONDS = 2.0
FINISHING_SECONDS = 15
"""How long a job may take to end by itself once all its nodes have said their last words."""


def stop(cloud: Workspace, run: RunFolder, state: RunState, pause: float) -> bool:
    """Ask it to save and end, wait for that, cancel it. False: not yet, ask again.

    Whatever happens while it waits, an interrupt included: the job is cancelled.
    """
    if state.ref is None:
        settled = settle(cloud, run, time.time())
        if settled:
            run.append(*settled)
        if not any(event["type"] == "submitted" for event in settled):
            return bool(settled)
    try:
        _note(run, "stop was asked")
        _let_it_save(cloud, run, pause)
    except (CloudError, StorageError) as error:
        with suppress(StorageError):  # a full disk keeps no job from being stopped
            _note(run, f"stop was asked; whether it has saved is not known: {error.message}")
    finally:
        _cancel(cloud, run.run_id)
    return True


def _note(run: RunFolder, reason: str) -> None:
    run.append({"type": "stop_requested", "time": time.time(), "reason": reason})


def _let_it_save(cloud: Workspace, run: RunFolder, pause: float) -> None:
    """Tell a job that runs, and wait until it is over or the grace period is. What passes is tried again."""
    deadline, told = time.monotonic() + GRACE_SECONDS, False
    while time.monotonic() < deadline:
        try:
            if not told:
                if not _is_running(cloud, run):
                    return
                _tell(cloud, run)
                told = True
            run.append(*observe(cloud, run, fold(run.run_id, run.events()), pause))
        except CloudError as error:
            if not error.transient:
                raise
        now = fold(run.run_id, run.events())
        if now.has_ended:
            return
        if all_told(now, now.nodes):
            deadline = min(deadline, time.monotonic() + FINISHING_SECONDS)
        time.sleep(min(pause, LOOK_SECONDS))


def _is_running(cloud: Workspace, run: RunFolder) -> bool:
    details = cloud.details(run.run_id)
    return details is not None and status_of(details) == "Running"


def _tell(cloud: Workspace, run: RunFolder) -> None:
    datastore, folder = parts(run.document("request.json")["outputs"]["output"]["path"])
    cloud.container(datastore).put(folder + STOP_FILE, b"")


def _cancel(cloud: Workspace, name: str) -> None:
    """A job that is over already cannot be cancelled, and need not be."""
    try:
        cloud.cancel(name)
    except CloudError:
        details = cloud.details(name)
        if details is None:
            raise gone(cloud, name) from None
        if ending(details) is None and status_of(details) != "CancelRequested":
            raise
