"""Translate errors of Azure's SDKs: which call failed, where, why, and what to do next."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Iterator
from typing import Any

from azure.core import exceptions as sdk

from cloudtrain.diagnosis.remedies import azure_quota
from cloudtrain.errors import (
    DENIED,
    NAME_TAKEN,
    CloudError,
    CloudtrainError,
    Outcome,
    RefusedError,
    unreadable,
)
from cloudtrain.providers.azure.answers import UnreadableAnswer

KEYS_FORBIDDEN = "KeyBasedAuthenticationNotPermitted"
"""Storage's code for an account that forbids its keys and their signatures."""

USE_IDENTITY = (
    "let the workspace open its storage by identity: az ml workspace update "
    "--system-datastores-auth-mode identity, with --name and --resource-group"
)

_TRY_AGAIN = "then try again"
_WAIT = f"wait a little, {_TRY_AGAIN}"
_LOGIN = f"az login, {_TRY_AGAIN}"

_STALE = ("AADSTS700082", "AADSTS70043", "AADSTS50173", "AADSTS50078", "AADSTS50076", "expired")
"""Codes and words of Entra ID for a login that has to be renewed."""

_FOREIGN = ("azure", "marshmallow", "requests", "msal")
_MARK = "(x)"
_REFUSALS = ("ValidationException", "ValidationError", "EmptyDirectoryError")
_NOISE = ("RequestId:", "Time:", "ErrorCode:", "Content:")
"""Prefixes of further lines in the storage service's messages."""

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


def translated(error: Exception, call: str, place: str, action: str = "") -> CloudtrainError:
    """Return our error for one of the SDK's; its `outcome` is UNKNOWN if it may have had effect.

    `call`: a description, `creating the job`; `place`: the workspace or an address, may be empty;
    `action`: the missing one if the call is denied and the service does not name it.
    """
    if isinstance(error, CloudtrainError):
        return error
    where = f"{call} in {place}" if place else call
    for cause in _chain(error):
        if isinstance(cause, UnreadableAnswer):
            return unreadable(where, str(cause))
        if isinstance(cause, sdk.ClientAuthenticationError):
            return _unauthenticated(cause, where, action)
        if isinstance(cause, sdk.HttpResponseError) and cause.status_code is not None:
            return _from_response(cause, where, action)
        if isinstance(cause, sdk.ServiceResponseError):
            message = f"{where}: no answer came: {_one_line(cause)}"
            return CloudError(
                message, hint=_WAIT, code="Lost", transient=True, outcome=Outcome.UNKNOWN
            )
        if isinstance(cause, (sdk.ServiceRequestError, ConnectionError)):
            message = f"{where}: Azure cannot be reached: {_one_line(cause)}"
            return CloudError(
                message, hint=f"check the network; {_TRY_AGAIN}", code="Unreachable", transient=True
            )
    if any(type(cause).__name__ in _REFUSALS for cause in _chain(error)):
        return RefusedError(f"{where}: azure-ai-ml refuses the request: {_one_line(error)}")
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
    answer = _one_line(error)
    if error.status_code == 401 or any(word in str(error) for word in _STALE):
        return CloudError(
            f"{where}: the credentials have expired: {answer}", hint=_LOGIN, code="Expired"
        )
    if error.status_code == 403:
        return _denied(error, where, action)
    hint = f"az login (or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET), {_TRY_AGAIN}"
    return CloudError(f"{where}: no Azure credentials: {answer}", hint=hint, code="NoCredentials")


