"""Checks of a plan's program and packages on disk, before a machine is paid for."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from cloudtrain.api.requirement_checks import requirement_issues
from cloudtrain.api.trainer_arguments import Factory, factories_of
from cloudtrain.errors import Issue, did_you_mean, warning
from cloudtrain.planning.image_contents import ImageContents
from cloudtrain.planning.launch import entrypoint_of
from cloudtrain.planning.plan import Plan
from cloudtrain.source.distributions import (
    Requested,
    brought_along,
    distributions_of,
    installed_version,
    requested_by,
)
from cloudtrain.source.programs import (
    Import,
    first_match,
    foreign_imports,
    install_lines,
    mentions,
    module_files,
    program_fault,
    top_modules,
)
from cloudtrain_wire.built_for_torch import BUILT_FOR_TORCH, satisfies
from cloudtrain_wire.requirement_files import Requirement, requested_list
from cloudtrain_wire.visible_gpus import present_gpus

MAX_NAMED = 5
"""Maximum number of missing imports in a plan."""

_TORCH = r"(torch|torchvision|torchaudio|triton|pytorch-triton|nvidia-\w+-cu\d+)$"
_SHARED = ("cloudtrain_job", "cloudtrain_trainer", "cloudtrain_launcher", "cloudtrain_wire")
"""Modules of every job."""

_ASKS_FOR_CUDA = re.compile(
    rb"^[^#\n]*?(\.cuda\(|\bdevice_count\(|(?<=[\"'])nccl(?=\\?[\"']))", re.MULTILINE
)
"""Text of a program that needs a GPU, or counts them, outside comments."""

_LOOKS_FOR_CUDA = re.compile(rb"is_(nccl_)?available\(|[\"']gloo\b")
"""Text of a program that also runs without."""

_SAVES = re.compile(rb"checkpoint|save|output_dir|root_dir", re.IGNORECASE)
"""Text of a program that saves: its own code, or an argument of a library that does."""


def package_issues(plan: Plan) -> list[Issue]:
    """Return warnings about requirements, imports and notebooks; none if the source is gone."""
    root = Path(plan.context.source.root)
    if not root.is_dir():
        return []

    requested = requested_of(plan)
    issues: list[Issue] = []
    issues += _programs_faults(plan, root)
    issues += requirement_issues(plan, root, requested)
    issues += _passwords(requested)
    issues += _other_torch(plan, requested)
    issues += _built_for_cuda(plan, requested)
    issues += _too_new(plan, requested)
    issues += _notebook(plan, root)
    issues += _never_saves(plan, root)
    issues += _asks_for_cuda(plan, root)
    issues += _imports(plan, root, requested)
    return issues


def requested_of(plan: Plan) -> Requested:
    """Return the packages that the job requests; none if the file is gone."""
    dependencies = plan.spec.dependencies
    source = plan.context.source
    file = dependencies.file or source.requirements

    if dependencies.off or not file:
        return requested_list(() if dependencies.off else dependencies.packages)

    if (Path(source.root) / file).is_file():
        return requested_by(Path(source.root), file)

    return requested_list(())


def _programs_faults(plan: Plan, root: Path) -> Iterator[Issue]:
    """Yield an error for a program that cannot run; a warning if it depends on the Python."""
    for file in _programs(plan, root):
        fault = program_fault(file)
        if fault is None:
            continue

        name = file.relative_to(root)
        if fault.line:
            place = f"{name}:{fault.line}"
        else:
            place = str(name)

        if fault.depends_on_version and not _runs_in_this_python(plan):
            message = f"{place}: {fault.message}"
            hint = f"checked with Python {sys.version_info.major}.{sys.version_info.minor}"
            yield plan.located(warning(message, hint, path=("entrypoint",)))
        else:
            yield plan.located(Issue(("entrypoint",), f"{place}: {fault.message}"))


def _passwords(requested: Requested) -> Iterator[Issue]:
    for requirement in requested.to_install:
        if requirement.has_password:
            hint = "write ${NAME} in its place, and name NAME under secrets"
            yield warning(
                "holds a password, which is sent with the source", hint, origin=requirement.place
            )

    if any(re.search(r"://[^/@\s$]+@", option) for option in requested.options):
        hint = "name PIP_EXTRA_INDEX_URL under secrets instead, or write ${NAME} for the password"
        place = "dependencies"
        if requested.files:
            place = requested.files[0]

        yield warning(
            "an index's address holds a password, which is sent with the source", hint, origin=place
        )


def _other_torch(plan: Plan, requested: Requested) -> Iterator[Issue]:
    """Yield warnings about requirements of another torch than the image's, which stays."""
    if plan.spec.dependencies.replace_torch:
        return

    version = _version_of(plan)
    hint = "leave it out, or take what it says: dependencies: {replace_torch: true}"
    conflicts = []
    for requirement in requested.to_install:
        if not re.match(_TORCH, requirement.name):
            continue

        asks = f"asks for {requirement.shown}"
        installed = version(requirement.name)
        if installed and not satisfies(installed, requirement):
            package = f"{requirement.name} {installed}"
            message = f"{asks}, and {_place(plan)} has {package}, which stays"
        elif not installed and requirement.exact:
            package = f"the {requirement.name} of {_place(plan)}"
            message = f"{asks}; {package} stays, whichever it is"
        else:
            continue

        conflicts.append((requirement, message))

    if conflicts:  # one note: a lock file has a dozen of such lines
        requirement, message = conflicts[0]
        if len(conflicts) > 1:
            message += f"; so do {len(conflicts) - 1} more of torch's packages"
        yield warning(message, hint, origin=requirement.place)


