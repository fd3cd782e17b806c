"""Whether the workspace has the machines that a request asks for: asked before anything is uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import RefusedError

if TYPE_CHECKING:
    from cloudtrain.clouds.azure import Workspace


def refuse_machines(cloud: Workspace, document: Mapping[str, Any]) -> None:
    """RefusedError when the cluster cannot run the job, or the quota does not allow for serverless machines."""
    nodes = int(document["resources"]["instance_count"])
    compute = document.get("compute", "").removeprefix("azureml:")
    if compute:
        _cluster(cloud, compute, nodes)
    else:
        spot = document.get("queue_settings", {}).get("job_tier") == "spot"
        _quota(cloud, document["resources"]["instance_type"], nodes, spot=spot)


def _cluster(cloud: Workspace, name: str, nodes: int) -> None:
    found = cloud.cluster(name)
    if found is None:
        hint = "az ml compute list shows those there are; leave azure.compute out for serverless machines"
        raise RefusedError(f"the workspace {cloud.name} has no compute {name}", hint=hint)
    if str(found["kind"]).lower() == "computeinstance" and nodes > 1:
        raise RefusedError(f"{name} is a compute instance: one machine, and the job asks for {nodes}")
    most = found["nodes"]
    if most is not None and nodes > int(most):
        hint = f"az ml compute update --name {name} --max-instances {nodes}, or fewer resources.nodes"
        raise RefusedError(f"the cluster {name} has at most {most} nodes, the job asks for {nodes}", hint=hint)


def _quota(cloud: Workspace, size: str, nodes: int, *, spot: bool) -> None:
    """Quotas count vCPUs, per family of sizes; those of low-priority machines all together."""
    known = cloud.family(size)
    if known is None:
        hint = "az ml compute list-sizes shows those there are"
        raise RefusedError(f"the region of the workspace {cloud.name} has no machines of the size {size}", hint=hint)
    family, cores = known
    name = "lowprioritycores" if spot else family.lower()
    for usage, used, limit in cloud.usages():
        if usage.lower() == name and 0 <= limit < used + nodes * cores:
            what = "low-priority machines" if spot else family
            message = f"{nodes} x {size} are {nodes * cores} vCPUs; the quota of {what} is {limit}, {used} are in use"
            hint = f"ask for more in the studio: Quota > Azure Machine Learning > {what}; or name another size"
            raise RefusedError(message, hint=hint)
