"""Facts from disk, git and clock for a plan; and the archive of a job's source."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from getpass import getuser
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.api.left_out import missed_files
from cloudtrain.bundle import payload_files
from cloudtrain.declaration import declaration_of, is_local
from cloudtrain.errors import SourceError, StorageError, UsageError
from cloudtrain.file_names import relative_name
from cloudtrain.planning.launch import command_words, entrypoint_of
from cloudtrain.planning.plan import UNREAD, LocalInput, Plan, PlanContext, SourceSummary
from cloudtrain.planning.target import Target
from cloudtrain.providers import get_provider
from cloudtrain.providers.progress import Progress
from cloudtrain.runs.files import make_private_folder
from cloudtrain.runs.folder import new_run_id
from cloudtrain.settings import STRICT, Settings
from cloudtrain.shown_text import listed
from cloudtrain.source.distributions import Requested, find_requirements, requested_by
from cloudtrain.source.git import git_state
from cloudtrain.source.inputs import digest_input, input_problem, list_input
from cloudtrain.source.scan import CHANGED_HINT, scan
from cloudtrain.source.tree import SourceTree, check_size
from cloudtrain.spec.sources import FILE, read_source
from cloudtrain_wire.process_identity import host_name
from cloudtrain_wire.requirement_files import requested_list

if TYPE_CHECKING:
    from cloudtrain.spec.model import JobSpec

MAX_UNREAD_BYTES = 1_000_000_000
"""Maximum new content of an input that is read for a plan."""

_CACHE = "cache"
"""Folder of remembered hashes in the data folder."""

_last_scan: dict[str, SourceTree] = {}
"""Last scan by its digest, to name the files that changed since."""


def read_context(
    spec: JobSpec,
    folder: Path,
    settings: Settings,
    target: Target,
    run_id: str | None = None,
    progress: Progress | None = None,
) -> PlanContext:
    """Return the facts for a plan from disk, git and clock.

    Raise SourceError if the source cannot be packed.
    """
    data_dir = Path(settings["data_dir"]).absolute()
    root = folder / spec.source
    holds_data_dir = data_dir.is_relative_to(root.resolve())
    limit_bytes = None if holds_data_dir else settings["source_limit"]
    inputs = _inputs_below(root, spec, folder)
    tree = _scan(root, data_dir, inputs, progress, limit_bytes)

    if data_dir.is_relative_to(tree.root):  # the first scan has written its cache there
        tree = _scan(root, data_dir, inputs)
        _refuse_runs_inside(data_dir, tree)

    _check_entrypoint(spec, tree)
    sources = tree.own_entries
    requirements = _requirements(spec, tree)
    requested = _requested(spec, tree, requirements)
    git = git_state(folder)

    return PlanContext(
        run_id=run_id or new_run_id(data_dir, spec.name),
        time=time.time(),
        folder=str(folder),
        data_dir=str(data_dir),
        submitted_from=str(Path.cwd()),
        source=SourceSummary(
            root=str(tree.root),
            digest=tree.digest,
            files=len(sources),
            bytes=sum(entry.size for entry in sources),
            warning=check_size(tree, settings["source_limit"]) or "",
            secrets=tree.secrets,
            missed=missed_files(spec, tree),
            requirements=requirements,
            packages=tuple(requirement.shown for requirement in requested.to_install),
            offline="--no-index" in requested.options,
        ),
        local_files=local_files(spec, folder),
        uploads=read_uploads(spec, folder, target, data_dir, MAX_UNREAD_BYTES),
        git_commit=git.commit,
        git_dirty=git.dirty,
        owner=submitter(),
        strict=settings["policy"] == STRICT,
    )


def local_files(spec: JobSpec, folder: Path) -> tuple[str, ...]:
    """Return the names of inputs that are files on this machine, for any provider."""
    names = []
    for name, item in spec.inputs.items():
        local = [
            folder / Path(place).expanduser() for place in item.uri.values() if is_local(place)
        ]
        if any(map(os.path.isfile, local)):  # pathlib raises for a name that is too long
            names.append(name)

    return tuple(names)


def read_uploads(
    spec: JobSpec,
    folder: Path,
    target: Target,
    data_dir: Path,
    limit_bytes: int | None = None,
    progress: Progress | None = None,
) -> dict[str, LocalInput]:
    """Return the inputs of this machine that a target's job gets a copy of, by name.

    Those with more than `limit_bytes` of new content are not read: their digest is a placeholder.
    """
    uploads: dict[str, LocalInput] = {}
    if target.declaration.uploads is None:
        return uploads

    for name, item in spec.inputs.items():
        location = target.location_for(item.uri) or ""
        if not location or not is_local(location):
            continue

        path = os.path.normpath(folder / Path(location).expanduser())
        if problem := input_problem(path):
            uploads[name] = LocalInput(path=path, problem=problem)
            continue

        files = list_input(path).files
        digest, _ = digest_input(files, path, data_dir / _CACHE, limit_bytes, progress)
        uploads[name] = LocalInput(
            path=path,
            files=len(files),
            bytes=sum(file.info.st_size for file in files),
            digest=digest or UNREAD,
            file=files[0].path if Path(path).is_file() else "",
        )

    return uploads


def with_read_uploads(plan: Plan, progress: Progress | None = None) -> Plan:
    """Return a plan whose inputs are read, however large. May raise SourceError."""
    context = plan.context
    if all(item.digest != UNREAD or item.problem for item in context.uploads.values()):
        return plan

    folder = Path(context.folder)
    data_dir = Path(context.data_dir)
    uploads = read_uploads(plan.spec, folder, plan.target, data_dir, progress=progress)
    return replace(plan, context=replace(context, uploads=uploads))


def _inputs_below(root: Path, spec: JobSpec, folder: Path) -> dict[str, str]:
    """Return the names of inputs in a source folder, by path; without those around the program."""
    top = os.path.abspath(root)  # noqa: PTH100
    around = {Path()}
    for word in (entrypoint_of(spec)[1], *command_words(spec)):
        around.update(Path(os.path.normpath(word)).parents)

    inputs = {}
    for name, item in spec.inputs.items():
        for location in filter(is_local, item.uri.values()):
            place = os.path.abspath(folder / Path(location).expanduser())  # noqa: PTH100
            path = Path(relative_name(place, top))
            if path not in around and path.parts[0] != "..":
                inputs[path.as_posix()] = name

    return inputs


def submitter() -> str:
    """Return `alice@laptop`, in characters that every cloud accepts in a tag."""
    user = "unknown"
    if sys.platform != "win32":
        user = str(os.getuid())

    with suppress(KeyError, OSError, ImportError):  # a user id without a name, as in containers
        user = getuser()

    return re.sub(r"[^A-Za-z0-9_.:/=+@-]", "-", f"{user}@{host_name()}")[:256]


def _check_entrypoint(spec: JobSpec, tree: SourceTree) -> None:
    """Raise SourceError if an ignore file excludes the program itself."""
    kind, target = entrypoint_of(spec)
    file = tree.root / target
    is_sent = kind == "command" and not spec.setup and file.is_file()
    if kind not in ("script", "notebook") and (not is_sent or Path(target).is_absolute()):
        return

    path = relative_name(os.path.realpath(file), tree.root.resolve())
    if all(entry.path != path for entry in tree.files):
        raise SourceError(
            f"the entrypoint {target} is not in the archive: .gitignore or .cloudtrainignore leaves"
            " it out",
            hint=f"add !{path} to .cloudtrainignore",
        )


def _requirements(spec: JobSpec, tree: SourceTree) -> str:
    """Return the requirements file in the source folder, or "".

    Raise SourceError if it is not archived.
    """
    dependencies = spec.dependencies
    paths = {entry.path for entry in tree.own_entries}
    if dependencies.file and dependencies.file not in paths:
        raise SourceError(
            f"{dependencies.file} is not in the archive: .gitignore or .cloudtrainignore leaves it out",
            hint=f"add !{dependencies.file} to .cloudtrainignore",
        )

    if dependencies.file:
        return dependencies.file
    if not dependencies.is_automatic:
        return ""

    return find_requirements(tree.root, paths)


def _requested(spec: JobSpec, tree: SourceTree, file: str) -> Requested:
    """Return the packages to install. Raise SourceError if a file cannot be read."""
    listed = spec.dependencies.packages
    if file:
        requested = requested_by(tree.root, file)
    else:
        requested = requested_list(listed)

    archived = {entry.path for entry in tree.own_entries}

    for name in requested.files:
        if name not in archived:
            hint = f"move it into the source folder, or add !{name} to .cloudtrainignore"
            raise SourceError(f"{file} includes {name}, which is not in the archive", hint=hint)

    for requirement in requested.to_install:
        if requirement.wheel and Path(requirement.wheel).is_file():
            name = relative_name(requirement.wheel, tree.root.resolve())
            if name not in archived and not name.startswith(".."):
                message = f"{requirement.place}: {name} is not in the archive"
                raise SourceError(message, hint=f"add !{name} to .cloudtrainignore")

    return requested


def _refuse_runs_inside(data_dir: Path, tree: SourceTree) -> None:
    """Raise SourceError unless a source folder around the data folder ignores it."""
    inside = data_dir.relative_to(tree.root).as_posix()
    if any(entry.path.startswith(f"{inside}/") for entry in tree.files):
        raise SourceError(
            f"runs are kept in {data_dir}, inside the source folder {tree.root}: each job would"
            " ship all earlier ones",
            hint=(
                f"add {inside}/ to .cloudtrainignore, or set CLOUDTRAIN_DATA_DIR to a folder"
                " elsewhere"
            ),
        )


def _scan(
    root: Path,
    data_dir: Path,
    inputs: Mapping[str, str],
    progress: Progress | None = None,
    limit_bytes: int | None = None,
) -> SourceTree:
    tree = scan(root, payload_files(), data_dir / _CACHE, progress, limit_bytes, inputs)
    _last_scan.clear()
    _last_scan[tree.digest] = tree

    return tree


def _source_changed_error(tree: SourceTree, before: SourceTree | None) -> SourceError:
    """Return the error for a source that changed after planning, with the file names."""
    message = f"the source folder {tree.root} changed after it was planned"
    if before is None:
        return SourceError(message, hint="run the command again")

    names = sorted({entry.path for entry in set(tree.files) ^ set(before.files)})
    return SourceError(f"{message}: {listed(names)}", hint=CHANGED_HINT)


def pack_source(plan: Plan, progress: Progress | None) -> Path:
    """Return the archive of a plan's source. Raise SourceError if it changed after planning."""
    from cloudtrain.source.pack import pack  # a plan alone packs nothing

    before = _last_scan.get(plan.context.source.digest)
    data_dir = Path(plan.context.data_dir)
    folder = _archive_folder(plan)
    _mark_used(plan)

    tree = _scan_again(plan)
    if tree.digest != plan.context.source.digest:
        raise _source_changed_error(tree, before)

    return pack(tree, folder, progress, data_dir / _CACHE)


