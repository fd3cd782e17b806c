"""What Docker's errors mean, in our words: what failed, why, and the next step. Pure, and without its SDK."""

from __future__ import annotations

import re

from cloudtrain.errors import CloudError
from cloudtrain.providers.docker.host import address

_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (
        r"PermissionError|[Pp]ermission denied.*(sock|daemon)|EACCES",
        "permission",
        "this user may not use the Docker engine at {host}",
        "sudo usermod -aG docker $USER, then log in again; or a rootless engine: dockerd-rootless-setuptool.sh install",
    ),
    (
        r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name: nvidia",
        "gpus",
        "this Docker engine cannot give GPUs to containers",
        "install the NVIDIA Container Toolkit, then nvidia-ctk runtime configure --runtime=docker and restart Docker; "
        "or --set resources.gpus=0",
    ),
    (
        r"error setting rlimit",
        "ulimits",
        "this Docker engine may not raise the limits of its containers",
        "start the engine with higher limits of its own: LimitMEMLOCK=infinity in its systemd unit",
    ),
    (
        r"exec format error|does not match the (specified|detected host) platform",
        "architecture",
        "the image {image} is built for another kind of processor than this machine has",
        "build it here, or with docker build --platform …; docker image inspect says what it is for",
    ),
    (
        r"executable file not found|no such file or directory.*unknown|stat .*no such file or directory",
        "entrypoint",
        "the image {image} has not what the job starts with: {detail}",
        "an image needs python3 with torch on its PATH, and a shell under Azure ML's contract",
    ),
    (
        r"[Mm]ounts denied|not shared from the host|bind source path does not exist",
        "mount",
        "the Docker engine cannot see a folder of this machine: {detail}",
        "Docker Desktop: Settings > Resources > File sharing; an engine elsewhere has other folders",
    ),
    (
        r"non-overlapping IPv4|address pools have been fully subnetted",
        "networks",
        "the Docker engine has no addresses left for another network",
        "docker network ls shows them all; docker network prune removes those that nobody uses",
    ),
    (
        r"FileNotFoundError|[Cc]onnection ?(refused|reset|aborted)|Max retries|Failed to (resolve|establish)|[Tt]imed"
        r" ?out|RemoteDisconnected|Name or service",
        "engine",
        "no Docker engine answers at {host}",
        "start it (Docker Desktop, or sudo systemctl start docker), or say where it is: DOCKER_HOST, docker context",
    ),
)


_PUSHES = (
    (r"immutable", "that tag is taken for good there; cloudtrain image push --tag ANOTHER"),
    (
        r"name unknown|[Nn]ot [Ff]ound|does not exist",
        "make the repository first: aws ecr create-repository, az acr create",
    ),
    (r"denied|unauthorized|authentication|no basic auth", "docker login {registry}, or a right to push there"),
    (r"refused|no such host|timeout|i/o|EOF", "look at the registry's name and the network, then try again"),
)
"""What registries say, and what to do next."""


def translated(error: Exception, doing: str, image: str = "") -> CloudError:
    """Docker's error as ours, with the next step where it is known."""
    text = f"{type(error).__name__}: {error}"
    detail = _detail(error)
    for pattern, code, message, hint in _KNOWN:
        if re.search(pattern, text):
            return CloudError(message.format(host=host(), image=image, detail=detail), hint=hint, code=code)
    return CloudError(f"Docker would not {doing}: {detail}", code="docker")


def missing_image(image: str) -> CloudError:
    """The image is not on this machine; images are pulled only on request."""
    hint = f"docker pull {image}, or image: auto, which is built"
    return CloudError(f"there is no image {image} on this machine", hint=hint, code="image")


def refused_push(address: str, said: str) -> CloudError:
    """A registry would not take an image."""
    message = f"the registry did not take {address}: {' '.join(said.split())[:300]}"
    for pattern, hint in _PUSHES:
        if re.search(pattern, said):
            return CloudError(message, hint=hint.format(registry=address.partition("/")[0]), code="push")
    return CloudError(message, code="push")


def host() -> str:
    """Where the engine is looked for, and why there."""
    where, by = address()
    return f"{where} ({by})" if by.startswith("the docker context") else where


def _detail(error: Exception) -> str:
    """What the engine itself said, in one line."""
    said = getattr(error, "explanation", None) or str(error)
    if isinstance(said, bytes):
        said = said.decode("utf-8", "replace")
    return " ".join(str(said).split())[:300]
