"""Checks of this machine's Docker engine for `cloudtrain doctor docker`: its answer, GPUs, disk and
the image.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudtrainError, UsageError
from cloudtrain.planning.target import Target
from cloudtrain.providers.docker.checks import address_issues
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.errors import host, missing_image
from cloudtrain.providers.local.machine import ask_driver, free_bytes
from cloudtrain.units import format_size

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Engine, EngineInfo

MIN_FREE_BYTES = 20 * 10**9
"""For an image with CUDA: its wheels take about 7 GB on the disk, and a build keeps them twice."""
ANSWER_SECONDS = 15.0

ENGINE = Question("engine", "does a Docker engine of this machine answer")


def engine_check() -> Check:
    """Check that an engine answers: without one nothing is wrong, for a job that needs no container
    here.
    """
    try:
        with docker_engine(ANSWER_SECONDS) as engine:
            return ENGINE.ok(_described(engine.about()))
    except CloudtrainError as error:
        return ENGINE.not_applicable(
            f"{error.what}; runs in containers and builds of images need one"
        )


def engine_checks(target: Target) -> Iterator[Check]:
    """All checks for jobs in containers, each as soon as it is answered."""
    for issue in address_issues():
        yield ENGINE.wrong(issue.message, issue.hint or "")
        return
    try:
        with docker_engine(ANSWER_SECONDS) as engine:
            about = engine.about()
            yield ENGINE.ok(_described(about))
            yield gpu_check(about, len(ask_driver().names))
            yield disk_check(about)
            yield image_check(engine, target, about.architecture)
    except UsageError as error:  # its SDK is not installed
        yield ENGINE.wrong(error.what, error.hint or "")
    except CloudtrainError as error:
        yield ENGINE.failed(error)


def gpu_check(about: EngineInfo, gpus: int) -> Check:
    """Check that the engine can give the GPUs of this machine to containers. `gpus`: those that the
    driver has.
    """
    asked = Question("GPUs", "can containers have the GPUs of this machine")
    if not gpus:
        return asked.not_applicable("there are none here")
    if about.gives_gpus:
        return asked.ok(f"{gpus}, by the NVIDIA Container Toolkit")
    fix = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure --runtime=docker"
    )
    return asked.wrong(
        f"this engine gives none of the {gpus} to containers", f"{fix}; and restart Docker"
    )


def disk_check(about: EngineInfo) -> Check:
    """Check that there is room for an image where the engine keeps them."""
    folder = Path(about.data_folder)
    asked = Question("images' disk", f"is there room for an image in {folder}")
    if not about.data_folder or not folder.is_absolute() or not folder.parent.exists():
        return asked.not_applicable(
            "the engine keeps its images where this user cannot see the disk"
        )
    free = free_bytes(folder)
    if free < MIN_FREE_BYTES:
        fix = (
            "docker system df shows what takes the room; docker image prune removes what nothing"
            " uses"
        )
        return asked.wrong(
            f"{format_size(free)} are free, less than {format_size(MIN_FREE_BYTES)}", fix
        )
    return asked.ok(f"{format_size(free)} are free")


def image_check(engine: Engine, target: Target, machine: str) -> Check:
    """Check that the image of the job is on this machine, and built for it."""
    asked = Question(
        "image", f"is {target.image_address} here, and built for {machine}", ("image",)
    )
    found = engine.image_architecture(target.image_address)
    if found is None and target.image and target.image.recipe:
        return asked.ok(f"it is built from {target.image.recipe.dockerfile} first")
    if found is None:
        missing = missing_image(target.image_address)
        return asked.wrong(missing.what, missing.hint or "")
    if found and found != machine:
        fix = f"docker build --platform linux/{machine} …, or pull it for that platform"
        return asked.wrong(f"it is built for {found}: emulated at best", fix)
    return asked.ok(f"it is, for {found or machine}")


def _described(about: EngineInfo) -> str:
    rootless = ", rootless" if about.is_rootless else ""
    return f"version {about.version}, {about.architecture}{rootless}, at {host()}"
