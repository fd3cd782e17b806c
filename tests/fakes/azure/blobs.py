"""The Blob service: block blobs, their metadata, ranges and conditions, lists page by page."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from hashlib import md5
from typing import NamedTuple
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

from tests.fakes.azure.account import Account
from tests.fakes.azure.permissions import unauthenticated
from tests.fakes.azure.storage import Blob, Container
from tests.fakes.azure.tokens import is_account_sas
from tests.fakes.azure.wire import KEYS_FORBIDDEN, Place, http_date, storage_headers
from tests.fakes.messages import Request, Response, ServiceError

AUDIENCE = "https://storage.azure.com"
ONE_PUT = 64 * 2**20
"""Size of the largest blob that a client puts at once; only such a blob has the sum of the whole."""
_NEEDS = {
    "GetBlob": "r",
    "HeadBlob": "r",
    "PutBlob": "cw",
    "SetBlobMetadata": "w",
    "DeleteBlob": "d",
    "ListBlobs": "l",
    "GetContainer": "r",
}
"""One of these letters must be among what a SAS permits."""
_CONDITION = "The condition specified using HTTP conditional header(s) is not met."
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class BlobRequest(NamedTuple):
    """A call of the Blob service, by somebody who may make it."""

    request: Request
    container: Container
    name: str
    query: Mapping[str, str]


class Blobs:
    """All containers of the workspace's storage account."""

    def __init__(self, account: Account) -> None:
        self.account = account

    def call(self, operation: str, request: Request, place: Place) -> Response:
        """One call; Refused is what it answers instead."""
        name = place.names.get("container", "")
        blob = place.names.get("blob", "")
        container = self.account.storage.container(name)
        if container is None:
            raise ServiceError("ContainerNotFound", "The specified container does not exist.", 404)
        call = BlobRequest(request, container, blob, place.query)
        if operation == "GetContainer":
            return Response(200, storage_headers(), b"")
        if operation == "ListBlobs":
            return self._list(call)
        if operation in ("GetBlob", "HeadBlob"):
            return _get(call)
        if operation == "PutBlob":
            return _put(call)
        if operation == "DeleteBlob":
            _existing(call)
            container.delete(blob, keeps=self.account.keeps_deleted)
            return Response(202, storage_headers(), b"")
        if operation == "SetBlobMetadata":
            return _set_metadata(call)
        raise ServiceError(
            "InvalidQueryParameterValue",
            f"Not part of this imitation: {request.method} {place.path}",
            400,
        )

    def check(self, operation: str, request: Request, place: Place) -> str:
        """Refused unless the request may do this: by a SAS or a token for storage.

        Returns whose token it is, as an object id; empty for who needs no role.
        """
        authorization = request.headers.get("authorization", "")
        tokens = self.account.tokens
        if is_account_sas(place.query) and not self.account.takes_keys:
            raise ServiceError(
                KEYS_FORBIDDEN,
                "Key based authentication is not permitted on this storage account.",
                403,
            )
        if "sig" in place.query:
            container = place.names.get("container", "")
            blob = place.names.get("blob", "")
            allowed = tokens.sas_permissions(place.query, container, blob)
            if allowed is None:
                raise unauthenticated("blob", scheme="SAS")
            if not set(_NEEDS.get(operation, "")) & set(allowed):
                message = (
                    "This request is not authorized to perform this operation using this"
                    " permission."
                )
                raise ServiceError("AuthorizationPermissionMismatch", message, 403)
            return ""
        if tokens.audience(authorization) != AUDIENCE or "x-ms-version" not in request.headers:
            raise unauthenticated("blob")
        return tokens.principal(authorization)

    def _list(self, call: BlobRequest) -> Response:
        query = call.query
        container = call.container
        if "delimiter" in query:
            raise ServiceError(
                "InvalidQueryParameterValue", "Not part of this imitation: delimiter", 400
            )
        prefix = query.get("prefix", "")
        marker = query.get("marker", "")
        start = base64.b64decode(marker).decode("utf-8", "surrogateescape") if marker else ""
        most = min(int(query.get("maxresults", self.account.blob_page)), self.account.blob_page)
        entries: list[str] = []
        following = ""
        for name in container.names(prefix):
            if name < start:
                continue
            if len(entries) == most:
                following = base64.b64encode(name.encode("utf-8", "surrogateescape")).decode()
                break
            blob = container.properties(name)
            if blob is not None:
                with_metadata = "metadata" in query.get("include", "")
                entries.append(_entry(blob, with_metadata=with_metadata))
        if "deleted" in query.get("include", ""):
            deleted = (blob for blob in container.deleted if blob.name.startswith(prefix))
            entries += [_entry(blob, with_metadata=False) for blob in deleted]
        text = (
            '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults'
            f" ServiceEndpoint={quoteattr(self.account.url)} "
            f"ContainerName={quoteattr(container.name)}><Prefix>{escape(prefix)}</Prefix>"
            f"<Blobs>{''.join(entries)}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
        )
        return Response(
            200, [*storage_headers(), ("Content-Type", "application/xml")], text.encode()
        )


