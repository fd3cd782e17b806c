"""The metadata service of one machine of Azure: its name and its Scheduled Events.

Rules from "Azure Instance Metadata Service" and "Scheduled Events for Linux VMs" in Microsoft's
documentation: a request without the header `Metadata: true` or without a version is refused, one
that was forwarded by a proxy too; events name all machines of a scale set that they concern.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


class Metadata(ThreadingHTTPServer):
    """Answers for one machine; `events` may be changed at any time."""

    daemon_threads = True

    def __init__(self, name: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.name = name
        self.asked = 0
        self.events: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """In place of http://169.254.169.254."""
        return f"http://127.0.0.1:{self.server_address[1]}"

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


class _Handler(BaseHTTPRequestHandler):
    server: Metadata

    def do_GET(self) -> None:
        """The name of the machine, or what is to happen to it and its neighbours."""
        self.server.asked += 1
        url = urlsplit(self.path)
        version = parse_qs(url.query).get("api-version", [""])[0]
        if (
            self.headers.get("Metadata") != "true"
            or "X-Forwarded-For" in self.headers
            or not version
        ):
            self.send_error(400, "Bad Request")
        elif url.path == "/metadata/instance/compute/name" and "format=text" in url.query:
            self._send(self.server.name.encode())
        elif url.path == "/metadata/scheduledevents":
            self._send(
                json.dumps({"DocumentIncarnation": 1, "Events": self.server.events}).encode()
            )
        else:
            self.send_error(404, "Not Found")

    def _send(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@contextmanager
def metadata(name: str = "gpu-cluster_3") -> Iterator[Metadata]:
    """Provide the service until the end of the block."""
    with Metadata(name) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
