"""The login of an Azure registry on loopback: it exchanges tokens of its tenant."""

from __future__ import annotations

import json
import secrets
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.fakes.azure.services import REGISTRY_AUDIENCE
from tests.fakes.azure.tokens import Tokens
from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call, Request, Response, ServiceError
from tests.fakes.server import Server

REFRESH_TOKEN_USER = "00000000-0000-0000-0000-000000000000"
"""Whose password is a refresh token, by ACR's rules."""


class Registry(Server):
    """A registry at `host` that members of a tenant may log in to."""

    def __init__(self, tenant: Tokens | None) -> None:
        self.unexpected_errors: list[str] = []
        super().__init__(self.unexpected_errors)
        self.tenant = tenant
        self.users: dict[str, str] = {}
        self.host = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Registry:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
        assert not self.unexpected_errors, "\n".join(self.unexpected_errors)

    def call_of(self, request: Request) -> Call:
        is_exchange = urlsplit(request.target).path == "/oauth2/exchange"
        return Call("registry", "Exchange" if is_exchange else "?")

    def rejection(self, request: Request, call: Call) -> Response | None:
        return None

    def execute(self, request: Request, call: Call | None) -> Response:
        try:
            return _json(200, {"refresh_token": self._exchange(request)})
        except ServiceError as refused:
            error = {"code": refused.code, "message": refused.message}
            return _json(refused.status, {"errors": [error]})

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        return None

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return None

    def _exchange(self, request: Request) -> str:
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
        return self.users.setdefault(REFRESH_TOKEN_USER, secrets.token_hex(16))


def _json(status: int, document: object) -> Response:
    return Response(status, [("Content-Type", "application/json")], json.dumps(document).encode())
