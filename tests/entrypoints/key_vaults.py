"""A Key Vault and a node's identity endpoint on this machine, as an Azure ML job finds them."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.azure import tokens

TOKEN = "token-that-nobody-may-print"
MSI_SECRET = "msi-secret-that-nobody-may-print"
SECRET = "value-that-nobody-may-print"


def refusal(code: str, inner: str = "") -> dict[str, Any]:
    """An error as Key Vault writes it; its message contains what ours must not."""
    return {
        "error": {
            "code": code,
            "message": SECRET,
            **({"innererror": {"code": inner}} if inner else {}),
        }
    }


@dataclass
class Vault:
    """Answers requests by their path, and records them."""

    host: str
    identity: str
    certificate: Path
    answers: dict[str, list[tuple[int, Any]]] = field(default_factory=dict)
    """Path -> status and body of one request after another; the last one is repeated."""
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    """Scheme, path with query, headers in lower case."""

    def environ(self, **more: str) -> dict[str, str]:
        """The variables of a job with a managed identity."""
        return {
            "MSI_ENDPOINT": self.identity,
            "MSI_SECRET": MSI_SECRET,
            "SSL_CERT_FILE": str(self.certificate),
        } | more

    def reference(self, path: str) -> str:
        """The reference to a secret of this vault."""
        return f"keyvault:https://{self.host}/secrets/{path}"

    def asked(self, scheme: str) -> list[str]:
        """The paths and queries that were requested, in their order."""
        return [path for used, path, _ in self.requests if used == scheme]


@contextmanager
def serving(folder: Path) -> Iterator[Vault]:
    """The two servers, until the end of the block."""
    public, context = tokens.make_certificate(folder)
    vault = Vault("", "", public)
    with _server(vault, "https", context) as safe, _server(vault, "http") as plain:
        vault.host = f"localhost:{safe}"
        vault.identity = f"http://127.0.0.1:{plain}/msi"
        yield vault


@contextmanager
def _server(vault: Vault, scheme: str, context: ssl.SSLContext | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            vault.requests.append((scheme, self.path, headers))
            answers = vault.answers.get(self.path.partition("?")[0]) or [
                (404, refusal("SecretNotFound"))
            ]
            status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
            body = (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", vault.identity.replace("/msi", "/stolen"))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: Any) -> None:
            pass  # a client that does not trust us is one of the tests

    with Server(("127.0.0.1", 0), Handler) as server:
        if context:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
