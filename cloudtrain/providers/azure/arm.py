"""Requests to Azure Resource Manager with the user's credentials.

Calls azure-core, and azure-ai-ml for the name of the cloud.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from azure.core import PipelineClient
from azure.core.exceptions import HttpResponseError
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy
from azure.core.rest import HttpRequest, HttpResponse
from azure.mgmt.core.exceptions import ARMErrorFormat

from cloudtrain.errors import CloudError
from cloudtrain.providers.azure.errors import ReadableAnswers
from cloudtrain.providers.azure.sdk import RETRIES, TIMEOUTS, calling, credential


@dataclass(frozen=True, slots=True)
class Found:
    """A resource, and the time of the answer."""

    document: Mapping[str, Any]
    date: str
    """Header `Date` of the answer."""


class ResourceManager:
    """Azure Resource Manager. Every method may raise CloudError.

    `request` and `pages` raise the SDK's errors.
    """

    @cached_property
    def address(self) -> str:
        """Address of ARM, without a slash at the end."""
        from azure.ai.ml import _azure_environments as environments

        with calling("looking where Azure is"):
            cloud = environments._get_default_cloud_name()
            return str(environments._get_base_url_from_metadata(cloud_name=cloud))

    def claims(self) -> Mapping[str, Any]:
        """Return the owner of the user's token: `upn` or `appid`, and `oid`; empty if unclear."""
        with calling("logging in"):
            token = credential().get_token(f"{self.address}/.default").token
        try:
            middle = token.split(".")[1]
            claims: dict[str, Any] = json.loads(
                base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4))
            )
        except (IndexError, ValueError):
            return {}
        return claims

    def get(self, path: str, version: str, **query: str) -> Found:
        """Return a resource by its id. CloudError with NotFound or NoWorkspace if it is missing."""
        with _looking(path):
            answer = self.request(path, {**query, "api-version": version})
            return Found(answer.json(), str(answer.headers.get("Date", "")))

    def find(self, path: str, version: str) -> Found | None:
        """Return a resource by its id; None if it is missing."""
        try:
            return self.get(path, version)
        except CloudError as error:
            if error.code in ("NotFound", "NoWorkspace"):
                return None
            raise

    def listed(self, path: str, version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield the items on all pages of a list. `query`: `filter` for `$filter`."""
        pages = self.pages(
            path, {**{f"${name}": value for name, value in query.items()}, "api-version": version}
        )
        while True:
            with _looking(path):
                page = next(pages, None)
            if page is None:
                return
            yield from page

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Yield the pages of a list. Request each one when it is needed."""
        answer = self.request(path, query)
        while True:
            page = answer.json()
            yield page.get("value") or ()
            following = str(page.get("nextLink") or "")
            if not following.startswith(f"{self.address}/"):  # the token is for this address alone
                return
            answer = self.request(following, {})

    def request(self, path: str, query: Mapping[str, str]) -> HttpResponse:
        """Return the answer to a GET of a path or of a whole address.

        Raise HttpResponseError for a status of 400 or more.
        """
        address = f"{self.address}{path}" if path.startswith("/") else path
        answer = self._client.send_request(HttpRequest("GET", address, params=dict(query)))
        if answer.status_code >= 400:
            raise HttpResponseError(response=answer, error_format=ARMErrorFormat)
        return answer

    @cached_property
    def _client(self) -> PipelineClient[HttpRequest, HttpResponse]:
        token = BearerTokenCredentialPolicy(credential(), f"{self.address}/.default")
        return PipelineClient(
            self.address, policies=[RetryPolicy(**RETRIES), ReadableAnswers(), token], **TIMEOUTS
        )


def _looking(path: str) -> AbstractContextManager[None]:
    return calling(f"looking at {path.rpartition('/providers/')[2] or path}")
