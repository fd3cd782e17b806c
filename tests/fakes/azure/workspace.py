"""Azure Resource Manager for one workspace: it refuses what Azure refuses, and runs the jobs of
what it takes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.fakes.azure import resources, running
from tests.fakes.azure.account import PROVIDER, WORKSPACE_ID, WORKSPACES, Account
from tests.fakes.azure.assets import Assets
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.permissions import job_not_found, user_error
from tests.fakes.azure.resources import machines, refuse
from tests.fakes.azure.sweeps import SweepJob
from tests.fakes.azure.wire import Place, json_response
from tests.fakes.containers import JobThreads
from tests.fakes.messages import Response, ServiceError

_VERSIONS = """
2021-10-01 2022-01-01-preview 2022-02-01-preview 2022-05-01 2022-10-01 2022-10-01-preview
2022-12-01-preview 2023-02-01-preview 2023-04-01 2023-04-01-preview 2023-06-01-preview
2023-08-01-preview 2023-10-01 2024-01-01-preview 2024-04-01 2024-04-01-preview 2024-07-01-preview
2024-10-01 2024-10-01-preview 2025-01-01-preview 2025-04-01 2025-04-01-preview 2025-06-01
2025-07-01-preview 2025-09-01 2025-12-01
"""
VERSIONS = _VERSIONS.split()
JOB_PAGE = 10
MOST = 1000
"""Items of a list whose request does not say."""


class ArmRequest(NamedTuple):
    """A call of ARM about things that exist."""

    names: Mapping[str, str]
    query: Mapping[str, str]
    body: dict[str, Any]
    path: str

    @property
    def version(self) -> str:
        """The API version."""
        return self.query["api-version"]


class Workspace:
    """One workspace and its jobs."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.assets = Assets(account)
        self.jobs: dict[str, Job] = {}
        """Command jobs, including trials of sweep jobs."""
        self.sweeps: dict[str, SweepJob] = {}
        self._threads = JobThreads(account.closing)
        self._lock = threading.RLock()
        assets = self.assets
        self.operations: dict[str, Callable[[ArmRequest], Response]] = {
            "GetWorkspace": lambda call: json_response(
                200, resources.workspace(account, call.version)
            ),
            "ListCodes": lambda call: _listed(
                assets.codes(call.names["name"], call.query.get("hash"))
            ),
            "GetCode": lambda call: json_response(200, assets.get("codes", *_version(call))),
            "StartPendingUpload": lambda call: json_response(
                200, assets.begin_upload(*_version(call))
            ),
            "PutCode": lambda call: self._created(
                call, *assets.put_code(*_version(call), call.body, call.version)
            ),
            "ListEnvironments": lambda call: _listed(
                assets.versions("environments", call.names["name"])[
                    : int(call.query.get("$top", MOST))
                ]
            ),
            "GetEnvironment": lambda call: json_response(
                200, assets.get("environments", *_version(call))
            ),
            "PutEnvironment": lambda call: self._created(
                call, assets.put_environment(*_version(call), call.body, call.version), is_new=True
            ),
            "GetDataContainer": lambda call: json_response(
                200, assets.data_container(call.names["name"], call.version)
            ),
            "ListData": lambda call: _listed(assets.versions("data", call.names["name"])),
            "ListModels": lambda call: _listed(assets.versions("models", call.names["name"])),
            "GetModel": lambda call: json_response(200, assets.get("models", *_version(call))),
            "GetData": lambda call: json_response(200, assets.get("data", *_version(call))),
            "PutData": lambda call: self._created(
                call, assets.put_data(*_version(call), call.body, call.version), is_new=True
            ),
            "ListJobs": self._list_jobs,
            "GetJob": lambda call: json_response(
                200, self._job(call).resource(account, call.version)
            ),
            "PutJob": self._put_job,
            "CancelJob": self._cancel,
            "GetCompute": self._get_compute,
            "GetDatastore": lambda call: json_response(
                200, resources.datastore(account, call.names["name"], call.version)
            ),
            "ListSecrets": lambda call: json_response(
                200, resources.secrets(account, call.names["name"], call.body)
            ),
            "ListUsages": lambda _: _listed(resources.usages(account, list(self.jobs.values()))),
            "ListVmSizes": lambda _: _listed(resources.sizes(account)),
        }

    def call(self, operation: str, place: Place, body: dict[str, Any]) -> Response:
        """One call of the API; Refused is what it answers instead."""
        version = place.query.get("api-version")
        if version is None:
            message = (
                "The api-version query parameter (?api-version=) is required for all requests."
            )
            raise ServiceError("MissingApiVersionParameter", message, 400)
        if version not in VERSIONS:
            raise ServiceError(
                "NoRegisteredProviderFound",
                f"No registered resource provider found for location '{self.account.location}' and"
                f" API version '{version}' for type 'workspaces'. The supported api-versions are"
                f" '{', '.join(VERSIONS)}'.",
                400,
            )
        self._find_scope(place)
        if operation not in self.operations:
            raise ServiceError(
                "InvalidResourceType", f"The resource type of {place.path} could not be found.", 404
            )
        return self.operations[operation](ArmRequest(place.names, place.query, body, place.path))

    def interrupt(self, name: str) -> None:
        """Take a job's low-priority machines away as soon as it runs. ValueError for a job that has
        others.
        """
        job = self.jobs[name]
        if not job.low_priority:
            raise ValueError(f"{name} runs on dedicated machines, which nobody takes away")
        job.interrupted.set()

    def close(self) -> None:
        """End all jobs by force."""
        self._threads.close()

    def _find_scope(self, place: Place) -> None:
        account = self.account
        names = {
            "subscription": account.subscription,
            "group": account.resource_group,
            "workspace": account.workspace,
            "location": account.location,
            **place.names,
        }
        for key, mine, code, message in (
            (
                *("subscription", account.subscription, "SubscriptionNotFound"),
                "The subscription '{subscription}' could not be found.",
            ),
            (
                *("group", account.resource_group, "ResourceGroupNotFound"),
                "Resource group '{group}' could not be found.",
            ),
            (
                *("workspace", account.workspace, "ResourceNotFound"),
                f"The Resource '{WORKSPACES}/{{workspace}}' under resource group '{{group}}' was"
                " not found. For more details please go to"
                " https://aka.ms/ARMResourceNotFoundFix",
            ),
            (
                *("location", account.location, "LocationNotAvailableForResourceType"),
                "The provided location '{location}' is not available for resource type"
                f" '{WORKSPACES}'.",
            ),
        ):
            if names[key].lower() != mine:
                raise ServiceError(code, message.format(**names), 400 if key == "location" else 404)

    def _created(self, call: ArmRequest, resource: dict[str, Any], is_new: bool) -> Response:
        """Return the answer to a PUT: only that of a creation has an address."""
        if not is_new:
            return json_response(200, resource)
        return json_response(
            201, resource, Location=f"{self.account.url}{call.path}?api-version={call.version}"
        )

    def _get_compute(self, call: ArmRequest) -> Response:
        resource = resources.compute(self.account, call.names["name"], call.version)
        return json_response(404 if resource is None else 200, resource)

    def _put_job(self, call: ArmRequest) -> Response:
        name = call.names["name"]
        account = self.account
        with self._lock:
            job = self.jobs.get(name) or self.sweeps.get(name)
            if job is not None:
                if not job.is_same(call.body):
                    raise user_error(
                        "A job with this name already exists. If you are trying to submit a new"
                        " job, use a different name. If you are trying to update an existing job,"
                        " the existing job's configuration cannot be changed. Only description,"
                        " displayName, tags, and isArchived can be changed."
                    )
                job.change(call.body)
                return self._created(call, job.resource(account, call.version), is_new=False)
            refuse(name, call.body, account, self.assets, self.jobs.values())
            if call.body["properties"]["jobType"] == "Sweep":
                job = self.sweeps[name] = SweepJob(name, call.body, account, self._launch)
                self._threads.start(job, job.run)
            else:
                job = self._launch(name, call.body)
            job.owner = account.user
            return self._created(call, job.resource(account, call.version), is_new=True)

    def _launch(self, name: str, body: dict[str, Any]) -> Job:
        """A command job, of a client or of a sweep job."""
        account = self.account
        with self._lock:
            vm_size, low_priority = machines(body["properties"], account)
            job = self.jobs[name] = Job(name, body, vm_size=vm_size, low_priority=low_priority)
            self._threads.start(job, lambda: running.run(job, account, self.assets))
        return job

    def _list_jobs(self, call: ArmRequest) -> Response:
        """Return a page of jobs, the newest first, filtered by a tag's name."""
        supported = {"api-version", "listViewType", "tag", "jobType", "$skipToken"}
        if set(call.query) - supported:
            raise user_error(
                f"Not part of this imitation: {', '.join(sorted(set(call.query) - supported))}"
            )
        tag, kind, view = (call.query.get(key) for key in ("tag", "jobType", "listViewType"))
        with self._lock:
            everything = sorted(
                (*self.jobs.values(), *self.sweeps.values()), key=lambda job: job.created
            )
            jobs = [
                job
                for job in reversed(everything)
                if (tag is None or tag in job.tags)
                and kind in (None, job.properties["jobType"])
                and not job.parent
                and (
                    view == "All"
                    or job.properties.get("isArchived", False) == (view == "ArchivedOnly")
                )
            ]
        # A token names the last listed job, so that new jobs do not shift a page.
        token = call.query.get("$skipToken")
        start = next((index + 1 for index, job in enumerate(jobs) if job.name == token), 0)
        end = start + JOB_PAGE
        page: dict[str, Any] = {
            "value": [job.resource(self.account, call.version) for job in jobs[start:end]]
        }
        if end < len(jobs):
            query = "&".join(
                f"{key}={value}" for key, value in call.query.items() if key != "$skipToken"
            )
            page["nextLink"] = (
                f"{self.account.url}{self.account.scope}/jobs?{query}&$skipToken={jobs[end - 1].name}"
            )
        return json_response(200, page)

    def _cancel(self, call: ArmRequest) -> Response:
        job = self._job(call)
        if job.has_ended:
            return json_response(200)
        job.cancel()
        place = f"/subscriptions/{self.account.subscription}/providers/{PROVIDER}/locations/{self.account.location}"
        operation = f"jc:{WORKSPACE_ID}:{job.name}"
        location = (
            f"{self.account.url}{place}/mfeOperationResults/{operation}?api-version={call.version}"
        )
        headers = [
            ("Content-Type", "application/json; charset=utf-8"),
            ("Location", location),
            ("x-ms-async-operation-timeout", "PT1H"),
        ]
        return Response(202, headers, b"null")

    def _job(self, call: ArmRequest) -> Job:
        with self._lock:
            job = self.jobs.get(call.names["name"]) or self.sweeps.get(call.names["name"])
            if job is None:
                raise job_not_found(call.names["name"])
            return job


def _version(call: ArmRequest) -> tuple[str, str]:
    return call.names["name"], call.names["version"]


def _listed(items: list[dict[str, Any]]) -> Response:
    return json_response(200, {"value": items})
