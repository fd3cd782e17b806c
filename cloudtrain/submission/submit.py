"""Submission: pack, record and start, each recorded before the next.

Safe to interrupt anywhere: the run id is chosen first and `submitting` is on disk before the start,
so that a later status finds the job by its name.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from cloudtrain.errors import CloudtrainError, Issue, Outcome, RefusedError, StorageError
from cloudtrain.planning.launch import Request
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import Note, Progress, get_provider
from cloudtrain.providers.docker.images import resolve_image
from cloudtrain.runs.files import as_text
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.history import History
from cloudtrain.runs.store import RunStore
from cloudtrain.submission.context import pack_source
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
    """Start a plan and return its run folder.

    Raise RefusedError or SpecError if a check refuses it, RunExists if its run id is taken: nothing
    was started then. CloudError and StorageError have in `outcome` whether the job was started.

    `archive`: the source as packed by another run; by default it is packed now and must match the
    plan. `issues`: the issues of a preflight of this plan, if one was just made. `progress` is
    called with files packed, `sending` with bytes uploaded, `pushing` with bytes of the image
    pushed, `note` with remarks on the start, such as an image that cannot be looked up from here.
    """
    if plan.target.placeholders and not plan.is_rehearsal:
        message = f"{', '.join(plan.target.placeholders)} not set: this plan is for looking at only"
        raise RefusedError(message, outcome=Outcome.NOT_STARTED)
    raise_errors(preflight(plan) if issues is None else issues)
    archive = archive or pack_source(plan, progress)
    provider = get_provider(plan.provider)
    image = resolve_image(plan, pushing, note)
    request = plan.request
    if image is not None and image.address != image.planned and not plan.is_rehearsal:
        request = plan.renderer(plan, image)
    if plan.is_rehearsal:
        record_rehearsal(plan, request)
    first_event = submitting(plan)
    documents = documents_of(plan, request)
    submit_lock: list[FileLock] = []
    try:
        store = RunStore(Path(plan.context.data_dir))
        folder = store.create(plan.run_id, documents, first_event, submit_lock)
        if image is not None:
            folder.append(Image(time=time.time(), **asdict(image)))
        try:
            ref = provider.start(plan, request, folder, archive, sending, History(folder).record)
        except CloudtrainError as error:
            if error.outcome is Outcome.UNKNOWN:  # the next status asks the provider
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
    """Return the documents of the run folder by file name."""
    return {
        "spec.yaml": plan.spec_text,
        "plan.json": as_text(plan.to_json()),
        "request.json": as_text(dict(request.document)),
        "job.json": as_text(request.job.to_json()),
    }


def submitting(plan: Plan) -> Submitting:
    """Return the first event of the run."""
    return Submitting(
        time=time.time(),
        name=plan.spec.name,
        provider=plan.provider,
        contract=plan.target.contract,
        nodes=plan.spec.resources.nodes,
        processes=plan.processes,
    )
