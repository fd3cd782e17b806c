"""Checks of a plan's image before it is built or pulled: its Python, its CUDA, what it copies.

The rule for machines and containers is one for all images: AWS's, Microsoft's, ours and the user's.
Facts that an image's name lacks are not checked.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cloudtrain.catalog.machines import architecture_by_name, gpu_of
from cloudtrain.errors import Issue, Keys, SourceError, warning
from cloudtrain.planning.dockerfile import base_image, instructions_mention, named_sources
from cloudtrain.planning.dockerignore import read_rules
from cloudtrain.planning.image_contents import our_cuda
from cloudtrain.planning.image_facts import (
    CUDA_RANGES,
    ImageFacts,
    Version,
    container_for,
    facts_by_name,
    has_code_for,
)
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.recipe import Recipe, ignored_text
from cloudtrain.planning.selection import select_image
from cloudtrain_wire.bounded_files import read_regular_text
from cloudtrain_wire.gpus import Gpu

OLDEST_PYTHON = (3, 10)
"""Oldest Python that the launcher runs in."""

_NEWER_PYTHON = re.compile(r"python[ =@_-]{0,3}3\.?[1-9]\d\b", re.IGNORECASE)
_TORCH = re.compile(r"\btorch\b")
_WITHOUT_TORCH = r"(^|/)nvidia/cuda:"


class _Judged(NamedTuple):
    """Known facts of an image."""

    facts: ImageFacts
    source: str
    """Source of the facts: an address, or `FROM address`."""
    brings_torch: bool = True
    """False if the job or a Dockerfile may install a torch with another CUDA."""


def image_issues(plan: Plan) -> list[Issue]:
    """Return what the launcher, the builder or the machines cannot do with the image."""
    image = _judged(plan)
    issues = list(_old_python(plan, image))
    issues += _machines(plan, image)
    issues += _missing_sources(plan)
    return issues


def job_python(plan: Plan) -> str:
    """Return the version of the Python that the job runs in, `3.12`; empty if unknown."""
    image = plan.target.image
    if image is None:
        is_ours = getattr(plan.host.config, "python", None) == sys.executable
        return f"3.{sys.version_info.minor}" if is_ours else ""
    if image.known_contents and image.known_contents.python:
        return image.known_contents.python

    return _dotted(_judged(plan).facts.python)


def _judged(plan: Plan) -> _Judged:
    image = plan.target.image
    recipe = image.recipe if image else None
    if recipe and recipe.kind:
        return _Judged(_our_facts(recipe), "our image")

    replaces_torch = plan.spec.dependencies.replace_torch
    dockerfile = _dockerfile(plan)
    if dockerfile is None:
        address = plan.target.image_address
        return _Judged(facts_by_name(address), address, not replaces_torch)

    text = _text(dockerfile)
    args = dict(arg.partition("=")[::2] for arg in recipe.args) if recipe else {}
    base = base_image(text, args)
    facts = facts_by_name(base)
    if instructions_mention(text, _NEWER_PYTHON):
        facts = facts._replace(python=())
    if recipe:
        facts = facts._replace(architecture=recipe.platform.rpartition("/")[2])

    installs_torch = instructions_mention(text, _TORCH) or re.search(_WITHOUT_TORCH, base)
    return _Judged(facts, f"FROM {base}", not installs_torch and not replaces_torch)


def _our_facts(recipe: Recipe) -> ImageFacts:
    args = dict(arg.partition("=")[::2] for arg in recipe.args)
    architecture = recipe.platform.rpartition("/")[2]
    if args.get("TORCH") == "cuda":
        return ImageFacts(kind="cuda", cuda=our_cuda(), architecture=architecture)

    return ImageFacts(kind="cpu", architecture=architecture)


def _old_python(plan: Plan, image: _Judged) -> Iterator[Issue]:
    python = image.facts.python
    if python and python < OLDEST_PYTHON:
        message = (
            f"{image.source} has Python {_dotted(python)}, by its name; a job needs"
            f" {_dotted(OLDEST_PYTHON)} or newer"
        )
        yield plan.located(Issue(_image_path(plan), message, "name a newer image"))


def _machines(plan: Plan, image: _Judged) -> Iterator[Issue]:
    """Yield an issue for each kind of machine that cannot run the image, by tables and names."""
    provider = plan.target.provider
    told = set()
    for name in plan.target.instances:
        gpu = gpu_of(provider, name) if plan.gpus else None
        kind = architecture_by_name(provider, name), gpu
        issue = _problem(plan, name, gpu, image)
        if issue and kind not in told:
            told.add(kind)
            yield plan.located(replace(issue, path=_machine_path(plan)))


def _problem(plan: Plan, name: str, gpu: Gpu | None, image: _Judged) -> Issue | None:
    """Return why a machine cannot run an image, or None if it may."""
    facts = image.facts
    provider = plan.target.provider
    processor = architecture_by_name(provider, name)
    if facts.architecture and processor != facts.architecture:
        message = f"{name} has {processor} processors, and {image.source} is built for"
        hint = f"an image built for {processor}: your own, or ours by {provider}.repository"
        return Issue((), f"{message} {facts.architecture}", hint)
    if gpu is None:
        return None

    has = f"{name} has {gpu.name} GPUs, and {image.source}"
    if facts.kind == "cpu":
        return warning(f"{has} is built for CPUs, by its name")

    problem = _gpu_problem(gpu, facts)
    if problem is None:
        return None

    message, hint = problem
    if gpu.capability and "dlc" in plan.target.declaration.image_schemes:
        hint += f", such as {container_for(gpu.capability)}"
    if image.brings_torch:
        return Issue((), f"{has} {message}", hint)

    return warning(f"{has} {message}: a torch of the job's own has to bring another", hint)


def _gpu_problem(gpu: Gpu, facts: ImageFacts) -> tuple[str, str] | None:
    """Return why a GPU runs no code of an image, and a hint; None if it may."""
    capability = gpu.capability
    if capability is None:
        if facts.kind == "cuda":
            return "is built for CUDA, which is NVIDIA's", "an image with ROCm"

        return None

    if facts.kind == "rocm":
        return "is built for ROCm, which is AMD's", "an image with CUDA"
    if facts.capabilities is None or has_code_for(facts, capability):
        return None

    oldest, newest = facts.capabilities
    fitting = [
        begin for begin, _, _ in CUDA_RANGES if has_code_for(ImageFacts(cuda=begin), capability)
    ]
    if capability < oldest:
        hint = f"an image with CUDA {fitting[0][0]} or older"
    else:
        hint = f"an image with CUDA {_dotted(fitting[-1])} or newer"

    message = (
        f"has CUDA {_dotted(facts.cuda)}, with code for compute capability {_dotted(oldest)} to"
        f" {_dotted(newest)}; these have {_dotted(capability)}"
    )
    return message, hint


def _missing_sources(plan: Plan) -> Iterator[Issue]:
    """Yield an error for each source of COPY that the build does not get."""
    dockerfile = _dockerfile(plan)
    if dockerfile is None or not dockerfile.is_file():
        return

    context = _context(plan, dockerfile)
    shown = os.path.relpath(dockerfile, plan.context.folder)
    try:
        rules = read_rules(ignored_text(dockerfile, context))
    except SourceError:
        return  # the recipe reports it

    for line, source in named_sources(_text(dockerfile)):
        below = posixpath.normpath(source.lstrip("/"))
        folder = f"the build's folder {os.path.relpath(context, plan.context.folder)}/"
        if not below.startswith("..") and not (context / below).exists():
            why = f"is not in {folder}"
        elif below.startswith(".."):
            why = f"is outside of {folder}"
        elif below != "." and rules.match_file(below):
            why = "is left out by .dockerignore"
        else:
            continue

        hint = "the build gets this folder alone: image.context names another one"
        issue = Issue(("image", "build"), f"COPY source {source} {why}", hint)
        yield issue.at(f"{shown}:{line}")


def _dockerfile(plan: Plan) -> Path | None:
    """Return the user's Dockerfile of the image; None for any other image."""
    recipe = plan.target.image.recipe if plan.target.image else None
    if recipe:
        return None if recipe.kind else Path(recipe.dockerfile)

    selected = select_image(plan.spec.image, plan.target.provider)
    if not selected.is_build:
        return None

    return Path(os.path.normpath(Path(plan.context.folder) / selected.text))


def _context(plan: Plan, dockerfile: Path) -> Path:
    """Return the folder that the build sees."""
    selected = select_image(plan.spec.image, plan.target.provider)
    if not selected.context:
        return dockerfile.parent

    return Path(os.path.normpath(Path(plan.context.folder) / selected.context))


def _text(dockerfile: Path) -> str:
    try:
        return read_regular_text(dockerfile, errors="surrogateescape")
    except (OSError, ValueError):
        return ""


def _image_path(plan: Plan) -> Keys:
    return select_image(plan.spec.image, plan.target.provider).path


def _machine_path(plan: Plan) -> Keys:
    """Return the field that chose the image, or else the field of the machines."""
    if plan.where("image"):
        return _image_path(plan)
    if plan.target.provider in plan.spec.resources.instance:
        return ("resources", "instance", plan.target.provider)

    return ("resources", "gpu")


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))
