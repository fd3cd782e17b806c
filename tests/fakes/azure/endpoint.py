"""The one address that clients know Azure by: ARM, run history, blobs, Key Vault and managed
identity answer here.
"""

from __future__ import annotations

import ssl
from typing import Any

from tests.fakes.azure.account import Account
from tests.fakes.azure.blobs import Blobs
from tests.fakes.azure.permissions import check, error_of, unauthenticated
from tests.fakes.azure.rights import AUTHORIZATION, RightsCall
from tests.fakes.azure.services import AUDIENCES, Services
from tests.fakes.azure.wire import call_of, error_response, json_response
from tests.fakes.azure.workspace import Workspace
from tests.fakes.messages import Call, FaultKind, Request, Response, ServiceError
from tests.fakes.server import Server

_OPEN = ("GetDiscovery", "GetToken")
"""Requests without a token: one is public, the other issues tokens."""


class Endpoint(Server):
    """The endpoint of ARM_CLOUD_METADATA_URL, and all services that clients find from there."""

    def __init__(self, account: Account, service: Workspace, tls: ssl.SSLContext) -> None:
        super().__init__(account.unexpected_errors, tls)
        self.account = account
        self.service = service
        self._blobs = Blobs(account)
        self._services = Services(account, service)

    def call_of(self, request: Request) -> Call | None:
        return call_of(request)[0]

    def rejection(self, request: Request, call: Call) -> Response | None:
        try:
            self._check(request, call)
        except ServiceError as refused:
            return error_response(request, call.service, refused)
        return None

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        refused = error_of(kind, call, request, self.account)
        return None if refused is None else error_response(request, call.service, refused)

    def execute(self, request: Request, call: Call | None) -> Response:
        if call is None:
            return self._services.metadata()
        try:
            return self._execute(request, call)
        except ServiceError as refused:
            return error_response(request, call.service, refused)

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return (
            request.document()
            if request.headers.get("content-type", "").startswith("application/json")
            else None
        )

    def _check(self, request: Request, call: Call) -> None:
        place = call_of(request)[1]
        if call.service == "blob":
            principal = self._blobs.check(call.operation, request, place)
        elif call.operation in _OPEN:
            return
        else:
            principal = self._principal(request)
            audience = self.account.tokens.audience(request.headers.get("authorization", ""))
            if audience is None:
                raise unauthenticated(call.service)
            if call.service != "vault" and audience not in (self.account.url, *AUDIENCES):
                raise ServiceError(
                    "InvalidAuthenticationTokenAudience",
                    "The access token has been obtained for wrong audience or resource"
                    f" '{audience}'. It should exactly match with one of the allowed audiences"
                    f" '{self.account.url}'.",
                    401,
                )
        if principal:
            check(call, place, self.account, principal)

    def _principal(self, request: Request) -> str:
        return self.account.tokens.principal(request.headers.get("authorization", ""))

    def _execute(self, request: Request, call: Call) -> Response:
        _, place = call_of(request)
        if call.service == "blob":
            return self._blobs.call(call.operation, request, place)
        if call.service == "vault":
            return self._services.secret(request, place)
        if call.service == "msi":
            return self._services.identity(request, place)
        if call.service == "history":
            return self._services.call(
                call.operation, place, request.document(), self._principal(request)
            )
        if call.service == "rights":
            scope = self.account.real(place.path.partition(AUTHORIZATION)[0])
            rights_call = RightsCall(
                call.operation, scope, place.path, place.query, self._principal(request)
            )
            return json_response(200, self.account.rights.call(rights_call, self.account.access))
        return self.service.call(call.operation, place, request.document())
