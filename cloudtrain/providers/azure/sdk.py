"""Calls of Azure's SDKs: credentials, translated errors, a hook before a job, requests to ARM."""

from __future__ import annotations

import base64
import io
import json
import logging
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias

from azure.core import PipelineClient
from azure.core.credentials import AccessToken
from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.core.pipeline.policies import BearerTokenCredentialPolicy, RetryPolicy, SansIOHTTPPolicy
from azure.core.rest import HttpRequest, HttpResponse
from azure.identity import DefaultAzureCredential
from azure.mgmt.core.exceptions import ARMErrorFormat
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from cloudtrain.errors import DENIED, CloudError, CloudtrainError
from cloudtrain.planning.reference import is_loopback
from cloudtrain.planning.registry import TOKEN_USER, RegistryLogin
from cloudtrain.providers.azure.errors import ReadableAnswers, is_foreign, translated
from cloudtrain.providers.azure.sovereign import cloud_of_registry
from cloudtrain.providers.shared.idempotent_create import Attempt
from cloudtrain.settings import load_settings

RETRIES: dict[str, Any] = {"retry_total": 4, "retry_backoff_factor": 0.5, "retry_backoff_max": 20}
"""Options of the SDK: it retries for seconds, not for the minutes of its defaults."""

TIMEOUTS: dict[str, Any] = {"connection_timeout": 10, "read_timeout": 60}
"""Timeouts in seconds."""

REPEATABLE = frozenset({"HEAD", "GET", "PUT", "POST"})
"""HTTP methods to retry if no response came: all our requests may be repeated."""

_ATTEMPT: ContextVar[Attempt | None] = ContextVar("attempt", default=None)
"""Attempt to create a job in this thread."""

REFRESH_SECONDS = 300
"""Seconds from the renewal of a token to its expiry."""

_NOISY = ("azure", "msal", "msrest", "urllib3")
"""Packages whose log messages are suppressed."""

_REGISTRIES = "https://containerregistry.azure.net"
"""Resource whose tokens open registries of the public cloud."""

Client: TypeAlias = PipelineClient[HttpRequest, HttpResponse]


@contextmanager
def watching_create(attempt: Attempt) -> Iterator[None]:
    """Report each request that creates a job, and its answer, to the attempt inside the block."""
    token = _ATTEMPT.set(attempt)
    try:
        yield
    finally:
        _ATTEMPT.reset(token)


class RetryOptions(SansIOHTTPPolicy[Any, Any]):
    """Have the SDK retry every request except the creation of a job."""

    def on_request(self, request: Any) -> None:
        """Set the options of one call. The SDK calls this once, before its retries."""
        options = request.context.options
        options.setdefault("retry_on_methods", REPEATABLE)
        if _creates_job(request):
            options["retry_total"] = 0


class CreateWatch(SansIOHTTPPolicy[Any, Any]):
    """Count the requests that create a job when they are sent. Called for every retry."""

    def on_request(self, request: Any) -> None:
        """Report to the attempt that a request is about to be sent."""
        attempt = _ATTEMPT.get()
        if attempt is not None and _creates_job(request):
            attempt.sending()

    def on_response(self, request: Any, response: Any) -> None:
        """Report an answer to the attempt."""
        attempt = _ATTEMPT.get()
        if attempt is not None and _creates_job(request):
            answer = response.http_response
            retry_after = str(answer.headers.get("Retry-After", ""))
            attempt.answered(answer.status_code, _error_code(answer), retry_after)

    def on_exception(self, request: Any) -> None:
        """Take a request back that was not sent: without a token or a connection."""
        attempt = _ATTEMPT.get()
        error = sys.exc_info()[1]
        if attempt is not None and _creates_job(request) and _is_unsent(error):
            attempt.not_sent()


def _creates_job(request: Any) -> bool:
    sent = request.http_request
    return sent.method == "PUT" and re.search(r"/jobs/[^/?]+(\?|$)", sent.url) is not None


def _error_code(answer: Any) -> str:
    """Return the code in an answer of Azure Resource Manager; empty if the body has none."""
    try:
        return str(json.loads(answer.text())["error"]["code"])
    except (ValueError, LookupError, TypeError):
        return ""


def _is_unsent(error: BaseException | None) -> bool:
    if isinstance(error, ClientAuthenticationError):
        return error.response is None
    cause = getattr(error, "inner_exception", None)
    reasons = [cause, getattr(cause, "reason", None), *getattr(cause, "args", ())]
    reasons += [getattr(reason, "reason", None) for reason in reasons]
    return any(isinstance(reason, (NewConnectionError, ConnectTimeoutError)) for reason in reasons)


@contextmanager
def calling(action: str, place: str = "") -> Iterator[None]:
    """Translate the SDK's errors and suppress its output.

    `action`: the action in messages; `place`: see `translated`.
    """
    try:
        with without_sdk_output():
            yield
    except Exception as error:
        if isinstance(error, CloudtrainError) or not is_foreign(error):
            raise  # a bug of ours keeps its traceback
        raise translated(error, action, place) from error


