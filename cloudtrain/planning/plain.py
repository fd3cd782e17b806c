"""Plain contract for any machine: everything in environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from cloudtrain.planning.launch import (
    PACKAGES_DIR,
    PUBLISHED,
    JobDocument,
    Launch,
    dependencies_document,
    job_document,
)
from cloudtrain.planning.plan import Plan
from cloudtrain.source.tree import PAYLOAD_FOLDER


class Layout(NamedTuple):
    """Paths on the nodes of a run. `{node}` is the node's rank."""

    python: str
    job_file: str
    source: str
    output: str
    model: str
    checkpoints: str
    inputs: Mapping[str, str]
    packages: str = ""
    """Folder of installed packages for the next run; empty: the launcher's default."""
    stop_file: str = ""
    """File that stops the job, for platforms without SIGTERM; empty: none."""
    published: str = ""
    """Folder of files that the client publishes for a trial; empty: none."""


CLOUD_FIELDS = (
    *("resources.gpu", "resources.instance", "resources.spot", "resources.disk"),
    *("limits.max_wait", "limits.max_cost", "limits.retries", "checkpoints.uri", "tags"),
)
"""Fields of the spec without effect on machines that are not rented."""


def plain_job(plan: Plan, *, keeps_time: bool = False) -> JobDocument:
    """Return the job document. Secrets are read before the launcher starts.

    `keeps_time`: the launcher itself enforces `limits.max_runtime`.
    """
    limit = plan.spec.limits.max_runtime if keeps_time else None
    return replace(
        job_document(plan),
        masked=tuple(sorted(plan.spec.secrets)),
        stop_after_seconds=limit or None,
    )


def launches(
    plan: Plan, layout: Layout, *, addresses: tuple[str, ...], interface: str, threads: int | None
) -> tuple[Launch, ...]:
    """Return a launch per node; the rendezvous is `addresses[0]`. `threads`: OMP_NUM_THREADS."""
    spec = plan.spec
    result = []
    for node, address in enumerate(addresses):
        cwd = layout.source.replace("{node}", str(node))
        env = {
            **({"OMP_NUM_THREADS": str(threads)} if threads else {}),
            **spec.env,
            "CLOUDTRAIN_PLATFORM": "plain",
            "CLOUDTRAIN_JOB_FILE": layout.job_file,
            "CLOUDTRAIN_NODE_RANK": str(node),
            "CLOUDTRAIN_NODES": str(len(addresses)),
            "CLOUDTRAIN_NODE_ADDR": address,
            "CLOUDTRAIN_MASTER_ADDR": addresses[0],
            "CLOUDTRAIN_INTERFACE": interface,
            "CLOUDTRAIN_OUTPUT_DIR": layout.output,
            "CLOUDTRAIN_MODEL_DIR": layout.model,
            "CLOUDTRAIN_CHECKPOINT_DIR": layout.checkpoints,
            **(
                {PACKAGES_DIR: layout.packages}
                if layout.packages and dependencies_document(plan)
                else {}
            ),
            **({"CLOUDTRAIN_STOP_FILE": layout.stop_file} if layout.stop_file else {}),
            **({PUBLISHED: layout.published} if layout.published and plan.context.trial else {}),
            **{
                f"CLOUDTRAIN_INPUT_{name.upper().replace('-', '_')}": path
                for name, path in layout.inputs.items()
            },
        }
        argv = (layout.python, "-u", f"{cwd}/{PAYLOAD_FOLDER}")
        result.append(Launch(node=node, argv=argv, cwd=cwd, env=env, secrets=plan.secrets))
    return tuple(result)
