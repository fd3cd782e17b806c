"""HTTP messages of an imitated cloud: a request, its response, and the call of a service that it
is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Request(NamedTuple):
    """One HTTP request. Header names are in lower case."""

    method: str
    target: str
    """Path and query, unchanged."""
    headers: Mapping[str, str]
    body: bytes

    def document(self) -> dict[str, Any]:
        """Its body as a JSON object; empty when it is none."""
        try:
            document = json.loads(self.body or b"{}")
        except ValueError:
            return {}
        return document if isinstance(document, dict) else {}


class Response(NamedTuple):
    """One HTTP response."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes


class Call(NamedTuple):
    """An operation of a service: equal to a plain pair of names."""

    service: str
    operation: str


class ServiceError(Exception):
    """An error that a service returns to its client."""

    def __init__(
        self,
        code: str,
        message: str,
        status: int = 400,
        *,
        reasons: Sequence[str] = (),
        inner: Sequence[str] = (),
        pattern: str = "",
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.reasons = reasons
        """One message for each wrong field."""
        self.inner = inner
        """Codes of the inner errors, from the outermost."""
        self.pattern = pattern
        """The message before names were filled in."""
