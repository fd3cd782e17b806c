"""Check a plan's program and packages on the disk, before a machine is paid for."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

from cloudtrain.issues import Issue, did_you_mean, warning
from cloudtrain.planning.contents import ImageContents
from cloudtrain.planning.launch import entrypoint_of
from cloudtrain.planning.plan import Plan
from cloudtrain.source.distributions import brought_along, distributions_of
from cloudtrain.source.imports import (
    Import,
    foreign_imports,
    install_lines,
    module_files,
    top_modules,
)
from cloudtrain.source.programs import program_fault
from cloudtrain.source.requirements import (
    CONDA_FILES,
    Requested,
    requested_by,
    requested_list,
    satisfies,
)
from cloudtrain.spec.dependencies import CONDA_WAY
from cloudtrain.submission.factory_checks import Factory, factories_of

MAX_NAMED = 5
"""Of the imports that nothing brings, in a plan."""

_TORCH = re.compile(r"(torch|torchvision|torchaudio|triton|pytorch-triton|nvidia-\w+-cu\d+)$")
_BUILT_FOR_TORCH = ("torchvision", "torchaudio")
_INDEX_VARIABLES = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_DEFAULT_INDEX",
    "UV_INDEX", "UV_FIND_LINKS", "UV_TORCH_BACKEND",
)  # fmt: skip
_SHARED = ("cloudtrain_job", "cloudtrain_trainer", "cloudtrain_launcher")
"""Modules that come with every job."""


def package_issues(plan: Plan) -> list[Issue]:
    """Warnings about requirements, imports and notebooks; none where the source folder is gone, as
    in a rerun.
    """
    root = Path(plan.context.source.root)
    if not root.is_dir():
        return []
    requested = requested_of(plan)
    return [
        *_programs_faults(plan, root),
        *_conda(plan, root),
        *_passwords(requested),
        *_other_torch(plan, requested),
        *_torchvision_for_cuda(plan, requested),
        *_notebook(plan, root),
        *_imports(plan, root, requested),
    ]


def requested_of(plan: Plan) -> Requested:
    """What the plan's job asks for; nothing where its file is not as it was when it was planned."""
    dependencies = plan.spec.dependencies
    source = plan.context.source
    file = dependencies.file or source.requirements
    if dependencies.off or not file:
        return requested_list(() if dependencies.off else dependencies.packages)
    return (
        requested_by(Path(source.root), file)
        if (Path(source.root) / file).is_file()
        else requested_list(())
    )


def _programs_faults(plan: Plan, root: Path) -> Iterator[Issue]:
    """Report a program that no Python can run; a warning if only this Python is known to refuse it."""
    for file in _programs(plan, root):
        fault = program_fault(file)
        if fault is None:
            continue
        name = file.relative_to(root)
        place = f"{name}:{fault.line}" if fault.line else str(name)
        if fault.depends_on_version and not _runs_in_this_python(plan):
            message = f"{place}: {fault.message}"
            hint = f"checked with Python {sys.version_info.major}.{sys.version_info.minor}"
            yield plan.located(warning(message, hint, path=("entrypoint",)))
        else:
            yield plan.located(Issue(("entrypoint",), f"{place}: {fault.message}"))


def _conda(plan: Plan, root: Path) -> Iterator[Issue]:
    conda_file = next((name for name in CONDA_FILES if (root / name).is_file()), None)
    if conda_file and plan.spec.dependencies.is_automatic and not plan.context.source.requirements:
        yield warning(
            f"{conda_file} is not read: nothing of it is installed", CONDA_WAY, origin=conda_file
        )


def _passwords(requested: Requested) -> Iterator[Issue]:
    for each in requested.to_install:
        if each.has_password:
            hint = "write ${NAME} in its place, and name NAME under secrets"
            yield warning(
                "holds a password, which is sent with the source", hint, origin=each.place
            )
    if any(re.search(r"://[^/@\s$]+@", option) for option in requested.options):
        hint = "name PIP_EXTRA_INDEX_URL under secrets instead, or write ${NAME} for the password"
        place = requested.files[0] if requested.files else "dependencies"
        yield warning(
            "an index's address holds a password, which is sent with the source", hint, origin=place
        )


def _other_torch(plan: Plan, requested: Requested) -> Iterator[Issue]:
    """Requirements that would take another torch than the image's, which stays."""
    if plan.spec.dependencies.replace_torch:
        return
    version = _version_of(plan)
    for each in requested.to_install:
        if not _TORCH.match(each.name):
            continue
        installed = version(each.name)
        if installed and not satisfies(installed, each):
            message = f"asks for {each.shown}, and {_place(plan)} has {each.name} {installed}, which stays"
        elif not installed and each.exact:
            message = (
                f"asks for {each.shown}; the {each.name} of {_place(plan)} stays, whichever it is"
            )
        else:
            continue
        hint = "leave it out, or take what it says: dependencies: {replace_torch: true}"
        yield warning(message, hint, origin=each.place)


