"""Address of this machine's Docker engine, and the meaning of its errors. Does not import its SDK."""

from __future__ import annotations

import json
import os
import re
import socket
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain.errors import CloudError
from cloudtrain_wire.bounded_files import read_regular_file

DEFAULT_SOCKET = "unix:///var/run/docker.sock"

LOCAL = ("unix://", "npipe://", "tcp://127.", "tcp://localhost", "tcp://[::1]")
"""Prefixes of addresses on this machine, whose folders can be mounted."""

_KNOWN: tuple[tuple[str, str, str, str], ...] = (
    (
        r"PermissionError|[Pp]ermission denied.*(sock|daemon)|EACCES",
        "permission",
        "this user may not use the Docker engine at {host}",
        (
            "sudo usermod -aG docker $USER, then log in again; or a rootless engine:"
            " dockerd-rootless-setuptool.sh install"
        ),
    ),
    (
        (
            r"could not select device driver|nvidia-container-cli|unknown or invalid runtime name:"
            r" nvidia"
        ),
        "gpus",
        "this Docker engine cannot give GPUs to containers",
        (
            "install the NVIDIA Container Toolkit, then nvidia-ctk runtime configure"
            " --runtime=docker and restart Docker; or --set resources.gpus=0"
        ),
    ),
    (
        r"error setting rlimit",
        "ulimits",
        "this Docker engine may not raise the limits of its containers",
        "start the engine with higher limits: LimitMEMLOCK=infinity in its systemd unit",
    ),
    (
        r"exec format error|does not match the (specified|detected host) platform",
        "architecture",
        "the image {image} is built for another processor architecture than this machine has",
        (
            "build it here, or with docker build --platform …; docker image inspect shows its"
            " architecture"
        ),
    ),
    (
        (
            r"executable file not found|no such file or directory.*unknown|stat .*no such file or"
            r" directory"
        ),
        "entrypoint",
        "the image {image} lacks what the job starts with: {detail}",
        "an image needs python3 with torch on its PATH, and a shell under Azure ML's contract",
    ),
    (
        r"[Mm]ounts denied|not shared from the host|bind source path does not exist",
        "mount",
        "the Docker engine cannot see a folder of this machine: {detail}",
        (
            "Docker Desktop: Settings > Resources > File sharing; an engine elsewhere has other"
            " folders"
        ),
    ),
    (
        r"non-overlapping IPv4|address pools have been fully subnetted",
        "networks",
        "the Docker engine lacks addresses for another network",
        "docker network ls shows them all; docker network prune removes unused ones",
    ),
    (
        r"FileNotFoundError|[Cc]onnection ?(refused|reset|aborted)|Max retries|Failed to"
        r" (resolve|establish)|[Tt]imed"
        r" ?out|RemoteDisconnected|Name or service",
        "engine",
        "no Docker engine answers at {host}",
        (
            "start it (Docker Desktop, or sudo systemctl start docker), or set where it is:"
            " DOCKER_HOST, docker context"
        ),
    ),
)

_PUSHES = (
    (
        r"immutable",
        "that tag exists there already and cannot be changed; cloudtrain image push --tag ANOTHER",
    ),
    (
        r"name unknown|[Nn]ot [Ff]ound|does not exist",
        "create the repository first: aws ecr create-repository, az acr create",
    ),
    (
        r"denied|unauthorized|authentication|no basic auth",
        "docker login {registry}, or get permission to push there",
    ),
    (
        r"refused|no such host|timeout|i/o|EOF",
        "check the registry's name and the network, then try again",
    ),
)
"""Patterns of a registry's messages, each with what to do next."""


def address() -> tuple[str, str]:
    """Return the engine's address and its origin; the origin is empty for the default socket.

    Origins are `DOCKER_HOST` or `the docker context NAME`. DOCKER_CONTEXT comes before DOCKER_HOST,
    and that before the current context (Docker CLI reference, "Environment variables"). An
    unreadable context yields an address that begins with `(unknown`.
    """
    folder = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser()
    name = os.environ.get("DOCKER_CONTEXT", "")
    if not name:
        if where := os.environ.get("DOCKER_HOST"):
            return where, "DOCKER_HOST"
        name = str(_read(folder / "config.json").get("currentContext") or "")
    if name in ("", "default"):
        return DEFAULT_SOCKET, ""

    context = _read(folder / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json")
    endpoint = (context.get("Endpoints") or {}).get("docker") or {}
    where = endpoint.get("Host") or f"(unknown: {folder} has no context {name})"
    return str(where), f"the docker context {name}"


def sdk_environment() -> dict[str, str]:
    """Return variables that lead the SDK to the same engine; it does not read all contexts."""
    variables = dict(os.environ)
    where, by = address()
    if where.startswith(("unix://", "npipe://")) and by:
        variables["DOCKER_HOST"] = where
    elif by and by != "DOCKER_HOST":
        variables.pop("DOCKER_HOST", None)

    return variables


def require_listener(seconds: float) -> None:
    """Raise OSError if no process listens on the engine's socket file.

    Docker's SDK leaves its own socket open in that case, so this comes before a client.
    """
    where, _ = address()
    if not where.startswith("unix://"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(where.removeprefix("unix://"))


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_regular_file(file))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def translated(error: Exception, doing: str, image: str = "") -> CloudError:
    """Return our error for one of Docker's.

    `doing`: what failed, such as `start a container`; `image`: its image.
    """
    text = f"{type(error).__name__}: {error}"
    detail = _detail(error)
    for pattern, code, message, hint in _KNOWN:
        if re.search(pattern, text):
            return CloudError(
                message.format(host=host(), image=image, detail=detail),
                hint=hint,
                code=code,
            )

    return CloudError(f"Docker would not {doing}: {detail}", code="docker")


def missing_image(image: str) -> CloudError:
    """Return the error for an image that is not on this machine; nothing pulls it unasked."""
    hint = f"docker pull {image}, or image: auto, which is built"
    return CloudError(f"there is no image {image} on this machine", hint=hint, code="image")


def refused_push(address: str, answer: str) -> CloudError:
    """Return the error for an image that a registry refused. `answer`: its message."""
    message = f"the registry refused {address}: {' '.join(answer.split())[:300]}"
    for pattern, hint in _PUSHES:
        if re.search(pattern, answer):
            return CloudError(
                message,
                hint=hint.format(registry=address.partition("/")[0]),
                code="push",
            )

    return CloudError(message, code="push")


def host() -> str:
    """Return the engine's address, and the Docker context that names it, if any."""
    where, by = address()
    if not by.startswith("the docker context"):
        return where

    return f"{where} ({by})"


def _detail(error: Exception) -> str:
    """Return the engine's own message, in one line of at most 300 characters."""
    message = getattr(error, "explanation", None) or str(error)
    if isinstance(message, bytes):
        message = message.decode("utf-8", "replace")
    return " ".join(str(message).split())[:300]
