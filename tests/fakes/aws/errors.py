"""What AWS answers when it does not do what was asked: an error code, a message, an HTTP status."""

from __future__ import annotations

from tests.fakes.aws.rights import denied
from tests.fakes.faults import Kind
from tests.fakes.messages import Call, Refused


def invalid(message: str) -> Refused:
    """What SageMaker says of most that it does not like."""
    return Refused("ValidationException", message)


_S3 = {
    "throttle": Refused("SlowDown", "Please reduce your request rate.", 503),
    "error": Refused("InternalError", "We encountered an internal error. Please try again.", 500),
    "expired": Refused("ExpiredToken", "The provided token has expired.", 400),
}
_OTHERS = {
    "throttle": Refused("ThrottlingException", "Rate exceeded", 400),
    "error": Refused("InternalFailure", "The request processing has failed because of an unknown error.", 500),
    "expired": Refused("ExpiredTokenException", "The security token included in the request is expired", 400),
}


def error_of(kind: Kind, call: Call) -> Refused | None:
    """The error that a fault of this kind answers with; None for one that answers with none."""
    if kind == "denied":
        return denied(call)
    return (_S3 if call.service == "s3" else _OTHERS).get(kind)
