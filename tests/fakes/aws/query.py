"""The query protocol from the service's side: a form becomes a document, a document becomes XML, by
botocore's model.

After "AWS query protocol" of the Smithy specification.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from tests.fakes.aws.wire import REQUEST_ID
from tests.fakes.messages import Request, Response


def document_of(request: Request, shape: Any) -> dict[str, Any]:
    """The parameters of a request."""
    form = dict(parse_qsl(request.body.decode(), keep_blank_values=True))
    arguments: dict[str, Any] = _value(form, "", shape) or {}
    return arguments


def _value(form: dict[str, str], prefix: str, shape: Any) -> Any:
    if shape is None:
        return {}
    if shape.type_name == "structure":
        members = {
            name: _value(form, f"{prefix}{name}.", member) for name, member in shape.members.items()
        }
        return {
            name: member for name, member in members.items() if member not in (None, {}, [])
        } or None
    if shape.type_name == "list":
        numbers = sorted(
            {
                int(key[len(prefix) :].split(".")[1])
                for key in form
                if key.startswith(f"{prefix}member.")
            }
        )
        return [_value(form, f"{prefix}member.{number}.", shape.member) for number in numbers]
    return form.get(prefix.rstrip("."))


def response_of(operation: Any, document: dict[str, Any]) -> Response:
    """An answer that botocore reads as this document. KeyError for a member that the model does not
    have.
    """
    name = operation.name
    shape = operation.output_shape
    inner = "".join(_members(document, shape)) if shape is not None else ""
    wrapped = f"<{name}Result>{inner}</{name}Result>" if shape is not None else ""
    metadata = "<ResponseMetadata><RequestId>loopback</RequestId></ResponseMetadata>"
    text = f"<{name}Response>{wrapped}{metadata}</{name}Response>"
    headers = [("Content-Type", "text/xml"), REQUEST_ID]
    return Response(200, headers, f'<?xml version="1.0"?>{text}'.encode())


def _members(document: dict[str, Any], shape: Any) -> Iterator[str]:
    for name, value in document.items():
        yield f"<{name}>{_xml(value, shape.members[name])}</{name}>"


def _xml(value: Any, shape: Any) -> str:
    if shape.type_name == "structure":
        return "".join(_members(value, shape))
    if shape.type_name == "list":
        return "".join(f"<member>{_xml(item, shape.member)}</member>" for item in value)
    if shape.type_name == "timestamp":
        return datetime.datetime.fromtimestamp(value, datetime.UTC).isoformat()
    return escape(str(value).lower() if isinstance(value, bool) else str(value))
