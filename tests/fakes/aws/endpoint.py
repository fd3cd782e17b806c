"""The one address that clients know AWS by; DescribeStacks is answered here too."""

from __future__ import annotations

import http.client
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl

from moto.core.parse import QueryParser
from moto.core.serialize import QuerySerializer
from moto.core.utils import get_service_model

from tests.fakes.aws import ecr
from tests.fakes.aws.account import TARGET, Quotas
from tests.fakes.aws.batch import Batch
from tests.fakes.aws.batch import refused as not_found
from tests.fakes.aws.policies import Simulation, refusal
from tests.fakes.aws.request_rules import check_call
from tests.fakes.aws.sagemaker import SageMaker
from tests.fakes.aws.service_models import contradictions
from tests.fakes.aws.wire import (
    REQUEST_ID,
    call_of,
    check_signature,
    error_of,
    error_response,
    json_response,
)
from tests.fakes.messages import Call, FaultKind, Request, Response, ServiceError
from tests.fakes.server import Server
from tests.support.waiting import HANG_SECONDS

# The one call of CloudFormation that the client makes: DescribeStacks, after its API reference.


class Stacks:
    """The stacks of an account. Tests change both mappings."""

    def __init__(self) -> None:
        self.outputs: dict[str, dict[str, str]] = {}
        """Name of a stack -> its outputs."""
        self.failed: dict[str, str] = {}
        """Name of a stack that was rolled back -> the reason."""

    def clear(self) -> None:
        """Forget all stacks."""
        self.outputs.clear()
        self.failed.clear()

    def call(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a call. Raise ServiceError if it is refused."""
        if operation != "DescribeStacks":
            message = f"Could not find operation {operation} for version 2010-05-15"
            raise ServiceError("InvalidAction", message)

        name = body["StackName"]
        stack = {"StackName": name, "CreationTime": datetime.now(UTC)}
        if name in self.failed:
            stack |= {"StackStatus": "ROLLBACK_COMPLETE", "StackStatusReason": self.failed[name]}
        elif name in self.outputs:
            outputs = [
                {"OutputKey": key, "OutputValue": value}
                for key, value in self.outputs[name].items()
            ]
            stack |= {"StackStatus": "CREATE_COMPLETE", "Outputs": outputs}
        else:
            raise ServiceError("ValidationError", f"Stack with id {name} does not exist")
        return {"Stacks": [stack]}


# The one address that clients know AWS by: SageMaker and ECR answer here, moto answers the rest.

_HOP_BY_HOP = (
    "connection",
    "keep-alive",
    "transfer-encoding",
    "expect",
    "server",
    "date",
    "content-length",
)


class Endpoint(Server):
    """The server at AWS_ENDPOINT_URL."""

    def __init__(self, service: SageMaker, registry: ecr.Ecr, moto: tuple[str, int]) -> None:
        super().__init__(service.account.unexpected_errors)
        self.services: dict[str, SageMaker | ecr.Ecr | Quotas | Batch] = {
            "SageMaker.": service,
            ecr.TARGET: registry,
            TARGET: Quotas(service.account),
        }
        self.batch = service.batch
        self.moto = moto
        self.stacks = Stacks()
        self.account = service.account
        self.simulation = Simulation(self.account.account)
        self.region = service.account.region

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
        bucket = request.target.strip("/").partition("?")[0].partition("/")[0]
        if (
            "x-amz-expected-bucket-owner" in request.headers
            and bucket in self.account.foreign_buckets
        ):
            return error_response(request, call.service, ServiceError("403", "Forbidden", 403))
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
        if kind == "unseen" and call.operation == "ListServiceJobs":
            return json_response(200, {"jobSummaryList": []})
        if kind == "unseen" and call.service == "batch":
            return error_response(request, call.service, not_found("Service job not found."))
        refused = error_of(kind, call)
        return None if refused is None else error_response(request, call.service, refused)

    def execute(self, request: Request, call: Call | None) -> Response:
        answer = self._execute(request, call)
        problems = "\n".join(contradictions(request, call, answer)) if call else ""
        if problems:
            raise AssertionError(problems)
        return answer

    def _execute(self, request: Request, call: Call | None) -> Response:
        target = request.headers.get("x-amz-target", "")
        service: SageMaker | ecr.Ecr | Quotas | Batch | None = self.services.get(
            target.removesuffix(target.rpartition(".")[2])
        )
        if call is None:
            return self._forward(request)
        if call == self.simulation.CALL:
            return self._query(self.simulation, request, call)
        if call.service == "cloudformation":
            return self._query(self.stacks, request, call)
        if call.service == "batch":
            service = self.batch
        if service is None:
            return self._forward(request)
        try:
            return json_response(200, service.call(call.operation, request.document()))
        except ServiceError as refused:
            return error_response(request, call.service, refused)

    def _query(self, service: Stacks | Simulation, request: Request, call: Call) -> Response:
        """Answer in the query protocol, which moto knows."""
        operation = get_service_model(call.service).operation_model(call.operation)
        message: Any = {"values": dict(parse_qsl(request.body.decode(), keep_blank_values=True))}
        try:
            answer = service.call(call.operation, QueryParser(operation).parse(message))
        except ServiceError as refused:
            return error_response(request, call.service, refused)
        text = str(QuerySerializer(operation).serialize(answer)["body"])
        return Response(200, [("Content-Type", "text/xml"), REQUEST_ID], text.encode())

    def json_body(self, request: Request, call: Call) -> dict[str, Any] | None:
        has_json = "x-amz-target" in request.headers or call.service == "batch"
        return request.document() if has_json else None

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
            if request.method == "HEAD" and "content-length" in response.headers:
                headers.append(("Content-Length", response.headers["content-length"]))
            return Response(response.status, headers, body)
        finally:
            connection.close()
