"""Translate errors of boto3: which call failed, where, why, and what to do next.

Also recognize answers that are not the service's, such as a proxy's page. botocore takes a page for
an answer without content. Here it becomes an error of the server before botocore reads it.
"""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

from botocore import exceptions as sdk
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from cloudtrain.diagnosis.rules.clouds import SAGEMAKER_QUOTA
from cloudtrain.errors import DENIED_CODES, CloudError, ErrorKind, Outcome, unreadable
from cloudtrain.providers.aws.error_codes import BY_CODE, WAIT, hint_for, hint_for_denial

_UNREADABLE = "UnreadableAnswer"
"""Code of the error that replaces an answer that is not the service's."""
_BAD_GATEWAY = 502
_REQUEST_IDS = ("x-amzn-requestid", "x-amz-request-id")
"""Every answer of AWS has one of these headers."""

_TRY_AGAIN = "then try again"

NOT_FOUND = "NotFound"
"""Our code for a missing job: SageMaker's code only says that a value is invalid."""

_FAILED = {
    "InternalFailure",
    "InternalError",
    "InternalServerError",
    "InternalServerException",
    "ServiceUnavailable",
    "ServiceUnavailableException",
}

NOT_CONNECTED = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError)
"""Errors without a connection: the request was not sent."""

_BY_TYPE: tuple[tuple[tuple[type[Exception], ...], ErrorKind], ...] = (
    (
        (sdk.SSOTokenLoadError, sdk.UnauthorizedSSOTokenError, sdk.TokenRetrievalError),
        ErrorKind("the login has expired", f"aws sso login, {_TRY_AGAIN}", "Expired"),
    ),
    (
        (
            sdk.NoCredentialsError,
            sdk.PartialCredentialsError,
            sdk.ProfileNotFound,
            sdk.CredentialRetrievalError,
            sdk.NoAuthTokenError,
        ),
        ErrorKind(
            "no AWS credentials",
            f"aws configure (or aws sso login, or set AWS_PROFILE), {_TRY_AGAIN}",
            "NoCredentials",
        ),
    ),
    (
        (*NOT_CONNECTED, sdk.SSLError),
        ErrorKind(
            "AWS cannot be reached",
            f"check the network and the region; {_TRY_AGAIN}",
            "Unreachable",
            transient=True,
        ),
    ),
    (  # without a response: the request may have arrived
        (
            sdk.ConnectionClosedError,
            sdk.ResponseStreamingError,
            sdk.IncompleteReadError,
            sdk.HTTPClientError,
        ),
        ErrorKind("no answer came", WAIT, "Lost", transient=True, outcome=Outcome.UNKNOWN),
    ),
    (
        (sdk.ParamValidationError,),
        ErrorKind("boto3 rejects the call", "pip install --upgrade boto3", "ParamValidation"),
    ),
)

_S3_ACTIONS = {
    "HeadBucket": "s3:ListBucket",
    "HeadObject": "s3:GetObject and s3:ListBucket",
    "GetObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "DeleteObject": "s3:DeleteObject, which RemoveRuns of the template allows",
    "PutObject": "s3:PutObject, and kms:GenerateDataKey on aws.kms_key if there is one",
}
"""S3 does not always name the missing permission (Service Authorization Reference)."""

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "structure": (dict,),
    "map": (dict,),
    "list": (list,),
    "string": (str,),
    "boolean": (bool,),
    "timestamp": (int, float),
    "integer": (int, float),
    "long": (int, float),
    "float": (int, float),
    "double": (int, float),
}
"""Type of a service model -> types of its JSON values."""


def translated(error: Exception, call: str, region: str, *, place: str = "") -> CloudError:
    """Return our error for one of boto3's; its `outcome` is UNKNOWN if it may have had effect.

    `call`: the operation, such as `create_training_job`. `place`: its bucket or object, if any.
    """
    if " " in call:
        name = call
    else:
        name = "".join(part.capitalize() for part in call.split("_"))

    for cause in (error, error.__cause__, error.__context__):
        if isinstance(cause, ClientError):  # boto3's transfers wrap the error of S3
            return _from_response(cause, name, region, place)

    where = f"{name} in {region}"
    for types, kind in _BY_TYPE:
        if isinstance(error, types):
            return kind.error(where, error)
    if isinstance(error, (sdk.FlexibleChecksumError, ResponseParserError)):
        return unreadable(where, str(error).partition(", invalid")[0])

    return CloudError(f"{where}: {error}", code=type(error).__name__)


