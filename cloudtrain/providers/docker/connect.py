"""Finds this machine's Docker engine as the docker program does, by variables and contexts, and connects to it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Engine

DEFAULT_SOCKET = "unix:///var/run/docker.sock"

LOCAL = ("unix://", "npipe://", "tcp://127.", "tcp://localhost", "tcp://[::1]")
"""Beginnings of addresses that are on this machine, so that its folders can be mounted."""

ANSWER_SECONDS = 60.0
"""How long the engine may take to answer one call."""


@contextmanager
def docker_engine(seconds: float = ANSWER_SECONDS) -> Iterator[Engine]:
    """A connection to the engine. UsageError if the SDK is not installed, CloudError if no engine answers.

    `seconds`: how long one call may take.
    """
    try:
        from cloudtrain.providers.docker.engine import engine
    except ImportError as error:
        message = f"containers and images need Docker's SDK, which is not installed: {error}"
        raise UsageError(message, hint='pip install "cloudtrain[docker]"') from None
    with engine(seconds) as found:
        yield found


def address(environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """The engine's address and its origin: `DOCKER_HOST` or `the docker context NAME`; empty for the default socket.

    DOCKER_CONTEXT comes before DOCKER_HOST, and that before the current context (Docker CLI reference, "Environment
    variables"). The address of a context that cannot be read says so.
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


def sdk_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment variables with which the SDK finds the same engine; it does not read all contexts by itself."""
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
