"""The plain contract, for any machine: the launcher gets everything by environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cloudtrain.contracts.launch import (
    PACKAGES_DIR,
    PUBLISHED,
    JobDocument,
    Launch,
    dependencies_document,
    job_document,
)
from cloudtrain.planning.plan import Plan
from cloudtrain.source.tree import PAYLOAD_FOLDER


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Paths on the nodes of one run. `{node}` stands for the node's rank."""

    python: str
    job_file: str
    source: str
    output: str
    model: str
    checkpoints: str
    inputs: Mapping[str, str]
    packages: str = ""
    """Where installed packages are kept for the next run; empty: where the launcher keeps them by
    itself.
    """
    stop_file: str = ""
    """A file whose creation asks the job to stop, for platforms that send no SIGTERM; empty: none.
    """
    published: str = ""
    """The folder in which a trial finds what its client publishes; empty: none."""


CLOUD_FIELDS = (
    *("resources.gpu", "resources.instance", "resources.spot", "resources.disk"),
    *("limits.max_wait", "limits.max_cost", "limits.retries", "checkpoints.uri", "tags"),
)
"""Fields of the spec that are not used where machines are not rented and nothing is billed."""


def plain_job(plan: Plan, *, keeps_time: bool = False) -> JobDocument:
    """The job document of a run under this contract, whose secrets are looked up before the
    launcher starts.

    `keeps_time`: the launcher itself stops the job after `limits.max_runtime`, where nothing else
    does.
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
    """One launch per node; the rendezvous is at `addresses[0]`. `threads`: OMP_NUM_THREADS; None or
    0: unset.
    """
    spec = plan.spec
    found = []
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
        found.append(Launch(node=node, argv=argv, cwd=cwd, env=env, secrets=plan.secrets))
    return tuple(found)
