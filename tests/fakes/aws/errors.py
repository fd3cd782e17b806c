"""AWS's error answers: an error code, a message, an HTTP status."""

from __future__ import annotations

from tests.fakes.aws.permissions import denied
from tests.fakes.faults import FaultKind
from tests.fakes.messages import Call, ServiceError


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
