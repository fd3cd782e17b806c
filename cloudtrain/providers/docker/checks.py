"""Image and checks of a plan in containers, and checks of this machine's engine for `doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from cloudtrain.checkup import Check, Question
from cloudtrain.declaration import declarations
from cloudtrain.errors import CloudtrainError, Issue, UsageError, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.selection import PlannedImage, planned_build, recipe_for, select_image
from cloudtrain.planning.target import Target
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.container_spec import DockerConfig
from cloudtrain.providers.docker.declaration import DECLARATION
from cloudtrain.providers.docker.errors import LOCAL, address, host, missing_image
from cloudtrain.providers.local.checks import crowding_rules, gpu_checks, gpu_rules, location_checks
from cloudtrain.providers.local.machine import ask_driver
from cloudtrain.settings import Settings

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Engine, EngineInfo

ANSWER_SECONDS = 15.0

ENGINE = Question("engine", "does a Docker engine of this machine answer")


def container_rules(plan: Plan) -> list[Issue]:
    """Return problems found on the disk and in the environment, without the engine."""
    issues = address_issues()
    issues += crowding_rules(plan, plan.host.config_as(DockerConfig).cores)
    issues += gpu_rules(plan, _gpus(plan), "in all")
    issues += location_checks(plan, in_container=True)
    return issues


def container_checks(plan: Plan) -> list[Issue]:
    """Return problems that the engine and the driver report."""
    if address_issues():
        return []

    return _engine(plan) + gpu_checks(plan, sys.executable, _gpus(plan), "in all")


def _gpus(plan: Plan) -> int:
    """Return the GPUs of all nodes: each container has separate ones."""
    return plan.gpus * plan.spec.resources.nodes


def address_issues() -> list[Issue]:
    """Return an error for an engine of another machine, which cannot see this one's folders."""
    where, by = address()
    if by and not where.startswith(LOCAL):
        message = (
            f"{by} is {where}: the run's folders are mounted, so the engine must be this machine's"
        )
        hint = "docker context use default, or export DOCKER_CONTEXT=default"
        if by == "DOCKER_HOST":
            hint = "unset DOCKER_HOST"

        return [Issue((), message, hint)]

    return []


def _engine(plan: Plan) -> list[Issue]:
    try:
        with docker_engine() as engine:
            issue = image_issue(engine, plan.host, engine.info().architecture)
    except CloudtrainError as error:
        return [Issue((), error.message, error.hint)]
    if not issue:
        return []

    return [issue]


def image_issue(engine: Engine, target: Target, machine: str) -> Issue | None:
    """Return an issue if the image is missing, unless it is built first, or for other machines.

    `machine`: the architecture of this one.
    """
    image = target.image_address
    architecture = engine.image_architecture(image)
    if architecture is None:
        if target.image and target.image.recipe:
            return None
        missing = missing_image(image)
        return Issue((), missing.message, missing.hint)
    if architecture in ("", machine):
        return None

    message = f"the image {image} is built for {architecture}, this machine is {machine}: emulated"
    return warning(f"{message} at best", f"docker build --platform linux/{machine} …")


def engine_check() -> Check:
    """Check that an engine answers. It is optional for a job without containers here."""
    try:
        with docker_engine(ANSWER_SECONDS) as engine:
            return ENGINE.found(_described(engine.info()))
    except CloudtrainError as error:
        return ENGINE.not_checked(f"{error.what}; runs in containers and builds of images need one")


def engine_checks(plan: Plan) -> Iterator[Check]:
    """Yield all checks for jobs in containers, each as its answer comes."""
    for issue in address_issues():
        yield ENGINE.wrong(issue.message, issue.hint or "")
        return
    try:
        with docker_engine(ANSWER_SECONDS) as engine:
            info = engine.info()
            yield ENGINE.found(_described(info))
            yield gpu_check(info, len(ask_driver().names))
            image = Question("image", f"is {plan.host.image_address} here", ("image",))
            problem = image_issue(engine, plan.host, info.architecture)
            if problem:
                yield image.wrong(problem.message, problem.hint or "")
            else:
                yield image.found("it is")
    except UsageError as error:  # its SDK is not installed
        yield ENGINE.wrong(error.what, error.hint or "")
    except CloudtrainError as error:
        yield ENGINE.failed(error)


def gpu_check(info: EngineInfo, gpus: int) -> Check:
    """Check that the engine can give GPUs to containers. `gpus`: number of the driver's GPUs."""
    question = Question("GPUs", "can containers have the GPUs of this machine")
    if not gpus:
        return question.found("there are none here")
    if info.gives_gpus:
        return question.found(f"{gpus}, by the NVIDIA Container Toolkit")

    fix = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure --runtime=docker"
    )
    return question.wrong(
        f"this engine gives containers 0 of the {gpus}", f"{fix}; and restart Docker"
    )


def _described(info: EngineInfo) -> str:
    rootless = ", rootless" if info.is_rootless else ""
    return f"version {info.version}, {info.architecture}{rootless}, at {host()}"


def image_of(
    image: str | Mapping[str, str],
    settings: Settings,
    *,
    gpu: bool,
) -> tuple[PlannedImage, tuple[Issue, ...]]:
    """Return the image, by its name on this machine, and its problems.

    Our own image is the default, and `auto`.
    """
    selected = select_image(image, DECLARATION.name)
    path, address, _ = selected
    if selected.is_build or address == "auto":
        recipe, problems = recipe_for(selected, settings, gpu=gpu)
        return planned_build(recipe), tuple(problems)

    scheme, colon, _ = address.partition(":")
    for declared in declarations():
        if colon and scheme in declared.image_schemes:
            hint = f"an address for each: image: {{docker: auto, {declared.name}: '{address}'}}"
            message = f"{address} means something in {declared.name} alone"
            return PlannedImage(""), (Issue(path, message, hint),)

    return PlannedImage(address), ()
