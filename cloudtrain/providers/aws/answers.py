"""Recognize answers that are not the service's, such as a proxy's page.

botocore takes a page for an answer without content. Here it becomes an error of the server before
botocore reads it: botocore tries again, and `errors` reports it as transient.
"""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from typing import Any

UNREADABLE = "UnreadableAnswer"
"""Code of the error that replaces such an answer."""

_BAD_GATEWAY = 502
_REQUEST_ID = "x-amz-request-id"
"""Header of all answers of S3."""


def register(events: Any) -> None:
    """Look at each answer of clients with these events."""
    events.register_first("before-parse", _replace_unreadable)
    events.register_first("needs-retry", _take_over_status)


def _replace_unreadable(
    operation_model: Any,
    response_dict: dict[str, Any],
    customized_response_dict: dict[str, Any],
    **_: Any,
) -> None:
    problem = _problem(operation_model, response_dict)
    if problem:
        response_dict["status_code"] = _BAD_GATEWAY
        response_dict["body"] = b""
        customized_response_dict["Error"] = {"Code": UNREADABLE, "Message": problem}


def _take_over_status(response: Any, **_: Any) -> None:
    """Copy the status to the HTTP response, as botocore does for S3 only."""
    if response is None:
        return
    http_response, parsed = response
    if (parsed.get("Error") or {}).get("Code") == UNREADABLE:
        http_response.status_code = _BAD_GATEWAY


def _problem(operation: Any, response: dict[str, Any]) -> str:
    """Return the problem of an answer; empty if it is the service's."""
    status = response["status_code"]
    method = operation.http.get("method")
    is_success = 200 <= status < 300
    if operation.has_event_stream_output or (300 <= status < 400):
        return ""
    output = operation.output_shape
    if is_success and output is not None and _lacks_etag(output, response["headers"]):
        return f"status {status} without the ETag that S3 always sends"
    if method == "HEAD":
        headers = response["headers"]
        is_page = str(headers.get("content-type", "")).startswith("text/html")
        return f"status {status} of a web page" if is_page and _REQUEST_ID not in headers else ""
    if is_success and operation.has_streaming_output:
        return ""

    body = response["body"] if isinstance(response["body"], bytes) else b""
    if not body.strip():
        return f"status {status} with an empty body" if is_success and _needs_body(output) else ""
    if operation.service_model.metadata["protocol"] == "json":
        return "" if _is_json(body) else _described(status, body, "JSON")
    return "" if _is_xml(body) else _described(status, body, "XML")


def _lacks_etag(output: Any, headers: Any) -> bool:
    """Return True if the ETag header of an S3 operation is missing."""
    member = output.members.get("ETag")
    is_header = member is not None and member.serialization.get("location") == "header"
    return is_header and "etag" not in headers


def _needs_body(output: Any) -> bool:
    """Return True if any part of an operation's answer is in its body."""
    members = output.members.values() if output is not None else ()
    return any("location" not in member.serialization for member in members)


def _is_json(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False


def _is_xml(body: bytes) -> bool:
    try:
        root = ET.fromstring(body)
    except ET.ParseError:
        return False
    return root.tag.rpartition("}")[2].lower() != "html"


def _described(status: int, body: bytes, expected: str) -> str:
    content = "HTML" if b"<html" in body[:1000].lower() else f"{len(body)} bytes"
    return f"status {status} with {content} that is not {expected}"
