"""botocore's models of AWS's services judge both directions of all traffic with the imitation."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any

import botocore.session
from botocore.model import ServiceModel
from botocore.parsers import create_parser
from botocore.validate import ParamValidator

from cloudtrain.errors import dotted
from cloudtrain.providers.shared.shapes import violations
from tests.fakes.messages import Call, Request, Response, ServiceError

KEPT = {
    "DescribeTrainingJob: .*ModelArtifacts": "SageMaker leaves it out until it uploads, as observed",
    "DescribeLogStreams: .*nextToken": "moto writes null after the last page",
    "DescribeKey: .*(KeyUsage|MultiRegion)": "moto writes null",
    "DescribeSecret: ": "moto writes nulls, and a member of an older model",
    "DescribeFileSystems: .*NextToken": "moto writes null",
}
"""Expression for a contradiction that stays -> the reason."""


_MODELS = {"elasticfilesystem": "efs", "servicequotas": "service-quotas"}
"""Name that requests are signed for -> name of the model."""


@cache
def service_model(service: str) -> ServiceModel:
    """Return the model of a service, by the name that requests are signed for."""
    name = _MODELS.get(service, service)
    return botocore.session.get_session().get_service_model(name)


def check_request(
    service: str, operation: str, body: Mapping[str, Any], operations: Container[str], code: str
) -> None:
    """Raise ServiceError for an operation that is not imitated, or with `code` for a wrong body."""
    if operation not in operations:
        message = f"The requested operation {operation} is not known."
        raise ServiceError("UnknownOperationException", message)
    shape = service_model(service).operation_model(operation).input_shape
    problems = [f"'{dotted(item.path)}': {item.message}" for item in violations(shape, body)]
    if problems:
        raise ServiceError(code, f"Invalid parameter at {'; '.join(problems)}")


def contradictions(request: Request, call: Call, answer: Response) -> Iterator[str]:
    """Yield where an accepted request or its answer contradicts the model of the service.

    Requests in XML and forms come from botocore, which has checked them by the same model.
    """
    if answer.status >= 300 or call.operation == "?":
        return
    model = service_model(call.service)
    operation = model.operation_model(call.operation)
    if model.metadata["protocol"] == "json":
        directions = [
            (operation.input_shape, request.document()),
            (operation.output_shape, json.loads(answer.body or b"{}")),
        ]
    else:
        directions = [(operation.output_shape, _parsed(answer, model, operation))]
    for shape, document in directions:
        problems = _problems(shape, document) if shape else [f"{document}"] if document else []
        for problem in problems:
            text = f"{call.operation}: {problem}"
            if not any(re.match(pattern, text) for pattern in KEPT):
                yield text


def _parsed(answer: Response, model: ServiceModel, operation: Any) -> dict[str, Any]:
    """Return an answer in XML as a client reads it."""
    raw = {
        "status_code": answer.status,
        "headers": {name.lower(): value for name, value in answer.headers},
        "body": io.BytesIO(answer.body) if operation.has_streaming_output else answer.body,
    }
    document = create_parser(model.metadata["protocol"]).parse(raw, operation.output_shape)
    return {name: value for name, value in document.items() if name != "ResponseMetadata"}


def _problems(shape: Any, document: Mapping[str, Any]) -> list[str]:
    """Return unknown, missing and mistyped members, then wrong enum values and patterns."""
    report = ParamValidator().validate(document, shape)
    values = [item for item in violations(shape, document) if not item.is_error]
    return [
        *(report.generate_report().splitlines() if report.has_errors() else ()),
        *(f"'{dotted(item.path)}': {item.message}" for item in values),
    ]
