"""Recognize answers that are not the service's, such as a proxy's page.

Azure's SDKs take some for an answer without content, and fail at others with a Python error. Here
they become errors of a lost response, which the SDKs try again and `errors` reports as transient.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

from azure.core.exceptions import ServiceResponseError
from azure.core.pipeline.policies import SansIOHTTPPolicy


class UnreadableAnswer(ServiceResponseError):
    """An answer that is not the service's."""


class ReadableAnswers(SansIOHTTPPolicy[Any, Any]):
    """Refuses unreadable answers of JSON services. Belongs after the policy of retries."""

    def on_response(self, request: Any, response: Any) -> None:
        """Raise UnreadableAnswer if the answer to a request is not the service's."""
        answer = response.http_response
        problem = _json_problem(request.http_request, answer.status_code, _body(answer))
        if problem:
            raise UnreadableAnswer(problem)


def refuse_unreadable_storage(response: Any) -> None:
    """Raise UnreadableAnswer if an answer is not from Azure's storage. For `raw_response_hook`."""
    request = response.http_request
    answer = response.http_response
    status = answer.status_code
    headers = answer.headers
    if not any(name in headers for name in ("x-ms-version", "x-ms-error-code", "x-ms-request-id")):
        raise UnreadableAnswer(f"status {status} without the headers that storage always sends")
    if status == 200 and request.method == "GET" and "comp=list" in request.url:
        body = _body(answer)
        if not _is_listing(body):
            raise UnreadableAnswer(_described(status, body, "a list of blobs"))


def _json_problem(request: Any, status: int, body: bytes) -> str:
    """Return the problem of an answer; empty if it is the service's."""
    if request.method == "HEAD" or 300 <= status < 400 or status in (408, 429) or status >= 500:
        return ""
    if body.strip():
        return "" if _is_json(body) else _described(status, body, "JSON")
    has_none = "/cancel?" in request.url or (status == 404 and "/computes/" in request.url)
    needs_body = status in (200, 201, 404) and not has_none
    return f"status {status} with an empty body" if needs_body else ""


def _body(answer: Any) -> bytes:
    """Return the body of a response of either of azure-core's two kinds."""
    content = answer.body() if hasattr(answer, "body") else answer.read()
    return content if isinstance(content, bytes) else b""


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def _is_listing(body: bytes) -> bool:
    try:
        root = ET.fromstring(body.removeprefix(b"\xef\xbb\xbf"))
    except ET.ParseError:
        return False
    return root.tag == "EnumerationResults"


def _described(status: int, body: bytes, expected: str) -> str:
    content = "HTML" if b"<html" in body[:1000].lower() else f"{len(body)} bytes"
    return f"status {status} with {content} that is not {expected}"
