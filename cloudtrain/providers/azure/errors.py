"""Azure's errors in our words: what failed, in which call, why, and what to do next."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from azure.core import exceptions as sdk

from cloudtrain.errors import DENIED, NAME_TAKEN, CloudError, CloudtrainError, Outcome, RefusedError
from cloudtrain.runs.failure_hints import azure_quota

_TRY_AGAIN = "then try again"
_WAIT = f"wait a little, {_TRY_AGAIN}"
_LOGIN = f"az login, {_TRY_AGAIN}"

_STALE = ("AADSTS700082", "AADSTS70043", "AADSTS50173", "AADSTS50078", "AADSTS50076", "expired")
"""What Entra ID says when one must sign in anew."""

_FOREIGN = ("azure", "marshmallow", "requests", "msal")
_MARK = "(x)"
_REFUSALS = ("ValidationException", "ValidationError", "EmptyDirectoryError")
_NOISE = ("RequestId:", "Time:", "ErrorCode:", "Content:")
"""What storage's messages go on with."""

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


def translated(error: Exception, call: str, place: str) -> CloudtrainError:
    """Our error for one of the SDK's. `call`: in words, `creating the job`; `place`: the workspace, or an address."""
    if isinstance(error, CloudtrainError):
        return error
    where = f"{call} in {place}" if place else call
    for found in _chain(error):
        if isinstance(found, sdk.ClientAuthenticationError):
            return _unauthenticated(found, where)
        if isinstance(found, sdk.HttpResponseError) and found.status_code is not None:
            return _from_response(found, where)
        if isinstance(found, sdk.ServiceResponseError):
            message = f"{where}: no answer came: {_one_line(found)}"
            return CloudError(message, hint=_WAIT, code="Lost", transient=True, outcome=Outcome.UNKNOWN)
        if isinstance(found, (sdk.ServiceRequestError, ConnectionError)):
            message = f"{where}: Azure cannot be reached: {_one_line(found)}"
            return CloudError(message, hint=f"look at the network; {_TRY_AGAIN}", code="Unreachable", transient=True)
    if any(type(found).__name__ in _REFUSALS for found in _chain(error)):
        return RefusedError(f"{where}: azure-ai-ml refuses the request: {_one_line(error)}")
    return CloudError(f"{where}: {_one_line(error)}", code=type(error).__name__)


