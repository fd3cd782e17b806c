"""The only module that calls azure-ai-ml. Translates its errors and its entities."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

from cloudtrain.errors import CloudError, unreadable
from cloudtrain.providers.azure.errors import ReadableAnswers, refuse_unreadable_storage
from cloudtrain.providers.azure.run_history import RunHistory
from cloudtrain.providers.azure.sdk import (
    RETRIES,
    TIMEOUTS,
    CreateWatch,
    ResourceManager,
    RetryOptions,
    calling,
    credential,
    watching_create,
)
from cloudtrain.providers.azure.storage import (
    BlobContainer,
    CheckedContainerClient,
    LogChunk,
    RenewedSas,
    read_log,
)
from cloudtrain.providers.shared.idempotent_create import Attempt

# some of its loggers keep this stream
with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
    warnings.simplefilter("ignore")  # marshmallow's, on behalf of azure-ai-ml
    from azure.ai.ml import MLClient, load_job
    from azure.ai.ml._artifacts import _blob_storage_helper as own_uploads
    from azure.ai.ml.constants import ListViewType

# The SDK uploads the source with separate clients, which take no options. `del` fails if a version
# of it has them elsewhere.
_uploads: Any = own_uploads
del _uploads.ContainerClient
_uploads.ContainerClient = CheckedContainerClient
_uploads.BlobServiceClient = partial(
    _uploads.BlobServiceClient,
    raw_response_hook=refuse_unreadable_storage,
)

_PROVIDER = "Microsoft.MachineLearningServices"
_VERSION = "2023-08-01-preview"
"""Version of ARM's API for lists of a region."""

MAX_TRIALS = 1000
"""Maximum number of trials of a sweep job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInfo:
    """A job in the workspace's list."""

    name: str
    status: str
    """Status in Azure ML's spelling: `Running`."""
    tags: Mapping[str, str]
    url: str
    """Page of the job in the studio."""
    created: float
    """Unix timestamp; 0 if unknown."""
    owner: str
    """Display name of the user who created it; may be empty."""
    document: Callable[[], dict[str, Any]] = field(repr=False, compare=False)
    """Creates its command-job document, by several requests."""


class TrialInfo(NamedTuple):
    """A trial of a sweep job in the run history."""

    name: str
    status: str
    """Status in Azure ML's spelling."""
    created: float
    """Unix timestamp; 0 if unknown."""

    @property
    def is_running(self) -> bool:
        """True if its program runs."""
        return self.status == "Running"

    @property
    def has_ended(self) -> bool:
        """True if its state is final."""
        return self.status in ("Completed", "Failed", "Canceled")


class Cluster(NamedTuple):
    """A compute target of the workspace."""

    kind: str
    """`amlcompute`, `computeinstance` or `kubernetes`."""
    size: str
    """The VM size of its machines; may be empty."""
    max_nodes: int | None


class VmFamily(NamedTuple):
    """Family of a VM size, for its quota."""

    name: str
    vcpus: int
    """Number of vCPUs of one machine of that size."""


class QuotaUsage(NamedTuple):
    """A quota of the workspace's region, in vCPUs."""

    name: str
    used: int
    limit: int
    """Below 0: unlimited."""


