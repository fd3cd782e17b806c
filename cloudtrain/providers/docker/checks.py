"""Checks whether this machine can run a plan in containers, before the start."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cloudtrain.errors import CloudtrainError
from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.target import Target
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.docker.errors import missing_image
from cloudtrain.providers.docker.host import LOCAL, address
from cloudtrain.providers.local.checks import crowding_rules, gpu_checks, gpu_rules, location_checks

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Engine


def container_rules(plan: Plan) -> list[Issue]:
    """Return problems found on the disk and in the environment, without the engine."""
    return [
        *address_issues(),
        *crowding_rules(plan, plan.host.config_as(DockerConfig).cores),
        *gpu_rules(plan, _gpus(plan), "in all"),
        *location_checks(plan, in_container=True),
    ]


def container_checks(plan: Plan) -> list[Issue]:
    """Return problems that the engine and the driver report."""
    if address_issues():
        return []
    return [*_engine(plan), *gpu_checks(plan, sys.executable, _gpus(plan), "in all")]


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
        hint = (
            "unset DOCKER_HOST"
            if by == "DOCKER_HOST"
            else "docker context use default, or export DOCKER_CONTEXT=default"
        )
        return [Issue((), message, hint)]
    return []


def _engine(plan: Plan) -> list[Issue]:
    try:
        with docker_engine() as engine:
            issue = image_issue(engine, plan.host, engine.info().architecture)
    except CloudtrainError as error:
        return [Issue((), error.message, error.hint)]
    return [issue] if issue else []


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
