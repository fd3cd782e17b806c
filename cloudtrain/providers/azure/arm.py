"""Reads resources by Azure Resource Manager: all requests are GETs. Calls azure-core, and azure-ai-ml for the cloud."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from azure.core import PipelineClient
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy
from azure.core.rest import HttpRequest, HttpResponse
from azure.mgmt.core.exceptions import ARMErrorFormat

from cloudtrain.errors import CloudError, CloudtrainError
from cloudtrain.providers.azure.credentials import credential
from cloudtrain.providers.azure.errors import is_foreign, translated
from cloudtrain.providers.azure.sdk import RETRIES, TIMEOUTS, without_sdk_output


@dataclass(frozen=True, slots=True)
class Found:
    """A resource, and when it was told."""

    document: Mapping[str, Any]
    date: str
    """The header `Date` of the answer."""


class ResourceManager:
    """Azure Resource Manager, with the user's credentials. Every method may raise CloudError."""

    @cached_property
    def cloud(self) -> str:
        """The name of the cloud: `AzureCloud`, `AzureChinaCloud`, `AzureUSGovernment`."""
        from azure.ai.ml import _azure_environments as environments

        with _calling("looking which cloud this is"):
            return str(environments._get_default_cloud_name())

    @cached_property
    def address(self) -> str:
        """Where it is, without a slash at the end."""
        from azure.ai.ml import _azure_environments as environments

        with _calling("looking where Azure is"):
            return str(environments._get_base_url_from_metadata(cloud_name=self.cloud))

    def claims(self) -> Mapping[str, Any]:
        """What the user's token says of its owner: `upn` or `appid`, and `oid`. Empty where it is not readable."""
        with _calling("logging in"):
            token = credential().get_token(f"{self.address}/.default").token
        try:
            middle = token.split(".")[1]
            claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle + "=" * (-len(middle) % 4)))
        except (IndexError, ValueError):
            return {}
        return claims

    def get(self, path: str, version: str, **query: str) -> Found:
        """One resource, by its id. CloudError with the code NotFound or NoWorkspace if there is none."""
        return self._get(f"{self.address}{path}", path, {**query, "api-version": version})

    def find(self, path: str, version: str) -> Found | None:
        """The same; None if there is none."""
        try:
            return self.get(path, version)
        except CloudError as error:
            if error.code in ("NotFound", "NoWorkspace"):
                return None
            raise

    def listed(self, path: str, version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """What a list has, on all its pages. `query`: `filter` for `$filter`."""
        named = {f"${name}": value for name, value in query.items()}
        page = self._get(f"{self.address}{path}", path, {**named, "api-version": version}).document
        while True:
            yield from page.get("value", ())
            following = str(page.get("nextLink") or "")
            if not following.startswith(f"{self.address}/"):  # the token is for this address alone
                return
            page = self._get(following, path, {}).document

    def _get(self, address: str, path: str, query: Mapping[str, str]) -> Found:
        with _calling(f"looking at {path.rpartition('/providers/')[2] or path}"):
            answer = self._client.send_request(HttpRequest("GET", address, params=dict(query)))
            if answer.status_code >= 400:
                raise _refusal(answer)
            return Found(answer.json(), str(answer.headers.get("Date", "")))

    @cached_property
    def _client(self) -> PipelineClient[HttpRequest, HttpResponse]:
        token = BearerTokenCredentialPolicy(credential(), f"{self.address}/.default")
        return PipelineClient(self.address, policies=[RetryPolicy(**RETRIES), token], **TIMEOUTS)


def _refusal(answer: HttpResponse) -> Exception:
    from azure.core.exceptions import HttpResponseError

    return HttpResponseError(response=answer, error_format=ARMErrorFormat)


@contextmanager
def _calling(what: str) -> Iterator[None]:
    """Translate the SDK's errors and suppress its output. `what`: the action in messages."""
    try:
        with without_sdk_output():
            yield
    except Exception as error:
        if isinstance(error, CloudtrainError) or not is_foreign(error):
            raise  # a bug of ours keeps its traceback
        raise translated(error, what, "") from error
