"""Checks whether this machine can run a plan in containers, before anything is started."""

from __future__ import annotations

import sys

from cloudtrain.errors import CloudtrainError
from cloudtrain.issues import Issue, warning
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.docker import gpus
from cloudtrain.providers.docker.config import DockerConfig
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.local.checks import crowding_rules, gpu_checks, gpu_rules, location_checks


def container_rules(plan: Plan) -> list[Issue]:
    """Problems that the disk and the environment show. No engine is asked."""
    return [
        *address_issues(),
        *crowding_rules(plan, plan.host.config_as(DockerConfig).cores),
        *gpu_rules(plan, _gpus(plan), "in all"),
        *location_checks(plan, in_container=True),
    ]


def container_checks(plan: Plan) -> list[Issue]:
    """Problems that the engine and the driver show."""
    if address_issues():
        return []
    wanted = _gpus(plan)
    missing = gpu_checks(plan, sys.executable, wanted, "in all")
    return [*_engine(plan), *(missing or _gpu_issues(plan, wanted))]


def _gpus(plan: Plan) -> int:
    """GPUs of all nodes: each container has its own."""
    return plan.gpus * plan.spec.resources.nodes


def _gpu_issues(plan: Plan, wanted: int) -> list[Issue]:
    """An error if other runs use so many GPUs that too few are left."""
    if not wanted:
        return []
    visible = gpus.visible_gpus(gpus.chosen(plan.spec.env))
    holders = gpus.busy(visible)
    if plan.host.config_as(DockerConfig).share_gpus or len(visible) - len(holders) >= wanted:
        return []
    return [Issue((), gpus.too_few(visible, wanted, holders), gpus.HINT)]


def address_issues() -> list[Issue]:
    """An error if the engine is that of another machine, whose containers cannot see this one's
    folders.
    """
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
            found = engine.image_architecture(image)
    except CloudtrainError as error:
        return [Issue((), error.message, error.hint)]
    if found is None and plan.host.image and plan.host.image.recipe:
        return []  # it is built first
    if found is None:
        missing = missing_image(image)
        return [Issue((), missing.message, missing.hint)]
    if found and found != machine:
        message = (
            f"the image {image} is built for {found}, this machine is {machine}: emulated at best"
        )
        return [warning(message, f"docker build --platform linux/{machine} …")]
    return []
