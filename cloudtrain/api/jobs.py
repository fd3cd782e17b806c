"""Python functions with the names of the commands.

    job = cloudtrain.load("job.yaml")
    run = cloudtrain.submit(cloudtrain.plan(job, "local"))
    print(run.wait().metrics)

Everything before `submit` is a value; `cloudtrain.api.run` has everything after it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.api.context import pack_source, read_context, resolve_targets, with_read_uploads
from cloudtrain.api.preflight import find_issues
from cloudtrain.api.rehearsals import with_rehearsal
from cloudtrain.errors import Issue, UsageError
from cloudtrain.planning.launch import Request
from cloudtrain.planning.plan import Plan, make_plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.progress import Note, Progress
from cloudtrain.runs.files import FILE_MODE, make_private_folder, replace_text, storing
from cloudtrain.settings import DEFAULT_PROVIDER, load_settings
from cloudtrain.spec.load import load_spec, spec_from_values
from cloudtrain.spec.model import JobSpec
from cloudtrain.spec.sources import job_folder
from cloudtrain.spec.yaml_document import Document

if TYPE_CHECKING:
    from cloudtrain.api.run import Run

REHEARSED_BY = DEFAULT_PROVIDER


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Valid spec with the origins of its values."""

    spec: JobSpec
    document: Document
    folder: Path


def load(
    source: str | Path | Mapping[str, Any] = "job.yaml",
    overrides: Sequence[str] = (),
    *,
    arguments: Sequence[str] = (),
) -> Job:
    """Read a job from a file, a folder's job.yaml, a script alone or an equivalent mapping.

    `arguments`: arguments of the program, after those in the spec. Raise SpecError with every
    mistake at its place.

    >>> job = load({"name": "hello", "resources": {"processes": 2}}, ["limits.restarts=1"])
    """
    for words in (overrides, arguments):
        if isinstance(words, str):
            raise UsageError(f"expected a list of texts, got {words!r}", hint=f"[{words!r}]")

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
    """Plan a job without any effect: no network, no process.

    Raise SpecError if the provider cannot do it.

    `as_`: rehearse that provider's request, on this machine unless `provider` names another. The
    provider in the settings does not matter then: a rehearsal never costs anything.

    `preview`: plan with placeholders for missing account settings, listed in
    `plan.target.placeholders`. Such a plan cannot be submitted.
    """
    _expect(job, Job, "cloudtrain.plan(cloudtrain.load('job.yaml'))")
    if not provider and as_ is not None:
        provider = REHEARSED_BY

    settings = load_settings(job.folder, {"provider": provider, "data_dir": data_dir})
    target, host = resolve_targets(job.spec, settings, settings["provider"], as_, preview=preview)
    if run_id == "last":
        raise UsageError("'last' always means the last run; choose another id")
    if run_id is not None and not re.fullmatch(
        r"(?=.{1,63}$)[a-zA-Z0-9]([-_]*[a-zA-Z0-9])*", run_id
    ):
        raise UsageError(
            f"{run_id!r} is not a valid run id",
            hint="up to 63 letters and digits, with hyphens and underscores only between them",
        )
    context = read_context(job.spec, job.folder, settings, target, run_id, progress)
    return with_rehearsal(
        make_plan(
            job.spec,
            job.document,
            context,
            target,
            host,
            render=get_provider(target.provider).render,
            check=find_issues,
        )
    )


def _expect(value: object, kind: type, hint: str) -> None:
    """Raise UsageError for a value of another type."""
    if not isinstance(value, kind):
        message = f"expected a {kind.__name__}, got {type(value).__name__}"
        raise UsageError(message, hint=hint)


def render(plan: Plan) -> Request:
    """Return the request that `submit` would send, plain JSON, with the job document."""
    return plan.request


def export(plan: Plan, folder: Path, progress: Progress | None = None) -> Path:
    """Write what starts a plan's job without cloudtrain; return the script to run, `start.sh`.

    The new folder gets the request, the source and a script of the cloud's own commands, and a
    .gitignore that keeps it out of the next submit. Secrets in `env` and `args` are not masked;
    only this user can read the files. Raise UsageError for a platform without such commands and
    for a folder that is not empty, SourceError if the source changed after planning, StorageError
    if the folder cannot be written.
    """
    if plan.is_rehearsal:
        raise UsageError(
            "a rehearsal's request has the paths of this machine",
            hint=f"--provider {plan.target.provider} instead of --as",
        )

    plan = with_read_uploads(plan, progress)
    exported = get_provider(plan.target.provider).export(plan)
    archive = pack_source(plan, progress)
    script = folder / "start.sh"
    comment = f"# Start the job {plan.run_id} without cloudtrain. It costs money."
    if plan.target.image and plan.target.image.recipe:
        comment += "\n# First build and push the image that request.json names."
    commands = ["set -eu", 'cd "$(dirname "$0")"', *map(shlex.join, exported.commands)]

    if os.path.lexists(folder) and not folder.is_dir():
        raise UsageError(f"{folder} exists and is not a folder", hint="name a new folder")

    with storing(folder, hint="name another folder"):
        make_private_folder(folder)
        if any(folder.iterdir()):
            raise UsageError(f"{folder} is not empty", hint="name a new folder")

        target = folder / exported.archive
        make_private_folder(target.parent)
        target.touch(FILE_MODE)
        shutil.copyfile(archive, target)
        texts = {
            **exported.files,
            ".gitignore": "*\n",
            script.name: "\n".join(["#!/bin/sh", comment, *commands, ""]),
        }
        for name, text in texts.items():
            replace_text(folder / name, text)

        script.chmod(0o700)

    return script


def submit(
    plan: Plan,
    *,
    issues: Sequence[Issue] | None = None,
    progress: Progress | None = None,
    sending: Progress | None = None,
    pushing: Progress | None = None,
    note: Note | None = None,
) -> Run:
    """Start a plan and return its run at once; `wait()` waits for its end.

    A plan starts only once. If a cloud refuses the first machine of a list for its quota, the job is
    planned for the next one; `note` is called with such remarks. Raise RefusedError or SpecError if
    a check refuses it, RunExists if its run id is taken. CloudError and StorageError have in
    `outcome` whether the job was started.
    """
    # A plan alone needs no code that starts or watches runs.
    from cloudtrain.api.run import Run
    from cloudtrain.api.submit import submit as start

    _expect(plan, Plan, "cloudtrain.submit(cloudtrain.plan(job))")
    return Run(
        start(plan, issues=issues, progress=progress, sending=sending, pushing=pushing, note=note)
    )
