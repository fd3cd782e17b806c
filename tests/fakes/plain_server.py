"""A plain HTTP server on loopback, whose answers a function gives."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.messages import Request, Response

Answer = Callable[[Request], Response]


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        answer = self.server.answer(Request(self.command, self.path, headers, body))
        self.send_response(answer.status)
        length = ("Content-Length", str(len(answer.body)))
        for name, value in dict([length, *answer.headers]).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)

    do_GET = do_POST = _serve

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: Answer

    def handle_error(self, *_: Any) -> None:
        """A client that does not trust the server is one of the tests."""


@contextmanager
def serve(answer: Answer, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Serve these answers on a port of this machine, until the end of the block."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.answer = answer
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
