"""This machine's Docker engine, for whoever needs it, with the words for those who lack its SDK."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError

if TYPE_CHECKING:
    from cloudtrain.providers.docker.engine import Engine

ANSWER_SECONDS = 60.0


@contextmanager
def docker_engine(seconds: float = ANSWER_SECONDS) -> Iterator[Engine]:
    """UsageError where the SDK is not installed, CloudError where no engine answers.

    `seconds`: how long it may be silent in one call.
    """
    try:
        from cloudtrain.providers.docker.engine import engine
    except ImportError as error:
        message = f"containers and images need Docker's SDK, which is not installed: {error}"
        raise UsageError(message, hint='pip install "cloudtrain[docker]"') from None
    with engine(seconds) as found:
        yield found
