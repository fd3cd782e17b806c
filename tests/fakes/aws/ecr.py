"""The part of ECR that tells what is in a registry, and the contents of registries."""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tests.fakes.aws.account import Account
from tests.fakes.aws.service_models import check_request
from tests.fakes.messages import Call, FaultKind, Request, Response, ServiceError
from tests.fakes.server import Server

# Contents of registries: manifests under tags and digests, and blobs behind signed addresses of
# another host.

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


# The part of ECR that tells what is in a registry, and removes a repository: refused as AWS refuses
# it.

PASSWORD = "ecr-password"
TARGET = "AmazonEC2ContainerRegistry_V20150921."
LIFE_SECONDS = 12 * 3600
Body = Mapping[str, Any]


class Ecr:
    """The private registry of one account in one region."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.blobs = BlobStore(account.unexpected_errors)
        self.images = ImageStore(self.blobs)
        self.repositories: set[str] = set()
        """Those that were made empty; an image makes its repository by itself."""
        self.failure = ""
        """Code of a failure that every image has."""
        self._operations: dict[str, Callable[[Body], dict[str, Any]]] = {
            "GetAuthorizationToken": self._login,
            "BatchGetImage": self._images,
            "GetDownloadUrlForLayer": self._layer,
            "DescribeRepositories": self._repositories,
        }

    def reset(self) -> None:
        """Forget the repositories that were made empty, and their images."""
        for name in self.repositories:
            self.images.remove(name)
        self.repositories.clear()

    def call(self, operation: str, body: Body) -> dict[str, Any]:
        """One call; Refused is what it answers instead."""
        check_request("ecr", operation, body, self._operations, "InvalidParameterException")
        return self._operations[operation](body)

    def create_repository(self, name: str) -> None:
        """Make an empty repository."""
        self.repositories.add(name)

    def _login(self, body: Body) -> dict[str, Any]:
        for registry_id in body.get("registryIds", [self.account.account]):
            self._check(registry_id)
        endpoint = f"https://{self.account.account}.dkr.ecr.{self.account.region}.amazonaws.com"
        token = base64.b64encode(f"AWS:{PASSWORD}".encode()).decode()
        answer = {
            "authorizationToken": token,
            "expiresAt": time.time() + LIFE_SECONDS,
            "proxyEndpoint": endpoint,
        }
        return {"authorizationData": [answer]}

    def _repositories(self, body: Body) -> dict[str, Any]:
        """Those that are named: one that is not there refuses the whole call (API reference,
        DescribeRepositories).
        """
        names = [
            self._repository({**body, "repositoryName": name}) for name in body["repositoryNames"]
        ]
        return {
            "repositories": [
                {"registryId": self.account.account, "repositoryName": name} for name in names
            ]
        }

    def _images(self, body: Body) -> dict[str, Any]:
        name = self._repository(body)
        accepted = body.get("acceptedMediaTypes", [DOCKER])
        images: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        for image_id in body["imageIds"]:
            reference = image_id.get("imageDigest") or image_id.get("imageTag") or ""
            stored = self.images.find(name, reference)
            if self.failure:
                failures.append(_failure(image_id, self.failure))
                continue
            if stored is None or stored.kind not in accepted:
                failures.append(_failure(image_id, "ImageNotFound"))
                continue
            answer = {"imageManifest": stored.text.decode(), "imageManifestMediaType": stored.kind}
            place = {"registryId": self.account.account, "repositoryName": name}
            images.append(
                {**place, "imageId": {**image_id, "imageDigest": digest_of(stored.text)}, **answer}
            )
        return {"images": images, "failures": failures}

    def _layer(self, body: Body) -> dict[str, Any]:
        name = self._repository(body)
        digest = body["layerDigest"]
        try:
            return {"downloadUrl": self.blobs.address(digest), "layerDigest": digest}
        except ServiceError:
            message = (
                f"The layer with digest '{digest}' does not exist in the repository with name"
                f" '{name}'"
            )
            raise ServiceError("LayersNotFoundException", message) from None

    def _repository(self, body: Body) -> str:
        registry = body.get("registryId", self.account.account)
        name = str(body["repositoryName"])
        self._check(registry)
        if not self.images.has(name) and name not in self.repositories:
            message = (
                f"The repository with name '{name}' does not exist in the registry with id"
                f" '{registry}'"
            )
            raise ServiceError("RepositoryNotFoundException", message)
        return name

    def _check(self, registry: str) -> None:
        if registry != self.account.account:
            who = f"User: arn:aws:iam::{self.account.account}:user/tester is not authorized"
            raise ServiceError(
                "AccessDeniedException",
                f"{who} to perform this on the registry with id '{registry}'",
            )


def _failure(image_id: Body, code: str) -> dict[str, Any]:
    return {"imageId": image_id, "failureCode": code, "failureReason": "because"}
