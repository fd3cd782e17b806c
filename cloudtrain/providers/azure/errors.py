"""Translate errors of Azure's SDKs: which call failed, where, why, and what to do next.

Recognize also answers that are not the service's, such as a proxy's page: Azure's SDKs take some
for an answer without content, and fail at others with a Python error. They become errors of a lost
response, which the SDKs try again.
"""

from __future__ import annotations

import json
import re
import traceback
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from azure.core import exceptions as sdk
from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline.policies import SansIOHTTPPolicy

from cloudtrain.diagnosis.rule import azure_quota
from cloudtrain.errors import (
    DENIED,
    NAME_TAKEN,
    CloudError,
    CloudtrainError,
    ErrorKind,
    Outcome,
    RefusedError,
    unreadable,
)
from cloudtrain.providers.shared.recording import recording

KEYS_FORBIDDEN = "KeyBasedAuthenticationNotPermitted"
"""Storage's code for an account that forbids its keys and their signatures."""

USE_IDENTITY = (
    "let the workspace open its storage by identity: az ml workspace update "
    "--system-datastores-auth-mode identity, with --name and --resource-group"
)

_TRY_AGAIN = "then try again"
_WAIT = f"wait a little, {_TRY_AGAIN}"
_LOGIN = f"az login, {_TRY_AGAIN}"

_LOST = ErrorKind("no answer came", _WAIT, "Lost", transient=True, outcome=Outcome.UNKNOWN)
_UNREACHABLE = ErrorKind(
    "Azure cannot be reached", f"check the network; {_TRY_AGAIN}", "Unreachable", transient=True
)
_EXPIRED = ErrorKind("the credentials have expired", _LOGIN, "Expired")
_NO_CREDENTIALS = ErrorKind(
    "no Azure credentials",
    f"az login (or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET), {_TRY_AGAIN}",
    "NoCredentials",
)
_NOT_ACCEPTED = ErrorKind("Azure does not accept these credentials", _LOGIN)
_THROTTLED = ErrorKind("too many requests", _WAIT, transient=True)

_STALE = ("AADSTS700082", "AADSTS70043", "AADSTS50173", "AADSTS50078", "AADSTS50076", "expired")
"""Codes and words of Entra ID for a login that has to be renewed."""

_FOREIGN = ("azure", "marshmallow", "requests", "msal")
_REFUSALS = ("ValidationException", "ValidationError", "EmptyDirectoryError")
_NOISE = ("RequestId:", "Time:", "ErrorCode:", "Content:")
"""Prefixes of further lines in the storage service's messages."""

_STORAGE_HEADERS = ("x-ms-version", "x-ms-error-code", "x-ms-request-id")
"""Every answer of the storage service has one of these headers."""

_MISSING = {
    "SubscriptionNotFound": ("azure.subscription", "az account list shows yours"),
    "InvalidSubscriptionId": ("azure.subscription", "az account list shows yours"),
    "ResourceGroupNotFound": ("azure.resource_group", "az group list shows yours"),
    "ParentResourceNotFound": ("azure.workspace", "az ml workspace list shows yours"),
    "WorkspaceNotFound": ("azure.workspace", "az ml workspace list shows yours"),
}
_ROLES = {
    "blob": "Storage Blob Data Contributor on the workspace's storage account",
    "arm": "AzureML Data Scientist on the workspace",
}


class UnreadableAnswer(ServiceResponseError):
    """An answer that is not the service's."""


class ReadableAnswers(SansIOHTTPPolicy[Any, Any]):
    """Refuses unreadable answers of JSON services. Belongs after the policy of retries."""

    def on_response(self, request: Any, response: Any) -> None:
        """Raise UnreadableAnswer if the answer to a request is not the service's."""
        answer = response.http_response
        body = _body(answer)
        _record(request.http_request, answer, body)
        problem = _json_problem(request.http_request, answer.status_code, body)
        if problem:
            raise UnreadableAnswer(problem)


def refuse_unreadable_storage(response: Any) -> None:
    """Raise UnreadableAnswer if an answer is not from Azure's storage. For `raw_response_hook`."""
    request = response.http_request
    answer = response.http_response
    status = answer.status_code
    headers = answer.headers
    is_list = status == 200 and request.method == "GET" and "comp=list" in request.url
    if is_list:
        body = _body(answer)
    else:
        body = b""

    _record(request, answer, body)
    if not any(name in headers for name in _STORAGE_HEADERS):
        raise UnreadableAnswer(f"status {status} without the headers that storage always sends")
    if is_list and not _is_listing(body):
        raise UnreadableAnswer(_described(status, body, "a list of blobs"))


