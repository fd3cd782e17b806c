"""Check, before any upload, that the workspace has the machines of a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.catalog.type_names import is_azure_size
from cloudtrain.errors import CloudError, RefusedError
from cloudtrain.providers.azure.config import AzureConfig
from cloudtrain.providers.azure.results import datastore_path

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace


def refuse_machines(
    cloud: Workspace, document: Mapping[str, Any], config: AzureConfig, planned: str, gpus: int
) -> None:
    """Raise RefusedError if the compute or the quota does not suffice for the job.

    `planned`: the VM size in the plan, or empty; `gpus`: per node. Raise CloudError if the
    datastores of the job's outputs cannot be opened.
    """
    _location(cloud, config)
    nodes = int(document["resources"]["instance_count"])
    compute = document.get("compute", "").removeprefix("azureml:")
    if compute:
        refuse_cluster(cloud, compute, nodes, planned, gpus)
    else:
        spot = document.get("queue_settings", {}).get("job_tier") == "spot"
        try:
            refuse_serverless(cloud, document["resources"]["instance_type"], nodes, spot=spot)
        except CloudError as error:
            if not error.is_denied:
                raise
            # Users who may submit may lack the right to list quotas; the service will check.
    for name in {datastore_path(output["path"])[0] for output in document["outputs"].values()}:
        cloud.container(name)  # `stop` and `fetch` need it


def _location(cloud: Workspace, config: AzureConfig) -> None:
    """Raise RefusedError if the workspace is not in the location of the cost estimate."""
    location = cloud.location
    if config.prices and config.location and location and location != config.location:
        hint = f"azure.location: {location}"
        raise RefusedError(
            f"the workspace {cloud.name} is in {location}, not in {config.location}", hint=hint
        )


def refuse_cluster(cloud: Workspace, name: str, nodes: int, planned: str, gpus: int) -> None:
    """Raise RefusedError if the compute is missing, or its machines are too few or different."""
    cluster = cloud.cluster(name)
    if cluster is None:
        hint = (
            "az ml compute list shows those there are; leave azure.compute out for serverless"
            " machines"
        )
        raise RefusedError(f"the workspace {cloud.name} has no compute {name}", hint=hint)
    if cluster.kind.lower() == "computeinstance" and nodes > 1:
        raise RefusedError(
            f"{name} is a compute instance: one machine, and the job asks for {nodes}"
        )
    if cluster.max_nodes is not None and nodes > cluster.max_nodes:
        hint = (
            f"az ml compute update --name {name} --max-instances {nodes}, or fewer resources.nodes"
        )
        raise RefusedError(
            f"the cluster {name} has at most {cluster.max_nodes} nodes, the job asks for {nodes}",
            hint=hint,
        )
    size = cluster.size
    if planned and is_azure_size(planned) and cluster.kind.lower() == "kubernetes":
        hint = (
            "one of kubectl get instancetypes, with resources.gpus; or leave it out for the"
            " cluster's own default"
        )
        raise RefusedError(
            f"{name} is a cluster of Kubernetes, which has no instance type {planned}", hint=hint
        )
    if planned and size and planned.lower() != size.lower():
        hint = f"resources.instance: {{azure: {size}}}"
        raise RefusedError(
            f"the machines of {name} are {size}, the job was planned for {planned}", hint=hint
        )
    row = find_instance("azure", size)
    if row is not None and row.gpus != gpus:
        has = f"{row.gpus} x {row.gpu}" if row.gpus else "no GPU"
        message = f"the machines of {name} ({size}) have {has}, the job uses {gpus} per node"
        raise RefusedError(message, hint=f"resources.gpus: {row.gpus}, or another cluster")


def refuse_serverless(cloud: Workspace, size: str, nodes: int, *, spot: bool) -> list[str]:
    """Return the names of sufficient quotas. Raise RefusedError if a vCPU quota is too small.

    Two quotas bind: the VM family's and the region's total. Raise CloudError if the quotas cannot
    be listed.
    """
    family = cloud.vm_family(size)
    if family is None:
        message = f"the region of the workspace {cloud.name} has no machines of the size {size}"
        raise RefusedError(message, hint="az ml compute list-sizes shows those there are")

    vcpus = nodes * family.vcpus
    binding = _quotas_of(family.name, spot=spot)
    names = []
    for usage in cloud.quota_usages():
        if _letters_and_digits(usage.name) not in binding:
            continue
        names.append(usage.name)
        if 0 <= usage.limit < usage.used + vcpus:
            message = (
                f"{nodes} x {size} are {vcpus} vCPUs; "
                f"the quota {usage.name!r} is {usage.limit}, {usage.used} are in use"
            )
            hint = (
                f"ask for more in the studio: Quota > Azure Machine Learning > {usage.name}; or"
                " name another size"
            )
            raise RefusedError(message, hint=hint)
    return names


def _quotas_of(family: str, *, spot: bool) -> frozenset[str]:
    """Return the quotas of a VM family's machines, without spaces and case.

    A size's family is `standardDSv2Family`; its quota has that name in older answers, and is
    "Standard DSv2 Family Cluster Dedicated vCPUs" in Microsoft's examples (Usages - List).
    """
    plain = _letters_and_digits(family)
    if spot:
        total = ("lowprioritycores", "totalclusterlowpriorityregionalvcpus")
        return frozenset({f"{plain}clusterlowpriorityvcpus", *total})
    total = ("dedicatedcores", "totalclusterdedicatedregionalvcpus")
    return frozenset({plain, f"{plain}clusterdedicatedvcpus", *total})


def _letters_and_digits(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())
