"""AWS's errors in our words: what failed, in which call, why, and what to do next."""

from __future__ import annotations

import re

from botocore import exceptions as sdk
from botocore.exceptions import ClientError

from cloudtrain.errors import CloudError, Outcome
from cloudtrain.runs.failure_hints import SAGEMAKER_TRUST, sagemaker_quota

_TRY_AGAIN = "then try again"
_WAIT = f"wait a little, {_TRY_AGAIN}"

NOT_FOUND = "NotFound"
"""The code of our error where SageMaker knows no job of that name: its own says that a value is invalid."""

_EXPIRED = {
    "ExpiredToken",
    "ExpiredTokenException",
    "RequestExpired",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
}
_UNKNOWN = {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "InvalidSignatureException",
    "IncompleteSignature",
    "AuthFailure",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
}
_DENIED = {"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "403"}
_THROTTLED = {
    "Throttling",
    "ThrottlingException",
    "ThrottledException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "SlowDown",
    "ProvisionedThroughputExceededException",
}
_WRONG_REGION = {"PermanentRedirect", "301", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}

_NO_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.ProfileNotFound,
    sdk.CredentialRetrievalError,
    sdk.NoAuthTokenError,
)
_STALE_LOGIN = (sdk.SSOTokenLoadError, sdk.UnauthorizedSSOTokenError, sdk.TokenRetrievalError)
_NO_RESPONSE = (
    sdk.ReadTimeoutError,
    sdk.ConnectionClosedError,
    sdk.ResponseStreamingError,
    sdk.IncompleteReadError,
    sdk.HTTPClientError,
)
"""No answer came, though the request may have arrived."""
_UNREACHABLE = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError, sdk.ProxyConnectionError, sdk.SSLError)


def translated(error: Exception, call: str, region: str, *, place: str = "") -> CloudError:
    """Our error for one of boto3's."""
    name = _camel(call)
    if isinstance(error, ClientError):
        return _from_response(error, name, region, place)
    cause = error.__cause__ or error.__context__
    if isinstance(cause, ClientError):  # boto3's transfers wrap what S3 said
        return _from_response(cause, name, region, place)
    where = f"{name} in {region}"
    if isinstance(error, _STALE_LOGIN):
        return CloudError(
            f"{where}: the login has expired: {error}", hint=f"aws sso login, {_TRY_AGAIN}", code="Expired"
        )
    if isinstance(error, _NO_CREDENTIALS):
        hint = f"aws configure (or aws sso login, or set AWS_PROFILE), {_TRY_AGAIN}"
        return CloudError(f"{where}: no AWS credentials: {error}", hint=hint, code="NoCredentials")
    if isinstance(error, (sdk.ConfigParseError, sdk.ConfigNotFound)):
        return CloudError(f"{where}: {error}", hint="look at ~/.aws/config and AWS_CONFIG_FILE", code="Config")
    if isinstance(error, _UNREACHABLE):
        hint = f"look at the network, and whether the region {region!r} is meant; {_TRY_AGAIN}"
        return CloudError(f"{where}: AWS cannot be reached: {error}", hint=hint, code="Unreachable", transient=True)
    if isinstance(error, _NO_RESPONSE):
        message = f"{where}: no answer came: {error}"
        return CloudError(message, hint=_WAIT, code="Lost", transient=True, outcome=Outcome.UNKNOWN)
    if isinstance(error, sdk.ParamValidationError):
        return CloudError(f"{where}: {error}", code="ParamValidation")
    return CloudError(f"{where}: {error}", code=type(error).__name__)


def _from_response(error: ClientError, name: str, region: str, place: str) -> CloudError:
    code = str(error.response.get("Error", {}).get("Code", ""))
    said = str(error.response.get("Error", {}).get("Message", "")) or code
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
    where = f"{name} in {region}" + (f", {place}" if place else "")
    if code in _EXPIRED:
        clock = "set this machine's clock" if code == "RequestTimeTooSkewed" else "aws sso login, or new keys"
        return CloudError(f"{where}: the credentials have expired: {said}", hint=f"{clock}, {_TRY_AGAIN}", code=code)
    if code in _UNKNOWN:
        hint = f"look at AWS_PROFILE and the keys (aws sts get-caller-identity), {_TRY_AGAIN}"
        return CloudError(f"{where}: AWS does not accept these credentials: {said}", hint=hint, code=code)
    if code in _THROTTLED:
        return CloudError(f"{where}: too many requests: {said}", hint=_WAIT, code=code, transient=True)
    if status >= 500:
        message = f"{where}: AWS failed ({code or status}): {said}"
        return CloudError(message, hint=_WAIT, code=code, transient=True, outcome=Outcome.UNKNOWN)
    is_missing = code == "ResourceNotFound" or (code == "ValidationException" and "not found" in said.lower())
    about = f"{where}: {code}: {said}"
    return CloudError(about, hint=_hint(code, said, name, region), code=NOT_FOUND if is_missing else code)


def _hint(code: str, said: str, name: str, region: str) -> str | None:
    if code in _DENIED:
        return f"these credentials lack a permission: {_action(said, name)}"
    if code == "NoSuchBucket":
        return "look at aws.bucket; cloudtrain makes no bucket by itself"
    if code in _WRONG_REGION:
        return f"the bucket must be in the job's own region, {region}: look at aws.bucket and aws.region"
    if code == "ResourceLimitExceeded":
        return sagemaker_quota(said)
    if "assume" in said.lower() and "role" in said.lower():
        return SAGEMAKER_TRUST
    return None


_S3_ACTIONS = {
    "HeadObject": "s3:GetObject and s3:ListBucket",
    "GetObject": "s3:GetObject",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject, and kms:GenerateDataKey on aws.kms_key if there is one",
}
"""By the Service Authorization Reference. S3 does not always say which right is missing."""


def _action(said: str, name: str) -> str:
    """The IAM action that is missing: as AWS says it, or else as its documentation has it."""
    denied = re.search(r"perform: ([\w-]+:\w+)(?: on resource: (\S+))?", said)
    if denied is None:
        return _S3_ACTIONS.get(name, f"sagemaker:{name}" if "TrainingJob" in name else f"the action {name}")
    where = " on the job's role (aws.role)" if denied[1] == "iam:PassRole" else ""
    return denied[1] + where


def _camel(call: str) -> str:
    """`describe_training_job` as AWS spells it; other words as they are."""
    return call if " " in call else "".join(part.capitalize() for part in call.split("_"))
