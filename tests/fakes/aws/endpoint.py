"""The one address that clients know AWS by: SageMaker and ECR answer here, moto answers the rest."""

from __future__ import annotations

import http.client
from typing import Any

from tests.fakes.aws import ecr
from tests.fakes.aws.errors import error_of
from tests.fakes.aws.permissions import refusal
from tests.fakes.aws.query import document_of, response_of
from tests.fakes.aws.quotas import TARGET, Quotas
from tests.fakes.aws.rights import check_call
from tests.fakes.aws.sagemaker import SageMaker
from tests.fakes.aws.simulation import Simulation
from tests.fakes.aws.stacks import Stacks
from tests.fakes.aws.wire import (
    REQUEST_ID,
    call_of,
    check_signature,
    error_response,
    json_response,
)
from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call, Request, Response, ServiceError
from tests.fakes.server import Server
from tests.support.limits import HANG_SECONDS

_HOP_BY_HOP = (
    "connection",
    "keep-alive",
    "transfer-encoding",
    "expect",
    "server",
    "content-length",
)


class Endpoint(Server):
    """The server at AWS_ENDPOINT_URL."""

    def __init__(self, service: SageMaker, registry: ecr.Ecr, moto: tuple[str, int]) -> None:
        super().__init__(service.account.unexpected_errors)
        self.services: dict[str, SageMaker | ecr.Ecr | Quotas] = {
            "SageMaker.": service,
            ecr.TARGET: registry,
            TARGET: Quotas(service.account),
        }
        self.simulation = Simulation(f"http://{moto[0]}:{moto[1]}")
        self.moto = moto
        self.stacks = Stacks()
        self.account = service.account
        self.region = service.account.region

    def close(self) -> None:
        super().close()
        self.simulation.close()

    def call_of(self, request: Request) -> Call:
        return call_of(request)

    def rejection(self, request: Request, call: Call) -> Response | None:
        try:
            check_signature(request, self.region)
        except ServiceError as refused:
            return error_response(request, call.service, refused)
        lacked = refusal(call, self.account.denied_actions)
        if lacked is not None:
            return error_response(request, call.service, lacked)
        if self.account.caller_policy is None:
            return None
        try:
            check_call(request, call, self.account)
        except ServiceError as refused:
            return error_response(request, call.service, refused)
        return None

    def error(self, request: Request, call: Call, kind: FaultKind) -> Response | None:
        if kind == "unseen" and call.operation == "ListTags":
            return json_response(200, {"Tags": []})
        refused = error_of(kind, call)
        return None if refused is None else error_response(request, call.service, refused)

    def execute(self, request: Request, call: Call | None) -> Response:
        target = request.headers.get("x-amz-target", "")
        service = self.services.get(target.removesuffix(target.rpartition(".")[2]))
        if call is None:
            return self._forward(request)
        if call == self.simulation.CALL:
            return self._query(self.simulation, request, call)
        if call.service == "cloudformation":
            return self._query(self.stacks, request, call)
        if service is None:
            return self._forward(request)
        try:
            return json_response(200, service.call(call.operation, request.document()))
        except ServiceError as refused:
            return error_response(request, call.service, refused)

    def _query(self, service: Stacks | Simulation, request: Request, call: Call) -> Response:
        operation = service.model.operation_model(call.operation)
        try:
            return response_of(
                operation, service.call(call.operation, document_of(request, operation.input_shape))
            )
        except ServiceError as refused:
            return error_response(request, call.service, refused)

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        return request.document() if "x-amz-target" in request.headers else None

    def _forward(self, request: Request) -> Response:
        connection = http.client.HTTPConnection(*self.moto, timeout=HANG_SECONDS)
        try:
            connection.putrequest(
                request.method, request.target, skip_host=True, skip_accept_encoding=True
            )
            for name, value in request.headers.items():
                if name not in _HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.putheader("content-length", str(len(request.body)))
            connection.endheaders(request.body)
            response = connection.getresponse()
            body = response.read()
            headers = [
                (name, value)
                for name, value in response.getheaders()
                if name.lower() not in _HOP_BY_HOP
            ]
            headers.append(REQUEST_ID)  # moto leaves it out
            if request.method == "HEAD" and "content-length" in response.headers:
                headers.append(("Content-Length", response.headers["content-length"]))
            return Response(response.status, headers, body)
        finally:
            connection.close()
