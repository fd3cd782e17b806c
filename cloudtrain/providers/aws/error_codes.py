"""Meanings and remedies of the errors of AWS: by code, and of a denial by who lacks what.

Sources: "Common errors" of SageMaker's API, "Error responses" of S3, and "Troubleshoot access denied
error messages" of IAM, which says which policy denies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cloudtrain.diagnosis.rule import SAGEMAKER_TRUST
from cloudtrain.errors import ErrorKind

_TRY_AGAIN = "then try again"
WAIT = f"wait a little, {_TRY_AGAIN}"

_EXPIRED = ErrorKind(
    "the credentials have expired",
    f"aws sso login, new keys, or set this machine's clock, {_TRY_AGAIN}",
)
_NOT_ACCEPTED = ErrorKind(
    "AWS does not accept these credentials",
    f"check AWS_PROFILE and the keys (aws sts get-caller-identity), {_TRY_AGAIN}",
)
_THROTTLED = ErrorKind("too many requests", WAIT, transient=True)
_NOT_SUBSCRIBED = ErrorKind(
    "the account may not use this service or region yet",
    "enable the region or the service for the account, in the console: Account",
)

BY_CODE: Mapping[str, ErrorKind] = {
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "RequestTimeTooSkewed": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "AuthFailure": _NOT_ACCEPTED,
    "IncompleteSignature": _NOT_ACCEPTED,
    "InvalidAccessKeyId": _NOT_ACCEPTED,
    "InvalidClientTokenId": _NOT_ACCEPTED,
    "InvalidSignatureException": _NOT_ACCEPTED,
    "MissingAuthenticationToken": _NOT_ACCEPTED,
    "MissingAuthenticationTokenException": _NOT_ACCEPTED,
    "SignatureDoesNotMatch": _NOT_ACCEPTED,
    "UnrecognizedClientException": _NOT_ACCEPTED,
    "OptInRequired": _NOT_SUBSCRIBED,
    "SubscriptionRequiredException": _NOT_SUBSCRIBED,
    "ProvisionedThroughputExceededException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "SlowDown": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "TooManyRequestsException": _THROTTLED,
}

_OTHER_REGION = (
    "the bucket must be in the job's own region, {region}: check aws.bucket and aws.region"
)
_HINTS: Mapping[str, str] = {
    "NoSuchBucket": "check aws.bucket; cloudtrain does not create buckets",
    "PermanentRedirect": _OTHER_REGION,
    "301": _OTHER_REGION,
    "AuthorizationHeaderMalformed": _OTHER_REGION,
    "IllegalLocationConstraintException": _OTHER_REGION,
    "ClientException": "cloudtrain check --online looks at aws.queue, and what the job needs there",
    "KMS.DisabledException": "the key is disabled: enable it, or take another aws.kms_key",
    "KMS.NotFoundException": "check aws.kms_key: the key is not there, or not in this region",
}
"""Code -> what to do."""

_JOB_ROLE = "the job's role (aws.role)"
_HINTS_BY_WORDS: tuple[tuple[str, str], ...] = (
    (
        r"registry ID",
        "check the image's name and tag (cloudtrain image build pushes one), and that"
        f" {_JOB_ROLE} has the named ecr: permissions",
    ),
    (
        r"training ?image",
        "set image: to an address in Amazon ECR in this region, or leave it out",
    ),
    (r"assume.*role|role.*assume", SAGEMAKER_TRUST),
    (
        r"\brole\b.*(does not have|doesn't have|lacks?|not authorized|access denied)",
        f"{_JOB_ROLE} lacks the permission that the message names",
    ),
)
"""Expression, without case, and what to do about a message that it matches."""

_DENIED_JOB = r"User: arn:\S+:assumed-role/\S+/SageMaker\S* is not authorized|^[^:]*\bthe role\b"
"""Message about the job's role: SageMaker's sessions of it have this name."""

_DENIALS: tuple[tuple[str, str], ...] = (
    (
        r"service control policy",
        "a policy of your organization (SCP) denies {action}: its administrator can change that, and"
        " no other permission helps",
    ),
    (r"resource control policy", "a policy of the resource's organization (RCP) denies {action}"),
    (r"permissions boundary", "the permissions boundary of {who} does not allow {action}"),
    (r"session policy", "the session of {who} does not allow {action}: its maker limits it"),
    (r"VPC endpoint policy", "the policy of the VPC endpoint does not allow {action}"),
    (
        r"resource-based policy",
        "the policy of the resource itself (bucket, key, repository) does not allow {who} {action}",
    ),
    (r"explicit deny in an identity-based policy", "a policy of {who} denies {action}"),
    (_DENIED_JOB, f"{_JOB_ROLE} lacks a permission: {{action}}"),
    (r"", "these credentials lack a permission: {action}"),
)
"""Expression, and what to do about a denied call whose message it matches; the first counts."""


def hint_for(code: str, message: str, region: str) -> str | None:
    """Return what to do about an error; None for an unknown one."""
    if code in _HINTS:
        return _HINTS[code].format(region=region)
    for words, hint in _HINTS_BY_WORDS:
        if re.search(words, message, re.IGNORECASE):
            return hint

    return None


def hint_for_denial(message: str, action: str) -> str:
    """Return who lacks a right and which policy denies it. `action`: in IAM's spelling."""
    who = "these credentials"
    if re.search(_DENIED_JOB, message):
        who = _JOB_ROLE

    hint = next(hint for words, hint in _DENIALS if re.search(words, message))
    return hint.format(who=who, action=action)
