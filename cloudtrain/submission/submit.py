"""Submitting: the effects, in order, each recorded before the next: pack, record, start.

Safe to interrupt anywhere: the run id is chosen first and `submitting` is on disk before the start, so that what
became of the job can always be asked by its name.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cloudtrain.bundle import payload_files
from cloudtrain.contracts.launch import entrypoint_of
from cloudtrain.errors import CloudtrainError, Outcome, SourceError, StorageError, UsageError
from cloudtrain.issues import Issue
from cloudtrain.planning.plan import Plan, PlanContext, SourceSummary, make_plan
from cloudtrain.planning.target import Target
from cloudtrain.providers import Note, get_provider
from cloudtrain.runs.events import Ended, Image, Submitted, Submitting
from cloudtrain.runs.history import History
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.store import RunFolder, RunStore, as_text, storing
from cloudtrain.settings import Settings, load_settings
from cloudtrain.source import SourceTree, check_size, pack, scan
from cloudtrain.source.git import git_state
from cloudtrain.spec import JobSpec, spec_from_document
from cloudtrain.spec.load import override
from cloudtrain.spec.yaml_document import Document, parse_document
from cloudtrain.submission.images import resolve_image
from cloudtrain.submission.preflight import preflight, refuse_errors

Progress = Callable[[int, int], None]

MAX_SECRETS = MAX_CHANGED = 5
"""Of the files that are left out, or have changed, in a note."""


def read_context(
    spec: JobSpec,
    folder: Path,
    settings: Settings,
    run_id: str | None = None,
    progress: Progress | None = None,
) -> PlanContext:
    """What disk, git and clock say of a job."""
    data_dir = Path(settings["data_dir"]).absolute()
    tree = _scan(folder / spec.source, data_dir, progress)
    if data_dir.is_relative_to(tree.root):
        tree = _scan_around(data_dir, tree)
    _check_entrypoint(spec, tree)
    own = tree.own
    git = git_state(folder)
    return PlanContext(
        run_id=run_id or RunStore(data_dir).new_id(spec.name),
        time=time.time(),
        folder=str(folder),
        data_dir=str(data_dir),
        source=SourceSummary(
            root=str(tree.root),
            digest=tree.digest,
            files=len(own),
            bytes=sum(entry.size for entry in own),
            warning=check_size(tree, settings["source_warn"], settings["source_limit"]) or "",
            secrets=tree.secrets,
        ),
        local_files=_local_files(spec, folder),
        git_commit=git.commit,
        git_dirty=git.dirty,
        owner=_owner(),
    )


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
    """Start a plan. RefusedError when a check says no, RunExists when its run id is taken: nothing was started then.

    `archive`: the source as another run packed it; by default it is packed now, and must be what was planned.
    `issues`: those of a preflight of this very plan, when one was just made.
    `progress` is told of the packing, in files; `sending` of the upload and `pushing` of the image, in bytes.
    `note` is told what a user should know of the start itself, such as an image that cannot be looked up from here.
    """
    refuse_errors(preflight(plan) if issues is None else issues)
    image = resolve_image(plan, pushing, note)
    store = RunStore(Path(plan.context.data_dir))
    # A rehearsed request names the image of the cloud; the one that it is rehearsed in is another.
    request = get_provider(plan.target.provider).render(plan, None if plan.is_rehearsal else image)
    archive = archive or _pack(plan, progress)
    documents = {
        "spec.yaml": plan.spec_text,
        "plan.json": as_text(plan.to_json()),
        "request.json": as_text(dict(request.document)),
        "job.json": as_text(dict(request.job)),
    }
    submitting = Submitting(
        time=time.time(),
        name=plan.spec.name,
        provider=plan.provider,
        contract=plan.target.contract,
        nodes=plan.spec.resources.nodes,
        processes=plan.processes,
    )
    held: list[int] = []
    try:
        folder = store.create(plan.run_id, documents, submitting, held)
        if image is not None:
            folder.append(Image(time=time.time(), **asdict(image)))
        try:
            ref = get_provider(plan.provider).start(plan, request, folder, archive, sending, History(folder).record)
        except CloudtrainError as error:
            if error.outcome is Outcome.UNKNOWN:  # left open: the next look at the run asks what became of it
                raise
            error.outcome = Outcome.NOT_STARTED
            folder.append(Ended(time=time.time(), state="failed", reason=error.message))
            raise
        folder.append(Submitted(time=time.time(), ref=ref))
    finally:
        for file in held:
            os.close(file)
    return folder


def plan_again(run: RunFolder, provider: str | None, overrides: tuple[str, ...], resume_from: str) -> Plan:
    """The plan of an earlier run, with its source as it was, under a new run id; from those checkpoints, if any."""
    record = RunRecord(run)
    if record.is_of_another_machine:
        hint = "cloudtrain submit, from the folder of the job"
        raise UsageError(f"run {run.run_id} was started on another machine, which has its source", hint=hint)
    old = record.plan()
    folder = Path(old.context.folder)
    text = run.text("spec.yaml")
    document: Document = override(parse_document(text, name=f"{run.run_id}/spec.yaml"), (*old.overrides, *overrides))
    if "name" not in document.values:
        document = replace(document, values={"name": old.name, **document.values})
    spec, document = spec_from_document(document, folder, look=False)
    kept = spec.checkpoints.uri
    if kept and not resume_from and kept == old.checkpoints_uri:
        message = f"what run {run.run_id} has saved in {kept} would be restored, and this run is to begin anew"
        raise UsageError(message, hint=f"--set checkpoints.uri={kept.rstrip('/')}-2/")
    settings = load_settings(folder)
    data_dir = run.path.parents[1]
    new = PlanContext(
        run_id=RunStore(data_dir).new_id(spec.name),
        time=time.time(),
        folder=old.context.folder,
        data_dir=str(data_dir),
        source=SourceSummary(**asdict(old.context.source)),
        local_files=_local_files(spec, folder),
        git_commit=old.context.git_commit,
        git_dirty=old.context.git_dirty,
        owner=_owner(),
        resume_run=run.run_id if resume_from else "",
        resume_from=resume_from,
    )
    # The same rehearsal again, unless it is to run somewhere else now.
    as_ = old.target if old.is_rehearsal and provider in (None, old.provider) else None
    target, host = targets(spec, settings, provider or old.provider, as_)
    return make_plan(spec, document, new, target, host)


def targets(spec: JobSpec, settings: Settings, provider: str, as_: str | None) -> tuple[Target, Target | None]:
    """The target whose request is made and, for a rehearsal (`as_` names another provider), where it is executed."""
    runs = get_provider(provider)
    if as_ is None:
        return runs.target(settings, spec), None
    target = get_provider(as_).target(settings, spec, rehearsal=True)
    if as_ == provider or target.contract not in runs.contracts:
        hint = f"to rehearse: --provider local --as {as_}; to run there: --provider {as_}"
        raise UsageError(f"the {provider} provider cannot rehearse a job as {as_} would run it", hint=hint)
    if target.gpus is not None:  # the machine that is rehearsed decides
        spec = spec.model_copy(update={"resources": spec.resources.model_copy(update={"gpus": target.gpus})})
    return target, runs.target(settings, spec)


def archive_of(plan: Plan) -> Path:
    """The stored archive of a plan's source. StorageError when it is not there (any more)."""
    path = _store(plan) / f"{plan.context.source.digest}.tar.gz"
    if not path.is_file():
        raise StorageError(
            f"{path}: the source of the earlier run is gone", hint="cloudtrain submit packs the present one"
        )
    return path


