"""Contents of registries: manifests under tags and digests, and blobs behind signed addresses of
another host.
"""

from __future__ import annotations

import json
import secrets
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call, Request, Response, ServiceError
from tests.fakes.server import Server

OCI = "application/vnd.oci.image.manifest.v1+json"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
INDEX = "application/vnd.oci.image.index.v1+json"


class Manifest(NamedTuple):
    """A manifest."""

    kind: str
    text: bytes


class ImageStore:
    """The images of a registry."""

    def __init__(self, blobs: BlobStore) -> None:
        self.blobs = blobs
        self._manifests: dict[tuple[str, str], Manifest] = {}

    def find(self, repository: str, reference: str) -> Manifest | None:
        """The manifest of a tag or a digest."""
        return self._manifests.get((repository, reference))

    def has(self, repository: str) -> bool:
        """Return whether the registry has this name."""
        return any(name == repository for name, _ in self._manifests)

    def remove(self, repository: str) -> None:
        """Everything under that name."""
        self._manifests = {
            key: manifest for key, manifest in self._manifests.items() if key[0] != repository
        }

    def put(self, repository: str, tag: str, *architectures: str) -> str:
        """An image for one architecture, or an index for several; returns its digest."""
        single = [self._single(architecture) for architecture in architectures]
        stored = single[0] if len(single) == 1 else _index(single, architectures)
        digest = digest_of(stored.text)
        self._manifests[repository, tag] = self._manifests[repository, digest] = stored
        return digest

    def _single(self, architecture: str) -> Manifest:
        config = json.dumps({"os": "linux", "architecture": architecture}).encode()
        self.blobs.put(config)
        manifest = {"schemaVersion": 2, "mediaType": OCI, "config": {"digest": digest_of(config)}}
        return Manifest(OCI, json.dumps(manifest).encode())


def _index(single: list[Manifest], architectures: tuple[str, ...]) -> Manifest:
    entries: list[dict[str, Any]] = []
    for image, name in zip(single, architectures, strict=True):
        platform = {"os": "linux", "architecture": name}
        entries.append({"mediaType": OCI, "digest": digest_of(image.text), "platform": platform})
    # The record that buildx adds about a build does not run on any machine.
    entries.append({**entries[0], "platform": {"os": "unknown", "architecture": "unknown"}})
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}
    return Manifest(INDEX, json.dumps(index).encode())


class BlobStore(Server):
    """The host that serves downloads of blobs to redirected clients: signed addresses, without a
    login.
    """

    def __init__(self, unexpected_errors: list[str]) -> None:
        super().__init__(unexpected_errors)
        self._blobs: dict[str, bytes] = {}
        self._signature = secrets.token_hex(8)

    def put(self, content: bytes) -> str:
        """Return a blob's address. Refuse a missing one."""
        self._blobs[digest_of(content)] = content
        return digest_of(content)

    def address(self, digest: str) -> str:
        """Return a blob's address. Refuse a missing one."""
        if digest not in self._blobs:
            raise ServiceError("BLOB_UNKNOWN", "blob unknown to registry", 404)
        return f"{self.url}/{digest}?X-Signature={self._signature}"

    def call_of(self, request: Request) -> Call:
        return Call("blobs", "Get")

    def rejection(self, request: Request, call: Call) -> Response | None:
        if "authorization" in request.headers:
            return _error(400, "InvalidArgument", "Only one auth mechanism allowed")
        if not request.target.endswith(f"?X-Signature={self._signature}"):
            return _error(403, "AccessDenied", "Access Denied")
        return None

    def execute(self, request: Request, call: Call | None) -> Response:
        return Response(200, [], self._blobs[urlsplit(request.target).path.removeprefix("/")])

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        return None

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return None


def digest_of(content: bytes) -> str:
    """`sha256:…`."""
    return f"sha256:{sha256(content).hexdigest()}"


def _error(status: int, code: str, message: str) -> Response:
    text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Response(status, [("Content-Type", "application/xml")], text.encode())