def _scan_again(plan: Plan) -> SourceTree:
    root = Path(plan.context.source.root)
    inputs = _inputs_below(root, plan.spec, Path(plan.context.folder))
    return _scan(root, Path(plan.context.data_dir), inputs)


def changed_files(plan: Plan) -> list[str]:
    """Return the files of the job that differ from the plan's stored source, by path.

    Empty if the folder is gone or cannot be packed.
    """
    from cloudtrain.source.extract import DAMAGED
    from cloudtrain.source.stored_archive import packed_entries

    folder = Path(plan.context.folder)
    root = Path(plan.context.source.root)
    names: set[str] = set()
    with suppress(UsageError, SourceError, OSError, UnicodeDecodeError, *DAMAGED):
        tree = _scan_again(plan)
        if tree.digest != plan.context.source.digest:
            names = {
                entry.path
                for entry in set(tree.own_entries) ^ set(packed_entries(archive_of(plan)))
            }
        if root != folder and read_source(folder).text != plan.spec_text:
            names.add(FILE)

    return sorted(names)


def archive_of(plan: Plan) -> Path:
    """Return the stored archive of a plan's source. Raise StorageError if it holds another one."""
    from cloudtrain.source.stored_archive import holds

    digest = plan.context.source.digest
    path = _archive_folder(plan) / f"{digest}.tar.gz"
    _mark_used(plan)
    if not holds(path, digest, Path(plan.context.data_dir) / _CACHE):
        problem = "is gone"
        if path.is_file():
            problem = "is damaged or was changed"

        raise StorageError(
            f"{path}: the source of the earlier run {problem}",
            hint="cloudtrain submit packs the present one",
        )

    return path


