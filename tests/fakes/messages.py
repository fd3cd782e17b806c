"""HTTP messages of an imitated cloud, and the faults that a test injects into calls."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

# HTTP messages of an imitated cloud: a request, its response, and the call of a service that it is.


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
        retry_after: int = 0,
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
        self.retry_after = retry_after
        """Seconds that a refusal for too many requests asks to wait."""


def raise_mistakes(errors: list[str]) -> None:
    """Fail if an imitation has made mistakes, and forget them."""
    text = "\n".join(errors)
    errors.clear()
    assert not text, text


# Faults that a test injects into calls of a cloud: kind, first affected call, number of repeats.

FaultKind = Literal[
    "throttle",
    "error",
    "expired",
    "denied",
    "lost",
    "refused_lost",
    "slow",
    "hang",
    "hang_before",
    "late",
    "unseen",
    "gateway",
    "proxy",
    "failed_after",
    "html",
    "truncated",
    "empty",
    "half",
]
"""Kinds of faults. Executed, and then: lost, slow, hang, failed_after, html, truncated, empty,
half. Executed when `Server.deliver_late` is called: late. Not executed: all others. unseen: the
service does not know yet what was created a moment ago. gateway, proxy: a page of HTML with the
status 502 or 403.
"""
SLOW_SECONDS = 0.3

_PAGE = b"<!DOCTYPE html><html><body><h1>Something went wrong</h1></body></html>"
_GATEWAY_STATUS = {"gateway": 502, "proxy": 403}


def page_of_gateway(kind: FaultKind) -> Response | None:
    """Return the page that something between client and service answers with, if this fault is one."""
    status = _GATEWAY_STATUS.get(kind)
    return None if status is None else Response(status, [("Content-Type", "text/html")], _PAGE)


def spoiled(kind: FaultKind, answer: Response) -> Response:
    """Return the answer as it arrives: unreadable, cut off, or unchanged."""
    if kind == "html":
        return Response(200, [("Content-Type", "text/html")], _PAGE)
    if kind in (
        "half",
        "empty",
    ):  # as a cache gives it that was cut off: its length is the one it says
        headers = [header for header in answer.headers if header[0].lower() != "content-length"]
        size = len(answer.body) // 2 if kind == "half" else 0
        return Response(answer.status, headers, answer.body[:size])
    if kind == "truncated":
        whole = str(len(answer.body))
        return Response(
            answer.status,
            [*answer.headers, ("Content-Length", whole)],
            answer.body[: len(answer.body) // 2],
        )
    return answer


@dataclass(kw_only=True)
class Fault:
    """One fault."""

    kind: FaultKind
    service: str | None = None
    operation: str | None = None
    nth: int = 1
    """Number of the first matching call that it affects, counted from its injection."""
    times: int = 1
    seconds: float = SLOW_SECONDS
    """For `slow`: until the call is answered."""
    seen: int = 0

    def applies_to(self, call: Call) -> bool:
        """Return whether the fault applies to this call. Count a call that matches."""
        if self.service not in (None, call.service) or self.operation not in (None, call.operation):
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class HeldRequests:
    """Requests that are held without a response until they are released or their clients have gone."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting = self._releases = 0
        self._open = False

    @property
    def waiting(self) -> int:
        """How many calls hang."""
        with self._changed:
            return self._waiting

    def wait_for(self, count: int, seconds: float) -> None:
        """Wait until this many calls hang. Raise TimeoutError otherwise."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting >= count, seconds):
                raise TimeoutError(f"{self._waiting} of {count} calls hang after {seconds} s")

    def release(self, *, for_good: bool = False) -> None:
        """Release the requests that are held now; `for_good`: also all later ones."""
        with self._changed:
            self._releases += 1
            self._open |= for_good
            self._changed.notify_all()

    def hang(self, is_gone: Callable[[], bool]) -> bool:
        """Hold a request; False when its client has gone or the server closes."""
        with self._changed:
            releases = self._releases
            self._waiting += 1
            self._changed.notify_all()
            while not (self._open or self._releases != releases or is_gone()):
                self._changed.wait(0.02)
            self._waiting -= 1
            # The client of a released request may have gone a moment before.
            return self._releases != releases and not self._open and not is_gone()
