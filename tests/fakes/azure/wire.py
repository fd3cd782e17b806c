"""Azure's protocols from the outside: which call a request is, and how an answer or an error looks
in each of them.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape

from tests.fakes.azure import rights
from tests.fakes.azure.account import ACCOUNT_FOLDER, PROVIDER, SUFFIX
from tests.fakes.messages import Call, Request, Response, ServiceError

KEYS_FORBIDDEN = "KeyBasedAuthenticationNotPermitted"
"""The code of storage for a key, or a signature made with it, if the account takes none."""
STORAGE_VERSION = "2024-11-04"
METADATA = "/metadata/endpoints"
DISCOVERY = "/discovery"
MSI = "/msi/token"
_BLOBS = f"/{ACCOUNT_FOLDER}.blob.{SUFFIX}/"


class Place(NamedTuple):
    """The parsed address of a request."""

    path: str
    """Without escapes."""
    query: Mapping[str, str]
    names: Mapping[str, str]
    """Names in the address: subscription, group, workspace, name, version, container, blob …"""


class _Route(NamedTuple):
    service: str
    operation: str
    method: str
    pattern: re.Pattern[str]


_SCOPE = (
    rf"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)/providers/{PROVIDER}"
    r"/workspaces/(?P<workspace>[^/]+)"
)
_REGION = (
    rf"/subscriptions/(?P<subscription>[^/]+)/providers/{PROVIDER}/locations/(?P<location>[^/]+)"
)
_PARTS = {
    "HISTORY": rf"/history/v1\.0{_SCOPE}",
    "MLFLOW": rf"/mlflow/v2\.0{_SCOPE}/api/2\.0/mlflow/runs",
    "DISCOVERY": DISCOVERY,
    "MSI": MSI,
    "REGISTRY": r"/mferp/managementfrontend/subscriptions/[^/]+/resourceGroups/[^/]+/providers/.*",
    "SCOPE": _SCOPE,
    "REGION": _REGION,
    "NAME": "(?P<name>[^/]+)",
    "VERSION": "(?P<version>[^/]+)",
}
"""Patterns of the words in the table."""
_TABLE = r"""
arm GetWorkspace GET SCOPE
arm ListCodes GET SCOPE/codes/NAME/versions
arm GetCode GET SCOPE/codes/NAME/versions/VERSION
arm PutCode PUT SCOPE/codes/NAME/versions/VERSION
arm StartPendingUpload POST SCOPE/codes/NAME/versions/VERSION/startPendingUpload
arm ListEnvironments GET SCOPE/environments/NAME/versions
arm GetEnvironment GET SCOPE/environments/NAME/versions/VERSION
arm PutEnvironment PUT SCOPE/environments/NAME/versions/VERSION
arm GetDataContainer GET SCOPE/data/NAME
arm ListData GET SCOPE/data/NAME/versions
arm ListModels GET SCOPE/models/NAME/versions
arm GetModel GET SCOPE/models/NAME/versions/VERSION
arm GetData GET SCOPE/data/NAME/versions/VERSION
arm PutData PUT SCOPE/data/NAME/versions/VERSION
arm ListJobs GET SCOPE/jobs
arm GetJob GET SCOPE/jobs/NAME
arm PutJob PUT SCOPE/jobs/NAME
arm CancelJob POST SCOPE/jobs/NAME/cancel
arm GetCompute GET SCOPE/computes/NAME
arm GetDatastore GET SCOPE/datastores/NAME
arm ListSecrets POST SCOPE/datastores/NAME/listSecrets
arm ListUsages GET REGION/usages
arm ListVmSizes GET REGION/vmSizes
registry GetRegistry GET /registrymanagement/v1\.0/registries/NAME/discovery
registry ListRegistryEnvironments GET REGISTRY/environments/NAME/versions
registry GetRegistryEnvironment GET REGISTRY/environments/NAME/versions/VERSION
history GetDiscovery GET DISCOVERY
history GetRunDetails GET HISTORY/runs/NAME/details
history ListChildren GET HISTORY/runs/NAME/children
history GetRunToken GET HISTORY/experimentids/[^/]+/runs/NAME/token
history LogMetric POST MLFLOW/log-metric
history LogParameter POST MLFLOW/log-parameter
vault GetSecret GET /secrets/NAME(?:/(?P<version>[^/]*))?
msi GetToken GET MSI
"""


def _routes() -> Iterator[_Route]:
    words = re.compile("|".join(rf"\b{word}\b" for word in _PARTS))
    table = words.sub(lambda word: _PARTS[word[0]], _TABLE)
    for service, operation, method, pattern in (
        *rights.ROUTES,
        *(line.split() for line in table.strip().splitlines()),
    ):
        yield _Route(service, operation, method, re.compile(pattern, re.IGNORECASE))


ROUTES = list(_routes())
BLOB_CALLS = {
    ("GET", True, ""): "GetBlob",
    ("HEAD", True, ""): "HeadBlob",
    ("PUT", True, ""): "PutBlob",
    ("PUT", True, "metadata"): "SetBlobMetadata",
    ("DELETE", True, ""): "DeleteBlob",
    ("GET", False, "list"): "ListBlobs",
    ("GET", False, ""): "GetContainer",
    ("HEAD", False, ""): "GetContainer",
}
"""Method, whether a blob is named, `comp` -> the call."""


def call_of(request: Request) -> tuple[Call | None, Place]:
    """The call, and what its address names. No call: it asks how this cloud is to be reached."""
    url = urlsplit(request.target)
    query = dict(parse_qsl(url.query, keep_blank_values=True))
    path = unquote(url.path)
    if path == METADATA:
        return None, Place(path, query, {})
    if path.startswith(_BLOBS):
        container, _, blob = path.removeprefix(_BLOBS).partition("/")
        operation = BLOB_CALLS.get((request.method, bool(blob), query.get("comp", "")), "?")
        return Call("blob", operation), Place(path, query, {"container": container, "blob": blob})
    for route in ROUTES:
        match = route.pattern.fullmatch(path) if route.method == request.method else None
        if match:
            names = {name: value or "" for name, value in match.groupdict().items()}
            return Call(route.service, route.operation), Place(path, query, names)
    service = "history" if path.startswith("/history/") else "arm"
    return Call(service, "?"), Place(path, query, {})


def json_response(status: int, document: object = None, **headers: str) -> Response:
    """As everything but storage answers."""
    named_headers = [(name.replace("_", "-"), value) for name, value in headers.items()]
    named_headers.append(("x-ms-request-id", str(uuid4())))
    if document is None:
        named_headers.append(("x-ms-response-type", "standard"))
        return Response(status, named_headers, b"")
    return Response(
        status,
        [("Content-Type", "application/json; charset=utf-8"), *named_headers],
        json.dumps(document).encode(),
    )


def error_response(request: Request, service: str, refused: ServiceError) -> Response:
    """An error in the words of the request's own protocol."""
    retry = {"Retry_After": str(refused.retry_after)} if refused.status == 429 else {}
    challenge = {}
    if refused.status == 401:
        bearer = 'Bearer authorization="https://login.windows.net/loopback", error="invalid_token"'
        if service == "vault":
            bearer += ', resource="https://vault.azure.net"'
        challenge = {"WWW_Authenticate": bearer}
    if service == "blob":
        return _storage_error(request, refused)
    inner: dict[str, object] = {"code": refused.code, "message": refused.message}
    if service == "history":
        return json_response(
            refused.status,
            {"error": inner, "correlation": {}, "componentName": "run-history"},
            **retry,
            **challenge,
        )
    if service == "arm" and refused.code == "UserError":
        inner |= _details(refused)
    retry["x_ms_response_type"] = "error"
    return json_response(refused.status, {"error": inner}, **retry, **challenge)


