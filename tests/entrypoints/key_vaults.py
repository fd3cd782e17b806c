"""A Key Vault and a node's identity endpoint on this machine, as an Azure ML job finds them."""

from __future__ import annotations

import datetime
import ipaddress
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TOKEN = "token-that-nobody-may-print"
MSI_SECRET = "msi-secret-that-nobody-may-print"
SECRET = "value-that-nobody-may-print"


def refusal(code: str, inner: str = "") -> dict[str, Any]:
    """An error as Key Vault writes it; its message contains what ours must not."""
    return {"error": {"code": code, "message": SECRET, **({"innererror": {"code": inner}} if inner else {})}}


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
        return {"MSI_ENDPOINT": self.identity, "MSI_SECRET": MSI_SECRET, "SSL_CERT_FILE": str(self.certificate)} | more

    def reference(self, rest: str) -> str:
        """The reference to a secret of this vault."""
        return f"keyvault:https://{self.host}/secrets/{rest}"

    def asked(self, scheme: str) -> list[str]:
        """The paths and queries that were requested, in their order."""
        return [path for found, path, _ in self.requests if found == scheme]


@contextmanager
def serving(folder: Path) -> Iterator[Vault]:
    """The two servers, until the end of the block."""
    certificate, key = _certificate(folder)
    vault = Vault("", "", certificate)
    with _server(vault, "https", (certificate, key)) as safe, _server(vault, "http") as plain:
        vault.host, vault.identity = f"localhost:{safe}", f"http://127.0.0.1:{plain}/msi"
        yield vault


@contextmanager
def _server(vault: Vault, scheme: str, files: tuple[Path, Path] | None = None) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            vault.requests.append((scheme, self.path, headers))
            left = vault.answers.get(self.path.partition("?")[0]) or [(404, refusal("SecretNotFound"))]
            status, answer = left.pop(0) if len(left) > 1 else left[0]
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
        if files:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*files)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def _certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate for this machine, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate, secret = folder / "vault.pem", folder / "vault.key"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate, secret
