"""The only module that calls azure-ai-ml. Translates its errors, and its entities into values of
ours.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, redirect_stderr
from functools import cache, cached_property, partial
from typing import Any

from cloudtrain.errors import CloudError, unreadable
from cloudtrain.providers.azure.answers import ReadableAnswers, refuse_unreadable_storage
from cloudtrain.providers.azure.credentials import credential
from cloudtrain.providers.azure.resources import Cluster, JobInfo, QuotaUsage, TrialInfo, VmFamily
from cloudtrain.providers.azure.sdk import (
    RETRIES,
    TIMEOUTS,
    CreateWatch,
    RetryOptions,
    calling,
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

with (
    warnings.catch_warnings(),
    redirect_stderr(io.StringIO()),
):  # some of its loggers keep this stream
    warnings.simplefilter("ignore")  # marshmallow's, on behalf of azure-ai-ml
    from azure.ai.ml import MLClient, load_job
    from azure.ai.ml._artifacts import _blob_storage_helper as own_uploads
    from azure.ai.ml.constants import ListViewType

# The SDK uploads the source with a client of its own, which takes no options.
_uploads: Any = own_uploads
_uploads.ContainerClient = CheckedContainerClient
_uploads.BlobServiceClient = partial(
    _uploads.BlobServiceClient, raw_response_hook=refuse_unreadable_storage
)

MAX_TRIALS = 1000
"""The most that a sweep job has."""


class Workspace:
    """One workspace, with the user's credentials. Every method may raise CloudError."""

    def __init__(self, subscription: str, resource_group: str, workspace: str) -> None:
        self.name = workspace
        self._scope = (subscription, resource_group, workspace)

    def create(self, document: Mapping[str, Any], attempt: Attempt) -> JobInfo:
        """Upload the new files of a command or sweep job, then send one request that creates it.

        `attempt` is told of that request and of its answer.
        """
        with watching_create(attempt), self._calling("creating the job"):
            job = load_job(io.StringIO(json.dumps(dict(document))))
            return self._job_info(self._client.jobs.create_or_update(job))

    def job(self, name: str) -> JobInfo | None:
        """A job; None if there is none of that name."""
        try:
            with self._calling("looking at the job"):
                return self._job_info(self._client.jobs.get(name))
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

    def jobs(self, tag: str) -> Iterator[JobInfo]:
        """The command jobs with a tag, archived ones too, newest first. Pages are requested as they
        are needed.
        """
        with self._calling("listing jobs"):
            found = iter(self._client.jobs.list(tag=tag, list_view_type=ListViewType.ALL))
        while True:
            with self._calling("listing jobs"):
                job = next(found, found)
            if job is found:
                return
            if job is not None and job.type == "command":
                yield self._job_info(job)

    def trials(self, sweep: str) -> list[TrialInfo]:
        """The trials that a sweep job has started so far."""
        with self._calling("listing the trials"):
            # azure-ai-ml 1.35 follows no pages here.
            found = list(self._client.jobs.list(parent_job_name=sweep, max_results=MAX_TRIALS))
        return [
            TrialInfo(name=child.name, status=str(child.status), created=_created(child))
            for child in found
            if child is not None
        ]

    def parameters(self, trial: str) -> dict[str, str]:
        """The values that a sweep job has chosen for a trial, by name; empty as long as the service
        tells none.
        """
        with self._calling("looking at the trial"):
            found = getattr(self._client.jobs.get(trial), "parameters", None) or {}
        return {str(name): str(value) for name, value in found.items()}

    def details(self, name: str) -> dict[str, Any] | None:
        """A job's entry in the run history: status, times, error, signed URLs of its logs. None if
        there is no job.
        """
        try:
            with self._calling("looking at the job"):
                return dict(self._history().get_run_details(name).as_dict())
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

    def cancel(self, name: str) -> None:
        """Request the cancellation of a job, without waiting for it."""
        with self._calling("cancelling the job"):
            self._client.jobs.begin_cancel(name, polling=False)

    def cluster(self, name: str) -> Cluster | None:
        """A compute target; None if there is none of that name."""
        try:
            with self._calling(f"looking at the compute {name}"):
                found = self._client.compute.get(name)
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise
        max_nodes = getattr(found, "max_instances", None)
        return Cluster(
            kind=str(found.type),
            size=str(getattr(found, "size", None) or ""),
            max_nodes=None if max_nodes is None else int(max_nodes),
        )

    @cached_property
    def location(self) -> str:
        """The workspace's region, such as `eastus`."""
        with self._calling("looking at the workspace"):
            return str(self._client.workspaces.get(self.name).location or "")

    def vm_family(self, size: str) -> VmFamily | None:
        """The family of a VM size; None if the region does not offer the size."""
        with self._calling("listing machine sizes"):
            for found in self._client.compute.list_sizes(location=self.location):
                if str(found.name).lower() == size.lower():
                    vcpus = int(_field_or_wire_name(found, "v_cp_us", "vCPUs") or 0)
                    return VmFamily(name=str(found.family), vcpus=vcpus)
        return None

    def quota_usages(self) -> list[QuotaUsage]:
        """Return the quotas of the region, and those that were set for this workspace."""
        with self._calling("looking at the quota"):
            usages = list(self._client.compute.list_usage(location=self.location))
        return [
            QuotaUsage(
                name=_quota_name(usage.name),
                used=int(_field_or_wire_name(usage, "current_value", "currentValue") or 0),
                limit=int(usage.limit),
            )
            for usage in usages
            if usage.limit is not None and self._binds(str(usage.id or ""))
        ]

    def _binds(self, usage_id: str) -> bool:
        """Return True if a quota limits this workspace: the list has other workspaces and clusters too."""
        _, group, name = self._scope
        own = f"/resourcegroups/{group}/providers/microsoft.machinelearningservices/workspaces/{name}/usages/"
        usage_id = usage_id.lower()
        return "/workspaces/" not in usage_id or own.lower() in usage_id

    def container(self, datastore: str) -> BlobContainer:
        """The blob container of a datastore, opened with the datastore's credentials or else with
        the user's.
        """
        if datastore not in self._containers:
            store = self._datastore(datastore)
            address = f"https://{store.account_name}.blob.{store.endpoint}"
            secret = getattr(store.credentials, "account_key", None)
            sas = _sas_of(store)
            if sas:
                secret = RenewedSas(sas, lambda: _sas_of(self._datastore(datastore)))
            self._containers[datastore] = BlobContainer(
                address, store.container_name, secret or None, credential
            )
        return self._containers[datastore]

    def _datastore(self, name: str) -> Any:
        """Return a datastore with its secret. CloudError if it is not a blob container."""
        with self._calling(f"looking at the datastore {name}"):
            store = self._client.datastores.get(name, include_secrets=True)
        if getattr(store, "container_name", None) is None:
            message = f"the datastore {name} is not a blob container"
            raise CloudError(
                message, hint="azure.datastore names one of type azure_blob", code="NoContainer"
            )
        return store

    def read_log(self, address: str, start: int, created: str) -> LogChunk | None:
        """See `cloudtrain.providers.azure.storage.read_log`."""
        return read_log(address, start, created)

    def native(self, name: str) -> Any:
        """The job as an object of `azure.ai.ml`."""
        with self._calling("looking at the job"):
            return self._client.jobs.get(name)

    def _job_info(self, job: Any) -> JobInfo:
        return JobInfo(
            name=job.name,
            status=str(
                getattr(job.status, "value", job.status)
            ),  # an enumeration, for statuses that the SDK knows
            tags=dict(job.tags or {}),
            url=job.studio_url or "",
            created=_created(job),
            owner=str(getattr(job.creation_context, "created_by", None) or ""),
            document=lambda: self._document(job),
        )

    def _document(self, job: Any) -> dict[str, Any]:
        """The command-job document of an existing job, as far as Azure ML returns it."""
        import yaml

        with self._calling("reading a job's document"):
            text = io.StringIO()
            job.dump(text)
        document: dict[str, Any] = yaml.safe_load(text.getvalue())
        return document

    def _history(self) -> Any:
        """The client of the run history: the SDK's public methods give neither times nor logs of
        all nodes.
        """
        try:
            return self._client.jobs._runs_operations
        except (
            KeyError,
            ValueError,
        ) as error:  # the SDK does not check what the service answers for its address
            where = f"looking for the run history of the workspace {self.name}"
            raise unreadable(where, f"{type(error).__name__}: {error}") from error

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
        return MLClient(credential(), **options, **RETRIES, **TIMEOUTS)

    def _calling(self, what: str) -> AbstractContextManager[None]:
        """`calling`, in this workspace."""
        return calling(what, f"the workspace {self.name}")


@cache
def workspace(subscription: str, resource_group: str, name: str) -> Workspace:
    """The client of a workspace; one per process, so that credentials are looked up once."""
    return Workspace(subscription, resource_group, name)


def _created(job: Any) -> float:
    """When a job was created, as a Unix timestamp; 0 if unknown."""
    created = getattr(job.creation_context, "created_at", None)
    return float(created.timestamp()) if created is not None else 0.0


def _field_or_wire_name(entity: Any, attribute: str, wire_name: str) -> Any:
    """A value of an entity, by the name in the JSON if azure-ai-ml 1.35 leaves the attribute empty."""
    found = getattr(entity, attribute, None)
    return vars(entity).get(wire_name) if found is None else found


def _sas_of(datastore: Any) -> str:
    """The signature that opens a datastore; empty if it has none."""
    return str(getattr(datastore.credentials, "sas_token", None) or "")


def _quota_name(name: Any) -> str:
    """The name of a quota, which the SDK gives as a mapping or as an object."""
    fields = name if isinstance(name, Mapping) else vars(name or object)
    return str(fields.get("value", ""))
