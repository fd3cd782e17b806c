"""Submit a request so that it creates exactly one job or none.

Check the machines, upload, record, create, and look when in doubt.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from cloudtrain.catalog.machines import find_instance
from cloudtrain.errors import NAME_TAKEN, CloudError, Outcome, RefusedError, RunExists
from cloudtrain.providers.azure.config import AzureConfig, client_of_run, request_of
from cloudtrain.providers.azure.request import OUTPUTS
from cloudtrain.providers.azure.results import datastore_path, marker
from cloudtrain.providers.shared import idempotent_create
from cloudtrain.providers.shared.idempotent_create import own_tags, same_submission
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.providers.shared.uploads import upload_inputs
from cloudtrain.runs.files import storing

if TYPE_CHECKING:
    from cloudtrain.planning.launch import Request
    from cloudtrain.planning.plan import Plan
    from cloudtrain.providers.azure.client import JobInfo, Workspace
    from cloudtrain.providers.progress import Progress
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.logs import Record
    from cloudtrain_wire.events import Event

ATTEMPTS = 5
"""Attempts to create the job, with one request each: as many as the SDK makes."""

_LACK = re.compile(r"quota|capacity", re.IGNORECASE)
"""Words in the service's answer when it lacks machines for a job."""


def start(
    plan: Plan,
    request: Request,
    run: RunFolder,
    archive: Path,
    progress: Progress | None,  # for inputs; the SDK shows its own for the source
    record: Record,
) -> dict[str, Any]:
    """Check machines and name, upload new parts of source and inputs, then create the job.

    A sweep job has code and resources in its `trial`; the rest is the same. Return the job's
    reference. Raise RefusedError if the compute cannot run the job, CloudError with
    `Outcome.UNKNOWN` if it is unknown whether the job exists; `reconcile` finds out later.
    """
    cloud = client_of_run(run)
    document = request.document
    target = plan.target
    config = target.config_as(AzureConfig)
    command_job = dict(document) | document.get("trial", {})
    name = document["name"]

    try:
        machine = next(iter(target.instances), "")
        refuse_machines(cloud, command_job, config, machine, target.gpus or 0)
        reference = _find(cloud, name, document)  # a PUT would change the tags of an existing job
        if reference is not None:
            return reference

        if plan.context.uploads:
            upload_inputs(plan, cloud.container(config.datastore), progress)

        with suppress(CloudError):  # a job does without; `rm --remote` then leaves its folder
            cloud.container(config.datastore).put(marker(document), b"")
    except CloudError as error:
        error.outcome = Outcome.NOT_STARTED  # no job was requested yet
        raise

    try:
        with _code_folder(run, archive) as folder:
            sent = _with_code(document, folder)
            return idempotent_create.create(
                name,
                lambda attempt: job_reference(cloud.create(sent, attempt)),
                lambda: _find(cloud, name, document),
                record=record,
                attempts=ATTEMPTS,
                name_taken_codes=(NAME_TAKEN,),
            )
    except CloudError as error:
        answer = error.what.replace(name, "")  # the run may be called quota-study
        error.lacks_machines = not error.transient and _LACK.search(answer) is not None
        raise


def reconcile(cloud: Workspace, run: RunFolder, time_now: float) -> list[Event]:
    """Return events about the result of an interrupted submission; empty while in progress."""
    document = request_of(run)
    return idempotent_create.reconcile(
        run,
        time_now,
        lambda: _find(cloud, run.run_id, document),
        "Azure ML",
    )


def job_reference(job: JobInfo) -> dict[str, Any]:
    """Return the reference of a job: its name and the URL of the studio."""
    return {"name": job.name, "url": job.url}


def job_not_found(cloud: Workspace, name: str) -> CloudError:
    """Return the error for a missing job: most likely the workspace is the wrong one."""
    message = f"the workspace {cloud.name} knows no job {name} (any more)"
    return CloudError(
        message,
        hint="look at azure.workspace and az account show, then try again",
        code="NoJob",
    )