def _from_response(error: sdk.HttpResponseError, where: str, action: str) -> CloudError:
    status = error.status_code or 0
    code = _code(error)
    answer = _one_line(error)
    if status < 400:  # the SDK could not parse it
        return unreadable(where, answer)
    if status == 401:
        return CloudError(
            f"{where}: Azure does not accept these credentials: {answer}", hint=_LOGIN, code=code
        )
    if status == 403:
        return _denied(error, where, action)
    if status == 404 or code in _MISSING:
        return _not_found(error, where)
    if "already exists" in answer and "job" in answer.lower():
        return CloudError(f"{where}: {answer}", code=NAME_TAKEN)
    if status in (408, 429):
        return CloudError(
            f"{where}: too many requests: {answer}", hint=_WAIT, code=code, transient=True
        )
    # an earlier attempt of the SDK to upload it, whose answer was lost
    if code == "BlobAlreadyExists":
        return CloudError(f"{where}: {answer}", hint="try again", code=code, transient=True)
    if status >= 500:
        message = f"{where}: Azure failed ({code or status}): {answer}"
        return CloudError(message, hint=_WAIT, code=code, transient=True, outcome=Outcome.UNKNOWN)
    quota = azure_quota(answer) if "quota" in answer.lower() else None
    return CloudError(f"{where}: {code or status}: {answer}", hint=quota, code=code or str(status))


def _denied(error: sdk.HttpResponseError, where: str, action: str) -> CloudError:
    answer = _one_line(error)
    # the storage service's code for an invalid or expired signature
    if _code(error) == "AuthenticationFailed":
        message = (
            f"{where}: the credentials have expired, or this machine's clock is wrong: {answer}"
        )
        return CloudError(
            message, hint=f"check this machine's clock with date -u; {_LOGIN}", code="Expired"
        )
    if _code(error) == KEYS_FORBIDDEN:
        message = f"{where}: the storage account takes no keys: {answer}"
        return CloudError(message, hint=USE_IDENTITY, code=KEYS_FORBIDDEN)
    kind = "blob" if "Microsoft.Storage" in str(error) or _is_of_storage(error) else "arm"
    named = re.search(r"perform action '([^']+)'|permissions for (\S+) actions", answer)
    action = next(filter(None, named.groups())) if named else action
    needed = f"{action}: " if action else ""
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
        f"{where}: {answer}", hint=f"check {missing[0]}: {missing[1]}", code="NoWorkspace"
    )


def _is_of_storage(error: sdk.HttpResponseError) -> bool:
    headers = getattr(getattr(error, "response", None), "headers", {})
    return "x-ms-error-code" in headers or "x-ms-version" in headers


def _code(error: Exception) -> str:
    """Return the error code of ARM or of the storage service; empty if there is none."""
    inner = getattr(error, "error", None)
    code = getattr(inner, "code", None) or getattr(error, "error_code", None) or ""
    return str(getattr(code, "value", code))


def _fields(text: str) -> str:
    """Return `limits.timeout: Not a valid integer.` from nested JSON; empty for other text."""
    if not text.lstrip().startswith("Validation for"):
        return ""
    try:
        document, _ = json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])
    except ValueError:
        return ""
    if not isinstance(document, dict):
        return ""
    if isinstance(document.get("errors"), list):
        return "; ".join(
            filter(None, (_fields(str(entry.get("message"))) for entry in document["errors"]))
        )
    return "; ".join(_leaf(name, value) for name, value in document.items())


def _leaf(path: str, value: Any) -> str:
    """Return the first message about a field, with its path."""
    if isinstance(value, dict) and value:
        name, inner = next(iter(value.items()))
        return _leaf(path if name.startswith("_") else f"{path}.{name}", inner)
    return _leaf(path, value[0]) if isinstance(value, list) and value else f"{path}: {value}"


def _plain(text: str) -> str:
    """Return the text without escape sequences for colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _one_line(error: BaseException) -> str:
    """Return the message in one line of at most 500 characters, without help texts."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    lines = [
        line.strip()
        for line in _plain(text).splitlines()
        if line.strip() and not line.startswith(_NOISE)
    ]
    # azure-ai-ml begins with "One or more fields are invalid"; a mark precedes the reasons.
    marked = next((number for number, line in enumerate(lines) if line.startswith(_MARK)), 0)
    lines = [line.removeprefix(_MARK).strip() for line in lines[marked:]]
    brief = _fields(text) or " ".join(lines[:3]) or type(error).__name__
    return brief[:500]
