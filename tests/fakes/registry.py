"""An image registry of Azure on loopback, to be read only: it asks for tokens of its tenant."""

from __future__ import annotations

import base64
import json
import re
import secrets
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.azure.services import REGISTRY_AUDIENCE
from tests.fakes.azure.tokens import Tokens
from tests.fakes.faults import FaultKind
from tests.fakes.images import BlobStore, ImageStore, digest_of
from tests.fakes.messages import Call, Request, Response, ServiceError
from tests.fakes.server import Server

SERVICE = "loopback registry"
REFRESH_TOKEN_USER = "00000000-0000-0000-0000-000000000000"
"""Whose password is a refresh token, by ACR's rules."""
_NAME = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(
    rf"/v2/({_NAME}(?:/{_NAME})*)/(manifests|blobs)/([\w][\w.-]{{0,127}}|sha256:[0-9a-f]{{64}})"
)
_CALLS = {"/token": "GetToken", "/oauth2/exchange": "Exchange", "/v2/": "Ping"}


class Registry(Server):
    """Repositories at `host`, for `users` with a token of its service."""

    def __init__(self, tenant: Tokens | None = None) -> None:
        self.unexpected_errors: list[str] = []
        super().__init__(self.unexpected_errors)
        self.tenant = tenant
        self.users: dict[str, str] = {}
        self.realm = f"{self.url}/token"
        self.host = f"127.0.0.1:{self.port}"
        self.blobs = BlobStore(self.unexpected_errors)
        self.images = ImageStore(self.blobs)
        self.put = self.images.put
        self._tokens: dict[str, str] = {}
        """Token -> the repository that it opens, or nothing."""
        self._refresh = secrets.token_hex(16)

    def __enter__(self) -> Registry:
        self.start()
        self.blobs.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
        self.blobs.close()
        assert not self.unexpected_errors, "\n".join(self.unexpected_errors)

    def call_of(self, request: Request) -> Call:
        path = urlsplit(request.target).path
        match = _PATH.fullmatch(path)
        name = (
            {"manifests": "GetManifest", "blobs": "GetBlob"}[match[2]]
            if match
            else _CALLS.get(path, "?")
        )
        return Call("registry", name)

    def rejection(self, request: Request, call: Call) -> Response | None:
        match = _PATH.fullmatch(urlsplit(request.target).path)
        if match is None and call.operation != "Ping":
            return None
        challenge = f'Bearer realm="{self.realm}",service="{SERVICE}"'
        if match is None:  # an engine asks how to log in before it asks for anything else
            return _refused(UNKNOWN_USER, challenge)
        kind, _, proof = request.headers.get("authorization", "").partition(" ")
        if kind == "Bearer" and self._tokens.get(proof) == match[1]:
            return None
        return _refused(UNKNOWN_USER, f'{challenge},scope="repository:{match[1]}:pull"')

    def execute(self, request: Request, call: Call | None) -> Response:
        try:
            if call is None or call.operation == "?":
                raise ServiceError(
                    "NAME_INVALID", f"{request.target} is no part of a registry", 404
                )
            if request.method != ("POST" if call.operation == "Exchange" else "GET"):
                raise ServiceError("UNSUPPORTED", "the operation is unsupported", 405)
            if call.operation == "Ping":
                return _json(200, {})
            calls = {
                "GetToken": self._token,
                "Exchange": self._exchange,
                "GetManifest": self._manifest,
            }
            return calls.get(call.operation, self._blob)(request)
        except ServiceError as refused:
            return _refused(refused)

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        return None

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return None

    def _token(self, request: Request) -> Response:
        scopes = {
            name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()
        }
        scope = re.fullmatch(r"repository:(.+):pull", scopes.get("scope", ""))
        if scopes.get("service") != SERVICE or scope is None:
            raise ServiceError("UNKNOWN", f"no such service or scope: {scopes}", 400)
        kind, _, proof = request.headers.get("authorization", "").partition(" ")
        if proof and not (kind == "Basic" and self._is_user(proof)):
            raise ServiceError("UNAUTHORIZED", "incorrect username or password", 401)
        token = secrets.token_urlsafe()  # anybody gets one; it opens what its owner may read
        self._tokens[token] = scope[1] if proof else ""
        return _json(200, {"access_token": token, "expires_in": 300})

    def _exchange(self, request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        if request.headers.get("content-type") != "application/x-www-form-urlencoded":
            raise ServiceError("UNSUPPORTED", "expected a form", 415)
        if (
            self.tenant is None
            or form.get("service") != self.host
            or form.get("grant_type") != "access_token"
        ):
            raise ServiceError("UNAUTHORIZED", "this registry belongs to another tenant", 401)
        if self.tenant.audience(f"Bearer {form.get('access_token')}") != REGISTRY_AUDIENCE:
            raise ServiceError("UNAUTHORIZED", "authentication required", 401)
        self.users[REFRESH_TOKEN_USER] = self._refresh
        return _json(200, {"refresh_token": self._refresh})

    def _manifest(self, request: Request) -> Response:
        repository, _, reference = _PATH.fullmatch(urlsplit(request.target).path).groups()  # type: ignore[union-attr]
        stored = self.images.find(repository, reference)
        if stored is None:
            code = "MANIFEST_UNKNOWN" if self.images.has(repository) else "NAME_UNKNOWN"
            raise ServiceError(code, f"{reference} is unknown", 404)
        if stored.kind not in re.split(r"[\s,]+", request.headers.get("accept", "")):
            raise ServiceError(
                "MANIFEST_UNKNOWN",
                f"{stored.kind} found, but accept header does not support it",
                404,
            )
        headers = [("Content-Type", stored.kind), ("Docker-Content-Digest", digest_of(stored.text))]
        return Response(200, headers, stored.text)

    def _blob(self, request: Request) -> Response:
        address = self.blobs.address(urlsplit(request.target).path.rpartition("/")[2])
        return Response(307, [("Location", address)], b"")

    def _is_user(self, proof: str) -> bool:
        user, _, password = base64.b64decode(proof).decode().partition(":")
        return self.users.get(user) == password


UNKNOWN_USER = ServiceError("UNAUTHORIZED", "authentication required", 401)


def _refused(refused: ServiceError, challenge: str = "") -> Response:
    answer = _json(refused.status, {"errors": [{"code": refused.code, "message": refused.message}]})
    return answer._replace(
        headers=[*answer.headers, *([("WWW-Authenticate", challenge)] if challenge else [])]
    )


def _json(status: int, document: object) -> Response:
    return Response(status, [("Content-Type", "application/json")], json.dumps(document).encode())