def warnings(plan: Plan, issues: Sequence[Issue]) -> list[str]:
    """What a user should know before a start, though it does not forbid it."""
    notes = [issue.line() + (f" ({issue.hint})" if issue.hint else "") for issue in issues if not issue.is_error]
    if plan.host.image and plan.host.image.recipe:
        notes.append(f"the image is built from {plan.host.image.recipe.dockerfile} first, if it is new")
    if plan.context.source.warning:
        notes.append(plan.context.source.warning)
    if plan.context.source.secrets:
        notes.append(secrets_note(plan.context.source.secrets))
    if plan.unused:
        notes.append(f"not used by the {plan.target.provider} provider: {', '.join(plan.unused)}")
    return notes


def _owner() -> str:
    """`alice@laptop`, in the characters that every cloud takes in a tag."""
    from getpass import getuser

    try:
        user = getuser()
    except (KeyError, OSError):  # a user id without a name, as in containers
        user = str(os.getuid())
    return re.sub(r"[^A-Za-z0-9_.:/=+@-]", "-", f"{user}@{os.uname().nodename}")[:256]


def secrets_note(paths: Sequence[str]) -> str:
    """Which likely secrets stay out of the source, and how to bring one along."""
    shown = ", ".join(paths[:MAX_SECRETS]) + (f" and {len(paths) - MAX_SECRETS} more" if paths[MAX_SECRETS:] else "")
    return (
        f"left out of the source, as likely to hold secrets: {shown} "
        f"(`secrets:` in the spec hands a job its secrets; !{paths[0]} in .cloudtrainignore takes this one along)"
    )


