"""A job's image: look it up in its registry, build it if it is new, push it.

The docker program builds images, because the Docker SDK lacks BuildKit.
"""

from __future__ import annotations

import base64
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.catalog.machines import architecture_of
from cloudtrain.errors import CloudError, CloudtrainError, RefusedError, SourceError, UsageError
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.recipe import LOCAL, Recipe, payload_archive, recipe_of
from cloudtrain.planning.reference import ACR, ECR, parse_address, without_tag
from cloudtrain.planning.registry import RegistryLogin, ResolvedImage
from cloudtrain.planning.selection import select_image
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.config import connect
from cloudtrain.providers.azure.config import registry_login
from cloudtrain.providers.docker.connect import docker_engine
from cloudtrain.providers.progress import Note, Progress
from cloudtrain.version import __version__

if TYPE_CHECKING:
    from cloudtrain.planning.registry import RegistryImage
    from cloudtrain.spec.model import JobSpec

ANSWER_SECONDS = 15.0
MAX_CONFIG_BYTES = 4 * 2**20
"""Maximum size of an image's configuration: the specification's limit of a manifest."""
_NOT_FOUND_CODES = ("ImageNotFound", "ImageTagDoesNotMatchDigest")
"""Failure codes of ECR for a missing image."""

PUSH_SECONDS = 1800.0
"""Maximum time for a registry to store a layer of gigabytes."""

CONTEXT = ("Dockerfile", "requirements.txt", "torch-cpu.txt", "torch-cuda.txt", "train")
"""Files of docker/ that its Dockerfile uses."""

_NO_INDEX = {"BUILDX_NO_DEFAULT_ATTESTATIONS": "1"}
"""Attestations turn an image into an index, which not every cloud reads."""

INPUTS_LABEL = "cloudtrain.inputs"
"""Label on every image that is built here: the digest of its inputs."""


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
            f"the image {image} is for {available}, the machines are {architecture}",
            hint=hint,
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
        if ecr:
            return _ecr_login(ecr[2], ecr[1])

        return registry_login(host)
    except CloudtrainError as error:
        login = _docker_login(host)
        if login is None:
            log_in = f"docker login {host}"
            error.hint = f"{error.hint}; or {log_in}" if error.hint else log_in
            raise
        return login


def _docker_login(host: str) -> RegistryLogin | None:
    try:
        from cloudtrain.providers.docker.engine import stored_login
    except ImportError:
        return None  # a public image needs no login
    return stored_login(host)


def _ecr_login(region: str, account: str) -> RegistryLogin:
    answer = connect(region).call("ecr", "get_authorization_token", registryIds=[account])
    token = base64.b64decode(answer["authorizationData"][0]["authorizationToken"]).decode()
    user, _, password = token.partition(":")
    return RegistryLogin(user, password)


