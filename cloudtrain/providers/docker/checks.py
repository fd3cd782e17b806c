"""Checks whether this machine can run a plan in containers, before the start."""

from __future__ import annotations

import sys

from cloudtrain.errors import CloudtrainError
from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.local.checks import crowding_rules, gpu_checks, gpu_rules, location_checks


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
    from cloudtrain.providers.docker.host import LOCAL, address

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
    from cloudtrain.providers.docker.errors import missing_image

    image = plan.host.image_address
    try:
        with docker_engine() as engine:
            machine, _ = engine.machine()
            architecture = engine.image_architecture(image)
    except CloudtrainError as error:
        return [Issue((), error.message, error.hint)]
    if architecture is None and plan.host.image and plan.host.image.recipe:
        return []  # a build comes first
    if architecture is None:
        missing = missing_image(image)
        return [Issue((), missing.message, missing.hint)]
    if architecture and architecture != machine:
        message = f"the image {image} is built for {architecture}, this machine is {machine}: emulated at best"
        return [warning(message, f"docker build --platform linux/{machine} …")]
    return []
