"""Submission of a plan, and the plan of a rerun.

A submission packs, records and starts, each recorded before the next. It is safe to interrupt
anywhere: the run id is chosen first and `submitting` is on disk before the start, so that a later
status finds the job by its name.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cloudtrain.api.context import (
    MAX_UNREAD_BYTES,
    local_files,
    pack_source,
    read_uploads,
    resolve_targets,
    submitter,
    with_read_uploads,
)
from cloudtrain.api.notification import expect
from cloudtrain.api.preflight import find_issues, preflight, raise_errors
from cloudtrain.api.rehearsals import record_rehearsal, with_rehearsal
from cloudtrain.api.shared_history import Announcement
from cloudtrain.errors import (
    CloudtrainError,
    Issue,
    Outcome,
    RefusedError,
    StorageError,
    UsageError,
)
from cloudtrain.planning.launch import Request
from cloudtrain.planning.plan import Plan, PlanContext, SourceSummary, TrialRules, make_plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.docker.images import resolve_image
from cloudtrain.providers.progress import Note, Progress
from cloudtrain.runs.files import as_text
from cloudtrain.runs.folder import RunFolder, new_run_id
from cloudtrain.runs.history import History
from cloudtrain.runs.logs import Observation, Record
from cloudtrain.runs.record import PlanRecord, RunRecord, other_machines
from cloudtrain.runs.store import RunStore, sweep_ids, sweep_of_run
from cloudtrain.settings import STRICT, load_settings
from cloudtrain.spec.load import override, spec_from_document
from cloudtrain.spec.options_of_words import options_of
from cloudtrain.spec.sources import FILE
from cloudtrain.spec.yaml_document import Document, parse_document
from cloudtrain_wire.events import Ended, Image, Phase, Submitted, Submitting
from cloudtrain_wire.file_locks import FileLock
from cloudtrain_wire.secret_values import is_secret_argument
from cloudtrain_wire.tuned_values import text_of

MAX_ARGUMENT = 100
"""Maximum characters of an argument in a list of runs."""


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

    If the cloud lacks machines of the first type of a list and does not try the next one itself,
    the job is planned for it, under the same run id, and started.
    """
    refusals: list[CloudtrainError] = []
    while True:
        try:
            return _submit(plan, archive, issues, progress, sending, pushing, note, refusals)
        except CloudtrainError as error:
            overrides = other_machines(plan.to_json())
            is_refused = error.lacks_machines and error.outcome is Outcome.NOT_STARTED
            if not overrides or not is_refused:
                raise

        plan = _plan_with(plan, overrides)
        issues = None
        if note is not None:
            note(f"{refusals[-1].what}; trying {plan.target.instances[0]}, {_price(plan)}")


def _submit(
    plan: Plan,
    archive: Path | None,
    issues: Sequence[Issue] | None,
    progress: Progress | None,
    sending: Progress | None,
    pushing: Progress | None,
    note: Note | None,
    refusals: list[CloudtrainError],
) -> RunFolder:
    """Start a plan on the first of its machines.

    `refusals`: errors of earlier machines of the list. If this one is refused too, its error is
    added, and no run folder is left as long as there is another machine.
    """
    if plan.target.placeholders and not plan.is_rehearsal:
        message = f"{', '.join(plan.target.placeholders)} not set: this plan is for looking at only"
        raise RefusedError(message, outcome=Outcome.NOT_STARTED)

    if issues is None:
        issues = preflight(plan)

    raise_errors(issues)
    announcement = Announcement(plan)
    submit_lock: list[FileLock] = []

    try:
        archive = archive or pack_source(plan, progress)
        if not plan.is_rehearsal:
            plan = with_read_uploads(plan, progress)
        provider = get_provider(plan.provider)
        image = resolve_image(plan, pushing, note)
        plan = announcement.with_id(plan)
        request = plan.request

        if image is not None and image.address != image.planned and not plan.is_rehearsal:
            request = plan.renderer(plan, image)
        if plan.is_rehearsal:
            record_rehearsal(plan, request)

        first_event = submitting(plan)
        documents = documents_of(plan, request)
        store = RunStore(Path(plan.context.data_dir))
        folder = store.create(plan.run_id, documents, first_event, submit_lock)

        if plan.context.trial is None:
            expect(folder, load_settings(Path(plan.context.folder)))
        if image is not None:
            folder.append(Image(time=time.time(), **asdict(image)))

        try:
            ref = provider.start(
                plan,
                request,
                folder,
                archive,
                sending,
                _recorder(folder, note),
            )
        except CloudtrainError as error:
            if error.outcome is Outcome.UNKNOWN:  # the next status asks the provider
                raise

            error.outcome = Outcome.NOT_STARTED
            if error.lacks_machines:
                refusals.append(error)
                if other_machines(plan.to_json()):
                    error.what = f"{plan.target.instances[0]}: {error.what}"
                    store.discard(folder)
                    raise
                if len(refusals) > 1:
                    error.what = f"{plan.target.instances[0]}: {error.what}"
                    error.what = "; ".join(refusal.what for refusal in refusals)
                    hints = (refusal.hint for refusal in refusals if refusal.hint)
                    error.hint = "; ".join(dict.fromkeys(hints)) or None

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
        announcement.close()

    return folder


