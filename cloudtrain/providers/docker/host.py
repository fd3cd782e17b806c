"""Find the Docker engine as the docker program does: by variables and contexts. No SDK."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from cloudtrain_launcher.packages.bounded_files import read_regular_file

DEFAULT_SOCKET = "unix:///var/run/docker.sock"

LOCAL = ("unix://", "npipe://", "tcp://127.", "tcp://localhost", "tcp://[::1]")
"""Prefixes of addresses on this machine, whose folders can be mounted."""


def address(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the engine's address and its origin; the origin is empty for the default socket.

    Origins are `DOCKER_HOST` or `the docker context NAME`. DOCKER_CONTEXT comes before DOCKER_HOST,
    and that before the current context (Docker CLI reference, "Environment variables"). An
    unreadable context yields an address that begins with `(unknown`.
    """
    environ = os.environ if environ is None else environ
    folder = Path(
        environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "~").expanduser() / ".docker"
    )
    name = environ.get("DOCKER_CONTEXT", "")
    if not name:
        if environ.get("DOCKER_HOST"):
            return environ["DOCKER_HOST"], "DOCKER_HOST"
        name = str(_read(folder / "config.json").get("currentContext") or "")
    if name in ("", "default"):
        return DEFAULT_SOCKET, ""
    context = _read(folder / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json")
    endpoint = (context.get("Endpoints") or {}).get("docker") or {}
    return str(
        endpoint.get("Host") or f"(unknown: {folder} has no context {name})"
    ), f"the docker context {name}"


def sdk_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return variables that lead the SDK to the same engine; it does not read all contexts."""
    environ = os.environ if environ is None else environ
    where, by = address(environ)
    if not by or by == "DOCKER_HOST":
        return dict(environ)
    if where.startswith(("unix://", "npipe://")):
        return {**environ, "DOCKER_HOST": where}
    return {name: value for name, value in environ.items() if name != "DOCKER_HOST"}


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