def _built_for_cuda(plan: Plan, requested: Requested) -> Iterator[Issue]:
    """Yield warnings about packages for CUDA beside a torch for CPUs, which cannot load them."""
    compiled = [item for item in requested.to_install if item.name in BUILT_FOR_TORCH]
    if not compiled:
        return

    version = _version_of(plan)
    torch = version("torch")
    if plan.spec.dependencies.replace_torch or not torch.endswith("+cpu"):
        return
    if _names_index(plan, requested):
        return

    for requirement in compiled:
        if not version(requirement.name):
            message = f"asks for {requirement.shown}, which the default index builds for CUDA"
            hint = "add to requirements.txt: --extra-index-url https://download.pytorch.org/whl/cpu"
            yield warning(
                f"{message}; {_place(plan)} has torch {torch}", hint, origin=requirement.place
            )


def _too_new(plan: Plan, requested: Requested) -> Iterator[Issue]:
    """Yield warnings about packages that may be newer than the provider's service takes."""
    for limit in plan.target.declaration.package_limits:
        if limit.unless in plan.spec.env:
            continue

        for requirement in requested.to_install:
            if requirement.name in limit.names and _may_be(requirement, limit.major):
                message = f"{requirement.shown} {limit.reason}"
                yield warning(message, limit.instead, origin=requirement.place)


def _may_be(requirement: Requirement, major: str) -> bool:
    """Return whether a requirement takes a version that begins with this digit."""
    pinned = re.search(r"[=~]=\s*(\d[\d.]*)", requirement.shown)
    versions = [pinned[1]] if pinned else [f"{major}.0.0", f"{major}.99.0"]
    return any(version[0] == major and satisfies(version, requirement) for version in versions)


def _names_index(plan: Plan, requested: Requested) -> bool:
    """Return whether pip is told to look for packages elsewhere."""
    if "index-url" in " ".join(requested.options):
        return True

    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        if plan.spec.env.get(name, os.environ.get(name)):
            return True

    return False


def _notebook(plan: Plan, root: Path) -> Iterator[Issue]:
    kind, target = entrypoint_of(plan.spec)
    if kind != "notebook":
        return

    for line in install_lines(root / target):
        hint = (
            "name the packages in requirements.txt beside the notebook, or in dependencies: they"
            " are installed first"
        )
        yield warning(
            f"{line.text!r} is left out: a job does not run a notebook's shell lines",
            hint,
            origin=line.place,
        )


def _never_saves(plan: Plan, root: Path) -> Iterator[Issue]:
    """Yield a warning about a spot job whose program saves nothing, by its text."""
    programs = _programs(plan, root)
    if not plan.spec.resources.spot or plan.spec.entrypoint is None or not programs:
        return

    if not mentions(_SAVES, root, *programs):
        yield plan.located(
            warning(
                f"a spot machine can be taken away, and {plan.spec.entrypoint} saves nothing: each"
                " interruption would start it anew",
                "save to $CLOUDTRAIN_CHECKPOINT_DIR and resume from there (docs/guides/spot.md)",
                path=("resources", "spot"),
            )
        )