def _recorder(folder: RunFolder, note: Note | None) -> Record:
    """Return the function that stores observations during a start, and says each phase of it."""
    history = History(folder)

    def record(observation: Observation) -> None:
        history.record(observation)
        for event in observation.events:
            if isinstance(event, Phase) and note is not None:
                note(event.phase)

    return record


def _price(plan: Plan) -> str:
    """Return the price and the maximum cost of a plan for a remark."""
    estimate = plan.target.cost_estimate
    if estimate is None or estimate.usd_per_hour is None or estimate.worst_usd is None:
        return "its price is unknown"

    return f"{estimate.usd_per_hour:.2f} USD/h, at most {estimate.worst_usd:.2f} USD"


def _plan_with(plan: Plan, overrides: tuple[str, ...]) -> Plan:
    """Return the plan of the same run with further overrides. May raise SpecError."""
    folder = Path(plan.context.folder)
    document = parse_document(plan.spec_text, name=FILE)
    document = override(document, plan.overrides + overrides)
    spec, document = spec_from_document(document, folder, look=False)
    settings = load_settings(folder, {"data_dir": plan.context.data_dir})
    target, _ = resolve_targets(spec, settings, plan.provider, None)
    return with_rehearsal(
        make_plan(spec, document, plan.context, target, render=plan.renderer, check=plan.checker)
    )


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
        arguments=_arguments(plan),
        tags=dict(plan.spec.tags),
    )


def _arguments(plan: Plan) -> dict[str, Any]:
    """Return the program's arguments for a list of runs: without probable secrets, and short."""
    values = plan.spec.args.values
    if not isinstance(values, Mapping):
        values, _ = options_of(values)

    arguments = {}
    for name, value in values.items():
        text = text_of(value)
        if len(text) > MAX_ARGUMENT:
            value = f"{text[: MAX_ARGUMENT - 1]}…"
        if not is_secret_argument(name, text):
            arguments[name] = value

    return arguments


def plan_again(
    run: RunFolder, provider: str | None, overrides: tuple[str, ...], resume_from: str
) -> Plan:
    """Return the plan of an earlier run with the same source and a new run id.

    `resume_from`: checkpoints to start from, if any. Raise UsageError for a run of another machine,
    or if unwanted checkpoints would be restored; StorageError if the run folder is damaged.
    """
    record = RunRecord(run)
    if record.is_of_another_machine:
        if sweep := sweep_of_run(run.run_id, sweep_ids(run.path.parents[1])):
            raise UsageError(
                f"{run.run_id} was started by the cloud's service for sweep {sweep}, not from here",
                hint=f"cloudtrain submit, with its values from cloudtrain status {sweep} as args",
            )
        hint = "cloudtrain submit, from the folder of the job"
        raise UsageError(
            f"run {run.run_id} was started on another machine, which has its source", hint=hint
        )

    old = record.plan()
    folder = Path(old.folder)
    text = run.text("spec.yaml")
    document: Document = parse_document(text, name=f"{run.run_id}/spec.yaml")
    document = override(document, (*old.overrides, *overrides))

    # one job runs again, whatever search it was a trial of
    values = {key: value for key, value in document.values.items() if key != "sweep"}
    document = replace(document, values={"name": old.name, **values})

    spec, document = spec_from_document(document, folder, look=False)
    checkpoints_uri = spec.checkpoints.uri
    if checkpoints_uri and not resume_from and checkpoints_uri == old.checkpoints_uri:
        message = f"a fresh run would restore what run {run.run_id} has saved in {checkpoints_uri}"
        raise UsageError(message, hint=f"--set checkpoints.uri={checkpoints_uri.rstrip('/')}-2/")

    data_dir = run.path.parents[1]
    return with_rehearsal(
        replan(
            old,
            document,
            data_dir,
            provider=provider,
            run_id=new_run_id(data_dir, spec.name),
            rerun_of=run.run_id,
            resume_run=run.run_id if resume_from else "",
            resume_from=resume_from,
        )
    )


def replan(
    old: PlanRecord,
    document: Document,
    data_dir: Path,
    *,
    run_id: str,
    provider: str | None = None,
    rerun_of: str = "",
    resume_run: str = "",
    resume_from: str = "",
    trial: TrialRules | None = None,
    trials_at_once: int = 1,
) -> Plan:
    """Return a plan with an earlier source and the spec of `document`. May raise SpecError."""
    folder = Path(old.folder)
    spec, document = spec_from_document(document, folder, look=False)
    settings = load_settings(folder)
    # Keep the rehearsal, unless another provider is selected.
    as_ = old.target if old.is_rehearsal and provider in (None, old.provider) else None
    target, host = resolve_targets(spec, settings, provider or old.provider, as_)
    context = PlanContext(
        run_id=run_id,
        time=time.time(),
        folder=old.folder,
        data_dir=str(data_dir),
        submitted_from=str(Path.cwd()),
        source=SourceSummary(**old.source),
        local_files=local_files(spec, folder),
        uploads=read_uploads(spec, folder, target, data_dir, MAX_UNREAD_BYTES),
        git_commit=old.git_commit,
        git_dirty=old.git_dirty,
        owner=submitter(),
        strict=settings["policy"] == STRICT,
        rerun_of=rerun_of,
        resume_run=resume_run,
        resume_from=resume_from,
        trial=trial,
        trials_at_once=trials_at_once,
    )
    render = get_provider(target.provider).render

    return make_plan(
        spec,
        document,
        context,
        target,
        host,
        render=render,
        check=find_issues,
    )
