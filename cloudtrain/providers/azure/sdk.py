"""How Azure's SDKs are called: options, errors translated, no output on the screen, a hook before a job is created."""

from __future__ import annotations

import io
import logging
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from azure.core.pipeline.policies import SansIOHTTPPolicy

from cloudtrain.errors import CloudtrainError
from cloudtrain.providers.azure.errors import is_foreign, translated

RETRIES: dict[str, Any] = {"retry_total": 4, "retry_backoff_factor": 0.5, "retry_backoff_max": 20}
"""Options of the SDK: it retries for seconds, not for the minutes of its defaults."""

TIMEOUTS: dict[str, Any] = {"connection_timeout": 10, "read_timeout": 60}
"""In seconds."""

REPEATABLE = frozenset({"HEAD", "GET", "PUT", "POST"})
"""HTTP methods that are retried if no response came: all our requests may be repeated."""


class CreateHook(SansIOHTTPPolicy[Any, Any]):
    """A policy of the SDK's HTTP pipeline that calls a function right before the request that creates a job."""

    def __init__(self) -> None:
        self.sent_create = False
        """Whether that request was sent."""
        self._before: Callable[[], None] | None = None

    def arm(self, before: Callable[[], None] | None) -> None:
        """Set the function for the next job; None: none."""
        self._before, self.sent_create = before, self.sent_create and before is None

    def on_request(self, request: Any) -> None:
        """Called by the SDK before each request."""
        sent = request.http_request
        request.context.options.setdefault("retry_on_methods", REPEATABLE)
        if self._before is not None and sent.method == "PUT" and re.search(r"/jobs/[^/?]+(\?|$)", sent.url):
            self._before()
            self.sent_create = True


@contextmanager
def calling(
    what: str, place: str = "", explain: Callable[[Exception, str], CloudtrainError | None] | None = None
) -> Iterator[None]:
    """Translate the SDK's errors and suppress its output. `what`: the action in messages; `place`: see `translated`.

    `explain`: asked first, for callers who know more of an error of this action than `translated` does.
    """
    try:
        with without_sdk_output():
            yield
    except Exception as error:
        if isinstance(error, CloudtrainError) or not is_foreign(error):
            raise  # a bug of ours keeps its traceback
        raise (explain and explain(error, what)) or translated(error, what, place) from error


@contextmanager
def without_sdk_output() -> Iterator[None]:
    """Suppress the SDK's warnings and log messages, unless `cloudtrain -v` asks for them."""
    if logging.getLogger().isEnabledFor(logging.INFO):
        yield
        return
    for name in ("azure", "msal", "urllib3", *logging.root.manager.loggerDict):
        if name.startswith(("azure", "msal", "urllib3")):  # some loggers have a level of their own
            logger = logging.getLogger(name)
            if logger.level != logging.CRITICAL:  # setting a level takes long: it empties the caches of all loggers
                logger.setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), _without_stderr():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _without_stderr() -> Iterator[None]:
    if sys.stderr.isatty():  # where its progress bar is useful
        yield
        return
    with redirect_stderr(io.StringIO()):
        yield