def _record(request: Any, answer: Any, body: bytes) -> None:
    """Record an exchange if CLOUDTRAIN_RECORD asks for it."""
    azure_folder = Path(sdk.__file__).parents[1]
    recorder = recording(
        "azure",
        azure_folder / "ai" / "ml" / "_restclient" / "arm_ml_service" / "models",
    )
    if recorder is not None:
        sent = getattr(request, "content", None) or getattr(request, "body", None)
        recorder.exchange(
            request.method,
            request.url,
            sent,
            answer.status_code,
            body,
            answer.headers,
        )


def _json_problem(request: Any, status: int, body: bytes) -> str:
    """Return the problem of an answer; empty if it is the service's."""
    if request.method == "HEAD" or 300 <= status < 400 or status in (408, 429) or status >= 500:
        return ""
    if body.strip():
        if _is_json(body):
            return ""

        return _described(status, body, "JSON")

    has_none = "/cancel?" in request.url or (status == 404 and "/computes/" in request.url)
    needs_body = status in (200, 201, 404) and not has_none
    if not needs_body:
        return ""

    return f"status {status} with an empty body"


def _body(answer: Any) -> bytes:
    """Return the body of a response of either of azure-core's two kinds."""
    if hasattr(answer, "body"):
        content = answer.body()
    else:
        content = answer.read()

    return content if isinstance(content, bytes) else b""


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _is_listing(body: bytes) -> bool:
    try:
        root = ET.fromstring(body.removeprefix(b"\xef\xbb\xbf"))
    except ET.ParseError:
        return False
    return root.tag == "EnumerationResults"


def _described(status: int, body: bytes, expected: str) -> str:
    if b"<html" in body[:1000].lower():
        content = "HTML"
    else:
        content = f"{len(body)} bytes"

    return f"status {status} with {content} that is not {expected}"


def translated(error: Exception, call: str, place: str, action: str = "") -> CloudtrainError:
    """Return our error for one of the SDK's; its `outcome` is UNKNOWN if it may have had effect.

    `call`: a description, `creating the job`; `place`: the workspace or an address, may be empty;
    `action`: the missing one if the call is denied and the service does not name it.
    """
    if isinstance(error, CloudtrainError):
        return error

    if place:
        where = f"{call} in {place}"
    else:
        where = call

    for cause in _chain(error):
        if isinstance(cause, UnreadableAnswer):
            return unreadable(where, str(cause))
        if isinstance(cause, sdk.ClientAuthenticationError):
            return _unauthenticated(cause, where, action)
        if isinstance(cause, sdk.HttpResponseError) and cause.status_code is not None:
            return _from_response(cause, where, action)
        if isinstance(cause, sdk.ServiceResponseError):
            return _LOST.error(where, _one_line(cause))
        if isinstance(cause, (sdk.ServiceRequestError, ConnectionError)):
            return _UNREACHABLE.error(where, _one_line(cause))

    if any(type(cause).__name__ in _REFUSALS for cause in _chain(error)):
        reason = " ".join(str(error).split())[:500]
        return RefusedError(f"{where}: azure-ai-ml refuses the request: {reason}")
    if _raised_by_sdk(error) or isinstance(error, json.JSONDecodeError):
        return unreadable(where, f"{type(error).__name__}: {_one_line(error)}")

    return CloudError(f"{where}: {_one_line(error)}", code=type(error).__name__)


def is_foreign(error: Exception) -> bool:
    """Return True if an error comes from the SDK or the system, not from a bug of ours."""
    is_external = (
        isinstance(error, (OSError, ValueError))
        or type(error).__module__.partition(".")[0] in _FOREIGN
    )
    return (
        is_external
        or _raised_by_sdk(error)
        or any(isinstance(cause, sdk.AzureError) for cause in _chain(error))
    )


def _raised_by_sdk(error: BaseException) -> bool:
    """Return True if the SDK failed with a Python error, as for JSON of another form."""
    if (
        not isinstance(error, (AttributeError, KeyError, IndexError, TypeError))
        or error.__traceback__ is None
    ):
        return False

    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in _FOREIGN


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that it wraps, as the SDK does with the services' errors."""
    visited: set[int] = set()
    pending: list[Any] = [error]
    while pending:
        cause = pending.pop(0)
        if isinstance(cause, BaseException) and id(cause) not in visited:
            visited.add(id(cause))
            yield cause
            pending += [getattr(cause, "inner_exception", None), getattr(cause, "error", None)]
            pending += [cause.__cause__, cause.__context__]