@contextmanager
def without_sdk_output() -> Iterator[None]:
    """Suppress the SDK's warnings and log messages, unless `cloudtrain -v` asks for them."""
    if logging.getLogger().isEnabledFor(logging.INFO):
        yield
        return
    for name in (*_NOISY, *logging.root.manager.loggerDict):
        if name.startswith(_NOISY):  # some loggers have separate levels
            logger = logging.getLogger(name)
            # setting a level takes long: it empties the caches of all loggers
            if logger.level != logging.CRITICAL:
                logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), _without_stderr():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_stderr() -> Iterator[None]:
    if sys.stderr.isatty():  # where its progress bar is useful
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield


@cache
def credential() -> CachedCredential:
    """Return the user's credentials; one source per process, so that tokens are shared.

    The setting azure.tenant is of the user, not of a job, so the current folder's counts.
    """
    return CachedCredential(load_settings(Path.cwd()).get("azure.tenant"))


class CachedCredential:
    """A credential that caches its tokens: the SDK's many clients would request one each."""

    def __init__(self, tenant: str | None = None) -> None:
        """`tenant`: of the subscription, if it is not the login's own."""
        self._tenant = tenant
        self._source = DefaultAzureCredential(
            additionally_allowed_tenants=[tenant] if tenant else []
        )
        self._lock = threading.Lock()
        self._known: dict[tuple[Any, ...], AccessToken] = {}

    def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        """Return a token, cached unless it is about to expire or `claims` are given."""
        if self._tenant:
            options.setdefault("tenant_id", self._tenant)

        key = (*scopes, options.get("tenant_id"))
        with self._lock:
            token = self._known.get(key)
            if (
                token is None
                or options.get("claims")
                or token.expires_on - REFRESH_SECONDS < time.time()
            ):
                token = self._known[key] = self._source.get_token(*scopes, **options)

        return token


def registry_login(registry: str) -> RegistryLogin:
    """Exchange a token of Entra ID for a refresh token of the registry, as `az acr login` does.

    It is valid for about an hour. Raise CloudError if either of them is refused.
    """
    doing = f"logging in to the registry {registry}"
    cloud = cloud_of_registry(registry)
    resource = cloud.management if cloud else _REGISTRIES
    try:
        token = credential().get_token(f"{resource}/.default").token
    except Exception as error:
        if not is_foreign(error):
            raise
        raise translated(error, doing, "") from error

    form = {"grant_type": "access_token", "service": registry, "access_token": token}
    scheme = "http" if is_loopback(registry) else "https"
    address = f"{scheme}://{registry}"
    try:
        client: Any = PipelineClient(address, connection_timeout=15, read_timeout=15)
        with client:
            answer = client.send_request(
                HttpRequest("POST", f"{address}/oauth2/exchange", data=form)
            )
            answer.raise_for_status()
            return RegistryLogin(TOKEN_USER, str(answer.json()["refresh_token"]))
    except HttpResponseError as error:
        message = f"{doing}: it answered {error.status_code}"
        raise CloudError(
            message,
            hint="the role AcrPush there, and az login",
            code=DENIED,
        ) from error
    except AzureError as error:
        message = f"{doing}: it cannot be reached: {error.message}"
        raise CloudError(
            message,
            hint="look at the registry's name (az acr list) and the network",
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise CloudError(f"{doing}: its answer is not a token") from error


def json_client(address: str, scope: str = "") -> Client:
    """Return a client of a service that answers JSON. `scope`: of its tokens; empty: it needs none.

    Its answers are checked, and its requests are repeated for some seconds.
    """
    policies: list[Any] = [RetryPolicy(**RETRIES), ReadableAnswers()]
    if scope:
        policies.append(BearerTokenCredentialPolicy(credential(), scope))

    return PipelineClient(address, policies=policies, **TIMEOUTS)


def answer_of(client: Client, address: str, query: Mapping[str, str]) -> HttpResponse:
    """Return the answer to a GET. Raise HttpResponseError for a status of 400 or more."""
    answer = client.send_request(HttpRequest("GET", address, params=dict(query)))
    if answer.status_code >= 400:
        raise HttpResponseError(response=answer, error_format=ARMErrorFormat)

    return answer


@dataclass(frozen=True, slots=True)
class Answer:
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
            padding = "=" * (-len(middle) % 4)
            claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(middle + padding))
        except (IndexError, ValueError):
            return {}

        return claims

    def get(self, path: str, version: str, **query: str) -> Answer:
        """Return a resource by its id. CloudError with NotFound or NoWorkspace if it is missing."""
        with _looking(path):
            answer = self.request(path, {**query, "api-version": version})
            return Answer(answer.json(), str(answer.headers.get("Date", "")))

    def find(self, path: str, version: str) -> Answer | None:
        """Return a resource by its id; None if it is missing."""
        try:
            return self.get(path, version)
        except CloudError as error:
            if error.code in ("NotFound", "NoWorkspace"):
                return None
            raise

    def listed(self, path: str, version: str, **query: str) -> Iterator[Mapping[str, Any]]:
        """Yield the items on all pages of a list. `query`: `filter` for `$filter`."""
        parameters = {f"${name}": value for name, value in query.items()}
        parameters["api-version"] = version
        pages = self.pages(path, parameters)
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
        if path.startswith("/"):
            address = f"{self.address}{path}"
        else:
            address = path

        return answer_of(self._client, address, query)

    @cached_property
    def _client(self) -> Client:
        return json_client(self.address, f"{self.address}/.default")


def _looking(path: str) -> AbstractContextManager[None]:
    return calling(f"looking at {path.rpartition('/providers/')[2] or path}")
