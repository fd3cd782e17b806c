"""The same nouns and verbs in Python as on the command line.

    job = cloudtrain.load("job.yaml")
    run = cloudtrain.submit(cloudtrain.plan(job, "local"))
    print(run.wait().metrics)

Up to `submit` everything is a value; what comes after it is in `cloudtrain.submission.run`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError
from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan, make_plan
from cloudtrain.providers import Note, Progress, Request, get_provider
from cloudtrain.settings import DEFAULT_PROVIDER, load_settings
from cloudtrain.spec.load import load_spec, spec_from_values
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.sources import job_folder
from cloudtrain.spec.yaml_document import Document
from cloudtrain.submission.context import read_context, resolve_targets
from cloudtrain.submission.rehearsals import with_rehearsal
from cloudtrain.submission.wheels import download, wheel_set

if TYPE_CHECKING:
    from cloudtrain.submission.run import Run

REHEARSED_BY = DEFAULT_PROVIDER


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A spec that has been read and found right, with the places its values come from."""

    spec: JobSpec
    document: Document
    folder: Path


def load(
    source: str | Path | Mapping[str, Any] = "job.yaml",
    overrides: Sequence[str] = (),
    *,
    arguments: Sequence[str] = (),
) -> Job:
    """Read a job from a file, from a folder's job.yaml, from a script alone, or from a mapping that
    says the same.

    `arguments`: of the program, after those that the spec gives it. SpecError lists every mistake
    at its place.

    >>> job = load({"name": "hello", "resources": {"processes": 2}}, ["limits.restarts=1"])
    """
    if isinstance(source, Mapping):
        spec, document = spec_from_values(source, Path.cwd(), overrides, arguments)
        return Job(spec=spec, document=document, folder=Path.cwd())
    spec, document = load_spec(Path(source), overrides, arguments)
    return Job(spec=spec, document=document, folder=job_folder(Path(source)))


def plan(
    job: Job,
    provider: str | None = None,
    *,
    as_: str | None = None,
    run_id: str | None = None,
    data_dir: str | None = None,
    progress: Progress | None = None,
    preview: bool = False,
) -> Plan:
    """Decide everything, do nothing: no network, no process. SpecError where the provider cannot do
    what is asked.

    `as_`: rehearse that provider's request, on this machine unless `provider` names another. Where
    the settings would run a job plays no part then: a rehearsal never costs anything.

    `preview`: a plan to look at, also where settings of the account are missing: it has
    placeholders for them, which `plan.target.placeholders` names, and cannot be submitted.
    """
    provider = provider or (REHEARSED_BY if as_ is not None else None)
    settings = load_settings(job.folder, {"provider": provider, "data_dir": data_dir})
    target, host = resolve_targets(job.spec, settings, settings["provider"], as_, preview=preview)
    if run_id == "last":
        raise UsageError("'last' always means the last run; choose another id")
    if run_id is not None and not re.fullmatch(r"(?=.{1,63}$)[a-zA-Z0-9](-*[a-zA-Z0-9])*", run_id):
        raise UsageError(
            f"{run_id!r} is not a valid run id",
            hint="up to 63 letters, digits and single hyphens inside",
        )
    wheels = wheel_set(
        job.spec,
        job.folder / job.spec.source,
        Path(settings["data_dir"]).absolute(),
        host or target,
    )
    context = read_context(job.spec, job.folder, settings, run_id, progress, wheels)
    return with_rehearsal(make_plan(job.spec, job.document, context, target, host))


def vendor(
    job: Job,
    provider: str | None = None,
    *,
    as_: str | None = None,
    data_dir: str | None = None,
    note: Note | None = None,
) -> None:
    """Download the wheels that a job with `dependencies: {vendor: true}` sends along, unless they
    are there already.

    To be called before `plan`, with the same arguments; does nothing for any other job. UsageError,
    with what pip has said, when they cannot be had. `note` is called with what is being done.
    """
    provider = provider or (REHEARSED_BY if as_ is not None else None)
    settings = load_settings(job.folder, {"provider": provider, "data_dir": data_dir})
    target, host = resolve_targets(job.spec, settings, settings["provider"], as_)
    folder = Path(settings["data_dir"]).absolute()
    if wheels := wheel_set(job.spec, job.folder / job.spec.source, folder, host or target):
        download(wheels, note)


def render(plan: Plan) -> Request:
    """The request that `submit` would send: the platform's own document, plain JSON, and the job
    document.
    """
    return get_provider(plan.target.provider).render(plan)


def submit(
    plan: Plan,
    *,
    issues: Sequence[Issue] | None = None,
    progress: Progress | None = None,
    sending: Progress | None = None,
    pushing: Progress | None = None,
) -> Run:
    """Start a plan and return its run at once; `wait()` waits for its end. The same plan is never
    started twice.

    RefusedError or SpecError when a check refuses it, RunExists when its run id is taken;
    CloudError and StorageError say in `outcome` whether the job was started.
    """
    from cloudtrain.submission.run import (
        Run,
    )  # a plan alone needs nothing that starts runs, or looks after them
    from cloudtrain.submission.submit import submit as start

    return Run(start(plan, issues=issues, progress=progress, sending=sending, pushing=pushing))
