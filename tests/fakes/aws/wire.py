"""AWS's protocols from the outside: calls, signatures, and error answers."""

from __future__ import annotations

import json
import re
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

from tests.fakes.aws.policies import denied
from tests.fakes.messages import Call, FaultKind, Request, Response, ServiceError

# AWS's error answers: an error code, a message, an HTTP status.


def invalid(message: str) -> ServiceError:
    """Return SageMaker's usual error for an invalid request."""
    return ServiceError("ValidationException", message)


_S3 = {
    "throttle": ServiceError("SlowDown", "Please reduce your request rate.", 503),
    "error": ServiceError(
        "InternalError", "We encountered an internal error. Please try again.", 500
    ),
    "expired": ServiceError("ExpiredToken", "The provided token has expired.", 400),
}
_OTHERS = {
    "throttle": ServiceError("ThrottlingException", "Rate exceeded", 400),
    "error": ServiceError(
        "InternalFailure", "The request processing has failed because of an unknown error.", 500
    ),
    "expired": ServiceError(
        "ExpiredTokenException", "The security token included in the request is expired", 400
    ),
}


def error_of(kind: FaultKind, call: Call) -> ServiceError | None:
    """The error that a fault of this kind answers with; None for one that answers with none."""
    if kind == "denied":
        return denied(call)
    if kind == "unseen":
        return invalid("Requested resource not found.")
    return (_S3 if call.service == "s3" else _OTHERS).get(kind)


# AWS's protocols from the outside: which call a request is, whether it is signed, and how an error
# looks in it.

_SCOPE = re.compile(
    r"AWS4-HMAC-SHA256"
    r" Credential=(?P<key>[^/,]+)/\d{8}/(?P<region>[a-z0-9-]+)/(?P<service>[a-z0-9-]+)/aws4_request,"
    r" ?SignedHeaders=(?P<headers>[^,]+), ?Signature=[0-9a-f]{64}"
)
REQUEST_ID = ("x-amzn-RequestId", "loopback")
"""Header of every answer of AWS."""
_BATCH = {
    f"/v1/{name.lower()}": name
    for name in (
        *("SubmitServiceJob", "DescribeServiceJob", "ListServiceJobs", "TerminateServiceJob"),
        *("GetJobQueueSnapshot", "DescribeJobQueues"),
    )
}
"""Path -> operation of AWS Batch."""
_GLOBAL = ("iam", "sts")
"""Services that sign for one region, wherever they are called from."""


def call_of(request: Request) -> Call:
    """The call, by the protocol of the service that the request was signed for."""
    scope = _SCOPE.fullmatch(request.headers.get("authorization", ""))
    service = scope["service"] if scope else ""
    target = request.headers.get("x-amz-target", "")
    if target:
        return Call(service or target.partition(".")[0].lower(), target.rpartition(".")[2])
    form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    if form:
        return Call(service, parse_qs(request.body.decode()).get("Action", ["?"])[0])
    if service == "batch":
        path = request.target.partition("?")[0]
        return Call(service, _BATCH.get(path, "?"))
    if service == "elasticfilesystem":  # a REST interface, of which one operation is used
        return Call(service, "DescribeMountTargets")
    return Call(service or "s3", _s3_operation(request))


def check_signature(request: Request, region: str) -> None:
    """Refused unless it is signed, for this region. The signature itself is not computed again."""
    authorization = request.headers.get("authorization", "")
    if not authorization:
        raise ServiceError(
            "MissingAuthenticationToken", "Request is missing Authentication Token", 403
        )
    scope = _SCOPE.fullmatch(authorization)
    if (
        scope is None
        or "host" not in scope["headers"].split(";")
        or "x-amz-date" not in request.headers
    ):
        raise ServiceError(
            "IncompleteSignature", f"Authorization header is malformed: {authorization!r}", 403
        )
    if scope["region"] != region and scope["service"] not in _GLOBAL:
        message = f"Credential should be scoped to a valid region: {region}, not {scope['region']}."
        raise ServiceError(
            "SignatureDoesNotMatch" if scope["service"] == "s3" else "InvalidSignatureException",
            message,
            403,
        )


def json_response(status: int, document: object) -> Response:
    """As the JSON protocol answers."""
    headers = [("Content-Type", "application/x-amz-json-1.1"), REQUEST_ID]
    return Response(status, headers, json.dumps(document).encode())


def error_response(request: Request, service: str, refused: ServiceError) -> Response:
    """An error in the words of the request's own protocol."""
    if "x-amz-target" in request.headers or service in ("elasticfilesystem", "batch"):
        return json_response(refused.status, {"__type": refused.code, "message": refused.message})
    error = f"<Code>{refused.code}</Code><Message>{escape(refused.message)}</Message>"
    if service == "s3":
        text = f"<Error>{error}<RequestId>loopback</RequestId></Error>"
    elif service == "ec2":
        text = f"<Response><Errors><Error>{error}</Error></Errors><RequestID>loopback</RequestID></Response>"
    else:
        text = (
            f"<ErrorResponse><Error><Type>Sender</Type>{error}</Error>"
            "<RequestId>loopback</RequestId></ErrorResponse>"
        )
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Response(
        refused.status,
        [("Content-Type", "application/xml"), REQUEST_ID],
        body if request.method != "HEAD" else b"",
    )


_PARTS = {
    "PUT": "UploadPart",
    "POST": "CompleteMultipartUpload",
    "DELETE": "AbortMultipartUpload",
}
_OBJECTS = {
    "GET": "GetObject",
    "HEAD": "HeadObject",
    "PUT": "PutObject",
    "DELETE": "DeleteObject",
}


def _s3_operation(request: Request) -> str:
    """Return the S3 operation of a request; `?` for one that no client of ours uses."""
    url = urlsplit(request.target)
    query = parse_qs(url.query, keep_blank_values=True)
    _, _, key = url.path.lstrip("/").partition("/")
    if "uploads" in query:
        return "CreateMultipartUpload" if request.method == "POST" else "?"
    if "uploadId" in query:
        return _PARTS.get(request.method, "?")
    if "list-type" in query:
        return "ListObjectsV2"
    if key:
        return _OBJECTS.get(request.method, "?")
    return "HeadBucket" if request.method == "HEAD" else "?"