def _find(cloud: Workspace, name: str, document: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the job's reference if it is of this submission, or None.

    Raise RunExists if it is of another one.
    """
    job = cloud.job(name)
    if job is None:
        return None
    if same_submission(own_tags(document["tags"]), own_tags(job.tags)):
        return job_reference(job)

    message = f"a job {name} exists already in the workspace {cloud.name}"
    raise RunExists(message, hint="choose another --run-id")


@contextmanager
def _code_folder(run: RunFolder, archive: Path) -> Iterator[str]:
    """Yield a new folder with the source archive and a secret word.

    Azure ML and its SDK find uploaded code by a hash, which whoever uploads it says. With this word
    the hash is new, and so the archive is sent.
    """
    with storing(run.path):
        made = TemporaryDirectory(prefix=".code.", dir=run.path)

    with made as folder:
        with storing(run.path):
            (Path(folder) / "upload").write_text(os.urandom(16).hex(), "ascii")
            try:
                (Path(folder) / ARCHIVE).hardlink_to(archive)
            except OSError:  # a disk without links
                shutil.copyfile(archive, Path(folder) / ARCHIVE)

        yield folder


def _with_code(document: Mapping[str, Any], folder: str) -> dict[str, Any]:
    if "trial" in document:
        return {**document, "trial": {**document["trial"], "code": folder}}

    return {**document, "code": folder}


def refuse_machines(
    cloud: Workspace,
    document: Mapping[str, Any],
    config: AzureConfig,
    planned: str,
    gpus: int,
) -> None:
    """Raise RefusedError if the compute or the quota does not suffice for the job.

    `planned`: the VM size in the plan, or empty; `gpus`: per node. Raise CloudError if the
    datastores of the job's outputs cannot be opened.
    """
    _location(cloud, config)
    nodes = int(document["resources"]["instance_count"])

    compute = document.get("compute", "").removeprefix("azureml:")
    if compute:
        sizes = [planned] if planned else []
        refuse_cluster(cloud, compute, nodes, sizes, gpus)
    else:
        spot = document.get("queue_settings", {}).get("job_tier") == "spot"
        try:
            refuse_serverless(cloud, document["resources"]["instance_type"], nodes, spot=spot)
        except CloudError as error:
            if not error.is_denied:
                raise
            # Users who may submit may lack the right to list quotas; the service will check.

    datastores = set()
    for name, item in document["outputs"].items():
        if name in OUTPUTS:
            datastores.add(datastore_path(item["path"])[0])
    for name in datastores:
        cloud.container(name)  # `stop` and `fetch` need it


def _location(cloud: Workspace, config: AzureConfig) -> None:
    """Raise RefusedError if the workspace is not in the location of the cost estimate."""
    location = cloud.location
    if config.prices and config.location and location and location != config.location:
        hint = f"azure.location: {location}"
        raise RefusedError(
            f"the workspace {cloud.name} is in {location}, not in {config.location}",
            hint=hint,
        )


def refuse_cluster(
    cloud: Workspace, name: str, nodes: int, planned: Sequence[str], gpus: int
) -> None:
    """Raise RefusedError if the compute is missing, or its machines are too few or different.

    `planned`: VM sizes that the cluster may have; empty for any.
    """
    cluster = cloud.cluster(name)
    if cluster is None:
        hint = (
            "az ml compute list shows those there are; leave azure.compute out for serverless"
            " machines"
        )
        raise RefusedError(f"the workspace {cloud.name} has no compute {name}", hint=hint)

    if cluster.kind.lower() == "kubernetes":
        message = (
            f"{name} is a cluster of Kubernetes, which is not supported: it chooses machines by"
            " instance types of its own, which no field has"
        )
        hint = "a compute cluster (az ml compute list), or leave azure.compute out"
        raise RefusedError(message, hint=hint)

    if cluster.max_nodes is not None and nodes > cluster.max_nodes:
        hint = (
            f"az ml compute update --name {name} --max-instances {nodes}, or fewer resources.nodes"
        )
        raise RefusedError(
            f"the cluster {name} has at most {cluster.max_nodes} nodes, the job asks for {nodes}",
            hint=hint,
        )

    size = cluster.size
    if planned and size and size.lower() not in map(str.lower, planned):
        sizes = " or ".join(planned)
        message = f"the machines of {name} are {size}, the job was planned for {sizes}"
        raise _refused_machines(message, f"resources.instance: {{azure: {size}}}")

    row = find_instance("azure", size)
    if row is not None and row.gpus != gpus:
        has = "no GPU"
        if row.gpus:
            has = f"{row.gpus} x {row.gpu}"

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
        raise _refused_machines(message, "az ml compute list-sizes shows those there are")

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
            raise _refused_machines(message, hint)

    return names


def _refused_machines(message: str, hint: str) -> RefusedError:
    error = RefusedError(message, hint=hint)
    error.lacks_machines = True
    return error


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
