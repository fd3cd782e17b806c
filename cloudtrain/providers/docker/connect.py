"""Connect to this machine's Docker engine, if Docker's SDK is installed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from cloudtrain.extras import importing

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Engine

ANSWER_SECONDS = 60.0
"""Timeout of one call."""


def docker_engine(seconds: float = ANSWER_SECONDS) -> AbstractContextManager[Engine]:
    """Return a connection to the engine. `seconds`: timeout of one call.

    Raise UsageError if the SDK is not installed, CloudError if no engine answers.
    """
    with importing("docker", "containers and images need Docker's SDK"):
        from cloudtrain.providers.docker.engine import engine

    return engine(seconds)