def is_foreign(error: Exception) -> bool:
    """Whether an error comes from the SDK or the system, and is no bug of ours."""
    known = isinstance(error, (OSError, ValueError)) or type(error).__module__.partition(".")[0] in _FOREIGN
    return known or any(isinstance(found, sdk.AzureError) for found in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and what it wraps: the SDK packs what a service said into errors of its own."""
    seen: set[int] = set()
    todo: list[Any] = [error]
    while todo:
        found = todo.pop(0)
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            todo += [getattr(found, "inner_exception", None), getattr(found, "error", None)]
            todo += [found.__cause__, found.__context__]


def _unauthenticated(error: sdk.ClientAuthenticationError, where: str) -> CloudError:
    said = _one_line(error)
    if error.status_code == 401 or any(word in str(error) for word in _STALE):
        return CloudError(f"{where}: the credentials have expired: {said}", hint=_LOGIN, code="Expired")
    if error.status_code == 403:
        return _denied(error, where)
    hint = f"az login (or AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET), {_TRY_AGAIN}"
    return CloudError(f"{where}: no Azure credentials: {said}", hint=hint, code="NoCredentials")


def _from_response(error: sdk.HttpResponseError, where: str) -> CloudError:
    status, code, said = error.status_code or 0, _code(error), _one_line(error)
    if status == 401:
        return CloudError(f"{where}: Azure does not accept these credentials: {said}", hint=_LOGIN, code=code)
    if status == 403:
        return _denied(error, where)
    if status == 404 or code in _MISSING:
        return _not_found(error, where)
    if "already exists" in said and "job" in said.lower():
        return CloudError(f"{where}: {said}", code=NAME_TAKEN)
    if status in (408, 429):
        return CloudError(f"{where}: too many requests: {said}", hint=_WAIT, code=code, transient=True)
    if code == "BlobAlreadyExists":  # of the SDK's uploads: an earlier try of its own, whose answer was lost
        return CloudError(f"{where}: {said}", hint="try again", code=code, transient=True)
    if status >= 500:
        message = f"{where}: Azure failed ({code or status}): {said}"
        return CloudError(message, hint=_WAIT, code=code, transient=True, outcome=Outcome.UNKNOWN)
    quota = azure_quota(said) if "quota" in said.lower() else None
    return CloudError(f"{where}: {code or status}: {said}", hint=quota, code=code or str(status))


def _denied(error: sdk.HttpResponseError, where: str) -> CloudError:
    said = _one_line(error)
    if _code(error) == "AuthenticationFailed":  # storage's word for a signature that is wrong or too old
        message = f"{where}: the credentials have expired, or this machine's clock is wrong: {said}"
        return CloudError(message, hint=f"look at date -u; {_LOGIN}", code="Expired")
    kind = "blob" if "Microsoft.Storage" in str(error) or _is_of_storage(error) else "arm"
    action = re.search(r"perform action '([^']+)'", said)
    needed = f"{action[1]}: " if action else ""
    hint = (
        f"these credentials lack a role ({needed}{_ROLES[kind]}), or it was given minutes ago and is not in force yet"
    )
    return CloudError(f"{where}: not authorized: {said}", hint=hint, code=DENIED)


def _not_found(error: sdk.HttpResponseError, where: str) -> CloudError:
    code, said = _code(error), _one_line(error)
    missing = _MISSING.get(code)
    if missing is None and re.search(r"workspaces/[^/'\s]+'? .*not found", said, re.IGNORECASE):
        missing = _MISSING["WorkspaceNotFound"]
    if missing is None:
        return CloudError(f"{where}: {said}", code="NotFound")
    return CloudError(f"{where}: {said}", hint=f"look at {missing[0]}: {missing[1]}", code="NoWorkspace")


def _is_of_storage(error: sdk.HttpResponseError) -> bool:
    response = getattr(error, "response", None)
    return "x-ms-version" in getattr(response, "headers", {})


def _code(error: Exception) -> str:
    """Azure's own name for it: ARM's error code, or the storage service's."""
    inner = getattr(error, "error", None)
    found = getattr(inner, "code", None) or getattr(error, "error_code", None) or ""
    return str(getattr(found, "value", found))


def _fields(text: str) -> str:
    """`limits.timeout: Not a valid integer.`, of the JSON in JSON that azure-ai-ml makes of it; or nothing."""
    if not text.lstrip().startswith("Validation for"):
        return ""
    try:
        found, _ = json.JSONDecoder().raw_decode(text[max(text.find("{"), 0) :])
    except ValueError:
        return ""
    if not isinstance(found, dict):
        return ""
    if isinstance(found.get("errors"), list):
        return "; ".join(filter(None, (_fields(str(each.get("message"))) for each in found["errors"])))
    return "; ".join(_leaf(name, value) for name, value in found.items())


def _leaf(path: str, value: Any) -> str:
    """The first thing that is said of a field."""
    if isinstance(value, dict) and value:
        name, inner = next(iter(value.items()))
        return _leaf(path if name.startswith("_") else f"{path}.{name}", inner)
    return _leaf(path, value[0]) if isinstance(value, list) and value else f"{path}: {value}"


def _plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _one_line(error: BaseException) -> str:
    """The message in one line, without the pages of help that come with some."""
    inner = getattr(error, "error", None)
    text = str(getattr(inner, "message", None) or getattr(error, "message", None) or error)
    lines = [line.strip() for line in _plain(text).splitlines() if line.strip() and not line.startswith(_NOISE)]
    # azure-ai-ml says "One or more fields are invalid" first, and behind a mark which and why.
    marked = next((number for number, line in enumerate(lines) if line.startswith(_MARK)), 0)
    lines = [line.removeprefix(_MARK).strip() for line in lines[marked:]]
    brief = _fields(text) or " ".join(lines[:3]) or type(error).__name__
    return brief[:500]
