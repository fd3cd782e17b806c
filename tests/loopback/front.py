"""The one address that clients know AWS by: SageMaker answers here, moto answers the rest, faults come between."""

from __future__ import annotations

import http.client
import json
import select
import socket
import threading
import time
import traceback
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.loopback.errors import Refused
from tests.loopback.faults import SLOW_SECONDS, Fault, Gate, Kind, error_of
from tests.loopback.sagemaker import SageMaker
from tests.loopback.wire import Answer, Call, Request, call_of, check_signature, error_answer, json_answer

_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "expect", "server", "content-length")


class Front:
    """An HTTP server on loopback. `calls` are all requests that came, in order, repeated ones too."""

    def __init__(self, service: SageMaker, moto: tuple[str, int]) -> None:
        self.calls: list[Call] = []
        self.sent: list[tuple[Call, dict[str, Any]]] = []
        """The bodies of the JSON calls among them."""
        self.service, self.moto = service, moto
        self.region = service.account.region
        self.gate = Gate()
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._threads: set[threading.Thread] = set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.front = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="loopback-front", daemon=True
        )

    @property
    def url(self) -> str:
        """What AWS_ENDPOINT_URL must be."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def fault(
        self,
        kind: Kind,
        service: str | None = None,
        operation: str | None = None,
        nth: int = 1,
        times: int = 1,
        *,
        seconds: float = SLOW_SECONDS,
    ) -> None:
        """Let `times` calls go wrong, beginning with the nth from now on that fits."""
        with self._lock:
            self._faults.append(
                Fault(kind=kind, service=service, operation=operation, nth=nth, times=times, seconds=seconds)
            )

    def faults_on_call(self, index: int, kind: Kind, *, seconds: float = SLOW_SECONDS) -> None:
        """Let the call go wrong that will be `calls[index]`, whatever it is."""
        with self._lock:
            self._faults.append(Fault(kind=kind, index=index, seconds=seconds))

    @property
    def hanging(self) -> int:
        """How many calls hang just now."""
        return self.gate.waiting

    def wait_hanging(self, count: int = 1, seconds: float = 20) -> None:
        """Until so many calls hang. TimeoutError when they do not."""
        self.gate.wait_for(count, seconds)

    def release(self) -> None:
        """Let the hanging calls go on."""
        self.gate.release()

    def reset(self) -> None:
        """Forget calls and faults."""
        with self._lock:
            self.calls.clear()
            self.sent.clear()
            self._faults.clear()
        self.gate.release()

    def close(self) -> None:
        """Let everything go, and close every connection and the port."""
        self.gate.release(for_good=True)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        with self._lock:
            connections, threads = list(self._connections), list(self._threads)
        for connection in connections:
            _hang_up(connection)
        for thread in threads:
            thread.join(5)

    def opened(self, connection: socket.socket, thread: threading.Thread) -> None:
        """A client has come, for whom this thread is there."""
        with self._lock:
            self._connections.add(connection)
            self._threads = {each for each in self._threads if each.is_alive()} | {thread}
            thread.start()

    def closed(self, connection: socket.socket) -> None:
        """It has gone."""
        with self._lock:
            self._connections.discard(connection)

    def answer(self, request: Request, connection: socket.socket) -> Answer | None:
        """The answer to a request; None: the connection is to be closed without one."""
        try:
            return self._answer(request, connection)
        except Exception:  # noqa: BLE001  (a mistake of ours, which must not look like one of the client's)
            self.service.account.troubles.append(traceback.format_exc())
            return None

    def _answer(self, request: Request, connection: socket.socket) -> Answer | None:
        call = call_of(request)
        fault = self._record(call, request)
        try:
            check_signature(request, self.region)
        except Refused as refused:
            return error_answer(request, call.service, refused)
        if fault is None:
            return self._execute(request, call)
        error = error_of(fault.kind, call)
        if error is not None:
            return error_answer(request, call.service, error)
        if fault.kind == "refused_lost" or (fault.kind == "hang_before" and not self._hang(connection)):
            return None
        answer = self._execute(request, call)
        if fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault.kind == "lost" or (fault.kind == "hang" and not self._hang(connection)):
            return None
        return answer

    def _record(self, call: Call, request: Request) -> Fault | None:
        with self._lock:
            index = len(self.calls)
            self.calls.append(call)
            if "x-amz-target" in request.headers:
                self.sent.append((call, _document(request.body)))
            struck = [fault for fault in self._faults if fault.strikes(call, index)]
        return struck[0] if struck else None

    def _hang(self, connection: socket.socket) -> bool:
        return self.gate.hang(lambda: _is_gone(connection))

    def _execute(self, request: Request, call: Call) -> Answer:
        if not request.headers.get("x-amz-target", "").startswith("SageMaker."):
            return self._forward(request)
        try:
            return json_answer(200, self.service.call(call.operation, _document(request.body)))
        except Refused as refused:
            return error_answer(request, call.service, refused)

    def _forward(self, request: Request) -> Answer:
        connection = http.client.HTTPConnection(*self.moto, timeout=60)
        try:
            connection.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.putheader("content-length", str(len(request.body)))
            connection.endheaders(request.body)
            response = connection.getresponse()
            body = response.read()
            headers = [(name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP]
            if request.method == "HEAD" and "content-length" in response.headers:
                headers.append(("Content-Length", response.headers["content-length"]))
            return Answer(response.status, headers, body)
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    front: Front

    def process_request(self, request: Any, client_address: Any) -> None:
        """Each connection has a thread, which must be known when all are closed."""
        arguments = (request, client_address)
        thread = threading.Thread(
            target=self.process_request_thread, args=arguments, name="loopback-client", daemon=True
        )
        self.front.opened(request, thread)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed amid a request is what the tests are about, and no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def finish(self) -> None:
        self.server.front.closed(self.connection)
        super().finish()

    def _serve(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, self._body(headers))
        answer = self.server.front.answer(request, self.connection)
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

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

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


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body or b"{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _is_gone(connection: socket.socket) -> bool:
    try:
        return bool(select.select([connection], [], [], 0)[0]) and not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
