"""Submitting: the effects, in order, each recorded before the next: pack, record, start.

Safe to interrupt anywhere: the run id is chosen first and `submitting` is on disk before the start,
so that what became of the job can always be asked by its name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cloudtrain.errors import CloudtrainError, Outcome, RefusedError, StorageError
from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import Note, Progress, Request, get_provider
from cloudtrain.runs.files import as_text
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.context import pack_source
from cloudtrain.submission.images import resolve_image
from cloudtrain.submission.preflight import preflight, raise_errors
from cloudtrain.submission.rehearsals import record_rehearsal
from cloudtrain_launcher.events import Ended, Image, Submitted, Submitting
from cloudtrain_launcher.file_locks import FileLock


def submit(
    plan: Plan,
    *,
    archive: Path | None = None,
    issues: Sequence[Issue] | None = None,
    progress: Progress | None = None,
    sending: Progress | None = None,
    pushing: Progress | None = None,
    note: Note | None = None,
) -> RunFolder:
    """Start a plan, and return the folder of its run.

    RefusedError or SpecError when a check refuses it, RunExists when its run id is taken: nothing
    was started then. CloudError and StorageError say in `outcome` whether the job was started.

    `archive`: the source as another run packed it; by default it is packed now, and must be what
    was planned.
    `issues`: those of a preflight of this very plan, when one was just made. `progress` is called
    with files packed, `sending` with bytes uploaded, `pushing` with bytes of the image pushed.
    `note` is called with what a user should know of the start, such as an image that cannot be
    looked up from here.
    """
    if plan.target.placeholders and not plan.is_rehearsal:
        message = f"{', '.join(plan.target.placeholders)} not set: this plan is for looking at only"
        raise RefusedError(message, outcome=Outcome.NOT_STARTED)
    raise_errors(preflight(plan) if issues is None else issues)
    image = resolve_image(plan, pushing, note)
    store = RunStore(Path(plan.context.data_dir))
    # A rehearsed request names the image of the cloud; the one that it is rehearsed in is another.
    request = get_provider(plan.target.provider).render(plan, None if plan.is_rehearsal else image)
    archive = archive or pack_source(plan, progress)
    if plan.is_rehearsal:
        record_rehearsal(plan, request)
    submit_lock: list[FileLock] = []
    try:
        folder = store.create(
            plan.run_id, documents_of(plan, request), submitting(plan), submit_lock
        )
        if image is not None:
            folder.append(Image(time=time.time(), **asdict(image)))
        try:
            ref = get_provider(plan.provider).start(
                plan, request, folder, archive, sending, History(folder).record
            )
        except CloudtrainError as error:
            if (
                error.outcome is Outcome.UNKNOWN
            ):  # left open: the next status asks the provider what became of it
                raise
            error.outcome = Outcome.NOT_STARTED
            with suppress(StorageError):
                folder.append(
                    Ended(
                        time=time.time(),
                        state="failed",
                        reason=error.message,
                        hint=error.hint or "",
                    )
                )
            raise
        try:
            folder.append(Submitted(time=time.time(), ref=ref))
        except StorageError as error:  # the next status asks the provider by the run's name
            if note is not None:
                note(f"the job was started, and goes on; {error.message}")
    finally:
        for lock in submit_lock:
            lock.release()
    return folder


def documents_of(plan: Plan, request: Request) -> dict[str, str]:
    """The documents of the run folder, by their file names."""
    return {
        "spec.yaml": plan.spec_text,
        "plan.json": as_text(plan.to_json()),
        "request.json": as_text(dict(request.document)),
        "job.json": as_text(request.job.to_json()),
    }


def submitting(plan: Plan) -> Submitting:
    """The first event of its run."""
    return Submitting(
        time=time.time(),
        name=plan.spec.name,
        provider=plan.provider,
        contract=plan.target.contract,
        nodes=plan.spec.resources.nodes,
        processes=plan.processes,
    )