def _mark_used(plan: Plan) -> None:
    """Keep a removal from deleting a source that no run names yet."""
    from cloudtrain.runs.store import USED, RunStore  # a plan alone needs no runs

    with suppress(OSError, StorageError), RunStore(Path(plan.context.data_dir)).unchanged():
        mark = _archive_folder(plan) / f"{plan.context.source.digest}{USED}"
        make_private_folder(mark.parent)
        mark.touch(mode=0o600)


def is_packed(plan: Plan) -> bool:
    """Return whether an earlier submission stored this source."""
    return (_archive_folder(plan) / f"{plan.context.source.digest}.tar.gz").is_file()


def _archive_folder(plan: Plan) -> Path:
    return Path(plan.context.data_dir) / "sources"


def resolve_targets(
    spec: JobSpec, settings: Settings, provider: str, as_: str | None, *, preview: bool = False
) -> tuple[Target, Target | None]:
    """Return the target of the request and, for a rehearsal as `as_`, the target that executes it.

    `preview`: use placeholders for missing account settings, as in a rehearsal. Raise UsageError if
    `provider` cannot rehearse for `as_`.
    """
    runs = get_provider(provider)
    if as_ is None:
        target = runs.target(settings, spec)
        if preview and target.problems:
            shown = runs.target(settings, spec, rehearsal=True)
            target = shown if shown.placeholders else target

        return target, None

    contract = declaration_of(as_).contract
    is_plain = contract == "plain"  # its request has one platform's own paths
    if as_ == provider or is_plain or contract not in runs.contracts:
        if is_plain:
            advice = "to try it: --provider local"
        else:
            advice = f"to rehearse: --provider local --as {as_}"

        hint = f"{advice}; to run there: --provider {as_}"
        raise UsageError(
            f"the {provider} provider cannot rehearse a job as {as_} would run it", hint=hint
        )

    target = get_provider(as_).target(settings, spec, rehearsal=True)
    if target.gpus is not None:  # the machine that is rehearsed decides
        spec = spec.model_copy(
            update={"resources": spec.resources.model_copy(update={"gpus": target.gpus})}
        )

    return target, runs.target(settings, spec)
