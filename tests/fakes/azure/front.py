"""The one address that clients know Azure by: ARM, run history, blobs, Key Vault and managed identity answer here."""

from __future__ import annotations

import ssl
from typing import Any

from tests.fakes.azure.account import Account
from tests.fakes.azure.blobs import Blobs
from tests.fakes.azure.errors import error_of, unauthenticated
from tests.fakes.azure.services import AUDIENCES, Services
from tests.fakes.azure.wire import call_of, error_answer
from tests.fakes.azure.workspace import Workspace
from tests.fakes.faults import Kind
from tests.fakes.messages import Answer, Call, Refused, Request
from tests.fakes.server import Server

_OPEN = ("GetDiscovery", "GetToken")
"""What needs no token: the one is public, the other hands them out."""


class Front(Server):
    """What ARM_CLOUD_METADATA_URL is an address of, and all that is found from there."""

    def __init__(self, account: Account, service: Workspace, tls: ssl.SSLContext) -> None:
        super().__init__(account.troubles, tls)
        self.account, self.service = account, service
        self._blobs, self._services = Blobs(account), Services(account, service.jobs)

    def call_of(self, request: Request) -> Call | None:
        return call_of(request)[0]

    def stranger(self, request: Request, call: Call) -> Answer | None:
        try:
            self._check(request, call)
        except Refused as refused:
            return error_answer(request, call.service, refused)
        return None

    def error(self, request: Request, call: Call, kind: Kind) -> Answer | None:
        refused = error_of(kind, call, request)
        return None if refused is None else error_answer(request, call.service, refused)

    def execute(self, request: Request, call: Call | None) -> Answer:
        if call is None:
            return self._services.metadata()
        try:
            return self._execute(request, call)
        except Refused as refused:
            return error_answer(request, call.service, refused)

    def sent_by(self, request: Request, call: Call) -> dict[str, Any] | None:
        return request.document() if request.headers.get("content-type", "").startswith("application/json") else None

    def _check(self, request: Request, call: Call) -> None:
        if call.service == "blob":
            self._blobs.check(call.operation, request, call_of(request)[1])
        elif call.operation not in _OPEN:
            audience = self.account.tokens.audience(request.headers.get("authorization", ""))
            if audience is None:
                raise unauthenticated(call.service)
            if call.service != "vault" and audience not in (self.account.url, *AUDIENCES):
                raise Refused(
                    "InvalidAuthenticationTokenAudience",
                    f"The access token has been obtained for wrong audience or resource '{audience}'. It should "
                    f"exactly match with one of the allowed audiences '{self.account.url}'.",
                    401,
                )

    def _execute(self, request: Request, call: Call) -> Answer:
        _, place = call_of(request)
        if call.service == "blob":
            return self._blobs.call(call.operation, request, place)
        if call.service == "vault":
            return self._services.secret(request, place)
        if call.service == "msi":
            return self._services.identity(request, place)
        if call.service == "history":
            return self._services.call(call.operation, place, request.document())
        return self.service.call(call.operation, place, request.document())
