"""Whether this machine can run a plan in containers: asked before anything starts."""

from __future__ import annotations

import os
import sys

from cloudtrain.building.engine import docker_engine
from cloudtrain.errors import CloudtrainError
from cloudtrain.local.checks import gpu_checks, place_checks
from cloudtrain.planning import Plan
from cloudtrain.provider import Finding


def container_checks(plan: Plan) -> list[Finding]:
    """Everything that stands in the way, at once."""
    findings = _engine(plan)
    gpus = plan.spec.resources.gpus * plan.spec.resources.nodes
    if gpus:  # each container has its own
        findings += gpu_checks(plan, sys.executable, gpus, "in all")
    return findings + place_checks(plan, in_container=True)


def _engine(plan: Plan) -> list[Finding]:
    where = os.environ.get("DOCKER_HOST", "")
    if where and not where.startswith(("unix://", "npipe://", "tcp://127.", "tcp://localhost")):
        message = f"DOCKER_HOST is {where}: the run's folders are mounted, so the engine must be this machine's"
        return [Finding(severity="error", message=message, hint="unset DOCKER_HOST")]
    from cloudtrain.clouds.docker_errors import missing_image

    image = plan.host.facts["image"]
    try:
        with docker_engine() as engine:
            machine, _ = engine.machine()
            found = engine.image_architecture(image)
    except CloudtrainError as error:
        return [Finding(severity="error", message=error.message, hint=error.hint)]
    if found is None and plan.host.facts["recipe"]:
        return []  # it is built first
    if found is None:
        missing = missing_image(image)
        return [Finding(severity="error", message=missing.message, hint=missing.hint)]
    if found and found != machine:
        message = f"the image {image} is built for {found}, this machine is {machine}: emulated at best"
        return [Finding(severity="warning", message=message, hint=f"docker build --platform linux/{machine} …")]
    return []