_SAME = dict.fromkeys(
    ("Content-Encoding", "Content-Language", "Content-CRC64", "Content-MD5", "Cache-Control"), ""
) | {
    "Content-Disposition": "",
    "BlobType": "BlockBlob",
    "AccessTier": "Hot",
    "AccessTierInferred": "true",
    "LeaseStatus": "unlocked",
    "LeaseState": "available",
    "ServerEncrypted": "true",
}


def _entry(blob: Blob, *, with_metadata: bool) -> str:
    facts = {
        "Creation-Time": http_date(blob.created),
        "Last-Modified": http_date(blob.modified),
        "Etag": blob.etag.strip('"'),
        "Content-Length": str(blob.size),
        "Content-Type": blob.content_type,
        **_SAME,
    }
    properties = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in facts.items())
    entries = "".join(f"<{key}>{escape(value)}</{key}>" for key, value in blob.metadata.items())
    metadata = f"<Metadata>{entries}</Metadata>" if with_metadata else ""
    inner = f"<Properties>{properties}</Properties>{metadata}<OrMetadata />"
    return f"<Blob>{_name(blob.name)}{inner}</Blob>"


def _name(name: str) -> str:
    """Return a name element: characters outside XML are escaped as in an address, and marked."""
    if _NOT_XML.search(name):
        return f'<Name Encoded="true">{quote(name, safe="/", errors="surrogateescape")}</Name>'
    return f"<Name>{escape(name)}</Name>"


def _existing(call: BlobRequest) -> Blob:
    blob = call.container.properties(call.name)
    if blob is None:
        raise ServiceError("BlobNotFound", "The specified blob does not exist.", 404)
    match = call.request.headers.get("if-match", "*")
    if match not in ("*", blob.etag):
        raise ServiceError("ConditionNotMet", _CONDITION, 412)
    return blob


def _get(call: BlobRequest) -> Response:
    blob = _existing(call)
    headers = call.request.headers
    answer_headers = [*storage_headers(), *_facts(blob)]
    if call.request.method == "HEAD":
        answer_headers.append(("Content-Length", str(blob.size)))
        if blob.size <= ONE_PUT:
            content = call.container.read(call.name) or b""
            answer_headers.append(("Content-MD5", _md5(content)))
        return Response(200, answer_headers, b"")
    match = re.fullmatch(
        r"bytes=(\d+)-(\d*)", headers.get("x-ms-range") or headers.get("range", "")
    )
    if match is None:
        return Response(200, answer_headers, call.container.read(call.name) or b"")
    start = int(match[1])
    end = min(int(match[2] or blob.size), blob.size - 1)
    if start >= blob.size:
        raise ServiceError(
            "InvalidRange",
            "The range specified is invalid for the current size of the resource.",
            416,
        )
    content = call.container.read_range(call.name, start, end + 1 - start)
    answer_headers.append(("Content-Range", f"bytes {start}-{end}/{blob.size}"))
    return Response(206, answer_headers, content)


def _put(call: BlobRequest) -> Response:
    content = call.request.body
    headers = call.request.headers
    if headers.get("x-ms-blob-type") != "BlockBlob":
        raise ServiceError(
            "InvalidHeaderValue",
            "The value for one of the HTTP headers is not in the correct format.",
        )
    blob = call.container.properties(call.name)
    if blob is not None and headers.get("if-none-match") == "*":
        raise ServiceError("BlobAlreadyExists", "The specified blob already exists.", 409)
    if headers.get("if-match", "*") != "*":
        _existing(call)
    kind = headers.get("x-ms-blob-content-type") or headers.get("content-type", "")
    call.container.write(call.name, content, _metadata(headers), kind)
    answer_headers = [
        *storage_headers(),
        *_facts(_existing(call)),
        ("x-ms-request-server-encrypted", "true"),
        ("Content-MD5", _md5(content)),
    ]
    return Response(201, [item for item in answer_headers if item[0] != "Content-Type"], b"")


def _md5(content: bytes) -> str:
    return base64.b64encode(md5(content, usedforsecurity=False).digest()).decode()


def _set_metadata(call: BlobRequest) -> Response:
    _existing(call)
    call.container.set_metadata(call.name, _metadata(call.request.headers))
    return Response(200, [*storage_headers(), ("ETag", _existing(call).etag)], b"")


def _facts(blob: Blob) -> list[tuple[str, str]]:
    return [
        ("ETag", blob.etag),
        ("Last-Modified", http_date(blob.modified)),
        ("Content-Type", blob.content_type),
        ("Accept-Ranges", "bytes"),
        ("x-ms-creation-time", http_date(blob.created)),
        ("x-ms-blob-type", "BlockBlob"),
        ("x-ms-lease-state", "available"),
        ("x-ms-server-encrypted", "true"),
        *((f"x-ms-meta-{key}", value) for key, value in blob.metadata.items()),
    ]


def _metadata(headers: Mapping[str, str]) -> dict[str, str]:
    return {
        name.removeprefix("x-ms-meta-"): value
        for name, value in headers.items()
        if name.startswith("x-ms-meta-")
    }