def _torchvision_for_cuda(plan: Plan, requested: Requested) -> Iterator[Issue]:
    """Warn of a package for CUDA that is installed beside a torch for CPUs, which it cannot be
    loaded with.
    """
    names_index = any(
        "index-url" in option or "find-links" in option for option in requested.options
    )
    is_set = any(os.environ.get(name) or plan.spec.env.get(name) for name in _INDEX_VARIABLES)
    version = _version_of(plan)
    if (
        plan.spec.dependencies.replace_torch
        or names_index
        or is_set
        or not version("torch").endswith("+cpu")
    ):
        return
    for requirement in requested.to_install:
        if requirement.name in _BUILT_FOR_TORCH and not version(requirement.name):
            message = (
                f"asks for {requirement.shown}, which is built for CUDA by default; {_place(plan)}"
                " has "
            )
            hint = (
                "add --extra-index-url to the file, or PIP_EXTRA_INDEX_URL to env, with the index"
                " of PyTorch for CPUs (pytorch.org, Get Started, CPU)"
            )
            yield warning(f"{message}torch {version('torch')}", hint, origin=requirement.place)


def _notebook(plan: Plan, root: Path) -> Iterator[Issue]:
    kind, target = entrypoint_of(plan.spec.entrypoint)
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


def _imports(plan: Plan, root: Path, requested: Requested) -> list[Issue]:
    """Modules that the program imports at its start and that nothing is known to bring."""
    brings = _image_brings(plan)
    names = {each.name for each in requested.to_install}
    if brings is None or "" in names:  # a project or an address: what it brings is not known
        return []
    installed = brought_along(names)

    def is_brought(module: str) -> bool:
        return module in _SHARED or brings(module) or _brought(module, installed)

    missing = [
        each
        for each in foreign_imports(root, *_programs(plan, root))
        if not is_brought(each.module)
    ]
    named = [each for each in factories_of(plan) if not module_files(each.module, root)]
    return [
        *(_missing(plan, each) for each in missing[:MAX_NAMED]),
        *(
            _missing_factory(plan, each)
            for each in named
            if not is_brought(each.module.partition(".")[0])
        ),
    ]


def _brought(module: str, installed: set[str]) -> bool:
    """Whether one of the distributions brings it: `google-cloud-storage` brings `google`, as its
    name begins so.
    """
    begin = f"{module.lower()}-"
    return not installed.isdisjoint(distributions_of(module)) or any(
        name.startswith(begin) for name in installed
    )


def _missing(plan: Plan, each: Import) -> Issue:
    hint = (
        f"add {distributions_of(each.module)[0]} to {_list(plan)}; if the image has it, this is no"
        " problem"
    )
    message = (
        f"imports {each.module}, which neither the source, {_list(plan)} nor {_place(plan)} is"
        " known to bring"
    )
    return warning(message, hint, origin=f"{each.file}:{each.line}")


def _missing_factory(plan: Plan, each: Factory) -> Issue:
    suggestion = did_you_mean(each.module, top_modules(Path(plan.context.source.root)))
    places = f"neither the source, {_list(plan)} nor {_place(plan)}"
    return plan.located(
        warning(f"{places} is known to bring the module {each.module}{suggestion}", path=each.path)
    )


def _list(plan: Plan) -> str:
    """Where the packages of the job are named."""
    file = plan.context.source.requirements or plan.spec.dependencies.file or "requirements.txt"
    return "dependencies" if plan.spec.dependencies.packages else file


def _programs(plan: Plan, root: Path) -> list[Path]:
    """The files that the job starts: for the shared trainer those of the functions that it calls.

    None of a module that is not in the source.
    """
    kind, target = entrypoint_of(plan.spec.entrypoint)
    if kind in ("script", "notebook"):
        return [root / target]
    if kind == "trainer":
        return [file for each in factories_of(plan) for file in module_files(each.module, root)]
    path = root.joinpath(*target.split("."))
    return [file for file in (path.with_suffix(".py"), path / "__main__.py") if file.is_file()][:1]


def _image_brings(plan: Plan) -> Callable[[str], bool] | None:
    """Whether the place where it runs brings a module; None where that is not known."""
    if plan.host.image is None:
        return _is_here if _runs_in_this_python(plan) and not plan.is_rehearsal else None
    contents = plan.host.image.known_contents
    return (lambda module: _has(contents, module)) if contents else None


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
    """The version of a package where it runs; empty where that is not known."""
    image = plan.target.image
    if image is not None:
        contents = image.known_contents
        return lambda name: contents.torch if contents and name == "torch" else ""
    return _version_here if _runs_in_this_python(plan) else lambda _: ""


def _version_here(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _place(plan: Plan) -> str:
    return "this machine" if plan.host.image is None and not plan.is_rehearsal else "the image"