def _inspect_in_ecr(
    account: str,
    region: str,
    repository: str,
    reference: str,
) -> RegistryImage | None:
    from cloudtrain.planning import registry

    cloud = connect(region)
    place = {"registryId": account, "repositoryName": repository}
    member = "imageDigest" if ":" in reference else "imageTag"
    try:
        answer = cloud.call(
            "ecr",
            "batch_get_image",
            **place,
            imageIds=[{member: reference}],
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
            layer = cloud.call("ecr", "get_download_url_for_layer", **place, layerDigest=digest)
            with urllib.request.urlopen(layer["downloadUrl"], timeout=ANSWER_SECONDS) as answer:
                content: bytes = answer.read(MAX_CONFIG_BYTES)
                return content
        except (CloudError, OSError, ValueError):
            return b"{}"  # the digest alone is enough

    image = answer["images"][0]
    return registry.RegistryImage(
        image["imageId"]["imageDigest"],
        registry.architectures(image["imageManifest"], config),
    )


def resolve_image(
    plan: Plan,
    pushing: Progress | None = None,
    note: Note | None = None,
) -> ResolvedImage | None:
    """Return the image of a plan, built and pushed if it is new, or None without one.

    `note` gets a message if the spec's image cannot be looked up from here. Raise RefusedError if
    it is not in its registry, or not for the cloud's machines.
    """
    image = plan.host.image
    planned = plan.host.image_address
    if not planned:
        return None
    if image is None or image.recipe is None:
        digest = ""
        if not plan.is_rehearsal and is_named(plan.spec, plan.target):
            architecture = architecture_of(plan.provider, plan.host.instances)
            digest = require_image(planned, architecture, note)
        return ResolvedImage(address=planned, planned=planned, digest=digest)
    if planned == image.recipe.name:
        return ResolvedImage(address=ensure_local(image.recipe), planned=planned)
    address = ensure_pushed(image.recipe, planned, pushing)
    return ResolvedImage(address=address, planned=planned, digest=parse_address(address).reference)


def ensure_local(recipe: Recipe) -> str:
    """Return the name of a recipe's image on this machine. Build it if it is missing."""
    if _is_local(recipe):
        return recipe.name

    return build(recipe)


def ensure_pushed(
    recipe: Recipe,
    address: str,
    progress: Progress | None = None,
    *,
    rebuild: bool = False,
    options: Sequence[str] = (),
) -> str:
    """Return the address by digest of a recipe's image in a registry: `repository@sha256:…`.

    `address` ends in the recipe's tag. Build and push it only if it is missing there, or if
    `rebuild`.
    """
    if not rebuild:
        pushed = _digest_in_registry(address)
        if pushed:
            return f"{without_tag(address)}@{pushed}"

    if rebuild or not _is_local(recipe):
        build(recipe, options=options)
    login = login_for(parse_address(address).registry)
    with docker_engine(PUSH_SECONDS) as docker:
        digest = docker.push(recipe.name, address, login, progress)
    return f"{without_tag(address)}@{digest}"


def is_named(spec: JobSpec, target: Target) -> bool:
    """Return whether the spec itself names an address in a registry that a cloud pulls from."""
    selected = select_image(spec.image, target.provider)
    if target.contract == "plain" or selected.is_build:
        return False
    is_own = selected.text.partition(":")[0] in target.declaration.image_schemes
    return selected.text == target.image_address and not is_own


def _digest_in_registry(address: str) -> str | None:
    """Return the digest in the registry, or None: a registry may accept a push without reading."""
    try:
        image = inspect_image(address)
    except CloudError:
        return None
    return image.digest if image else None


def _is_local(recipe: Recipe) -> bool:
    with docker_engine() as docker:
        return docker.image_architecture(recipe.name) is not None


def build(recipe: Recipe, *, names: Sequence[str] = (), options: Sequence[str] = ()) -> str:
    """Build an image, tag it with its name and `names`, and return its name.

    `options` go to `docker build` unchanged. The image has a temporary name until its inputs are
    checked again: raise SourceError if they changed, CloudError if the build fails.
    """
    _raise_if_changed(recipe)
    docker = os.environ.get("DOCKER") or "docker"
    temporary_name = f"{LOCAL}:building-{secrets.token_hex(6)}"
    with _context(recipe) as folder:
        by_hand = arguments(recipe, (recipe.name, *names), options)
        _run(docker, recipe, arguments(recipe, (temporary_name,), options, folder), by_hand)
    try:
        _raise_if_changed(recipe)
        for name in (recipe.name, *names):
            _tag_image(docker, temporary_name, name)
    finally:
        subprocess.run((docker, "rmi", temporary_name), capture_output=True, check=False)
    return recipe.name


@contextmanager
def _context(recipe: Recipe) -> Iterator[str]:
    """Yield the folder of the build, for our image a copy."""
    if not recipe.kind:
        yield recipe.context
        return
    with tempfile.TemporaryDirectory(prefix="cloudtrain-image-") as folder:
        for name in (".dockerignore", *CONTEXT):
            shutil.copy(Path(recipe.context, name), folder)
        Path(folder, "payload.tar").write_bytes(payload_archive())
        yield folder


def _raise_if_changed(recipe: Recipe) -> None:
    context = Path(recipe.folder) if recipe.folder else None
    dockerfile = Path(recipe.dockerfile)
    current = recipe_of(dockerfile, recipe.args, recipe.platform, recipe.kind, context=context)
    if current.digest != recipe.digest:
        message = f"the image's folder {recipe.context} changed after it was planned"
        raise SourceError(message, hint="run the command again")


def _tag_image(docker: str, image: str, name: str) -> None:
    process = subprocess.run(
        (docker, "tag", image, name),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if process.returncode:
        raise CloudError(
            f"the image cannot be called {name}: {' '.join(process.stderr.split())}",
            code="build",
        )


def _run(docker: str, recipe: Recipe, argv: Sequence[str], by_hand: Sequence[str]) -> None:
    sys.stderr.flush()
    try:
        env = _buildkit(docker)
        env.update(os.environ)
        env.update(_NO_INDEX)
        code = subprocess.run(
            [docker, *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=2,
            check=False,
        ).returncode
    except OSError as error:
        hint = (
            "install Docker's command-line client, or name an image that is built: image:"
            " {docker: …}"
        )
        raise CloudError(
            f"the program {docker} cannot be started: {error.strerror}",
            hint=hint,
            code="build",
        ) from None
    if code:
        message = f"the image {recipe.name} was not built: docker build ended with {code}"
        hint = f"what it said is above; the same by hand: {shlex.join([docker, *by_hand])}"
        raise CloudError(message, hint=hint, code="build")


def arguments(
    recipe: Recipe,
    names: Sequence[str],
    options: Sequence[str] = (),
    folder: str = "",
) -> list[str]:
    """Return the arguments of `docker`. `folder`: build context, if not the recipe's."""
    values: dict[str, str] = {}
    if recipe.kind:
        values["VERSION"] = __version__
    for arg in recipe.args:
        name, _, value = arg.partition("=")
        values[name] = value

    if folder and recipe.kind:
        dockerfile = str(Path(folder, Path(recipe.dockerfile).name))
    else:
        dockerfile = recipe.dockerfile

    argv = ["build", "--file", dockerfile, "--label", f"{INPUTS_LABEL}=sha256:{recipe.digest}"]
    for name, value in values.items():
        argv += ["--build-arg", f"{name}={value}"]
    for name in names:
        argv += ["--tag", name]
    if recipe.platform:
        argv += ["--platform", recipe.platform]

    argv += options
    argv.append(folder or recipe.context)
    return argv


def _buildkit(docker: str) -> dict[str, str]:
    """Return the variable that old clients need to use their BuildKit, as Debian 12's 20.10."""
    version = subprocess.run(
        (docker, "version", "--format", "{{.Client.Version}}"),
        capture_output=True,
        text=True,
        check=False,
    )
    if not version.stdout.startswith(("18.", "19.", "20.")):
        return {}

    return {"DOCKER_BUILDKIT": "1"}
