"""The part of ECR that tells what is in a registry, and removes a repository: refused as AWS
refuses it.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

import botocore.session

from cloudtrain.errors import dotted
from cloudtrain.providers.aws.service_model import violations
from tests.fakes.aws.account import Account
from tests.fakes.images import DOCKER, BlobStore, ImageStore, digest_of
from tests.fakes.messages import ServiceError

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
        self._model = botocore.session.get_session().get_service_model("ecr")
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
        if operation not in self._operations:
            raise ServiceError(
                "UnknownOperationException", f"The requested operation {operation} is not known."
            )
        problems = violations(self._model.operation_model(operation).input_shape, dict(body))
        if problems:
            message = "; ".join(
                f"'{dotted(problem.path)}': {problem.message}" for problem in problems
            )
            raise ServiceError("InvalidParameterException", f"Invalid parameter at {message}")
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