def _local_files(spec: JobSpec, folder: Path) -> tuple[str, ...]:
    """Inputs that lie on this machine, for whatever provider, and are files."""
    here = {
        name: [folder / Path(place).expanduser() for place in item.uri.values() if "://" not in place]
        for name, item in spec.inputs.items()
    }
    return tuple(name for name, paths in here.items() if any(os.path.isfile(path) for path in paths))  # noqa: PTH113


def _pack(plan: Plan, progress: Progress | None) -> Path:
    before = _scanned.get(plan.context.source.digest)
    tree = _scan(Path(plan.context.source.root), Path(plan.context.data_dir), None)
    if tree.digest != plan.context.source.digest:
        raise _changed(tree, before)
    with storing(_store(plan)):
        return pack(tree, _store(plan), progress)


def _scan(root: Path, data_dir: Path, progress: Progress | None) -> SourceTree:
    tree = scan(root, payload_files(), data_dir / "cache", progress)
    _scanned.clear()
    _scanned[tree.digest] = tree
    return tree


_scanned: dict[str, SourceTree] = {}
"""The last scan, by its digest: it tells which files have changed since."""


def _changed(tree: SourceTree, before: SourceTree | None) -> SourceError:
    """What to say of a source that is not what was planned: which files."""
    message = f"the source folder {tree.root} changed after it was planned"
    if before is None:
        return SourceError(message, hint="run the command again")
    names = sorted({entry.path for entry in {*tree.files} ^ {*before.files}})
    shown = ", ".join(names[:MAX_CHANGED]) + (f" and {len(names) - MAX_CHANGED} more" if names[MAX_CHANGED:] else "")
    hint = (
        f"run the command again; what is always being written belongs elsewhere, or {names[0]} into .cloudtrainignore"
    )
    return SourceError(f"{message}: {shown}", hint=hint)


def _check_entrypoint(spec: JobSpec, tree: SourceTree) -> None:
    """SourceError when an ignore file leaves out the program itself."""
    kind, target = entrypoint_of(spec.entrypoint)
    if kind not in ("script", "notebook"):
        return
    path = os.path.relpath((tree.root / target).resolve(), tree.root.resolve())
    if all(entry.path != path for entry in tree.files):
        raise SourceError(
            f"the entrypoint {target} is not in the archive: .gitignore or .cloudtrainignore leaves it out",
            hint=f"add !{path} to .cloudtrainignore",
        )


def is_packed(plan: Plan) -> bool:
    """Whether an earlier submission has stored this very source already."""
    return (_store(plan) / f"{plan.context.source.digest}.tar.gz").is_file()


def _scan_around(data_dir: Path, tree: SourceTree) -> SourceTree:
    """The scan of a source folder that the runs lie in: they must be ignored, or each job ships all earlier ones."""
    tree = _scan(tree.root, data_dir, None)  # the first scan has left its cache there
    inside = data_dir.relative_to(tree.root).as_posix()
    if any(entry.path.startswith(f"{inside}/") for entry in tree.files):
        raise SourceError(
            f"runs are kept in {data_dir}, inside the source folder {tree.root}: each job would ship all earlier ones",
            hint=f"add {inside}/ to .cloudtrainignore, or set CLOUDTRAIN_DATA_DIR to a folder elsewhere",
        )
    return tree


def _store(plan: Plan) -> Path:
    return Path(plan.context.data_dir) / "sources"
