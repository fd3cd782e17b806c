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

from cloudtrain.diagnosis.rules.clouds import AZURE_QUOTA
from cloudtrain.errors import (
    CloudError,
    CloudtrainError,
    ErrorKind,
    Outcome,
    RefusedError,
    unreadable,
)
from cloudtrain.providers.azure.error_codes import (
    FORBIDDEN,
    NO_CREDENTIALS,
    NOT_ACCEPTED,
    meaning,
)
from cloudtrain.providers.shared.recording import recording

_TRY_AGAIN = "then try again"
_WAIT = f"wait a little, {_TRY_AGAIN}"

_LOST = ErrorKind("no answer came", _WAIT, "Lost", transient=True, outcome=Outcome.UNKNOWN)
_UNREACHABLE = ErrorKind(
    "Azure cannot be reached", f"check the network; {_TRY_AGAIN}", "Unreachable", transient=True
)
_THROTTLED = ErrorKind("too many requests", _WAIT, transient=True)
_BY_STATUS = {401: NOT_ACCEPTED, 403: FORBIDDEN}
"""Meaning of errors whose code is in no table."""

_FOREIGN = ("azure", "marshmallow", "requests", "msal")
_REFUSALS = ("ValidationException", "ValidationError", "EmptyDirectoryError")
_NOISE = ("RequestId:", "Time:", "ErrorCode:", "Content:")
"""Prefixes of further lines in the storage service's messages."""

_STORAGE_HEADERS = ("x-ms-version", "x-ms-error-code", "x-ms-request-id")
"""Every answer of the storage service has one of these headers."""

_NOT_SET_UP = re.compile(
    r"not fully configured|no response from the IMDS|no managed identity endpoint|No accounts were"
    r"|cache unavailable|not found on path|not installed|could not be found|azure-identity-broker"
    r"|authentication unavailable\.?$",
    re.IGNORECASE,
)
"""Words of a credential that is not set up on this machine, and so was not tried."""
_CREDENTIAL = re.compile(
    r"^\s*(\w+Credential): (.+?)(?=^\s*\w+Credential: |^To mitigate|\Z)", re.M | re.S
)


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
        if isinstance(cause, sdk.HttpResponseError) and cause.status_code is not None:
            return _from_response(cause, where, action)
        if isinstance(cause, sdk.ClientAuthenticationError):
            return _without_token(cause, where)
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


def _without_token(error: sdk.ClientAuthenticationError, where: str) -> CloudError:
    """Return the error of a login that gave no token."""
    kind = meaning("", str(error)) or NO_CREDENTIALS
    return kind.error(where, _login_problem(str(error)) or _one_line(error))


def _login_problem(text: str) -> str:
    """Return why each configured way to log in failed, or every way without one. Empty without a list.

    The list of DefaultAzureCredential begins with the ways that nobody uses on this machine.
    """
    tried = []
    problems = []
    for name, reason in _CREDENTIAL.findall(text):
        plain = " ".join(reason.split())
        problems.append(f"{name}: {plain[:500]}")
        if not _NOT_SET_UP.search(plain):
            tried.append(problems[-1])

    return "; ".join(tried or problems)


def _from_response(error: sdk.HttpResponseError, where: str, action: str) -> CloudError:
    status = error.status_code or 0
    code = _code(error)
    answer = _one_line(error)
    if status < 400:  # the SDK could not parse it
        return unreadable(where, answer)
    if status in (408, 429):
        return _THROTTLED.error(where, answer, code)
    if status >= 500:
        words = f"Azure failed ({code or status})"
        failed = ErrorKind(words, _WAIT, transient=True, outcome=Outcome.UNKNOWN)
        return failed.error(where, answer, code)

    message = f"{error} {_header(error, 'WWW-Authenticate')}"  # which names the tenant
    kind = meaning(code, message, action) or _BY_STATUS.get(status)
    if kind is not None:
        if code and code not in answer and code != "UserError":
            answer = f"{answer} ({code})"
        return kind.error(where, answer, kind.code or code)

    reasons = _details(error)
    if reasons:  # the message only says that the request is invalid
        answer = f"{answer} {'; '.join(reasons)}"[:1000]
    if status == 404:
        return CloudError(f"{where}: {answer}", code="NotFound")

    hint = None
    if "quota" in answer.lower():
        hint = AZURE_QUOTA.remedy_for(answer)

    return CloudError(f"{where}: {code or status}: {answer}", hint=hint, code=code or str(status))


def _details(error: sdk.HttpResponseError) -> list[str]:
    """Return the messages of the wrong fields in an answer of Azure Resource Manager."""
    details = getattr(getattr(error, "error", None), "details", None) or []
    return [str(detail.message) for detail in details if getattr(detail, "message", None)]


def _header(error: sdk.HttpResponseError, name: str) -> str:
    return str(getattr(error.response, "headers", {}).get(name, ""))


def _code(error: sdk.HttpResponseError) -> str:
    """Return the error code of ARM or of the storage service; empty if there is none."""
    inner = getattr(error, "error", None)
    code = getattr(inner, "code", None) or getattr(error, "error_code", None)
    code = code or _header(error, "x-ms-error-code")  # a HEAD is answered without a body
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
    if len(brief) > 500:
        brief = f"{brief[:500].rpartition(' ')[0]} …"

    return brief
