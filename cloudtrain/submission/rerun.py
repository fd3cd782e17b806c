"""Plan of a rerun, from the documents of an earlier run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from cloudtrain.errors import UsageError
from cloudtrain.planning.plan import Plan, PlanContext, SourceSummary, TrialRules, make_plan
from cloudtrain.providers import get_provider
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import PlanRecord, RunRecord
from cloudtrain.runs.store import new_run_id
from cloudtrain.settings import STRICT, load_settings
from cloudtrain.spec.load import override, spec_from_document
from cloudtrain.spec.yaml_document import Document, parse_document
from cloudtrain.submission.context import local_files, resolve_targets, submitter
from cloudtrain.submission.preflight import find_issues
from cloudtrain.submission.rehearsals import with_rehearsal


def plan_again(
    run: RunFolder, provider: str | None, overrides: tuple[str, ...], resume_from: str
) -> Plan:
    """Return the plan of an earlier run with the same source and a new run id.

    `resume_from`: checkpoints to start from, if any. Raise UsageError for a run of another machine,
    or if unwanted checkpoints would be restored; StorageError if the run folder is damaged.
    """
    record = RunRecord(run)
    if record.is_of_another_machine:
        hint = "cloudtrain submit, from the folder of the job"
        raise UsageError(
            f"run {run.run_id} was started on another machine, which has its source", hint=hint
        )
    old = record.plan()
    folder = Path(old.folder)
    text = run.text("spec.yaml")
    document: Document = override(
        parse_document(text, name=f"{run.run_id}/spec.yaml"), (*old.overrides, *overrides)
    )
    if "name" not in document.values:
        document = replace(document, values={"name": old.name, **document.values})
    spec, document = spec_from_document(document, folder, look=False)
    checkpoints_uri = spec.checkpoints.uri
    if checkpoints_uri and not resume_from and checkpoints_uri == old.checkpoints_uri:
        message = (
            f"what run {run.run_id} has saved in {checkpoints_uri} would be restored, and this run is to begin"
            " anew"
        )
        raise UsageError(message, hint=f"--set checkpoints.uri={checkpoints_uri.rstrip('/')}-2/")
    data_dir = run.path.parents[1]
    return with_rehearsal(
        replan(
            old,
            document,
            data_dir,
            provider=provider,
            run_id=new_run_id(data_dir, spec.name),
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
    resume_run: str = "",
    resume_from: str = "",
    trial: TrialRules | None = None,
    trials_at_once: int = 1,
) -> Plan:
    """Return a plan with an earlier source and the spec of `document`. May raise SpecError."""
    folder = Path(old.folder)
    spec, document = spec_from_document(document, folder, look=False)
    settings = load_settings(folder)
    context = PlanContext(
        run_id=run_id,
        time=time.time(),
        folder=old.folder,
        data_dir=str(data_dir),
        submitted_from=str(Path.cwd()),
        source=SourceSummary(**old.source),
        local_files=local_files(spec, folder),
        git_commit=old.git_commit,
        git_dirty=old.git_dirty,
        owner=submitter(),
        strict=settings["policy"] == STRICT,
        resume_run=resume_run,
        resume_from=resume_from,
        trial=trial,
        trials_at_once=trials_at_once,
    )
    # Keep the rehearsal, unless another provider is selected.
    as_ = old.target if old.is_rehearsal and provider in (None, old.provider) else None
    target, host = resolve_targets(spec, settings, provider or old.provider, as_)
    render = get_provider(target.provider).render
    return make_plan(spec, document, context, target, host, render=render, check=find_issues)