def _from_response(error: ClientError, name: str, region: str, place: str) -> CloudError:
    response = error.response
    code = str(response.get("Error", {}).get("Code", ""))
    answer = str(response.get("Error", {}).get("Message", "")) or code
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)

    where = f"{name} in {region}"
    if place:
        where += f", {place}"
    meaning = BY_CODE.get(code)
    if meaning is not None:
        return meaning.error(where, answer, code)
    if code == _UNREADABLE:
        return unreadable(where, answer)
    if status >= 500 or code in _FAILED:
        kind = ErrorKind(
            f"AWS failed ({code or status})",
            WAIT,
            transient=True,
            outcome=Outcome.UNKNOWN,
        )
        return kind.error(where, answer, code)

    is_missing = code == "ResourceNotFound" or (
        code == "ValidationException" and re.search("not found|could not find", answer.lower())
    )
    description = f"{where}: {code}: {answer}"
    if code in DENIED_CODES:
        hint: str | None = hint_for_denial(answer, _action(answer, name))
    elif code == "ResourceLimitExceeded":
        hint = SAGEMAKER_QUOTA.remedy_for(answer)
    else:
        hint = hint_for(code, answer, region)

    if is_missing:
        code = NOT_FOUND

    return CloudError(description, hint=hint, code=code)


def _action(answer: str, name: str) -> str:
    """Return the missing IAM action: from the message, else from AWS's documentation."""
    denied = re.search(r"perform: ([\w-]+:\w+)(?: on resource: (\S+))?", answer)
    if denied is None:
        if name in _S3_ACTIONS:
            return _S3_ACTIONS[name]
        if "TrainingJob" in name:
            return f"sagemaker:{name}"
        return f"the action {name}"

    if denied[1] == "iam:PassRole":
        return f"{denied[1]} on the job's role (aws.role)"

    return denied[1]


def refuse_foreign_answers(events: Any) -> None:
    """Look at each answer of clients with these events."""
    events.register_first("before-parse", _replace_unreadable)
    events.register_first("needs-retry", _take_over_status)


def _replace_unreadable(
    operation_model: Any,
    response_dict: dict[str, Any],
    customized_response_dict: dict[str, Any],
    **_: Any,
) -> None:
    problem = _problem(operation_model, response_dict)
    if not problem and _format(operation_model) == "JSON":
        document = json.loads(response_dict["body"] or b"{}")
        if response_dict["status_code"] < 300:
            fitting = _fitting(document, operation_model.output_shape) or {}
        elif isinstance(document, dict):
            fitting = {name: text for name, text in document.items() if isinstance(text, str)}
        else:
            fitting = {}
        if fitting != document:
            response_dict["body"] = json.dumps(fitting).encode()

    if problem:
        if not isinstance(response_dict["body"], bytes):
            response_dict["body"].close()  # of an object that nobody will read
        response_dict["status_code"] = _BAD_GATEWAY
        response_dict["body"] = b""
        customized_response_dict["Error"] = {"Code": _UNREADABLE, "Message": problem}


def _take_over_status(response: Any, **_: Any) -> None:
    """Copy the status to the HTTP response, as botocore does for S3 only."""
    if response is None:
        return
    http_response, parsed = response
    if (parsed.get("Error") or {}).get("Code") == _UNREADABLE:
        http_response.status_code = _BAD_GATEWAY


def _problem(operation: Any, response: dict[str, Any]) -> str:
    """Return the problem of an answer; empty if it is the service's."""
    status = f"status {response['status_code']}"
    if not any(name in response["headers"] for name in _REQUEST_IDS):
        return f"{status} without the request id that AWS always sends"

    body = response["body"]
    if not isinstance(body, bytes):
        return ""
    if not body:
        is_cut_off = response["status_code"] == 200 and _has_content(operation)
        if not is_cut_off:
            return ""

        return f"{status} with an empty body"

    body_format = _format(operation)
    try:
        if body_format == "JSON":
            json.loads(body)
        elif body_format == "XML":
            ElementTree.fromstring(body)
    except (ValueError, ElementTree.ParseError):
        return f"{status} with {len(body)} bytes that are not {body_format}"

    return ""


def _has_content(operation: Any) -> bool:
    """Return whether an operation answers with a body: some members are not in headers."""
    shape = operation.output_shape
    if shape is None:
        return False

    return any("location" not in member.serialization for member in shape.members.values())


def _format(operation: Any) -> str:
    """Return the format of a service's answers: JSON, XML, or "" for CBOR, which botocore reads.

    A service may offer several protocols; botocore speaks the `resolved_protocol`.
    """
    protocol = operation.service_model.resolved_protocol
    if "cbor" in protocol:
        return ""

    return "JSON" if "json" in protocol else "XML"


def _fitting(value: Any, shape: Any) -> Any:
    """Return a JSON value without members of other types than the model's, or None for all.

    botocore fails at some of them with a Python error, and returns others.
    """
    kind = shape.type_name if shape is not None else ""
    types = _JSON_TYPES.get(kind)
    if types is None:
        return value
    if type(value) not in types:
        return None
    if kind == "list":
        items = [_fitting(item, shape.member) for item in value]
        return [item for item in items if item is not None]
    if kind == "structure":
        members = {name: _fitting(item, shape.members.get(name)) for name, item in value.items()}
        return {name: item for name, item in members.items() if item is not None}
    if kind == "map":
        entries = {name: _fitting(item, shape.value) for name, item in value.items()}
        return {name: item for name, item in entries.items() if item is not None}

    return value
