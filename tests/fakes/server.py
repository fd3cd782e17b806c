"""The HTTP server of an imitated cloud: it records every call and injects faults."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.fakes.messages import (
    SLOW_SECONDS,
    Call,
    Fault,
    FaultKind,
    HeldRequests,
    Request,
    Response,
    page_of_gateway,
    spoiled,
)
from tests.support.waiting import HANG_SECONDS


class Server(ABC):
    """Serves on loopback. `calls` are all requests in order of arrival, retries included."""

    def __init__(self, unexpected_errors: list[str], tls: ssl.SSLContext | None = None) -> None:
        self.calls: list[Call] = []
        self.sent: list[tuple[Call, dict[str, Any]]] = []
        """The bodies of the JSON calls among them."""
        self.struck: list[tuple[FaultKind, Call]] = []
        """The injected faults, with the affected calls."""
        self.altered: list[Call] = []
        """The calls that got an answer that is not the service's."""
        self.gate = HeldRequests()
        self.intercept: Callable[[Call, Request], FaultKind | None] | None = None
        """Called before each request is answered, where no injected fault applies: returns what
        befalls it.
        """
        self._unexpected_errors = unexpected_errors
        self._scheme = "http" if tls is None else "https"
        self._faults: list[Fault] = []
        self._late: list[Callable[[], object]] = []
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._server = _Listener(("127.0.0.1", 0), _Handler)
        self._server.endpoint = self
        if tls is not None:
            # Each connection's own thread shakes hands: a client that does not must not keep others
            # waiting.
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="loopback-front", daemon=True
        )

    @abstractmethod
    def call_of(self, request: Request) -> Call | None:
        """Return the call of a request; None for a request about the cloud itself (its metadata),
        which is not recorded.
        """

    @abstractmethod
    def rejection(self, request: Request, call: Call) -> Response | None:
        """The response to a request without valid credentials or permission; None for all others."""

    @abstractmethod
    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        """The error response of a fault of this kind; None for a fault that has none."""

    @abstractmethod
    def execute(self, request: Request, call: Call | None) -> Response:
        """The answer when nothing goes wrong."""

    @abstractmethod
    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        """The body of a JSON call; None for all others."""

    @property
    def port(self) -> int:
        """Return the port of the listener."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"{self._scheme}://{'localhost' if self._scheme == 'https' else '127.0.0.1'}:{self.port}"

    def start(self) -> None:
        """Start serving."""
        self._thread.start()

    def fault(
        self,
        kind: FaultKind,
        service: str | None = None,
        operation: str | None = None,
        nth: int = 1,
        times: int = 1,
        *,
        seconds: float = SLOW_SECONDS,
    ) -> None:
        """Inject a fault into `times` matching calls, beginning with the nth from now on."""
        with self._lock:
            self._faults.append(
                Fault(
                    kind=kind,
                    service=service,
                    operation=operation,
                    nth=nth,
                    times=times,
                    seconds=seconds,
                )
            )

    @property
    def hanging(self) -> int:
        """How many calls hang just now."""
        return self.gate.waiting

    def wait_until_hanging(self, count: int = 1, seconds: float = HANG_SECONDS) -> None:
        """Wait until this many calls hang. Raise TimeoutError otherwise."""
        self.gate.wait_for(count, seconds)

    def release(self) -> None:
        """Let the hanging calls continue."""
        self.gate.release()

    def deliver_late(self) -> None:
        """Execute the requests that faults of the kind `late` have held back; their clients have
        gone.
        """
        with self._lock:
            requests = self._late
            self._late = []
        for execute in requests:
            execute()

    @property
    def holds_late_requests(self) -> bool:
        """Return whether requests are held back that `deliver_late` will execute."""
        return bool(self._late)

    def reset(self) -> None:
        """Forget calls and faults, and requests that were held back."""
        with self._lock:
            self._late.clear()
            self.calls.clear()
            self.sent.clear()
            self.struck.clear()
            self.altered.clear()
            self._faults.clear()
            self.intercept = None
        self.gate.release()

    def close(self) -> None:
        """Release all requests, then close every connection and the port."""
        self.gate.release(for_good=True)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        with self._lock:
            connections = list(self._connections)
            threads = list(self._threads)
        for connection in connections:
            _hang_up(connection)
        for thread in threads:
            thread.join(5)

    def opened(self, connection: socket.socket, thread: threading.Thread) -> None:
        """Register a new connection and start the thread that serves it."""
        with self._lock:
            self._connections.add(connection)
            self._threads = {thread for thread in self._threads if thread.is_alive()} | {thread}
            thread.start()

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection that was closed."""
        with self._lock:
            self._connections.discard(connection)

    def answer(self, request: Request, connection: socket.socket) -> Response | None:
        """The answer to a request; None: the connection is to be closed without one."""
        try:
            return self._answer(request, connection)
        except Exception:  # noqa: BLE001  (an error of the imitation, which must not look like one of the client's)
            self._unexpected_errors.append(traceback.format_exc())
            return None

    def _answer(self, request: Request, connection: socket.socket) -> Response | None:
        call = self.call_of(request)
        if call is None:
            return self.execute(request, call)
        fault = self._record(call, request)
        rejection = self.rejection(request, call)
        if rejection is not None:
            return rejection
        if fault is None:
            return self.execute(request, call)
        error = self.error(request, call, fault.kind)
        page = page_of_gateway(fault.kind)
        if page is not None:
            self.altered.append(call)
            return _without_body(page) if request.method == "HEAD" else page
        if error is not None:
            return error
        if fault.kind == "late":
            with self._lock:
                self._late.append(lambda: self.execute(request, call))
            return None
        if fault.kind == "refused_lost" or (
            fault.kind == "hang_before" and not self._hang(connection)
        ):
            return None
        answer = self.execute(request, call)
        if fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault.kind == "failed_after":
            return self.error(request, call, "error")
        if fault.kind == "lost" or (fault.kind == "hang" and not self._hang(connection)):
            return None
        arrived = spoiled(fault.kind, answer)
        if arrived.body != answer.body:
            self.altered.append(call)
        return _without_body(arrived) if request.method == "HEAD" else arrived

    def _record(self, call: Call, request: Request) -> Fault | None:
        body = self.json_body(request, call)
        with self._lock:
            self.calls.append(call)
            if body is not None:
                self.sent.append((call, body))
            struck = [fault for fault in self._faults if fault.applies_to(call)]
        # Not under the lock: it may make calls.
        if not struck and self.intercept is not None:
            kind = self.intercept(call, request)
            struck = [Fault(kind=kind)] if kind is not None else []
        with self._lock:
            self.struck += [(fault.kind, call) for fault in struck[:1]]
        return struck[0] if struck else None

    def _hang(self, connection: socket.socket) -> bool:
        return self.gate.hang(lambda: _is_gone(connection))


