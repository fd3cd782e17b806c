"""Deployments, and the resources of one resource group. The only module that calls the SDK for
deployments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpResponse
from azure.mgmt.resource.deployments import DeploymentsMgmtClient

from cloudtrain.errors import CloudError
from cloudtrain.providers.azure.arm import ResourceManager
from cloudtrain.providers.azure.credentials import credential
from cloudtrain.providers.azure.infra.failures import Failure, explained, root_failures
from cloudtrain.providers.azure.sdk import RETRIES, TIMEOUTS, calling

GROUPS_VERSION = "2022-09-01"


class ResourceGroup:
    """One resource group, with the user's credentials. Every method may raise CloudError."""

    def __init__(self, subscription: str, name: str, poll_seconds: float) -> None:
        self.subscription = subscription
        self.name = name
        self.id = f"/subscriptions/{subscription}/resourceGroups/{name}"
        self._poll = poll_seconds
        self._arm = ResourceManager()

    def me(self) -> tuple[str, str]:
        """Whose credentials these are: the object id, and `user` or `app`. CloudError where the
        token does not say.
        """
        claims = self._arm.claims()
        if not claims.get("oid"):
            hint = "--set submitters=OBJECT_ID: az ad signed-in-user show --query id"
            raise CloudError("your token does not say who you are", hint=hint, code="NoObjectId")
        return str(claims["oid"]), "app" if claims.get("idtyp") == "app" else "user"

    def location(self) -> str | None:
        """Where the group is; None if there is no such group."""
        found = self.get(self.id, GROUPS_VERSION)
        return None if found is None else str(found["location"])

    def create(self, location: str, tags: Mapping[str, str]) -> None:
        """Create the group, empty."""
        with self._calling("creating the resource group"):
            body = {"location": location, "tags": dict(tags)}
            self._arm.request("PUT", self.id, {"api-version": GROUPS_VERSION}, body)

    def what_if(self, deployment: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The changes that a deployment would make, one for each resource, as Azure words them."""
        body = {
            "properties": {**document, "whatIfSettings": {"resultFormat": "FullResourcePayloads"}}
        }
        with self._calling("asking what would change"):
            found = (
                self._client.deployments.begin_what_if(self.name, deployment, body)
                .result()
                .as_dict()
            )
        if error := found.get("error"):
            raise explained(root_failures(error), f"asking what would change in {self.name}")
        return list((found.get("properties") or {}).get("changes") or [])

    def deploy(self, deployment: str, document: Mapping[str, Any]) -> None:
        """Begin a deployment, without waiting for it. One that has the same content changes
        nothing.
        """
        with self._calling("beginning the deployment"):
            body = {"properties": dict(document)}
            self._client.deployments.begin_create_or_update(
                self.name, deployment, body, polling=False
            )

    def deployment(self, name: str) -> dict[str, Any] | None:
        """The properties of a deployment; None if Azure knows none of that name."""
        with self._calling("looking at the deployment"):
            try:
                return dict(self._client.deployments.get(self.name, name).as_dict()["properties"])
            except HttpResponseError as error:
                if error.status_code == 404:
                    return None
                raise

    def operations(self, deployment: str) -> list[dict[str, Any]]:
        """What a deployment has done so far, the properties of each step."""
        with self._calling("looking at the deployment's steps"):
            found = self._client.deployment_operations.list(self.name, deployment)
            return [dict(each.as_dict().get("properties") or {}) for each in found]

    def forget_deployment(self, name: str) -> None:
        """Delete the record of a deployment; its resources stay."""
        with self._calling("deleting the record of the deployment"):
            self._client.deployments.begin_delete(self.name, name).result()

    def get(self, resource: str, version: str) -> dict[str, Any] | None:
        """A resource by its id; None if there is none."""
        with self._calling("looking at a resource"):
            answer = self._arm.request("GET", resource, {"api-version": version}, allowed=(404,))
        return None if answer.status_code == 404 else dict(answer.json())

    def list(
        self, collection: str, version: str, query: Mapping[str, str] | None = None
    ) -> list[dict[str, Any]]:
        """The resources of a collection, such as `.../resources`; none if what it belongs to does
        not exist.
        """
        with self._calling("listing resources"):
            pages = self._arm.pages(
                collection, {**(query or {}), "api-version": version}, allowed=(404,)
            )
            return [dict(each) for page in pages for each in page]

    def delete(self, resource: str, version: str, query: Mapping[str, str] | None = None) -> bool:
        """Delete a resource and wait until it is gone; False if it was not there."""
        with self._calling(f"deleting {resource.rpartition('/providers/')[2]}"):
            query = {**(query or {}), "api-version": version}
            answer = self._arm.request("DELETE", resource, query, allowed=(404,))
            was_there = answer.status_code not in (204, 404)
            self._wait(answer)
        return was_there

    def delete_if_empty(self) -> None:
        """Delete the group where nothing is in it, without waiting for it."""
        if self.list(f"{self.id}/resources", GROUPS_VERSION) == []:
            with self._calling("deleting the empty resource group"):
                self._arm.request(
                    "DELETE", self.id, {"api-version": GROUPS_VERSION}, allowed=(404,)
                )

    def _wait(self, answer: HttpResponse) -> None:
        """Until an operation that was accepted has ended, as its headers say where to look.

        After "Track asynchronous Azure operations": Azure-AsyncOperation tells a status, Location
        answers 202 until it is done.
        """
        status_address = answer.headers.get("Azure-AsyncOperation")
        address = status_address or answer.headers.get("Location")
        while answer.status_code == 202 and address:
            time.sleep(float(answer.headers.get("Retry-After") or self._poll))
            polled = self._arm.request("GET", address, {}, allowed=(404,))
            if not status_address:
                answer = polled
                address = polled.headers.get("Location") or address
                continue
            state = (
                str(polled.json().get("status", "")) if polled.status_code == 200 else "Succeeded"
            )
            if state in ("Failed", "Canceled"):
                raise explained(
                    root_failures(polled.json().get("error") or {}), "deleting a resource"
                )
            if state == "Succeeded":
                return

    @cached_property
    def _client(self) -> Any:
        options: dict[str, Any] = {**RETRIES, **TIMEOUTS}
        return DeploymentsMgmtClient(
            credential(),
            self.subscription,
            base_url=self._arm.address,
            credential_scopes=[f"{self._arm.address}/.default"],
            polling_interval=self._poll,
            **options,
        )

    def _calling(self, what: str) -> AbstractContextManager[None]:
        """`calling`, in this group, whose refusals `explained` knows more of than the jobs' own
        errors.
        """
        return calling(what, f"the resource group {self.name}", self._explanation)

    def _explanation(self, error: Exception, what: str) -> CloudError | None:
        failures = _failures_in(error)
        return explained(failures, f"{what} in {self.name}") if failures else None


def _failures_in(error: Exception) -> tuple[Failure, ...]:
    """What Resource Manager says is wrong, in a refusal of the request itself."""
    status = getattr(error, "status_code", None)
    if (
        not isinstance(error, HttpResponseError)
        or status is None
        or status in (401, 408, 429)
        or status >= 500
    ):
        return ()
    read: Callable[[], Any] = getattr(error.response, "json", dict)
    try:
        document = read()
        return root_failures(document["error"])
    except (ValueError, KeyError, TypeError):
        return ()