class Workspace:
    """A workspace, with the user's credentials. Every method may raise CloudError."""

    def __init__(self, subscription: str, resource_group: str, workspace: str) -> None:
        self.name = workspace
        self._scope = (subscription, resource_group, workspace)

    def create(self, document: Mapping[str, Any], attempt: Attempt) -> JobInfo:
        """Upload the new files of a command or sweep job, then send one request that creates it.

        That request and its answer are reported to `attempt`.
        """
        with watching_create(attempt), self._calling("creating the job"):
            job = _loaded(document)
            return self._job_info(self._client.jobs.create_or_update(job))

    def job(self, name: str) -> JobInfo | None:
        """Return a job; None if it does not exist."""
        try:
            return self._job_info(self.entity(name))
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

    def entity(self, name: str) -> Any:
        """Return a job as an object of azure-ai-ml. CloudError with NotFound if it is missing."""
        with self._calling("looking at the job"):
            return self._client.jobs.get(name)

    def jobs(self, tag: str) -> Iterator[JobInfo]:
        """Yield command jobs with a tag, archived ones too, newest first. Pages come as needed."""
        with self._calling("listing jobs"):
            listed = iter(self._client.jobs.list(tag=tag, list_view_type=ListViewType.ALL))
        while True:
            with self._calling("listing jobs"):
                job = next(listed, listed)
            if job is listed:
                return
            if job is not None and job.type == "command":
                yield self._job_info(job)

    def trials(self, sweep: str) -> list[TrialInfo]:
        """Return the trials that a sweep job has started."""
        with self._calling("listing the trials"):
            # azure-ai-ml 1.35 follows no pages here.
            children = list(self._client.jobs.list(parent_job_name=sweep, max_results=MAX_TRIALS))

        with self._reading("listing the trials"):
            trials = []
            for child in children:
                if child is not None:
                    trials.append(TrialInfo(child.name, str(child.status), _created(child)))

            return trials

    def parameters(self, trial: str) -> dict[str, str]:
        """Return the chosen values of a trial, by name; empty until the service reports them."""
        with self._calling("looking at the trial"):
            values = getattr(self._client.jobs.get(trial), "parameters", None) or {}
        with self._reading("looking at the trial"):
            return {str(name): str(value) for name, value in values.items()}

    def details(self, name: str) -> dict[str, Any] | None:
        """Return a job's entry in the run history: status, times, error, URLs of logs; or None."""
        return self._history.details(name)

    def cancel(self, name: str) -> None:
        """Request the cancellation of a job, without waiting for it."""
        with self._calling("cancelling the job"):
            self._client.jobs.begin_cancel(name, polling=False)

    def cluster(self, name: str) -> Cluster | None:
        """Return a compute target; None if it does not exist."""
        try:
            with self._calling(f"looking at the compute {name}"):
                compute = self._client.compute.get(name)
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

        max_nodes = getattr(compute, "max_instances", None)
        if max_nodes is not None:
            max_nodes = int(max_nodes)

        return Cluster(
            kind=str(compute.type),
            size=str(getattr(compute, "size", None) or ""),
            max_nodes=max_nodes,
        )

    @property
    def location(self) -> str:
        """Region of the workspace, such as `eastus`."""
        return str(self._entity.location or "")

    def vm_family(self, size: str) -> VmFamily | None:
        """Return the family of a VM size; None if the region does not offer the size."""
        with self._reading("listing machine sizes"):
            for machine in self._regional("vmSizes", "listing machine sizes"):
                if str(machine["name"]).lower() == size.lower():
                    return VmFamily(name=str(machine["family"]), vcpus=int(machine["vCPUs"]))
        return None

    def quota_usages(self) -> list[QuotaUsage]:
        """Return the quotas of the region, and the ones set for this workspace."""
        with self._reading("looking at the quota"):
            quotas = []
            for usage in self._regional("usages", "looking at the quota"):
                if usage.get("limit") is None or not self._binds(str(usage.get("id"))):
                    continue
                name = str(usage["name"]["value"])
                used = int(usage.get("currentValue") or 0)
                quotas.append(QuotaUsage(name, used, int(usage["limit"])))

            return quotas

    def _regional(self, kind: str, doing: str) -> list[Mapping[str, Any]]:
        """Return a list of the workspace's region from ARM: `vmSizes` or `usages`."""
        subscription = self._scope[0]
        path = (
            f"/subscriptions/{subscription}/providers/{_PROVIDER}/locations/{self.location}/{kind}"
        )
        with self._calling(doing):
            pages = ResourceManager().pages(path, {"api-version": _VERSION})
            return [item for page in pages for item in page]

    def _binds(self, usage_id: str) -> bool:
        """Return True if a quota is for this workspace: the list has other workspaces too."""
        usage_id = usage_id.lower()
        return "/workspaces/" not in usage_id or f"{self._id}/usages/".lower() in usage_id

    def registry_asset(self, registry: str, kind: str, name: str, **version: str) -> None:
        """Look for an asset of a registry. `kind`: `environments`; `version`: `version` or `label`.

        Raise CloudError with NotFound if it is missing.
        """
        with self._calling(f"looking at the registry {registry}"):
            client = MLClient(credential(), registry_name=registry, enable_telemetry=False)
            getattr(client, kind).get(name, **version)

    def container(self, datastore: str) -> BlobContainer:
        """Return the blob container of a datastore, opened with its credentials or the user's."""
        if datastore not in self._containers:
            store = self._datastore(datastore)
            address = f"https://{store.account_name}.blob.{store.endpoint}"
            secret = getattr(store.credentials, "account_key", None)
            sas = _sas_of(store)
            if sas:
                secret = RenewedSas(sas, lambda: _sas_of(self._datastore(datastore)))
            self._containers[datastore] = BlobContainer(
                address,
                store.container_name,
                secret or None,
                credential,
            )

        return self._containers[datastore]

    def _datastore(self, name: str) -> Any:
        """Return a datastore with its secret. CloudError if it is not a blob container."""
        with self._calling(f"looking at the datastore {name}"):
            store = self._client.datastores.get(name, include_secrets=True)
        if getattr(store, "container_name", None) is None:
            message = f"the datastore {name} is not a blob container"
            raise CloudError(
                message,
                hint="azure.datastore names one of type azure_blob",
                code="NoContainer",
            )

        return store

    def read_log(self, address: str, start: int, created: str) -> LogChunk | None:
        """Call `cloudtrain.providers.azure.storage.read_log`."""
        return read_log(address, start, created)

    def _job_info(self, job: Any) -> JobInfo:
        return JobInfo(
            name=job.name,
            status=str(getattr(job.status, "value", job.status)),  # may be an enumeration
            tags=dict(job.tags or {}),
            url=job.studio_url or "",
            created=_created(job),
            owner=str(getattr(job.creation_context, "created_by", None) or ""),
            document=lambda: self._document(job),
        )

    def _document(self, job: Any) -> dict[str, Any]:
        """Return the command-job document of an existing job, as far as Azure ML returns it."""
        import yaml

        with self._calling("reading a job's document"):
            text = io.StringIO()
            job.dump(text)

        document: dict[str, Any] = yaml.safe_load(text.getvalue())
        return document

    @property
    def _id(self) -> str:
        """Id of the workspace in ARM."""
        subscription, group, name = self._scope
        return f"/subscriptions/{subscription}/resourceGroups/{group}/providers/{_PROVIDER}/workspaces/{name}"

    @cached_property
    def _history(self) -> RunHistory:
        return RunHistory(str(self._entity.discovery_url), self._id, f"the workspace {self.name}")

    @cached_property
    def _entity(self) -> Any:
        with self._calling("looking at the workspace"):
            return self._client.workspaces.get(self.name)

    @cached_property
    def _containers(self) -> dict[str, BlobContainer]:
        return {}

    @cached_property
    def _client(self) -> MLClient:
        subscription, resource_group, name = self._scope
        options: dict[str, Any] = {
            "subscription_id": subscription,
            "resource_group_name": resource_group,
            "workspace_name": name,
            "enable_telemetry": False,
            # Without it the SDK ignores failed uploads and waits for them for ever.
            "show_progress": True,
            "per_call_policies": [RetryOptions()],
            "per_retry_policies": [ReadableAnswers(), CreateWatch()],
        }
        options |= RETRIES
        options |= TIMEOUTS
        return MLClient(credential(), **options)

    @contextmanager
    def _reading(self, action: str) -> Iterator[None]:
        """Translate errors from members of an answer that have another type than documented."""
        try:
            yield
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            where = f"{action} in the workspace {self.name}"
            raise unreadable(where, f"{type(error).__name__}: {error}") from error

    def _calling(self, action: str) -> AbstractContextManager[None]:
        """Translate errors with `calling`, in this workspace."""
        return calling(action, f"the workspace {self.name}")


@cache
def workspace(subscription: str, resource_group: str, name: str) -> Workspace:
    """Return the client of a workspace; one per process, so that credentials are read once."""
    return Workspace(subscription, resource_group, name)


def _loaded(document: Mapping[str, Any]) -> Any:
    """Return a job as the SDK reads it.

    Its schema knows no input that is mounted to write, though its jobs and the service do.
    """
    written = []
    inputs = dict(document.get("inputs", {}))
    for name, item in inputs.items():
        if isinstance(item, Mapping) and item.get("mode") == "rw_mount":
            written.append(name)
            inputs[name] = {**item, "mode": "ro_mount"}

    job: Any = load_job(io.StringIO(json.dumps({**document, "inputs": inputs})))
    for name in written:
        job.inputs[name].mode = "rw_mount"

    return job


def _created(job: Any) -> float:
    """Return the creation time of a job as a Unix timestamp; 0 if unknown."""
    created = getattr(job.creation_context, "created_at", None)
    if created is None:
        return 0.0

    return float(created.timestamp())


def _sas_of(datastore: Any) -> str:
    """Return the signature that opens a datastore; empty if it has none."""
    return str(getattr(datastore.credentials, "sas_token", None) or "")