def _unauthenticated(error: sdk.ClientAuthenticationError, where: str, action: str) -> CloudError:
    if error.status_code == 403:
        return _denied(error, where, action)

    is_stale = error.status_code == 401 or any(word in str(error) for word in _STALE)
    kind = _EXPIRED if is_stale else _NO_CREDENTIALS
    return kind.error(where, _one_line(error))


def _from_response(error: sdk.HttpResponseError, where: str, action: str) -> CloudError:
    status = error.status_code or 0
    code = _code(error)
    answer = _one_line(error)
    if status < 400:  # the SDK could not parse it
        return unreadable(where, answer)
    if status == 401:
        return _NOT_ACCEPTED.error(where, answer, code)
    if status == 403:
        return _denied(error, where, action)
    if status == 404 or code in _MISSING:
        return _not_found(error, where)
    if "already exists" in answer and "job" in answer.lower():
        return CloudError(f"{where}: {answer}", code=NAME_TAKEN)
    if status in (408, 429):
        return _THROTTLED.error(where, answer, code)
    # an earlier attempt of the SDK to upload it, whose answer was lost
    if code == "BlobAlreadyExists":
        return CloudError(f"{where}: {answer}", hint="try again", code=code, transient=True)
    if status >= 500:
        words = f"Azure failed ({code or status})"
        kind = ErrorKind(words, _WAIT, transient=True, outcome=Outcome.UNKNOWN)
        return kind.error(where, answer, code)

    reasons = _details(error)
    if reasons:  # the message only says that the request is invalid
        answer = f"{answer} {'; '.join(reasons)}"[:1000]

    return CloudError(
        f"{where}: {code or status}: {answer}",
        hint=_hint(answer),
        code=code or str(status),
    )


def _hint(answer: str) -> str | None:
    if "quota" in answer.lower():
        return azure_quota(answer)
    if re.search(r"unknown compute target|compute not found", answer, re.IGNORECASE):
        return "check azure.compute: az ml compute list shows the workspace's clusters"
    return None


def _details(error: sdk.HttpResponseError) -> list[str]:
    """Return the messages of the wrong fields in an answer of Azure Resource Manager."""
    details = getattr(getattr(error, "error", None), "details", None) or []
    return [str(detail.message) for detail in details if getattr(detail, "message", None)]


def _denied(error: sdk.HttpResponseError, where: str, action: str) -> CloudError:
    answer = _one_line(error)
    # the storage service's code for an invalid or expired signature
    if _code(error) == "AuthenticationFailed":
        message = (
            f"{where}: the credentials have expired, or this machine's clock is wrong: {answer}"
        )
        return CloudError(
            message,
            hint=f"check this machine's clock with date -u; {_LOGIN}",
            code="Expired",
        )
    if _code(error) == KEYS_FORBIDDEN:
        message = f"{where}: the storage account takes no keys: {answer}"
        return CloudError(message, hint=USE_IDENTITY, code=KEYS_FORBIDDEN)

    kind = "blob" if "Microsoft.Storage" in str(error) or _is_of_storage(error) else "arm"
    named = re.search(r"perform action '([^']+)'|permissions for (\S+) actions", answer)
    if named:
        action = named[1] or named[2]

    needed = ""
    if action:
        needed = f"{action}: "

    hint = (
        f"these credentials lack a role ({needed}{_ROLES[kind]}), or it was given minutes ago and"
        " is not in force yet"
    )
    return CloudError(f"{where}: not authorized: {answer}", hint=hint, code=DENIED)


def _not_found(error: sdk.HttpResponseError, where: str) -> CloudError:
    code = _code(error)
    answer = _one_line(error)
    missing = _MISSING.get(code)
    if missing is None and re.search(r"workspaces/[^/'\s]+'? .*not found", answer, re.IGNORECASE):
        missing = _MISSING["WorkspaceNotFound"]
    if missing is None:
        return CloudError(f"{where}: {answer}", code="NotFound")

    return CloudError(
        f"{where}: {answer}",
        hint=f"check {missing[0]}: {missing[1]}",
        code="NoWorkspace",
    )


def _is_of_storage(error: sdk.HttpResponseError) -> bool:
    headers = getattr(getattr(error, "response", None), "headers", {})
    return "x-ms-error-code" in headers or "x-ms-version" in headers


def _code(error: Exception) -> str:
    """Return the error code of ARM or of the storage service; empty if there is none."""
    inner = getattr(error, "error", None)
    code = getattr(inner, "code", None) or getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def _one_line(error: BaseException) -> str:
    """Return the message in one line of at most 500 characters, without help texts."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # without colours
    lines = []
    for line in plain.splitlines():
        if line.strip() and not line.startswith(_NOISE):
            lines.append(line.strip())

    brief = " ".join(lines[:3]) or type(error).__name__
    return brief[:500]
