"""Ask the run history of a workspace for a job: status, times, error, URLs of its nodes' logs.

No public method of azure-ai-ml returns these, and what its private ones return changes between
versions: 1.32 and 1.33 name the members differently. The service's own do not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from cloudtrain.errors import CloudError, unreadable
from cloudtrain.providers.azure.sdk import answer_of, calling, json_client

_SCOPE = "https://ml.azure.com/.default"
_VERSION = "v1.0"
_MEMBERS: Mapping[str, type] = {
    "runId": str,
    "status": str,
    "startTimeUtc": str,
    "endTimeUtc": str,
    "error": dict,
    "logFiles": dict,
    "properties": dict,
}
"""Members of a job's details that are read, with their types; most may be null."""
_REQUIRED = ("runId", "status")


class RunHistory:
    """The run history of one workspace."""

    def __init__(self, discovery_url: str, workspace_id: str, place: str) -> None:
        """`discovery_url`: of the workspace; `workspace_id`: in ARM; `place`: in messages."""
        self._discovery_url = discovery_url
        self._workspace_id = workspace_id
        self._place = place

    def details(self, name: str) -> dict[str, Any] | None:
        """Return a job's details as the service sends them; None if it does not know the job.

        CloudError if a member is missing or has another type than documented.
        """
        doing = "looking at the job"
        try:
            with calling(doing, self._place):
                path = f"{self._address}/history/v1.0{self._workspace_id}/runs/{name}/details"
                details = answer_of(self._client, path, {"api-version": _VERSION}).json()
        except CloudError as error:
            if error.code == "NotFound":
                return None
            raise

        problem = _problem(details)
        if problem:
            raise unreadable(f"{doing} in {self._place}", problem)

        document: dict[str, Any] = details
        return document

    @cached_property
    def _address(self) -> str:
        """Address of the workspace's services, from the public page that lists them."""
        doing = "looking for the run history"
        with calling(doing, self._place):
            addresses = answer_of(json_client(self._discovery_url), self._discovery_url, {}).json()

        address = addresses.get("api") if isinstance(addresses, dict) else None
        if not isinstance(address, str):
            raise unreadable(f"{doing} of {self._place}", "the answer has no address of it")

        return address.rstrip("/")

    @cached_property
    def _client(self) -> Any:
        return json_client(self._address, _SCOPE)


def _problem(details: Any) -> str:
    """Return what is wrong with a job's details; empty if they can be read."""
    if not isinstance(details, dict):
        return "it is not an object"

    for name, kind in _MEMBERS.items():
        value = details.get(name)
        if value is None and name in _REQUIRED:
            return f"it lacks {name}"
        if value is not None and not isinstance(value, kind):
            return f"{name} is not of type {kind.__name__}"

    error = (details.get("error") or {}).get("error")
    if error is not None and not isinstance(error, dict):
        return "error.error is not of type dict"
    if not all(isinstance(address, str) for address in (details.get("logFiles") or {}).values()):
        return "logFiles has an address that is not a text"

    return ""