def _asks_for_cuda(plan: Plan, root: Path) -> Iterator[Issue]:
    """Yield a warning about a program that needs GPUs in a job without; none where it sees some."""
    programs = _programs(plan, root)
    if plan.gpus or plan.spec.entrypoint is None:
        return

    place, call = first_match(_ASKS_FOR_CUDA, root, *programs)
    if not place or mentions(_LOOKS_FOR_CUDA, root, *programs):
        return

    asks = f"asks for CUDA ({call.strip('.(')}), and the job has no GPUs"
    if plan.host.declaration.is_remote:
        hint = "set resources.gpus, or name a machine with GPUs in resources.instance"
        yield warning(asks, hint, origin=place)
    elif count := present_gpus({**os.environ, **plan.spec.env}):
        if plan.host.image is not None or plan.is_rehearsal:
            yield warning(asks, f"--gpus {count} gives it those of this machine", origin=place)
    else:
        yield warning(f"{asks}; nor has this machine", origin=place)


def _imports(plan: Plan, root: Path, requested: Requested) -> list[Issue]:
    """Return warnings about modules that are imported at the start but not installed."""
    brings = _image_brings(plan)
    names = {requirement.name for requirement in requested.to_install}
    if brings is None or "" in names:  # a project or an address has unknown modules
        return []

    installed = brought_along(names)

    def is_brought(module: str) -> bool:
        return module in _SHARED or brings(module) or _brought(module, installed)

    missing = []
    for imported in foreign_imports(root, *_programs(plan, root)):
        if not is_brought(imported.module):
            missing.append(imported)

    issues = [_missing(plan, imported) for imported in missing[:MAX_NAMED]]
    for factory in factories_of(plan):
        is_own = bool(module_files(factory.module, root))
        if not is_own and not is_brought(factory.module.partition(".")[0]):
            issues.append(_missing_factory(plan, factory))

    return issues


def _brought(module: str, installed: set[str]) -> bool:
    """Return whether a distribution has the module, such as `google-cloud-storage` for `google`."""
    if not installed.isdisjoint(distributions_of(module)):
        return True

    begin = f"{module.lower()}-"
    return any(name.startswith(begin) for name in installed)


def _missing(plan: Plan, imported: Import) -> Issue:
    hint = (
        f"add {distributions_of(imported.module)[0]} to {_list(plan)}; if the image has it, ignore"
        " this"
    )
    message = (
        f"imports {imported.module}, which neither the source, {_list(plan)} nor {_place(plan)} is"
        " known to bring"
    )

    return warning(message, hint, origin=f"{imported.file}:{imported.line}")


def _missing_factory(plan: Plan, factory: Factory) -> Issue:
    suggestion = did_you_mean(factory.module, top_modules(Path(plan.context.source.root)))
    places = f"neither the source, {_list(plan)} nor {_place(plan)}"

    return plan.located(
        warning(
            f"{places} is known to bring the module {factory.module}{suggestion}", path=factory.path
        )
    )


def _list(plan: Plan) -> str:
    """Return the place of the job's package list."""
    file = plan.context.source.requirements or plan.spec.dependencies.file or "requirements.txt"
    return "dependencies" if plan.spec.dependencies.packages else file


def _programs(plan: Plan, root: Path) -> list[Path]:
    """Return the files that the job starts; or the files of the user's functions.

    A module outside the source and a command have none.
    """
    kind, target = entrypoint_of(plan.spec)
    if kind in ("script", "notebook"):
        return [root / target]

    if kind == "trainer":
        files: list[Path] = []
        for factory in factories_of(plan):
            files += module_files(factory.module, root)

        return files

    if kind != "module":
        return []

    path = root.joinpath(*target.split("."))
    return [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()][:1]


def _image_brings(plan: Plan) -> Callable[[str], bool] | None:
    """Return a test for installed modules where it runs, or None if unknown."""
    if plan.host.image is None:
        if _runs_in_this_python(plan) and not plan.is_rehearsal:
            return _is_here

        return None

    contents = plan.host.image.known_contents
    if not contents:
        return None

    return lambda module: _has(contents, module)


def _has(contents: ImageContents, module: str) -> bool:
    return not contents.packages.isdisjoint(distributions_of(module))


def _is_here(module: str) -> bool:
    try:
        return module in sys.modules or importlib.util.find_spec(module) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _runs_in_this_python(plan: Plan) -> bool:
    return getattr(plan.host.config, "python", None) == sys.executable


def _version_of(plan: Plan) -> Callable[[str], str]:
    """Return a function for versions of packages where it runs; "" if unknown."""
    image = plan.target.image
    if image is not None:
        contents = image.known_contents
        if not contents:
            return lambda _: ""

        torch = contents.torch
        return lambda name: torch if name == "torch" else ""

    if _runs_in_this_python(plan):
        return installed_version

    return lambda _: ""


def _place(plan: Plan) -> str:
    if plan.host.image is None and not plan.is_rehearsal:
        return "this machine"

    return "the image"