class _Listener(ThreadingHTTPServer):
    endpoint: Server
    request_queue_size = 64

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each connection has a thread, which must be known when all are closed."""
        arguments = (request, client_address)
        thread = threading.Thread(
            target=self.process_request_thread, args=arguments, name="loopback-client", daemon=True
        )
        self.endpoint.opened(request, thread)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed amid a request is what the tests are about, and no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def finish(self) -> None:
        self.server.endpoint.closed(self.connection)
        super().finish()

    def _serve(self) -> None:
        headers = {name.lower(): ", ".join(self.headers.get_all(name, ())) for name in self.headers}
        request = Request(self.command, self.path, headers, self._body(headers))
        answer = self.server.endpoint.answer(request, self.connection)
        if answer is None:
            self.close_connection = True
            _hang_up(self.connection)
            return
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        if not any(name == "Content-Length" for name, _ in answer.headers):
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body)
        declared = next((value for name, value in answer.headers if name == "Content-Length"), None)
        if declared not in (None, str(len(answer.body))) and self.command != "HEAD":
            self.close_connection = True
            _hang_up(self.connection)

    do_GET = do_PUT = do_POST = do_PATCH = do_HEAD = do_DELETE = _serve

    def _body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(headers.get("content-length", 0)))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: `calls` are the record."""


def _without_body(answer: Response) -> Response:
    """Return the answer to a HEAD request."""
    length = ("Content-Length", str(len(answer.body)))
    return Response(answer.status, [*answer.headers, length], b"") if answer.body else answer


def _is_gone(connection: socket.socket) -> bool:
    try:
        if not select.select([connection], [], [], 0)[0]:
            return False
        # A client that waits for an answer over TLS sends only its farewell.
        return isinstance(connection, ssl.SSLSocket) or not connection.recv(1, socket.MSG_PEEK)
    except (OSError, ValueError):
        return True


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
