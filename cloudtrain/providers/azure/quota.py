"""Whether the workspace has the machines that a request asks for: asked before anything is uploaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.errors import DENIED, CloudError, RefusedError
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.request import is_size
from cloudtrain.providers.azure.results import parts

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace


def refuse_machines(
    cloud: Workspace, document: Mapping[str, Any], config: AzureConfig, planned: str, gpus: int
) -> None:
    """RefusedError when the cluster cannot run the job as it was planned, or the quota forbids serverless machines.

    `planned`: the machine type that the plan names, if any; `gpus`: per node.
    CloudError when what the job writes could not be reached.
    """
    _location(cloud, config)
    nodes = int(document["resources"]["instance_count"])
    compute = document.get("compute", "").removeprefix("azureml:")
    if compute:
        _cluster(cloud, compute, nodes, planned, gpus)
    else:
        spot = document.get("queue_settings", {}).get("job_tier") == "spot"
        _quota(cloud, document["resources"]["instance_type"], nodes, spot=spot)
    for name in {parts(output["path"])[0] for output in document["outputs"].values()}:
        cloud.container(name)  # `stop` tells the job through it, `fetch` brings its results from it


def _location(cloud: Workspace, config: AzureConfig) -> None:
    """What a job may cost was reckoned with the prices of a place: it must be the right one."""
    there = cloud.location
    if config.prices and config.location and there and there != config.location:
        hint = f"azure.location: {there}"
        raise RefusedError(f"the workspace {cloud.name} is in {there}, not in {config.location}", hint=hint)


def _cluster(cloud: Workspace, name: str, nodes: int, planned: str, gpus: int) -> None:
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
    size = str(found["size"] or "")
    if planned and is_size(planned) and str(found["kind"]).lower() == "kubernetes":
        hint = "one of kubectl get instancetypes, with resources.gpus; or leave it out for the cluster's own default"
        raise RefusedError(f"{name} is a cluster of Kubernetes, which has no instance type {planned}", hint=hint)
    if planned and size and planned.lower() != size.lower():
        hint = f"resources.instance: {{azure: {size}}}"
        raise RefusedError(f"the machines of {name} are {size}, the job was planned for {planned}", hint=hint)
    row = find_instance("azure", size)
    if row is not None and row.gpus != gpus:
        has = f"{row.gpus} x {row.gpu}" if row.gpus else "no GPU"
        message = f"the machines of {name} ({size}) have {has}, the job uses {gpus} per node"
        raise RefusedError(message, hint=f"resources.gpus: {row.gpus}, or another cluster")


def _quota(cloud: Workspace, size: str, nodes: int, *, spot: bool) -> None:
    """Quotas count vCPUs, per family of sizes; those of low-priority machines all together."""
    try:
        known, usages = cloud.family(size), cloud.usages()
    except CloudError as error:
        if error.code == DENIED:
            return  # whoever may submit may not always look at a region's quotas; the service itself will say
        raise
    if known is None:
        hint = "az ml compute list-sizes shows those there are"
        raise RefusedError(f"the region of the workspace {cloud.name} has no machines of the size {size}", hint=hint)
    family, cores = known
    name = "lowprioritycores" if spot else family.lower()
    for usage, used, limit in usages:
        if usage.lower() == name and 0 <= limit < used + nodes * cores:
            what = "low-priority machines" if spot else family
            message = f"{nodes} x {size} are {nodes * cores} vCPUs; the quota of {what} is {limit}, {used} are in use"
            hint = f"ask for more in the studio: Quota > Azure Machine Learning > {what}; or name another size"
            raise RefusedError(message, hint=hint)
