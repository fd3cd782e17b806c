"""Checks of the Docker engine for `cloudtrain doctor docker`: answer, GPUs, image."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.planning.target import Target
from cloudtrain.providers.docker.checks import address_issues, image_issue
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.errors import host
from cloudtrain.providers.local.machine import ask_driver

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import EngineInfo

ANSWER_SECONDS = 15.0

ENGINE = Question("engine", "does a Docker engine of this machine answer")


def engine_check() -> Check:
    """Check that an engine answers. It is optional for a job without containers here."""
    try:
        with docker_engine(ANSWER_SECONDS) as engine:
            return ENGINE.ok(_described(engine.info()))
    except CloudtrainError as error:
        return ENGINE.not_applicable(
            f"{error.what}; runs in containers and builds of images need one"
        )


def engine_checks(target: Target) -> Iterator[Check]:
    """Yield all checks for jobs in containers, each as its answer comes."""
    for issue in address_issues():
        yield ENGINE.wrong(issue.message, issue.hint or "")
        return
    try:
        with docker_engine(ANSWER_SECONDS) as engine:
            info = engine.info()
            yield ENGINE.ok(_described(info))
            yield gpu_check(info, len(ask_driver().names))
            image = Question("image", f"is {target.image_address} here", ("image",))
            problem = image_issue(engine, target, info.architecture)
            yield image.wrong(problem.message, problem.hint or "") if problem else image.ok("it is")
    except UsageError as error:  # its SDK is not installed
        yield ENGINE.wrong(error.what, error.hint or "")
    except CloudtrainError as error:
        yield ENGINE.failed(error)


def gpu_check(info: EngineInfo, gpus: int) -> Check:
    """Check that the engine can give GPUs to containers. `gpus`: number of the driver's GPUs."""
    question = Question("GPUs", "can containers have the GPUs of this machine")
    if not gpus:
        return question.not_applicable("there are none here")
    if info.gives_gpus:
        return question.ok(f"{gpus}, by the NVIDIA Container Toolkit")
    fix = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure --runtime=docker"
    )
    return question.wrong(
        f"this engine gives containers 0 of the {gpus}", f"{fix}; and restart Docker"
    )


def _described(info: EngineInfo) -> str:
    rootless = ", rootless" if info.is_rootless else ""
    return f"version {info.version}, {info.architecture}{rootless}, at {host()}"
