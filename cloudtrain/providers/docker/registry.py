"""Lookup of an image in its registry: digest and architectures, before anything is paid for."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, CloudtrainError, RefusedError, UsageError
from cloudtrain.planning.reference import ACR, ECR, RegistryLogin, parse_address
from cloudtrain.providers import Note
from cloudtrain.providers.docker.connect import docker_engine

if TYPE_CHECKING:
    from cloudtrain.planning.reference import RegistryImage

ANSWER_SECONDS = 15.0
MAX_CONFIG_BYTES = 4 * 2**20
"""Maximum size of an image's configuration: the specification's limit of a manifest."""
_NOT_FOUND_CODES = ("ImageNotFound", "ImageTagDoesNotMatchDigest")
"""Failure codes of ECR for a missing image."""


def inspect_image(image: str) -> RegistryImage | None:
    """Return the image at an address in a registry, or None. May raise CloudError or UsageError.

    boto3 asks ECR; the Docker engine of this machine asks any other registry.
    """
    address = parse_address(image)
    ecr = ECR.fullmatch(image)
    if ecr is None:
        return _inspect_by_engine(image, login_for(address.registry))
    try:
        return _inspect_in_ecr(ecr[1], ecr[2], address.repository, address.reference)
    except CloudtrainError:
        login = _docker_login(address.registry)
        if login is None:
            raise
        return _inspect_by_engine(image, login)


def _inspect_by_engine(image: str, login: RegistryLogin | None) -> RegistryImage | None:
    with docker_engine(ANSWER_SECONDS) as docker:
        return docker.look_up(image, login)


def require_image(image: str, architecture: str, note: Note | None = None) -> str:
    """Return the digest of an image. Raise RefusedError if it is missing or for other machines.

    Return "" and call `note` if the registry does not answer: the cloud may reach it.
    """
    try:
        image_found = inspect_image(image)
    except (CloudError, UsageError) as error:
        if note:
            note(f"the image {image} is not looked up before the start: {error.message}")
        return ""
    if image_found is None:
        hint = "look at its name and tag; cloudtrain image push pushes one; nothing was started"
        raise RefusedError(f"there is no image {image} in its registry", hint=hint)
    if image_found.architectures and architecture not in image_found.architectures:
        available = ", ".join(sorted(image_found.architectures))
        hint = f"docker build --platform linux/{architecture} …; nothing was started"
        raise RefusedError(
            f"the image {image} is for {available}, the machines are {architecture}", hint=hint
        )
    return image_found.digest


def login_for(host: str) -> RegistryLogin | None:
    """Return the login for a registry, or None.

    It comes from the cloud's credentials for ECR and ACR, else from `docker login`. May raise
    UsageError or CloudError.
    """
    ecr = ECR.fullmatch(f"{host}/any")
    if ecr is None and not ACR.fullmatch(host):
        return _docker_login(host)
    try:
        return _ecr_login(ecr[2], ecr[1]) if ecr else _acr_login(host)
    except CloudtrainError as error:
        login = _docker_login(host)
        if login is None:
            error.hint = "; or ".join(part for part in (error.hint, f"docker login {host}") if part)
            raise
        return login


def _docker_login(host: str) -> RegistryLogin | None:
    try:
        from cloudtrain.providers.docker.engine import stored_login
    except ImportError:
        return None  # a public image needs no login
    return stored_login(host)


def _aws(region: str) -> Any:
    try:
        from cloudtrain.providers.aws.client import aws
    except ImportError as error:
        raise _missing_package_error("boto3", "aws", error) from None
    return aws(region)


def _ecr_login(region: str, account: str) -> RegistryLogin:
    answer = _aws(region).call("ecr", "get_authorization_token", registryIds=[account])
    user, _, password = (
        base64.b64decode(answer["authorizationData"][0]["authorizationToken"])
        .decode()
        .partition(":")
    )
    return RegistryLogin(user, password)


def _acr_login(host: str) -> RegistryLogin:
    try:
        from cloudtrain.providers.azure.sdk import registry_login
    except ImportError as error:
        raise _missing_package_error("azure-ai-ml", "azure", error) from None
    return registry_login(host)


def _inspect_in_ecr(
    account: str, region: str, repository: str, reference: str
) -> RegistryImage | None:
    from cloudtrain.planning import reference as registry

    cloud = _aws(region)
    place = {"registryId": account, "repositoryName": repository}
    image_id = {"imageDigest" if ":" in reference else "imageTag": reference}
    try:
        answer = cloud.call(
            "ecr",
            "batch_get_image",
            **place,
            imageIds=[image_id],
            acceptedMediaTypes=list(registry.MANIFEST_TYPES),
        )
    except CloudError as error:
        if error.code == "RepositoryNotFoundException":
            return None
        raise
    for failure in answer.get("failures") or ():
        if failure.get("failureCode") not in _NOT_FOUND_CODES:
            message = (
                f"ECR does not say whether it has {repository}:"
                f" {failure.get('failureReason', 'no reason given')}"
            )
            raise CloudError(message, code=failure.get("failureCode", ""))
    if not answer.get("images"):
        return None

    def config(digest: str) -> bytes:
        import urllib.request  # with an HTTP client, which few submits need

        try:
            url = cloud.call("ecr", "get_download_url_for_layer", **place, layerDigest=digest)[
                "downloadUrl"
            ]
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                content: bytes = answer.read(MAX_CONFIG_BYTES)
                return content
        except (CloudError, OSError, ValueError):
            return b"{}"  # the digest alone is enough

    image = answer["images"][0]
    return registry.RegistryImage(
        image["imageId"]["imageDigest"], registry.architectures(image["imageManifest"], config)
    )


def _missing_package_error(package: str, extra: str, error: ImportError) -> UsageError:
    message = f"its registry needs {package}, which is not installed: {error}"
    return UsageError(message, hint=f'pip install "cloudtrain[{extra}]"')
