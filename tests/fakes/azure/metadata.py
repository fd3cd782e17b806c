"""The metadata service of one machine of Azure: its name and its Scheduled Events.

Rules from "Azure Instance Metadata Service" and "Scheduled Events for Linux VMs" in Microsoft's
documentation: a request without the header `Metadata: true` or without a version is refused, one
that was forwarded by a proxy too; events name all machines of a scale set that they concern.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from tests.fakes.messages import Request, Response
from tests.fakes.plain_server import serve


class Metadata:
    """Answers for one machine; `events` may be changed at any time."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0
        self.events: list[dict[str, Any]] = []
        self.url = ""
        """In place of http://169.254.169.254."""

    def announce(self, kind: str, *machines: str) -> None:
        """An event that concerns these machines."""
        self.events.append(
            {
                "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(machines),
                "EventStatus": "Scheduled",
                "NotBefore": "Mon, 19 Sep 2016 18:29:47 GMT",
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )

    def answer(self, request: Request) -> Response:
        """The name of the machine, or what is to happen to it and its neighbours."""
        self.asked += 1
        url = urlsplit(request.target)
        has_header = request.headers.get("metadata") == "true"
        if (
            not has_header
            or "x-forwarded-for" in request.headers
            or "api-version=" not in url.query
        ):
            return Response(400, [], b"Bad Request")
        if url.path == "/metadata/instance/compute/name" and "format=text" in url.query:
            return Response(200, [], self.name.encode())
        if url.path == "/metadata/scheduledevents":
            document = {"DocumentIncarnation": 1, "Events": self.events}
            return Response(200, [], json.dumps(document).encode())
        return Response(404, [], b"Not Found")


@contextmanager
def metadata(name: str = "gpu-cluster_3") -> Iterator[Metadata]:
    """Provide the service until the end of the block."""
    machine = Metadata(name)
    with serve(machine.answer) as port:
        machine.url = f"http://127.0.0.1:{port}"
        yield machine
