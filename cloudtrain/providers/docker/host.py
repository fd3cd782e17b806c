"""Where the Docker engine is looked for: as the docker program does it, by variables and contexts. Reads no SDK."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

DEFAULT_SOCKET = "unix:///var/run/docker.sock"

LOCAL = ("unix://", "npipe://", "tcp://127.", "tcp://localhost", "tcp://[::1]")
"""How an address begins that is this machine's own, whose folders can be mounted."""


def address(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The engine's address, and what says so: `DOCKER_HOST`, `the docker context NAME`; empty for the default socket.

    DOCKER_CONTEXT comes before DOCKER_HOST, and that before the context in use (Docker CLI reference, "Environment
    variables"). A context that cannot be read leads nowhere: the SDK and the docker program would say so.
    """
    environ = os.environ if environ is None else environ
    folder = Path(environ.get("DOCKER_CONFIG") or Path(environ.get("HOME") or "~").expanduser() / ".docker")
    name = environ.get("DOCKER_CONTEXT", "")
    if not name:
        if environ.get("DOCKER_HOST"):
            return environ["DOCKER_HOST"], "DOCKER_HOST"
        name = str(_read(folder / "config.json").get("currentContext") or "")
    if name in ("", "default"):
        return DEFAULT_SOCKET, ""
    context = _read(folder / "contexts" / "meta" / sha256(name.encode()).hexdigest() / "meta.json")
    endpoint = (context.get("Endpoints") or {}).get("docker") or {}
    return str(endpoint.get("Host") or f"(unknown: {folder} has no context {name})"), f"the docker context {name}"


def environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment in which the SDK finds the same engine: it reads contexts less far than the docker program."""
    environ = os.environ if environ is None else environ
    where, by = address(environ)
    if not by or by == "DOCKER_HOST":
        return dict(environ)
    if where.startswith(("unix://", "npipe://")):
        return {**environ, "DOCKER_HOST": where}
    return {name: value for name, value in environ.items() if name != "DOCKER_HOST"}


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