def _details(refused: ServiceError) -> dict[str, object]:
    """Return what Azure ML's own errors have beside code and message."""
    values: dict[str, object] = {
        "ComponentName": "managementfrontend",
        "Correlation": {"operation": uuid4().hex, "request": uuid4().hex[:16]},
        "Environment": "eastus",
        "Location": "eastus",
        "Time": iso_date(time.time()),
    }
    inner: object = None
    for code in reversed(refused.inner):
        inner = {"code": code, "innerError": inner}
    if inner is not None:
        values["InnerError"] = inner
    if refused.pattern:
        values["MessageFormat"] = refused.pattern
    if "{jobId}" in refused.pattern:
        values["MessageParameters"] = {"jobId": refused.message.split()[1]}
    details = [
        {"code": "RequestInvalid", "message": reason, "details": [], "additionalInfo": []}
        for reason in refused.reasons
    ]
    information = [{"type": name, "info": {"value": value}} for name, value in values.items()]
    return {"details": details, "additionalInfo": information}


def storage_headers() -> list[tuple[str, str]]:
    """Return the headers of every storage answer."""
    return [("x-ms-request-id", str(uuid4())), ("x-ms-version", STORAGE_VERSION)]


def http_date(seconds: float) -> str:
    """A moment as HTTP writes it."""
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(seconds))


def iso_date(seconds: float) -> str:
    """A moment as ARM and run history write it."""
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{text}.{int(seconds % 1 * 1e7):07}".rstrip("0").rstrip(".") + "+00:00"


def _storage_error(request: Request, refused: ServiceError) -> Response:
    moment = iso_date(time.time()).replace("+00:00", "Z")
    message = f"{refused.message}\nRequestId:{uuid4()}\nTime:{moment}"
    text = f"<Error><Code>{refused.code}</Code><Message>{escape(message)}</Message></Error>"
    body = f'<?xml version="1.0" encoding="utf-8"?>{text}'.encode()
    # As recorded: the one answer of storage that does not name a version.
    common = [] if refused.code == KEYS_FORBIDDEN else storage_headers()
    headers = [*common, ("x-ms-error-code", refused.code)]
    if request.method != "HEAD":
        headers.append(("Content-Type", "application/xml"))
    if refused.status == 401:
        headers.append(
            ("WWW-Authenticate", "Bearer authorization_uri=https://login.windows.net/loopback")
        )
    return Response(refused.status, headers, body if request.method != "HEAD" else b"")
